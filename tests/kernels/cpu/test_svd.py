"""Native singular triplets and polar factors against LAPACK in float64 and the plain twins, at every instruction set."""

import math

import pytest
import torch
from torch import Tensor

from spectralgrad.kernels.cpu import polar, svd
from spectralgrad.kernels.small_svd import Polar
from support import cases
from support.lanes import DTYPES, LIMIT, at_scale_1, general, level, needs_native, norm, same_bits  # noqa: F401

pytestmark = needs_native
SHAPES = [
    (1, 1),
    (2, 2),
    (3, 3),
    (4, 4),
    (5, 5),
    (8, 8),
    (17, 17),
    (33, 33),
    (2, 1),
    (5, 3),
    (9, 8),
    (40, 5),
    (33, 16),
    (64, 8),
]


def worst(A: Tensor, U: Tensor, S: Tensor, Vh: Tensor) -> float:
    """Residual, orthogonality and error of the values, whichever is largest, in units of n eps |A|."""
    k = min(A.shape[-2:])
    X, s, least = at_scale_1(A, S)
    U, Vh = U.double(), Vh.double()
    size, rounding, eye = norm(X).clamp(min=1e-300), k * least, torch.eye(k, dtype=torch.float64)
    residual = (norm((U * s.unsqueeze(-2)) @ Vh - X) - rounding) / size
    values = ((s - torch.linalg.svdvals(X)).abs().amax(-1) - rounding) / size
    left, right = ((Q - eye).abs().amax((-2, -1)) for Q in (U.mT @ U, Vh @ Vh.mT))
    return max(float(e.nan_to_num(nan=math.inf).max()) for e in (residual, values, left, right)) / (k * cases.eps(A.dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=cases.ident)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"{s[0]}x{s[1]}")
def test_families(shape: tuple[int, int], dtype: torch.dtype, level: str) -> None:  # noqa: F811
    A = general(*shape, dtype)
    for X in (A, A.mT, A.mT.contiguous(), A.mT.contiguous().mT):
        U, S, Vh, status = svd.svd(X)
        assert status == 0
        assert bool((S.diff(dim=-1) <= 0).all())
        assert bool((S >= 0).all())
        assert worst(X, U, S, Vh) <= LIMIT


@pytest.mark.parametrize("shape", [(2, 2), (3, 3), (4, 4), (5, 5), (7, 7), (6, 4)], ids=str)
def test_zeros_and_ones(shape: tuple[int, int], level: str) -> None:  # noqa: F811
    for dtype in DTYPES:
        A = torch.randint(0, 2, (20_000, *shape), generator=cases.generator(shape[0])).to(dtype)
        U, S, Vh, status = svd.svd(A)
        assert status == 0
        assert worst(A, U, S, Vh) <= LIMIT


@pytest.mark.parametrize("dtype", DTYPES, ids=cases.ident)
@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (17, 17), (9, 4)], ids=str)
def test_the_same_bits_whatever_the_batch_and_the_place(shape: tuple[int, int], dtype: torch.dtype, level: str) -> None:  # noqa: F811
    A = general(*shape, dtype)[:150]
    whole = svd.svd(A)
    for count in (1, 3, 16, 33):
        some = torch.randperm(len(A), generator=cases.generator(count))[:count]
        for got, expected in zip(svd.svd(A[some])[:3], whole[:3], strict=True):
            assert same_bits(got, expected[some])
    many = A.repeat(math.ceil(4e6 / (A.numel() * (shape[1] + 8))) + 1, 1, 1)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        shared = svd.svd(many)
    finally:
        torch.set_num_threads(threads)
    for got, expected in zip(shared[:3], whole[:3], strict=True):
        assert same_bits(got, expected.repeat(len(many) // len(A), *[1] * (expected.ndim - 1)))


@pytest.mark.parametrize("broken", [math.nan, math.inf], ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (9, 4)], ids=str)
def test_a_broken_matrix_leaves_the_others_alone(shape: tuple[int, int], broken: float, level: str) -> None:  # noqa: F811
    for dtype in DTYPES:
        A = cases.random(40, *shape).to(dtype)
        hurt = A.clone()
        hurt[5, -1, 0] = hurt[17, 0, 0] = broken
        hurt[38] = broken
        well = torch.ones(40, dtype=torch.bool)
        well[[5, 17, 38]] = False
        found, expected = svd.svd(hurt), svd.svd(A)
        assert found.status == 1
        for got, fine in zip(found[:3], expected[:3], strict=True):
            assert same_bits(got[well], fine[well])
            assert bool(got[~well].isnan().all())


@pytest.mark.parametrize("count", [1, 3, 15, 16, 17, 31, 32, 33, 65])
@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (3, 3), (4, 4), (6, 2), (17, 3)], ids=str)
def test_nothing_is_written_outside(shape: tuple[int, int], count: int, level: str) -> None:  # noqa: F811
    m, n = shape
    for dtype in DTYPES:
        A = cases.random(count, m, n).to(dtype)
        rooms = [torch.full((size + 64,), 7.0, dtype=dtype) for size in (count * m * n, count * n, count * n * n)]
        places = [room[32:-32].data_ptr() for room in rooms]
        svd._SVD[dtype](m, n, A.data_ptr(), *places, count, 0, 1)
        for room in rooms:
            assert bool((room[:32] == 7).all())
            assert bool((room[-32:] == 7).all())
        assert same_bits(rooms[1][32:-32].view(count, n), svd.svd(A).S)


# Polar factors.


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=cases.ident)
@pytest.mark.parametrize("n", polar.SIZES)
def test_polar_factors(n: int, dtype: torch.dtype, special: bool, level: str) -> None:  # noqa: F811
    """Orthogonal at any rank, a rotation if asked, and the nearest one; Q H = A with a symmetric H."""
    A = general(n, n, dtype)
    (Q, sigma, V), status = polar.polar(A, special)
    assert status == 0
    eps = cases.eps(dtype)
    X, s, least = at_scale_1(A, sigma)
    q, v = Q.double(), V.double()
    assert float((q.mT @ q - torch.eye(n, dtype=torch.float64)).abs().max()) <= LIMIT * n * eps
    if special:
        assert bool((torch.linalg.det(q) > 0).all())
    H = (v * s.unsqueeze(-2)) @ v.mT
    assert float((norm(q @ H - X) - n * least).max()) <= LIMIT * n * eps * n
    U, S, Vh = torch.linalg.svd(X)
    turned = (torch.linalg.det(U @ Vh) < 0) & special
    best = S.sum(-1) - 2 * torch.where(turned, S[..., -1], 0)  # <Q, A> of the nearest one
    assert float((best - (q * X).sum((-2, -1))).abs().max()) <= 1e3 * eps
    for some in ([3], [44, 2, 9]):
        alone = polar.polar(A[some], special)[0]
        assert all(same_bits(a, b[some]) for a, b in zip(alone, (Q, sigma, V), strict=True))
    assert all(same_bits(a, b) for a, b in zip(polar.polar(A.mT.contiguous().mT, special)[0], (Q, sigma, V), strict=True))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 17])
def test_derivative_of_polar_factors(n: int, level: str) -> None:  # noqa: F811
    """Against the equation that it solves, and divided differences."""
    A, E, step = cases.random(20, n, n), cases.random(20, n, n, seed=2), 1e-6

    def factors(X: Tensor) -> Polar:
        U, S, Vh = torch.linalg.svd(X)
        return Polar(U @ Vh, S, Vh.mT)

    of, eps = factors(A), cases.eps(torch.float64)
    got = polar.derivative(of, E, eps)
    assert cases.relative_error(got, (factors(A + step * E).Q - factors(A - step * E).Q) / (2 * step)) < 1e-5
    H, W = of.Q.mT @ A, of.Q.mT @ got
    K = of.Q.mT @ E
    assert cases.relative_error(H @ W + W @ H, K - K.mT) < 1e-11 if n > 1 else not got.any()
    columns = Polar(of.Q.mT.contiguous().mT, of.sigma, of.V.mT.contiguous().mT)
    assert same_bits(polar.derivative(columns, E.mT.contiguous().mT, eps), got)
    for scale in (1e-200, 1e200):
        far = polar.derivative(Polar(of.Q, of.sigma * scale, of.V), E, eps)
        assert cases.relative_error(far * scale, got) < 1e-13
    assert cases.relative_error(polar.derivative(of, E * 1e-300, eps) * 1e300, got) < 1e-13 if n > 1 else True


def test_pairs_without_a_sum_give_nothing(level: str) -> None:  # noqa: F811
    A = torch.diag(torch.tensor([2.0, 0.0, 0.0])).double()
    for special in (False, True):
        of, _ = polar.polar(A, special)
        got = polar.derivative(of, cases.random(3, 3), cases.eps(torch.float64))
        assert bool(got.isfinite().all())
        assert float(got.abs().max()) < 10
