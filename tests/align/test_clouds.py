"""kabsch and umeyama: values against roma, gradients against mpmath, and clouds of every shape, weight and scale."""

import itertools
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import spectralgrad as sg
from spectralgrad.errors import DtypeError, NonFiniteError, OptionError, ShapeError
from support import cases

Call = Callable[..., tuple[Tensor, ...]]
BOTH: dict[str, Call] = {"kabsch": sg.kabsch, "umeyama": sg.umeyama}
each = pytest.mark.parametrize(("name", "function"), BOTH.items(), ids=BOTH)
FULL = [torch.float32, torch.float64]


def turn(d: int = 3, seed: int = 0) -> Tensor:
    return sg.procrustes(cases.random(d, d, seed=seed), special=True)


def flat_cloud(aspect: float, N: int = 6, noise: float = 0.1) -> tuple[Tensor, Tensor]:
    """Two clouds of one shape, of widths 1, aspect and aspect; singular values go with the squares."""
    widths = torch.tensor([1.0, aspect, aspect], dtype=torch.float64)
    x = cases.random(N, 3) * widths
    y = (x + noise * cases.random(N, 3, seed=1) * widths) @ turn(seed=2).mT
    return x @ turn(seed=3).mT + 0.3, y - 0.7


def seeds(i: int, *shape: int) -> Tensor:
    """Numbers to weigh output ``i`` with; not random ones, which vmap refuses."""
    return torch.cos(1.3 * torch.arange(1.0, 1 + math.prod(shape), dtype=torch.float64) + i).reshape(shape)


def weigh(outputs: Sequence[Tensor]) -> Tensor:
    """One number that depends on all of the outputs."""
    return sum(((z.double() * seeds(i, *z.shape)).sum() for i, z in enumerate(outputs)), torch.tensor(0.0))


def gradients(function: Call, *given: Tensor) -> tuple[Tensor, ...]:
    given = tuple(z.detach().requires_grad_() for z in given)
    return torch.autograd.grad(weigh(function(*given)), given)


def test_it_finds_the_motion() -> None:
    for d in (1, 2, 3, 5):
        x, R, t = cases.random(4, 9, d), turn(d), cases.random(d, seed=5)
        R = R if d > 1 else torch.ones(1, 1, dtype=torch.float64)
        found = sg.kabsch(x, x @ R.mT + t)
        torch.testing.assert_close(found.R, R.expand(4, d, d), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(found.t, t.expand(4, d), rtol=1e-12, atol=1e-12)
        similar = sg.umeyama(x, 2.5 * x @ R.mT + t)
        torch.testing.assert_close(similar.R, R.expand(4, d, d), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(similar.t, t.expand(4, d), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(similar.s, torch.full((4,), 2.5, dtype=torch.float64), rtol=1e-12, atol=1e-12)


@each
def test_no_other_motion_is_better(name: str, function: Call) -> None:
    x, y, w = cases.random(6, 3), cases.random(6, 3, seed=1), cases.random(6, seed=2).abs()

    def loss(R: Tensor, t: Tensor, s: Tensor | float = 1.0) -> Tensor:
        return (w * (s * x @ R.mT + t - y).square().sum(-1)).sum()

    R, t, *s = function(x, y, w)
    least = loss(R, t, *s)
    for seed in range(3, 23):
        near = sg.procrustes(R + 0.1 * cases.random(3, 3, seed=seed), special=True)
        assert loss(near, t, *s) > least
        assert loss(R, t + 0.1 * cases.random(3, seed=seed), *s) > least
        assert loss(R, t, (s[0] if s else 1.0) * 1.01) > least or not s


@pytest.mark.parametrize("dtype", FULL, ids=cases.ident)
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("d", [2, 3])
def test_values_of_roma(d: int, weighted: bool, dtype: torch.dtype) -> None:
    roma = pytest.importorskip("roma")
    x, y = cases.random(50, 8, d).to(dtype), cases.random(50, 8, d, seed=1).to(dtype)
    y = torch.cat([y[:25], x[25:] * torch.tensor([1.0] * (d - 1) + [-1.0])])  # mirror images too
    w = cases.random(50, 8, seed=2).abs().to(dtype) if weighted else None
    limit = 1e5 * cases.eps(torch.float64) if dtype == torch.float64 else 1e3 * cases.eps(dtype)
    with torch.no_grad():
        for got, want in zip(sg.kabsch(x, y, w), roma.rigid_points_registration(x, y, w), strict=True):
            torch.testing.assert_close(got, want.to(dtype), rtol=limit, atol=limit)
        for got, want in zip(
            sg.umeyama(x, y, w), roma.rigid_points_registration(x, y, w, compute_scaling=True), strict=True
        ):
            torch.testing.assert_close(got, want.to(dtype), rtol=limit, atol=limit)


@pytest.mark.covering(1)
@each
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_two_derivatives(weighted: bool, name: str, function: Call) -> None:
    x, y, w = cases.random(2, 4, 3), cases.random(2, 4, 3, seed=1), cases.random(2, 4, seed=2).abs()
    given = tuple(z.requires_grad_() for z in ((x, y, w) if weighted else (x, y)))
    assert gradcheck(lambda *z: tuple(function(*z)), given, check_forward_ad=True, check_batched_grad=True)
    one = tuple(z[0].detach().requires_grad_() for z in given)  # the second derivatives are as many as pairs of numbers
    assert gradgradcheck(lambda *z: weigh(function(*z)), one, check_fwd_over_rev=True)


SHAPES = {
    "planar": cases.random(5, 3) * torch.tensor([1.0, 1.0, 0.0]),
    "as wide as deep": torch.cat([torch.eye(3), -torch.eye(3)]).double(),
    "three points": cases.random(3, 3),
}


@pytest.mark.covering(1)
@each
@pytest.mark.parametrize("x", SHAPES.values(), ids=SHAPES)
def test_two_derivatives_at_ties_and_planes(x: Tensor, name: str, function: Call) -> None:
    y = (x @ turn().mT + 0.5).requires_grad_()
    x = (x + torch.tensor([0.1, 0.2, 0.3])).requires_grad_()
    sg.reset_counts()
    assert gradcheck(lambda *z: tuple(function(*z)), (x, y))
    assert gradgradcheck(lambda *z: weigh(function(*z)), (x, y))
    assert sg.counts() == {}


def test_negative_control() -> None:
    """Plain torch at a tie: NaN where ours is exact."""
    x = SHAPES["as wide as deep"].clone().requires_grad_()
    U, _, Vh = torch.linalg.svd(x.detach().mT @ x)
    assert torch.autograd.grad(weigh([U @ Vh]), x)[0].isnan().any()
    y = x.detach().clone()
    assert gradcheck(lambda x: sg.kabsch(x, y).R, x)


# Thin clouds, against derivatives of 50 digits


def by_mpmath(x: Tensor, y: Tensor, w: Tensor, scaled: bool) -> list[Tensor]:
    """Central differences of `weigh` in 50 digits."""
    mp = mpmath.mp.clone()
    mp.dps = 50
    N, d = x.shape
    of_R, of_t, of_s = seeds(0, d, d).tolist(), seeds(1, d).tolist(), float(seeds(2))

    def value(x: Any, y: Any, w: Any) -> Any:
        total = mp.fsum(w)
        mx, my = ([mp.fsum(w[i] * z[i, k] for i in range(N)) / total for k in range(d)] for z in (x, y))
        A = mp.matrix(d, d)
        for j in range(d):
            for k in range(d):
                A[j, k] = mp.fsum(w[i] * (y[i, j] - my[j]) * (x[i, k] - mx[k]) for i in range(N))
        U, _, V = mp.svd_r(A)
        D = mp.eye(d)
        D[d - 1, d - 1] = mp.sign(mp.det(U * V))
        R = U * D * V
        s = mp.mpf(1)
        if scaled:
            s = mp.fsum(R[j, k] * A[j, k] for j in range(d) for k in range(d))
            s /= mp.fsum(w[i] * (x[i, k] - mx[k]) ** 2 for i in range(N) for k in range(d))
        t = [my[j] - s * mp.fsum(R[j, k] * mx[k] for k in range(d)) for j in range(d)]
        result = mp.fsum(of_R[j][k] * R[j, k] for j in range(d) for k in range(d))
        result += mp.fsum(of_t[j] * t[j] for j in range(d))
        return result + of_s * s if scaled else result

    given = [mp.matrix(x.tolist()), mp.matrix(y.tolist()), mp.matrix(w.tolist())]
    h, found = mp.mpf(10) ** -20, []
    for which, z in enumerate(given):
        rows = torch.zeros(z.rows, z.cols, dtype=torch.float64)
        for i in range(z.rows):
            for k in range(z.cols):
                ends = []
                for sign in (1, -1):
                    moved = [m.copy() for m in given]
                    moved[which][i, k] += sign * h
                    ends.append(value(*moved))
                rows[i, k] = float((ends[0] - ends[1]) / (2 * h))
        found.append(rows)
    return [found[0], found[1], found[2].squeeze(-1)]


@pytest.mark.covering(2)
@each
@pytest.mark.parametrize("mirrored", [False, True], ids=["", "mirrored"])
@pytest.mark.parametrize(
    ("dtype", "aspect", "limit"),
    [(torch.float64, 1e-1, 1e-12), (torch.float64, 1e-4, 1e-6), (torch.float32, 1e-1, 1e-6), (torch.float32, 1e-2, 1e-6)],
    ids=["float64-1e-1", "float64-1e-4", "float32-1e-1", "float32-1e-2"],
)
def test_thin_clouds(dtype: torch.dtype, aspect: float, limit: float, mirrored: bool, name: str, function: Call) -> None:
    x, y = flat_cloud(aspect, N=4, noise=0.5)
    x, y = x.to(dtype), (y * torch.tensor([1.0, 1.0, -1.0 if mirrored else 1.0])).to(dtype)
    w = torch.tensor([1.0, 0.5, 2.0, 0.75], dtype=dtype)
    sg.reset_counts()
    got = gradients(function, x, y, w)
    assert sg.counts() == {}
    for ours, exact in zip(got, by_mpmath(x.double(), y.double(), w.double(), name == "umeyama"), strict=True):
        assert cases.relative_error(ours, exact) < limit


# Where the rotation is not unique


def lines(dtype: torch.dtype, offset: float) -> tuple[Tensor, Tensor]:
    x = cases.random(30, 7, 1).to(dtype) * cases.random(30, 1, 3, seed=1).to(dtype) + offset * cases.random(
        30, 1, 3, seed=2
    ).to(dtype)
    return x, x @ turn().mT.to(dtype) + offset


def singles(dtype: torch.dtype, offset: float) -> tuple[Tensor, Tensor]:
    return (offset * cases.random(30, 1, 3)).to(dtype), (offset * cases.random(30, 1, 3, seed=1)).to(dtype)


def coinciding(dtype: torch.dtype, offset: float) -> tuple[Tensor, Tensor]:
    return (0.1 + offset * cases.random(30, 1, 3)).expand(30, 7, 3).to(dtype), cases.random(30, 7, 3, seed=1).to(dtype)


def mirrors(dtype: torch.dtype, offset: float) -> tuple[Tensor, Tensor]:
    x = torch.cat([torch.eye(3), -torch.eye(3)]).double() * torch.tensor([2.0, 1.0, 1.0])
    x = x @ sg.procrustes(cases.random(30, 3, 3), special=True).mT + offset * cases.random(30, 1, 3, seed=2)
    return x.to(dtype), -x.to(dtype)


def two_of_three(dtype: torch.dtype, offset: float) -> tuple[Tensor, Tensor]:
    return cases.random(30, 2, 3).to(dtype) + offset, cases.random(30, 2, 3, seed=1).to(dtype) - offset


@each
@pytest.mark.parametrize("offset", [0.0, 1.0, 10.0])
@pytest.mark.parametrize("dtype", FULL, ids=cases.ident)
@pytest.mark.parametrize("clouds", [lines, singles, coinciding, mirrors, two_of_three])
def test_not_unique(clouds: Any, dtype: torch.dtype, offset: float, name: str, function: Call) -> None:
    """Every cloud is counted, and no gradient is larger than what is unique about it gives: some tens, not 1/eps."""
    x, y = clouds(dtype, offset)
    sg.reset_counts()
    found = function(x, y)
    assert sg.counts() == {"rotation_not_unique": 30}
    torch.testing.assert_close(torch.linalg.det(found[0]), torch.ones(30, dtype=dtype))
    for g in gradients(function, x, y):
        assert float(g.abs().max()) < 1e4
    x = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(weigh(function(x, y)), x, create_graph=True)
    assert torch.autograd.grad(first.square().sum(), x)[0].isfinite().all()


def test_what_is_unique_about_a_line_is_exact() -> None:
    """Any y on a line x = q b: A = (sum q y) b^T, so that R b is sum q y, normalised."""
    q, b = cases.random(6, 1), torch.nn.functional.normalize(cases.random(3, seed=1), dim=0)
    x, y, G = (q - q.mean()) * b, cases.random(6, 3, seed=2).requires_grad_(), cases.random(3, seed=3)
    (got,) = torch.autograd.grad((sg.kabsch(x, y).R @ b) @ G, y)
    along = torch.nn.functional.normalize(((q - q.mean()) * y).sum(0), dim=0)
    (want,) = torch.autograd.grad(along @ G, y)
    assert cases.relative_error(got, want) < 1e-12


def test_the_scale_is_exact_where_the_rotation_is_free() -> None:
    """On a line s = |sum q y| / sum q^2, whatever the turn around it."""
    q, b = cases.random(6, 1), torch.nn.functional.normalize(cases.random(3, seed=1), dim=0)
    y = cases.random(6, 3, seed=2).requires_grad_()
    q = q - q.mean()
    (got,) = torch.autograd.grad(sg.umeyama(q * b, y).s, y)
    (want,) = torch.autograd.grad(torch.linalg.norm((q * y).sum(0)) / q.square().sum(), y)
    assert cases.relative_error(got, want) < 1e-13


@pytest.mark.parametrize("kind", ["line and line", "line and cloud", "mirror"])
def test_the_scale_has_a_subgradient_at_its_kinks(kind: str) -> None:
    """s has two slopes along a direction, from below and above; ours lies between. For lines they are one."""
    if kind == "mirror":
        x, y = (z[0] for z in mirrors(torch.float64, 0.0))
    else:
        x = cases.random(6, 1) * cases.random(3, seed=1)
        y = x @ turn().mT if kind == "line and line" else cases.random(6, 3, seed=2)
    D, h = cases.random(6, 3, seed=3), 1e-6
    below, here, above = (float(sg.umeyama(x + k * h * D, y).s) for k in (-1, 0, 1))
    (g,) = torch.autograd.grad(sg.umeyama(leaf := x.clone().requires_grad_(), y).s, leaf)
    slopes = (here - below) / h, (above - here) / h
    assert slopes[0] - 1e-5 < float((g * D).sum()) < slopes[1] + 1e-5
    assert (slopes[1] - slopes[0] < 1e-5) == (kind == "line and line")


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("offset", [0.0, 1.0, 1e6])
def test_the_scale_on_a_line_is_smooth_where_y_is_one_point(offset: float, weighted: bool) -> None:
    """R is 1 there, and s = sum w a b / sum w a^2 whatever y is."""
    x, y = torch.arange(3.0, dtype=torch.float64).unsqueeze(-1), torch.full((3, 1), offset, dtype=torch.float64)
    w = torch.tensor([1.0, 2.0, 1.5] if weighted else [1.0] * 3, dtype=torch.float64)
    leaves = [z.requires_grad_() for z in (x, y, w)]

    def of(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        found = sg.umeyama(x, y, w if weighted else None)
        return found.s + 0.3 * found.t[0]

    def by_hand(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        p = (w / w.sum()).unsqueeze(-1)
        mx, my = (p * x).sum(), (p * y).sum()
        s = (p * (x - mx) * (y - my)).sum() / (p * (x - mx).square()).sum()
        return s + 0.3 * (my - s * mx)

    sg.reset_counts()
    for along in (1, 2):
        got, want = of(*leaves), by_hand(*leaves)
        if along == 2:
            got, want = (torch.autograd.grad(z, leaves[1], create_graph=True)[0].square().sum() + z for z in (got, want))
        for g, h in zip(
            *(torch.autograd.grad(z, leaves, allow_unused=True, materialize_grads=True) for z in (got, want)), strict=True
        ):
            torch.testing.assert_close(g, h, rtol=1e-9, atol=1e-9 * (1 + offset))
    assert sg.counts() == {}


@pytest.mark.parametrize("aspect", [1e-3, 1e-5])
def test_the_scale_of_a_thin_cloud_is_exact(aspect: float) -> None:
    """It is the nuclear norm of A over the variance: no sum of singular values divides its gradient."""
    x, y = flat_cloud(aspect)
    y.requires_grad_()
    (got,) = torch.autograd.grad(sg.umeyama(x, y).s, y)
    centred = x - x.mean(0)
    A = (y - y.mean(0)).mT @ centred
    assert torch.linalg.det(A) > 0
    (want,) = torch.autograd.grad(sg.nuclear_norm(A) / centred.square().sum(), y)
    assert cases.relative_error(got, want) < 1e-14 / aspect


def test_coinciding_points_have_scale_1() -> None:
    x, y = coinciding(torch.float64, 10.0)
    assert torch.equal(sg.umeyama(x, y).s, torch.ones(30, dtype=torch.float64))
    assert torch.equal(sg.umeyama(y, x).s, torch.zeros(30, dtype=torch.float64))


def test_a_point_of_weight_zero_keeps_no_others_from_coinciding() -> None:
    """To rounding, in float32; inside vmap too, where each cloud goes another way."""
    x = torch.tensor([0.1, 0.7, -0.3]) * (1 + cases.eps(torch.float32) * torch.arange(5.0)[:, None])
    x[4] = torch.tensor([9.0, -4.0, 2.0])
    given = x[None], cases.random(1, 5, 3, dtype=torch.float32), torch.tensor([[3.0, 1.0, 2.5, 2.7, 0.0]])
    for function in (sg.umeyama, torch.func.vmap(sg.umeyama)):
        assert float(function(*given).s) == 1


@pytest.mark.parametrize("far", [1.0, 1e200, 1e-200])
def test_coinciding_points_of_other_sizes(far: float) -> None:
    """Inside vmap, as on a GPU, sizes cannot be read, and each cloud is computed at its own."""
    x = far * torch.tensor([[0.0, -3e-3], [0.0, -3e-3]], dtype=torch.float64)
    y = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
    for function in (sg.umeyama, torch.func.vmap(sg.umeyama)):
        given = [z[None].clone().requires_grad_() for z in (x, y)]
        R, t, s = function(*given)
        assert float(s.detach()) == 1
        torch.testing.assert_close(t[0], y.mean(0) - R[0] @ x.mean(0), rtol=1e-14, atol=0)
        dx, dy = torch.autograd.grad(t.sum(), given)
        torch.testing.assert_close(dx[0], -R[0].sum(0).expand(2, 2) / 2, rtol=1e-12, atol=0)
        torch.testing.assert_close(dy[0], torch.full_like(y, 0.5), rtol=1e-12, atol=0)


# Weights


@each
def test_a_point_of_weight_zero_is_not_looked_at(name: str, function: Call) -> None:
    x, y = cases.random(2, 6, 3), cases.random(2, 6, 3, seed=1)
    w = cases.random(2, 6, seed=2).abs()
    w[0, 4:], w[1, [0, 3]] = 0, 0
    for filler in (torch.nan, torch.inf, 1e300, 0.0):
        X, Y = (torch.where((w == 0).unsqueeze(-1), filler, z) for z in (x, y))
        found, slopes = function(X, Y, w), gradients(function, X, Y, w)
        for g in slopes:
            assert (g[w == 0] == 0).all()
        for b in range(2):
            kept = w[b] > 0
            for got, want in zip(found, function(x[b, kept], y[b, kept], w[b, kept]), strict=True):
                torch.testing.assert_close(got[b], want, rtol=1e-12, atol=1e-12)
    mask = w > 0
    for got, want in zip(function(X, Y, mask), function(X, Y, mask.double()), strict=True):
        assert torch.equal(got, want)
    X.requires_grad_()
    (first,) = torch.autograd.grad(weigh(function(X, Y, w)), X, create_graph=True)
    assert torch.autograd.grad(first.square().sum(), X)[0].isfinite().all()


@each
def test_a_weight_counts_points(name: str, function: Call) -> None:
    x, y, w = cases.random(4, 3), cases.random(4, 3, seed=1), torch.tensor([1, 3, 2, 1])
    repeated = function(x.repeat_interleave(w, 0), y.repeat_interleave(w, 0))
    for weights in (w, w.double(), w / 7.0, 1e-300 * w.double(), 1e300 * w.double(), w.bfloat16()):
        for got, want in zip(function(x, y, weights), repeated, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-6 if weights.dtype == torch.float32 else 1e-12, atol=1e-7)


def test_broadcasting() -> None:
    x, y, w = cases.random(5, 3), cases.random(4, 1, 5, 3, seed=1), cases.random(2, 5, seed=2).abs()
    R, t = sg.kabsch(x, y, w)
    assert R.shape == (4, 2, 3, 3)
    assert t.shape == (4, 2, 3)
    torch.testing.assert_close(R[3, 1], sg.kabsch(x, y[3, 0], w[1]).R)
    for g, z in zip(gradients(sg.umeyama, x, y, w), (x, y, w), strict=True):
        assert g.shape == z.shape
    for batch in ((0,), (2, 0)):
        empty = [torch.zeros(*batch, *rest).requires_grad_() for rest in ((5, 3), (5, 3), (5,))]
        assert [z.shape for z in sg.umeyama(*empty)] == [(*batch, 3, 3), (*batch, 3), batch]
        assert all(g.shape == z.shape for g, z in zip(gradients(sg.umeyama, *empty), empty, strict=True))


# Scales, dtypes, memory


@each
@pytest.mark.parametrize("dtype", FULL, ids=cases.ident)
def test_scales(dtype: torch.dtype, name: str, function: Call) -> None:
    """R does not depend on the scale of either cloud, t and s go with it, and so do the gradients."""
    x, y, w = cases.random(6, 3), cases.random(6, 3, seed=1), cases.random(6, seed=2).abs()
    info = torch.finfo(dtype)
    ends = (info.tiny * 1e3, info.max / 64)
    for a, b, c in [
        (1e8, 1e8, 1e8),
        (1e-8, 1e-8, 1e-8),
        (1e8, 1e-8, 1.0),
        *((e, f, g) for e in ends for f in ends for g in ends),
    ]:
        given = [(z * k).to(dtype).requires_grad_() for z, k in ((x, a), (y, b), (w, c))]
        R, t, *s = function(*given)
        assert cases.relative_error(R.detach(), sg.kabsch(x, y, w).R) < 100 * info.eps
        assert all(z.isfinite().all() for z in (t, *s))
        first = torch.autograd.grad(weigh((R, t, *s)), given, create_graph=True)
        assert all(g.isfinite().all() for g in first)
        if dtype == torch.float32:
            second = torch.autograd.grad(sum(g.mul(1e-3).sum() for g in first), given, allow_unused=True)
            assert not any(g.isnan().any() for g in second if g is not None)
        if max(abs(a), abs(b)) < 1e9:
            got, exact = (gradients(lambda *z: function(*z)[:1], *z) for z in (given, (x, y, w)))
            for ours, want, k in zip(got, exact, (a, b, c), strict=True):
                assert cases.relative_error(ours.double() * k, want) < 1e3 * info.eps


@pytest.mark.parametrize(("name", "ends"), [("kabsch", (1e-145, 1e145)), ("umeyama", (1e-70, 1e70))])
def test_second_derivatives_of_large_and_small_clouds(name: str, ends: tuple[float, float]) -> None:
    """Where what they go through is in the range of float64."""
    x, y, w = cases.random(6, 3), cases.random(6, 3, seed=1), cases.random(6, seed=2).abs()
    for sizes in itertools.product((*ends, 1.0), repeat=3):
        given = [(z * k).requires_grad_() for z, k in zip((x, y, w), sizes, strict=True)]
        first = torch.autograd.grad(weigh(BOTH[name](*given)), given, create_graph=True)
        assert not any(g.isnan().any() for g in torch.autograd.grad(sum(g.mul(1e-3).sum() for g in first), given))


@pytest.mark.parametrize("size", [1e-300, 1e-100, 1e100, 1e280, 1e307])
def test_slopes_of_the_translation_at_every_size(size: float) -> None:
    """dt/dx and dt/dy do not depend on the size, and ds/dx goes with its inverse."""
    x, y = cases.random(6, 3), cases.random(6, 3, seed=1)
    want, got = (gradients(lambda *z: sg.kabsch(*z)[1:], *(k * z for z in (x, y))) for k in (1.0, size))
    assert max(cases.relative_error(*pair) for pair in zip(got, want, strict=True)) < 1e-13
    want, got = (gradients(lambda *z: sg.umeyama(*z)[1:2], *(k * z for z in (x, y))) for k in (1.0, size))
    assert max(cases.relative_error(*pair) for pair in zip(got, want, strict=True)) < 1e-13 or size == 1e307
    want, got = (gradients(lambda *z: sg.umeyama(*z)[2:], *(k * z for z in (x, y))) for k in (1.0, size))
    assert max(cases.relative_error(g * size, w) for g, w in zip(got, want, strict=True)) < 1e-13


@each
def test_tangents_of_far_clouds(name: str, function: Call) -> None:
    """Forward mode does not ask for the size either; t goes with it."""
    given, along = ([cases.random(6, 3, seed=seed) for seed in seeds] for seeds in ((0, 1), (2, 3)))
    want, got = (
        torch.func.jvp(lambda *z: tuple(function(*z)), tuple(k * z for z in given), tuple(k * z for z in along))[1]
        for k in (1.0, 1e200)
    )
    for i, (far, near) in enumerate(zip(got, want, strict=True)):
        torch.testing.assert_close(far / (1e200 if i == 1 else 1), near, rtol=1e-12, atol=1e-13)


def test_slopes_of_weights_beside_the_largest_number() -> None:
    """Found by make fuzz: sums over coordinates met two infinities."""
    most = torch.finfo(torch.float64).max
    x = most * torch.tensor([[-0.33, 0.0, 0.0], [1.0, 0.0, 0.0]], dtype=torch.float64)
    y = 1e78 * torch.tensor([[0.0, 0.4, -1.57], [0.94, -1.35, -0.08]], dtype=torch.float64)
    given = [z.requires_grad_() for z in (x, y, torch.tensor([3.2e-9, 0.03], dtype=torch.float64))]
    R, t = sg.kabsch(*given)
    slopes = torch.autograd.grad([R, t], given, [torch.arange(1.0, 10).double().sin().reshape(3, 3), torch.ones_like(t)])
    assert all(g.isfinite().all() for g in slopes)


def test_slopes_of_a_scale_between_points_that_nearly_coincide() -> None:
    """The slope of their variance goes with its inverse squared: in the sums over points it met infinities."""
    x = 1e60 * (1 + 1e-12 * cases.random(5, 3, seed=1))
    given = [
        z.requires_grad_() for z in (x, 1e307 * cases.random(5, 3, seed=2).clamp(-1, 1), 1e-320 * torch.ones(5).double())
    ]
    t = sg.umeyama(*given).t
    slopes = torch.autograd.grad(t, given, torch.full_like(t, 1e200))
    assert all(g.isfinite().all() for g in slopes)


def saved_bytes(batch: int) -> int:
    x, y, w = (z.requires_grad_() for z in (torch.rand(batch, 16, 3), torch.rand(batch, 16, 3), torch.rand(batch, 16)))
    kept = []

    def keep(z: Tensor) -> Tensor:
        kept.append(z.numel() * z.element_size())
        return z

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda z: z):
        weigh(sg.umeyama(x, y, w))
    return sum(kept)


def test_memory_is_linear_in_the_batch() -> None:
    few, many = saved_bytes(10), saved_bytes(1000)
    assert many < 101 * few
    assert many / 1000 < 40 * 16 * 3 * 8  # a cloud keeps less than forty of its size in float64


# torch.func, torch.compile


@each
def test_bad_weights_inside_vmap_give_nan_for_that_cloud(name: str, function: Call) -> None:
    x, y, w = cases.random(4, 5, 3), cases.random(4, 5, 3, seed=1), torch.ones(4, 5).double()
    w[1], w[2, 0], y[3, 2] = 0, -1, torch.inf
    sg.reset_counts()
    found = torch.func.vmap(function, out_dims=0)(x, y, w)
    assert sg.counts() == {"nonfinite_input": 3}
    for z in found:
        assert z[0].isfinite().all()
        assert z[1:].isnan().all()
    with pytest.raises(OptionError), sg.checks(True):
        torch.func.vmap(function, out_dims=0)(x, y, w)
    with pytest.raises(OptionError, match="finite and >= 0"):
        torch.func.grad(lambda w: weigh(function(x, y, w)))(w)


# Bad input


@each
def test_bad_input(name: str, function: Call) -> None:
    x, w = cases.random(2, 5, 3), torch.ones(2, 5)

    def refused(error: type[Exception], match: str, *given: Any) -> None:
        with pytest.raises(error, match=f"^`{name}`: {match}"):
            function(*given)

    refused(ShapeError, r"`x` must hold at least one point .* got \(2, 0, 3\)\. Leave out", x[:, :0], x[:, :0])
    refused(ShapeError, r"`x` must hold at least one point .* got \(2, 5, 0\)", x[..., :0], x[..., :0])
    refused(ShapeError, r"`y` must be points in rows, .* got shape \(3,\). .* y.reshape\(1, -1\)", x, x[0, 0])
    refused(ShapeError, r"`x` and `y` must hold the same number .* got \(2, 5, 3\) and \(2, 4, 3\)", x, x[:, :4])
    refused(ShapeError, r"`x` and `y` must hold the same number .* got \(2, 5, 3\) and \(2, 5, 2\)", x, x[..., :2])
    refused(ShapeError, r"`weights` must hold one number for each point, \(\*batch, 5\), got \(2, 3\)", x, x, w[:, :3])
    refused(ShapeError, r"`weights` must hold one number for each point, \(\*batch, 5\), got \(\)", x, x, w.sum())
    refused(ShapeError, r"`weights` must hold one number .* got \(5, 1\)\. A column of them loses", x, x, w[0].unsqueeze(-1))
    refused(ShapeError, r"the batch dimensions .* must broadcast, got \(2,\), \(2,\), \(3,\)", x, x, torch.ones(3, 5))
    refused(DtypeError, r"`x` and `y` must have one dtype, got torch.float64 and torch.float32", x, x.float())
    refused(DtypeError, r"`x` must be real, got torch.complex128", x + 0j, x + 0j)
    refused(DtypeError, r"`x` must be floating point or complex, got torch.int64", x.long(), x.long())
    refused(DtypeError, r"`x` must be a torch.Tensor, got list", [[1.0]], x)
    refused(DtypeError, r"`weights` must be a torch.Tensor, got list", x, x, [1.0])
    refused(DtypeError, r"`weights` must be real, got torch.complex64\. Pass", x, x, w + 0j)
    for bad in (-1.0, torch.nan, torch.inf):
        wrong = w.clone()
        wrong[1, 2] = bad
        refused(
            OptionError, r"`weights` must be finite and >= 0, but 1 of 10 are not, the first at index \(1, 2\)", x, x, wrong
        )
    wrong = w.clone()
    wrong[1] = 0
    refused(OptionError, r"`weights` must not sum to zero, but those of 1 of 2 clouds do, .* index \(1,\)", x, x, wrong)
    refused(OptionError, r"`weights` must not sum to zero, but those of 1 of 1 clouds do\. ", x, x, torch.zeros(5))
    holed = x.clone()
    holed[1, 4, 0] = torch.nan
    refused(NonFiniteError, r"`x` must be finite, got 1 NaN .* index \(1, 4, 0\)", holed, x)
    refused(NonFiniteError, r"`y` must be finite, got 1 NaN .* index \(1, 4, 0\)", x, holed, w)
    sg.reset_counts()
    with sg.checks(False):
        for bad_weights in (-w, 0 * w):
            assert all(z.isnan().all() for z in function(x, x, bad_weights))
        assert function(holed, x)[0][1].isnan().all()
        assert function(holed, x)[0][0].isfinite().all()
    assert sg.counts() == {"nonfinite_input": 6}


@each
def test_points_in_columns_are_told(name: str, function: Call) -> None:
    x, y = cases.random(3, 20), cases.random(3, 20, seed=1)
    with pytest.warns(UserWarning, match=rf"`{name}`: \(3, 20\) holds 3 points of 20 coordinates.* pass x\.mT and y\.mT"):
        function(x, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        function(x.mT, y.mT)
        function(x[:, :3], y[:, :3])  # three points in space
