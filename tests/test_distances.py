"""Frechet's distance and canonical correlations: against scipy and scikit-learn, exact gradients at ties and low rank."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import spectralgrad as sg
from spectralgrad.distances import frechet
from spectralgrad.errors import DefinitenessError, DtypeError, NonFiniteError, OptionError, ShapeError, SymmetryError
from support import cases
from support.marks import slow_but

SIDES = {"samples": (2, 3, 4), "features": (5, 4, 2), "one sample": (1, 4, 3), "as many": (3, 3, 3)}
CORRELATED = [(6, 2, 3, None), (6, 3, 3, 2), (3, 5, 4, None), (3, 5, 4, 1), (3, 4, 4, 3)]  # N, p, q, k
QUICK_CORRELATED = [(6, 2, 3, None), (3, 5, 4, 1)]  # more samples than features, and fewer


def of_covariances(x: Tensor, y: Tensor) -> Tensor:
    """`frechet_distance` of the means and covariances of two sets."""
    return sg.frechet_distance(*statistics(x), *statistics(y))


def statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.mean(-2), sg.covariance(x.mT, correction=min(1, x.shape[-2] - 1))


FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "frechet_distance_of": sg.frechet_distance_of,
    "frechet_distance": of_covariances,
    "cca_loss": sg.cca_loss,
    "cca_loss(k)": lambda x, y: sg.cca_loss(x, y, k=2),
}
each_function = pytest.mark.parametrize("f", FUNCTIONS.values(), ids=FUNCTIONS)


def by_scipy(mean1: Tensor, cov1: Tensor, mean2: Tensor, cov2: Tensor) -> float:
    linalg = pytest.importorskip("scipy.linalg")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        root = linalg.sqrtm((cov1 @ cov2).numpy())
    return float((mean1 - mean2).square().sum() + (cov1 + cov2).trace()) - 2 * float(root.trace().real)


def gradients(f: Callable[..., Tensor], *given: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    given = tuple(x.detach().clone().requires_grad_() for x in given)
    value = f(*given)
    return value.detach(), torch.autograd.grad(value.sum(), given)


def decaying(n: int, d: int, seed: int, orders: float = 4) -> Tensor:
    """Samples whose standard deviations fall by 10^orders: covariances of condition 10^(2 orders), or rank n - 1."""
    spread = torch.logspace(0, -orders, d, dtype=torch.float64)
    return (cases.random(n, d, seed=seed) * spread) @ cases.rotation(d, seed=seed // 2) + 0.1 * seed


# Frechet's distance


@pytest.mark.parametrize(("n1", "n2", "d"), [(30, 40, 6), (200, 300, 20), (8, 9, 8), (2, 9, 3)])
def test_against_scipy(n1: int, n2: int, d: int) -> None:
    x, y = cases.random(n1, d, seed=1), 2 * cases.random(n2, d, seed=2) + 1
    want = by_scipy(x.mean(0), x.T.cov(), y.mean(0), y.T.cov())
    rel = 1e-10 if n1 > d else 1e-6  # where a covariance is singular, scipy's root is no better
    assert float(sg.frechet_distance_of(x, y)) == pytest.approx(want, rel=rel)
    assert float(of_covariances(x, y)) == pytest.approx(want, rel=rel)


@pytest.mark.parametrize("side", slow_but(["samples", "features"], SIDES))
def test_two_derivatives_by_samples(side: tuple[int, int, int]) -> None:
    n1, n2, d = side
    given = cases.random(n1, d, seed=1).requires_grad_(), cases.random(n2, d, seed=2).requires_grad_()
    assert gradcheck(sg.frechet_distance_of, given, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(sg.frechet_distance_of, given, check_fwd_over_rev=True)


def test_sides_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = cases.random(2, 5, 4, seed=1), cases.random(7, 4, seed=2)
    found = []
    for by_samples in (True, False):
        monkeypatch.setattr(frechet, "_samples_are_cheaper", lambda *_, way=by_samples: way)
        found.append(gradients(sg.frechet_distance_of, x, y))
    (a, da), (b, db) = found
    torch.testing.assert_close(a, b)
    for g, h in zip(da, db, strict=True):
        torch.testing.assert_close(g, h)


def test_the_smaller_side_is_taken() -> None:
    assert frechet._samples_are_cheaper(500, 500, 2048)
    assert frechet._samples_are_cheaper(30, 3000, 256)
    assert not frechet._samples_are_cheaper(5000, 5000, 2048)


def spd(w: list[float], dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return cases.with_spectrum(torch.tensor(w, dtype=torch.float64), dtype=dtype, seed=seed)


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=cases.ident)
@pytest.mark.parametrize("w", [[3.0, 2.0, 0.7], [2.0, 2.0, 2.0]], ids=str)
def test_two_derivatives_by_covariances(w: list[float], dtype: torch.dtype) -> None:
    def f(m: Tensor, C: Tensor, n: Tensor, D: Tensor) -> Tensor:
        return sg.frechet_distance(m, (C + C.mH) / 2, n, (D + D.mH) / 2)

    means = cases.random(2, 3, dtype=dtype, seed=3).unbind()
    given = [x.detach().requires_grad_() for x in (means[0], spd(w, dtype), means[1], spd([1.0, 1.0, 1.0], dtype))]
    assert gradcheck(f, given, check_forward_ad=True, check_batched_grad=dtype == torch.float64)
    if dtype == torch.float64:
        assert gradgradcheck(f, given)
    else:  # twice the numbers, four times the pairs: means and covariances apart
        m, C, n, D = (x.detach() for x in given)
        assert gradgradcheck(lambda m, n: f(m, C, n, D), given[::2])
        assert gradgradcheck(lambda C, D: f(m, C, n, D), given[1::2])


def test_negative_control() -> None:
    """The plain way, through two eigh, has no gradient where eigenvalues tie."""

    def plain(C: Tensor, D: Tensor) -> Tensor:
        w, V = torch.linalg.eigh(C)
        F = (V * w.clamp(min=0).sqrt()) @ V.mT
        return (C + D).trace() - 2 * torch.linalg.eigvalsh(F @ D @ F).clamp(min=0).sqrt().sum()

    C, D = 2 * torch.eye(3, dtype=torch.float64), spd([3.0, 2.0, 1.0])
    assert not gradients(plain, C, D)[1][0].isfinite().all()
    zero = torch.zeros(3, dtype=torch.float64)
    want = torch.eye(3, dtype=torch.float64) - sg.sqrtm(D) / 2**0.5  # I - (C^-1 # D), C = 2 I
    torch.testing.assert_close(gradients(lambda C, D: sg.frechet_distance(zero, C, zero, D), C, D)[1][0], want)


@pytest.mark.parametrize("n", [300, 40, 10])  # of 64 features: full rank, condition 1e8; rank 39; rank 9
def test_single_precision(n: int) -> None:
    """float32 is within 1e-6 of float64, in value and gradient; a way in float32 is off by per cents."""
    for seed in (2, 3):  # the same axes, and others
        x, y = decaying(n, 64, seed=1 + seed % 2).float(), decaying(n, 64, seed=seed).float()
        value, grads = gradients(sg.frechet_distance_of, x, y)
        want, expected = gradients(sg.frechet_distance_of, x.double(), y.double())
        assert abs(float(value) / float(want) - 1) < 1e-6
        for g, e in zip(grads, expected, strict=True):
            assert g.dtype == torch.float32
            assert cases.relative_error(g.double(), e) < 1e-6

    def in_single(x: Tensor, y: Tensor) -> Tensor:
        (m, C), (n, D) = statistics(x), statistics(y)
        F = sg.sqrtm(C)
        return (m - n).square().sum() + (C + D).trace() - 2 * sg.sqrtm(F @ D @ F).trace()

    if n > 64:
        assert cases.relative_error(gradients(in_single, x, y)[1][0].double(), expected[0]) > 1e-3


def test_single_precision_of_covariances() -> None:
    given = [
        x.float() for z in (decaying(300, 32, seed=2, orders=3), decaying(300, 32, seed=3, orders=3)) for x in statistics(z)
    ]
    value, grads = gradients(sg.frechet_distance, *given)
    want, expected = gradients(sg.frechet_distance, *(x.double() for x in given))
    assert abs(float(value) / float(want) - 1) < 1e-6
    assert all(cases.relative_error(g.double(), e) < 1e-6 for g, e in zip(grads, expected, strict=True))


def test_rounding_below_zero_shows_how_far_rounding_goes() -> None:
    """A covariance of rank 9 whose float32 rounding has eigenvalues below zero: the value of the exact one."""
    x, y = decaying(10, 32, seed=2, orders=0), decaying(100, 32, seed=3, orders=0)  # rank 9, and 32
    rounded = [s.float() for z in (x, y) for s in statistics(z)]
    assert float(torch.linalg.eigvalsh(rounded[1].double())[0]) < 0
    assert float(sg.frechet_distance(*rounded)) == pytest.approx(float(sg.frechet_distance_of(x, y)), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=cases.ident)
def test_self_distance(dtype: torch.dtype) -> None:
    for n, d in ((5, 3), (3, 8), (1, 4), (50, 8)):
        for seed in range(5):
            x = cases.random(n, d, seed=seed).to(dtype)
            for z in (x, x[:1].expand_as(x), torch.zeros_like(x), torch.full_like(x, 0.1)):
                for f in (sg.frechet_distance_of, of_covariances):
                    value, grads = gradients(f, z, z)
                    assert 0 <= float(value) < 300 * cases.eps(dtype)
                    assert all(g.abs().max() < 1e-6 for g in grads)
    below = torch.tensor(-1e-17, dtype=torch.float64, requires_grad=True)  # counts as zero, and keeps its gradient
    value = frechet._distance(torch.zeros(2, dtype=torch.float64), [below, 0 * below], 0 * below, None, None)
    assert float(value.detach()) == 0
    assert float(torch.autograd.grad(value, below)[0]) == 1


def test_a_single_sample_is_a_point() -> None:
    x, y = cases.random(1, 3, seed=1), cases.random(6, 3, seed=2)
    want = (x[0] - y.mean(0)).square().sum() + y.T.cov().trace()
    torch.testing.assert_close(sg.frechet_distance_of(x, y), want)
    torch.testing.assert_close(sg.frechet_distance_of(x, x + 1), torch.tensor(3.0, dtype=torch.float64))


# Canonical correlations


def test_against_scikit_learn() -> None:
    decomposition = pytest.importorskip("sklearn.cross_decomposition")
    z = cases.random(200, 3, seed=1)
    x = torch.cat([z, cases.random(200, 2, seed=2)], 1) @ cases.random(5, 5, seed=3)
    y = torch.cat([z + 0.5 * cases.random(200, 3, seed=4), cases.random(200, 1, seed=5)], 1) @ cases.random(4, 4, seed=6)
    cca = decomposition.CCA(n_components=4, max_iter=10000, tol=1e-14).fit(x.numpy(), y.numpy())
    u, v = (torch.as_tensor(scores) for scores in cca.transform(x.numpy(), y.numpy()))
    correlations = torch.stack([torch.stack([a, b]).corrcoef()[0, 1] for a, b in zip(u.T, v.T, strict=True)])
    for k in (1, 2, 3, 4, None):
        assert float(sg.cca_loss(x, y, k=k, eps=0.0)) == pytest.approx(-float(correlations[:k].sum()), abs=1e-6)
    assert float(sg.cca_loss(x, y)) == pytest.approx(-float(correlations.sum()), abs=0.05)  # by the shift alone
    assert float(sg.cca_loss(x, y)) > float(sg.cca_loss(x, y, eps=0.0))


@pytest.mark.parametrize("eps", [1e-2, pytest.param(1e-4, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("n", "p", "q", "k"),
    [sizes if sizes in QUICK_CORRELATED else pytest.param(*sizes, marks=pytest.mark.slow) for sizes in CORRELATED],
)
def test_two_derivatives_of_correlations(n: int, p: int, q: int, k: int | None, eps: float) -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        return sg.cca_loss(x, y, k=k, eps=eps)

    given = cases.random(n, p, seed=1).requires_grad_(), cases.random(n, q, seed=2).requires_grad_()
    assert gradcheck(f, given, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(f, given, check_fwd_over_rev=True)


def tied() -> tuple[Tensor, Tensor]:
    """Four samples of three features in each view, all correlations and all variances equal."""
    corners = torch.tensor([[1.0, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]], dtype=torch.float64)
    corners = 3**0.5 * corners  # over (N - 1)^(1/2) they are whole again, and the tie is exact
    return corners, corners @ cases.rotation(3, seed=4)


def plain_loss(x: Tensor, y: Tensor, k: int | None = None, eps: float = 1e-4) -> Tensor:
    """As it is written everywhere: torch.linalg alone."""

    def whitened(x: Tensor) -> Tensor:
        x = (x - x.mean(0)) / (len(x) - 1) ** 0.5
        C = x.T @ x
        w, V = torch.linalg.eigh(C + eps * C.trace() / len(C) * torch.eye(len(C), dtype=x.dtype))
        return x @ (V / w.sqrt()) @ V.T

    return -torch.linalg.svdvals(whitened(x).T @ whitened(y))[:k].sum()


def test_ties() -> None:
    """All correlations tie: their sum has a derivative, which the plain way misses; the sum of two of them is bounded."""
    x, y = tied()
    given = x.requires_grad_(), y.requires_grad_()
    assert gradcheck(lambda x, y: sg.cca_loss(x, y, eps=0.1), given)
    assert gradgradcheck(lambda x, y: sg.cca_loss(x, y, eps=0.1), given)
    (g,) = torch.autograd.grad(sg.cca_loss(*given, k=2), given[0])
    assert 0 <= float(g.norm()) < 10
    assert not gradients(plain_loss, x, y)[1][0].isfinite().all()


def test_the_plain_way_agrees_where_it_can() -> None:
    x, y = cases.random(20, 4, seed=1), cases.random(20, 3, seed=2)
    for k in (None, 1, 2):
        value, grads = gradients(lambda x, y, k=k: sg.cca_loss(x, y, k), x, y)
        want, expected = gradients(lambda x, y, k=k: plain_loss(x, y, k), x, y)
        torch.testing.assert_close(value, want)
        for g, e in zip(grads, expected, strict=True):
            torch.testing.assert_close(g, e)


def test_neither_units_nor_an_offset_matter() -> None:
    x, y = cases.random(6, 3, seed=1), cases.random(6, 8, seed=2)
    want = sg.cca_loss(x, y)
    for scale in (1e-300, 1e-8, 1e8, 1e300):
        torch.testing.assert_close(sg.cca_loss(scale * x, y), want)
        torch.testing.assert_close(sg.cca_loss(x, scale * y), want)
    torch.testing.assert_close(sg.cca_loss(x + 1e4, y - 1e4), want)
    assert not torch.allclose(sg.cca_loss(x, y, eps=1e-2), want)


@pytest.mark.parametrize("k", [None, 2])
@pytest.mark.parametrize("size", [1e240, 1e300, 1.7e308])
def test_a_huge_cotangent_of_the_cca_loss_keeps_the_direction(k: int | None, size: float) -> None:
    """Cut in the entries of a gradient on its way, it would turn; the slopes of whitening and sums over samples made Inf."""
    x, y = (cases.random(12, n, seed=n).requires_grad_() for n in (4, 3))
    for scale in (1.0, 1e8):
        (want,), (found,) = (
            torch.autograd.grad(sg.cca_loss(scale * x, y, k), x, torch.tensor(c, dtype=torch.float64)) for c in (1.0, size)
        )
        assert found.isfinite().all()
        torch.testing.assert_close(found / found.abs().max(), want / want.abs().max(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("value", [0.0, 0.1, 1e300])
def test_a_view_that_does_not_vary(value: float) -> None:
    x, y = torch.full((7, 3), value, dtype=torch.float64), cases.random(7, 4)
    for eps in (0.0, 1e-4):
        loss, (gx, gy) = gradients(lambda x, y, eps=eps: sg.cca_loss(x, y, eps=eps), x, y)
        assert float(loss) == 0
        assert gx.abs().max() == gy.abs().max() == 0


def trains(seed: int, loss: Callable[..., Tensor], steps: int = 15) -> tuple[list[float], bool]:
    """Two networks of 16 outputs learn what two views share, from batches of 8; the losses, and whether all is finite."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        mixes = torch.randn(2, 4, 20)
        nets = [torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.Tanh(), torch.nn.Linear(32, 16)) for _ in range(2)]
        optimizer = torch.optim.Adam([p for net in nets for p in net.parameters()], lr=1e-2)
        losses = []
        for _ in range(steps):
            shared = torch.randn(8, 4)
            x, y = (net(shared @ mix + 0.5 * torch.randn(8, 20)) for net, mix in zip(nets, mixes, strict=True))
            value = loss(x, y)
            optimizer.zero_grad()
            value.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(float(value.detach()))
        finite = all(bool(p.isfinite().all()) for net in nets for p in net.parameters())
    return losses, finite


@pytest.mark.parametrize("seeds", [range(4), pytest.param(range(4, 100), marks=pytest.mark.slow)], ids=["4", "96"])
def test_trains_with_batches_smaller_than_the_dimension(seeds: range) -> None:
    for seed in seeds:
        for k in (3, None):
            losses, finite = trains(seed, lambda x, y, k=k: sg.cca_loss(x, y, k))
            assert finite
            assert all(-(k or 7) <= each <= 0 for each in losses)


def test_learns_what_views_share() -> None:
    losses, _ = trains(0, lambda x, y: sg.cca_loss(x, y, 3, eps=1.0), steps=150)
    assert sum(losses[-10:]) < sum(losses[:10]) - 1


# Both


@pytest.mark.parametrize("scale", [1e200, 4e307])
def test_a_large_cotangent_of_large_covariances(scale: float) -> None:
    """Its slopes are cut before they are multiplied with each other: what comes is shorter, and of the right direction."""
    C, one = scale * torch.diag(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)), torch.eye(3, dtype=torch.float64)
    functions = (
        lambda C: sg.frechet_distance(C[0], C, one[0], one),
        lambda C: sg.frechet_distance_of(C, C.flip(-1)),
        lambda C: sg.spd.distance(C, scale / 2 * one, metric="bures", squared=True),
        lambda C: sg.spd.distance(C, scale / 2 * one, metric="bures"),
    )
    for function in functions:
        X = C.clone().requires_grad_()
        large, usual = (torch.autograd.grad(function(X), X, torch.tensor(g, dtype=C.dtype))[0] for g in (1e250, 1.0))
        assert large.isfinite().all()
        large, usual = (x / x.abs().max() for x in (large, usual))
        torch.testing.assert_close(large, usual, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=cases.ident)
@pytest.mark.parametrize("f", [FUNCTIONS["frechet_distance_of"], FUNCTIONS["cca_loss"], FUNCTIONS["cca_loss(k)"]])
def test_every_scale(f: Callable[..., Tensor], dtype: torch.dtype) -> None:
    scales = [1e-40, 1e-30, 1e-8, 1e8, 1e18, 3e37] if dtype == torch.float32 else [1e-310, 1e-150, 1e-8, 1e8, 1e150, 1e300]
    for scale in scales:
        for n in (1, 2, 3, 7):
            x, y = ((scale * cases.random(n, 3, seed=seed)).to(dtype).requires_grad_() for seed in (1, 2))
            value = f(x, y)
            first = torch.autograd.grad(value, (x, y), create_graph=True)
            assert all(t.isfinite().all() for t in (value, *first))
            if 1e-200 < scale < 1e200:
                total = first[0].sum() + first[1].sum()
                second = torch.autograd.grad(total, (x, y), allow_unused=True, materialize_grads=True)
                assert all(t.isfinite().all() for t in second)


@pytest.mark.parametrize("size", [1e-100, 1e-170, 1e-300])
def test_sets_of_very_different_sizes_keep_their_slopes(size: float) -> None:
    """The slope of the overlap does not depend on the size of x, nor that of a covariance but for its root."""
    x, y = cases.random(30, 3), cases.random(40, 3, seed=1)
    x = x - x.mean(0)
    want, got = (gradients(lambda z: sg.frechet_distance_of(z, y), k * x)[1][0] for k in (1e-20, size))
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    C, zero = cases.with_spectrum(torch.tensor([1.0, 2, 3]), 1)[0], torch.zeros(3, dtype=torch.float64)
    slopes = [gradients(lambda A: sg.frechet_distance(zero, A, zero, C), k * C)[1][0] * k**0.5 for k in (1e-40, size)]
    torch.testing.assert_close(*slopes, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("scale", [1e-8, 1e8])
def test_distances_scale_with_the_square(scale: float) -> None:
    x, y = cases.random(6, 3, seed=1), cases.random(5, 3, seed=2)
    value, grads = gradients(sg.frechet_distance_of, x, y)
    scaled, of_scaled = gradients(sg.frechet_distance_of, scale * x, scale * y)
    torch.testing.assert_close(scaled, scale**2 * value)
    torch.testing.assert_close(of_scaled[0], scale * grads[0])
    torch.testing.assert_close(of_covariances(scale * x, scale * y), scaled)


def test_covariances_near_the_ends_of_the_range() -> None:
    zero = torch.zeros(2, dtype=torch.float64)
    for scale in (1e-310, 1e-300, 1e300):
        C = scale * torch.eye(2, dtype=torch.float64)
        value, grads = gradients(lambda C: sg.frechet_distance(zero, C, zero, 4 * C.detach()), C)
        torch.testing.assert_close(value / scale, torch.tensor(2.0, dtype=torch.float64))
        torch.testing.assert_close(grads[0], -torch.eye(2, dtype=torch.float64))


# What is refused


def refused(error: type[Exception], words: str, function: Callable[..., Any], *given: Any, **options: Any) -> None:
    with pytest.raises(error, match=words) as caught:
        function(*given, **options)
    assert str(caught.value).startswith(f"`{function.__name__}`: ")


def test_bad_samples() -> None:
    x = cases.random(4, 3)
    for f in (sg.frechet_distance_of, sg.cca_loss):
        refused(ShapeError, "at least one sample each.*Leave out", f, x[:0], x)
        refused(ShapeError, r"samples in rows.*got shape \(3,\)\. For a single sample use x\.reshape\(1, -1\)", f, x[0], x)
        refused(
            ShapeError, r"must broadcast, got \(2, 4, 3\) and \(3, 4, 3\)\. Add", f, x.expand(2, 4, 3), x.expand(3, 4, 3)
        )
        refused(DtypeError, "torch.Tensor, got list", f, x.tolist(), x)
        refused(DtypeError, "floating point", f, x, x.long())
        refused(NonFiniteError, "`y` must be finite, got 12 NaN", f, x, x * torch.nan)
    refused(ShapeError, "same number of features.*columns", sg.frechet_distance_of, x, x[:, :2])
    refused(ShapeError, "same number of samples.*Row i", sg.cca_loss, x, x[:2])
    for k in (0, 4, 1.5, True):
        refused(OptionError, "k must be None or a whole number from 1 to 3", sg.cca_loss, x, x, k=k)
    for eps in (-1e-4, torch.inf, "small"):
        refused(OptionError, "eps must be a finite number >= 0", sg.cca_loss, x, x, eps=eps)
    refused(DefinitenessError, "covariance of y.*Raise eps", sg.cca_loss, cases.random(3, 2), x[:3], eps=0)


def test_bad_covariances() -> None:
    m, C = torch.zeros(3), torch.eye(3)
    f = sg.frechet_distance
    for given in ((m[:2], C, m, C), (m, C, m, C[:2]), (m, C[:2, :2], m, C), (m, C, m.expand(2, 3), C.expand(4, 3, 3))):
        refused(ShapeError, "must fit, got mean1", f, *given)
    refused(ShapeError, "`mean2` must have at least one dimension", f, m, C, m[0], C)
    refused(ShapeError, r"`cov1` must be covariances.*torch\.diag_embed\(cov1\)", f, m, m, m, C)
    refused(DtypeError, "`mean1` must be a torch.Tensor", f, None, C, m, C)
    refused(DtypeError, "`cov2` must be a torch.Tensor, got list", f, m, C, m, C.tolist())
    refused(SymmetryError, "`cov2` must be symmetric", f, m, C, m, C + torch.ones(3, 3).triu(1))
    refused(
        DefinitenessError,
        r"`cov1` must be positive semi-definite.*add eps \* identity to `cov1`",
        f,
        m,
        C - 2 * torch.diag(m + 1).triu(),
        m,
        C,
    )
    refused(NonFiniteError, "`mean2` must be finite", f, m, C, m + torch.inf, C)
    refused(NonFiniteError, "`cov1` must be finite", f, m, C * torch.nan, m, C)


@each_function
def test_unchecked_values(f: Callable[..., Tensor]) -> None:
    x, y = cases.random(2, 6, 3, seed=1), cases.random(2, 6, 3, seed=2)
    x[0, 0, 0] = torch.nan
    sg.reset_counts()
    with sg.checks(False):
        value = f(x, y)
    assert value.isnan().tolist() == [True, False]
    assert sg.counts()["nonfinite_input"] > 0
    sg.reset_counts()
