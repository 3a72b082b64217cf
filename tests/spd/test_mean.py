"""Means: the equations that define them, the gradient of the implicit function theorem, hard batches, convergence."""

from typing import Any

import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from spectralgrad.errors import ConvergenceError, DefinitenessError, DtypeError, OptionError, ShapeError
from spectralgrad.spd import newton
from support import cases
from support.spd import METRICS, definite, hermitian

each_metric = pytest.mark.parametrize("metric", METRICS)


def residual(X: Tensor, w: Tensor, M: Tensor, metric: str) -> Tensor:
    """What must be zero at the mean, by the public functions; relative."""
    R, P = sg.sqrtm(M).unsqueeze(-3), sg.inv_sqrtm(M).unsqueeze(-3)
    w = (w / w.sum(-1, keepdim=True))[..., None, None]
    if metric == "affine":
        return (w * sg.logm(hermitian(P @ X @ P))).sum(-3)
    if metric == "logeuclid":
        return (w * sg.logm(X)).sum(-3) - sg.logm(M)
    return (w * sg.sqrtm(hermitian(R @ X @ R))).sum(-3) / M.abs().amax((-2, -1), keepdim=True) - M / M.abs().amax(
        (-2, -1), keepdim=True
    )


@each_metric
def test_weights_whose_sum_overflows(metric: Any) -> None:
    X, w = cases.random_covariance(3, 2), torch.tensor([1e308, 1.5e308], dtype=torch.float64)
    torch.testing.assert_close(sg.spd.mean(X, w, metric), sg.spd.mean(X, w / 1e308, metric))


@each_metric
@pytest.mark.parametrize(
    ("dtype", "size"),
    [(torch.float64, 2.0**-1000), (torch.float64, 1e-308), (torch.float64, 2.0**1000), (torch.float32, 1e-40)],
)
def test_weights_of_any_scale(metric: Any, dtype: torch.dtype, size: float) -> None:
    """Their gradient is that of ordinary ones over their scale, or as large as numbers are, in the same direction."""
    X, w = cases.random_covariance(3, 3).to(dtype), torch.tensor([1.0, 2.0, 4.0], dtype=dtype)

    def slopes(w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        leaves = X.clone().requires_grad_(), w.requires_grad_()
        M = sg.spd.mean(*leaves, metric=metric)
        return M.detach(), *torch.autograd.grad((M * M.detach().roll(1, -1)).sum(), leaves)

    M, of_X, of_w = slopes(w)
    tiny_M, tiny_of_X, tiny_of_w = slopes(w * size)
    rtol = 1e-3 if dtype == torch.float32 else 1e-11  # a weight of 1e-40 has five digits
    torch.testing.assert_close(tiny_M, M, rtol=rtol, atol=rtol)
    torch.testing.assert_close(tiny_of_X, of_X, rtol=rtol, atol=rtol)
    assert bool(tiny_of_w.isfinite().all())
    if dtype == torch.float64:
        torch.testing.assert_close(tiny_of_w / tiny_of_w.abs().max(), of_w / of_w.abs().max(), rtol=1e-9, atol=1e-9)
    if size == 2.0**-1000:
        torch.testing.assert_close(tiny_of_w * size, of_w, rtol=1e-9, atol=1e-9)


@each_metric
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=cases.ident)
def test_the_equation_holds(metric: Any, dtype: torch.dtype) -> None:
    X, w = definite(3, 7, n=5, condition=1e3, dtype=dtype), torch.rand(3, 7, dtype=torch.float64) + 0.1
    M = sg.spd.mean(X, w, metric)
    assert float(residual(X, w, M, metric).abs().max()) < 1e-12
    assert bool((torch.linalg.eigvalsh(M) > 0).all())
    torch.testing.assert_close(M, M.mH, rtol=0, atol=0)
    torch.testing.assert_close(sg.spd.mean(X, 5 * w, metric), M, rtol=1e-11, atol=1e-11)  # weights are divided by their sum


@pytest.mark.parametrize(("metric", "most"), [("affine", 8.5), ("bures", 9.5)])
def test_it_ends_soon_and_with_the_best_point_seen(metric: Any, most: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Near the mean the cost is flat, and told by rounding alone whether a step was good."""
    look, iterate, seen = newton._look, newton._iterate, []

    def watched(*args: Any) -> Any:
        point = look(*args)
        seen[-1].append(float(point.residual))
        return point

    def ends_well(*args: Any) -> Any:
        seen.append([])
        point = iterate(*args)
        assert float(point.residual) == min(seen[-1])
        return point

    monkeypatch.setattr(newton, "_look", watched)
    monkeypatch.setattr(newton, "_iterate", ends_well)
    for n in (2, 3, 5, 8):
        for K in (2, 3, 5):
            for seed in range(3):
                X = [
                    cases.with_spectrum(
                        10 ** (-6 * cases.random(n, seed=9 * k + seed).abs().clamp(max=1)), seed=9 * k + seed
                    )
                    for k in range(K)
                ]
                sg.spd.mean(torch.stack(X), metric=metric)
    assert sum(map(len, seen)) / len(seen) < most


@pytest.mark.parametrize("zero", [torch.zeros(2, 2), torch.ones(2, 2)], ids=["zero", "rank 1"])
def test_an_affine_mean_with_a_singular_matrix_is_no_nan_where_nobody_checks(zero: Tensor) -> None:
    X = torch.stack([zero.double(), torch.eye(2, dtype=torch.float64)])
    with sg.checks(False), pytest.raises(ConvergenceError, match="add eps"):
        sg.spd.mean(X)


@each_metric
def test_two_matrices_meet_in_the_middle(metric: Any) -> None:
    X = definite(2, n=4, condition=1e3)
    w = torch.tensor([0.7, 0.3], dtype=torch.float64)
    torch.testing.assert_close(sg.spd.mean(X, w, metric), sg.spd.geodesic(X[0], X[1], 0.3, metric), rtol=1e-10, atol=1e-10)


@each_metric
def test_one_matrix_equal_matrices_and_zero_weights(metric: Any) -> None:
    X = definite(3, n=4)
    torch.testing.assert_close(sg.spd.mean(X[:1], metric=metric), X[0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(sg.spd.mean(X[:1].expand(5, 4, 4), metric=metric), X[0], rtol=1e-12, atol=1e-12)
    w = torch.tensor([1.0, 0.0, 2.0], dtype=torch.float64)
    torch.testing.assert_close(sg.spd.mean(X, w, metric), sg.spd.mean(X[::2], w[::2], metric), rtol=1e-11, atol=1e-11)
    leaf = X.clone().requires_grad_()
    sg.spd.mean(leaf, w, metric).sum().backward()
    assert leaf.grad is not None
    assert bool((leaf.grad[1] == 0).all())


@each_metric
def test_the_gradient_is_exact_at_ties(metric: Any) -> None:
    """All matrices multiples of the identity: every eigenvalue ties, in X, in Y and in the mean."""
    X = torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64)[:, None, None] * torch.eye(3, dtype=torch.float64)
    w = torch.tensor([1.0, 2.0, 1.0], dtype=torch.float64)
    E, G = hermitian(cases.random(3, 3, 3, seed=1)), hermitian(cases.random(3, 3, seed=2))
    leaf, weights = X.clone().requires_grad_(), w.clone().requires_grad_()
    (sg.spd.mean(leaf, weights, metric) * G).sum().backward()
    step = 1e-5
    numeric = ((sg.spd.mean(X + step * E, w, metric) - sg.spd.mean(X - step * E, w, metric)) * G).sum() / (2 * step)
    assert leaf.grad is not None
    assert float((leaf.grad * E).sum()) == pytest.approx(float(numeric), rel=1e-8)
    e = torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64)
    numeric = ((sg.spd.mean(X, w + step * e, metric) - sg.spd.mean(X, w - step * e, metric)) * G).sum() / (2 * step)
    assert weights.grad is not None
    assert float(weights.grad @ e) == pytest.approx(float(numeric), rel=1e-8)


def test_a_plain_iteration_has_no_gradient_at_ties() -> None:
    """The control: fixed-point steps through torch.linalg.eigh."""
    X = (torch.arange(1.0, 4.0)[:, None, None] * torch.eye(3)).requires_grad_()

    def function(M: Tensor, f: Any) -> Tensor:
        w, V = torch.linalg.eigh(M)
        return (V * f(w).unsqueeze(-2)) @ V.mT

    M = X.mean(0)
    for _ in range(3):
        P, R = function(M, torch.rsqrt), function(M, torch.sqrt)
        M = R @ function(function(P @ X @ P, torch.log).mean(0), torch.exp) @ R
    M.sum().backward()
    assert X.grad is not None
    assert X.grad.isnan().any()


@pytest.mark.parametrize("metric", ["affine", "bures"])
def test_the_gradient_does_not_go_through_the_iterations(metric: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many nodes whether the mean takes three steps or six, and the same gradient from another start."""
    X = definite(5, n=4, condition=1e3)

    def count(X: Tensor) -> tuple[int, Tensor]:
        leaf = X.clone().requires_grad_()
        M = sg.spd.mean(leaf, metric=metric)
        seen, todo = set(), [M.grad_fn]
        while todo:
            node = todo.pop()
            if node is not None and node not in seen:
                seen.add(node)
                todo += [parent for parent, _ in node.next_functions]
        (g,) = torch.autograd.grad(M.square().sum(), leaf)
        return len(seen), g

    nodes, g = count(X)
    monkeypatch.setattr(newton, "_start", lambda *_: X[0][None])
    again, h = count(X)
    assert nodes == again == count(definite(5, n=4, condition=1.1))[0]
    torch.testing.assert_close(g, h, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("metric", "condition"), [("affine", 1e5), ("affine", 1e10), ("bures", 1e5), ("bures", 1e8)])
@pytest.mark.parametrize(("n", "K"), [(2, 2), (3, 4), (8, 5)])
def test_wide_spread_batches_converge(metric: Any, condition: float, n: int, K: int) -> None:
    X = definite(20, K, n=n, condition=condition, seed=n)
    M = sg.spd.mean(X, metric=metric)
    X, M = X / condition**0.5, M / condition**0.5  # log spectra around 0
    one = torch.ones(20, K, dtype=torch.float64)
    assert float(residual(X, one, M, metric).abs().max()) < 1e-14 * condition + 1e-11


@pytest.mark.parametrize(("n", "K"), [(3, 4), (4, 2), (5, 6)])
def test_bures_means_at_condition_1e8_converge(n: int, K: int) -> None:
    """Every matrix of that condition, in bases that have nothing to do with each other: where Newton's step is wild."""
    X = cases.with_spectrum(torch.logspace(-8, 0, n, dtype=torch.float64), 200, K)
    M = sg.spd.mean(X, metric="bures")
    assert float(residual(X, torch.ones(200, K, dtype=torch.float64), M, "bures").abs().max()) < 1e-7


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["affine", "bures"])
def test_compiled_code_has_the_same_gradient(metric: Any) -> None:
    """By the default backend, whose expm1 near 0 has no digits: the exponentials in S, which is 0 but for rounding."""
    X, G = definite(5, 4, n=3), cases.random(5, 3, 3, seed=1)
    leaf, twin = X.clone().requires_grad_(), X.clone().requires_grad_()
    (want,) = torch.autograd.grad(sg.spd.mean(leaf, metric=metric), leaf, G)
    compiled = torch.compile(lambda X: sg.spd.mean(X, metric=metric), fullgraph=True)
    (got,) = torch.autograd.grad(compiled(twin), twin, G)
    torch.compiler.reset()
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


@each_metric
@pytest.mark.parametrize("scale", [1e-8, 1e8, 1e-300, 1e300])
def test_scales(metric: Any, scale: float) -> None:
    X = definite(4, n=3)
    want = sg.spd.mean(X, metric=metric)
    leaf = (scale * X).requires_grad_()
    M = sg.spd.mean(leaf, metric=metric)
    torch.testing.assert_close(M.detach() / scale, want, rtol=1e-10, atol=1e-10)
    M.sum().backward()
    assert leaf.grad is not None
    plain = X.clone().requires_grad_()
    sg.spd.mean(plain, metric=metric).sum().backward()
    torch.testing.assert_close(leaf.grad, plain.grad, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("metric", METRICS[:2])
def test_matrices_at_opposite_ends_of_the_range(metric: Any) -> None:
    X = (
        torch.tensor([1e-300, 1e300], dtype=torch.float64)[:, None, None] * torch.eye(3, dtype=torch.float64)
    ).requires_grad_()
    w = torch.tensor([0.5, 0.5], dtype=torch.float64, requires_grad=True)
    M = sg.spd.mean(X, w, metric)
    torch.testing.assert_close(M.detach(), torch.eye(3, dtype=torch.float64), rtol=1e-12, atol=1e-12)
    gX, gw = torch.autograd.grad(M.trace(), (X, w))
    assert gX.isfinite().all()
    torch.testing.assert_close(gw[1] - gw[0], torch.tensor(3 * 600 * 2.302585092994046, dtype=torch.float64))


@each_metric
def test_float32_is_float64_to_its_rounding(metric: Any) -> None:
    X = definite(3, 6, n=8, condition=100.0)
    M = sg.spd.mean(X.float(), metric=metric)
    assert cases.relative_error(M, sg.spd.mean(X.float().double(), metric=metric)) < 1e-6


@each_metric
def test_empty_batches(metric: Any) -> None:
    assert sg.spd.mean(torch.zeros(0, 3, 2, 2), metric=metric).shape == (0, 2, 2)
    leaf = torch.zeros(0, 3, 2, 2, requires_grad=True)
    sg.spd.mean(leaf, metric=metric).sum().backward()


def test_nan_gives_nan_where_nobody_looks() -> None:
    X = definite(2, 3, n=3)
    X[0, 1, 0, 0] = torch.nan
    with sg.checks(False):
        M = sg.spd.mean(X)
    assert M[0].isnan().any()
    torch.testing.assert_close(M[1], sg.spd.mean(X[1]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("metric", ["affine", "bures"])
def test_what_does_not_converge_is_named(metric: Any) -> None:
    with pytest.raises(ConvergenceError, match=r"`spd\.mean`: 2 of 2 means of 3 matrices did not converge in 1 steps"):
        sg.spd.mean(definite(2, 3, n=3, condition=1e3), metric=metric, steps=1)


ITERATED = pytest.mark.parametrize("metric", ["affine", "bures"])
SIZES = pytest.mark.parametrize("size", [1.0, 1e200, 1e-200])


@ITERATED
@SIZES
def test_a_loose_tolerance_stops_early_with_a_gradient_as_good(metric: Any, size: float) -> None:
    X = size * definite(2, 5, n=4, condition=1e2)
    exact = sg.spd.mean(X, metric=metric)
    loose = sg.spd.mean(X, metric=metric, tol=1e-1)
    error = float((loose - exact).abs().max() / exact.abs().max())
    assert 1e-6 < error < 1e-1
    slopes = []
    for tol in (None, 1e-1):
        leaf = X.clone().requires_grad_()
        M = sg.spd.mean(leaf, metric=metric, tol=tol)
        if tol:
            torch.testing.assert_close(M.detach(), loose, rtol=1e-13, atol=0)  # what it is without a gradient
        slopes.append(torch.autograd.grad((M / size).square().sum(), leaf)[0] * size)
    assert cases.relative_error(slopes[1], slopes[0]) < 1
    assert 1e-8 < float((slopes[1] - slopes[0]).abs().max() / slopes[0].abs().max()) < 0.2


@ITERATED
@SIZES
def test_a_start_near_the_mean_saves_steps(metric: Any, size: float) -> None:
    X = size * definite(2, 5, n=4, condition=1e2)
    M = sg.spd.mean(X, metric=metric)
    with pytest.raises(ConvergenceError, match="in 1 steps of Newton's method"):
        sg.spd.mean(X, metric=metric, steps=1)
    torch.testing.assert_close(sg.spd.mean(X, metric=metric, steps=1, start=M) / size, M / size, rtol=1e-12, atol=1e-12)
    mapped = torch.vmap(lambda x, start: sg.spd.mean(x, metric=metric, steps=2, start=start))(X, M)
    torch.testing.assert_close(mapped / size, M / size, rtol=1e-12, atol=1e-12)
    far = size * torch.eye(4, dtype=torch.float64).expand(2, 4, 4)
    torch.testing.assert_close(sg.spd.mean(X, metric=metric, start=far) / size, M / size, rtol=1e-11, atol=1e-11)
    leaf = X.clone().requires_grad_()
    slopes = [
        torch.autograd.grad((sg.spd.mean(leaf, metric=metric, start=start) / size).square().sum(), leaf)[0] * size
        for start in (None, M.clone().requires_grad_())
    ]
    torch.testing.assert_close(slopes[1], slopes[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"tol": 0}, OptionError, "tol must be a finite number > 0"),
        ({"tol": "small"}, OptionError, "tol must be"),
        ({"steps": 0}, OptionError, "steps must be a whole number >= 1"),
        ({"steps": 1.5}, OptionError, "steps must be"),
        ({"start": torch.eye(3)}, ShapeError, r"`start` must be one matrix for each mean, \(4, 4\)"),
        ({"start": -torch.eye(4, dtype=torch.float64)}, DefinitenessError, "start"),
        ({"start": 3}, DtypeError, "start"),
        ({"metric": "logeuclid", "tol": 1e-3}, OptionError, "tol belongs to an iteration"),
    ],
)
def test_what_stops_the_iteration_is_checked(options: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        sg.spd.mean(definite(5, n=4), **options)
