"""Native eigenpairs against LAPACK in float64, at every instruction set: families, places, broken neighbours, memory."""

import math

import pytest
import torch
from torch import Tensor

from spectralgrad.kernels.cpu import eigh as native
from spectralgrad.kernels.cpu import team
from support import cases
from support.lanes import DTYPES, LIMIT, level, needs_native, same_bits, symmetric, worst_pairs  # noqa: F401

pytestmark = needs_native
SIZES = [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 31, 33, 48, 64]


def matrices(n: int, dtype: torch.dtype, batch: int = 40) -> Tensor:
    X = cases.random(batch, n, n, dtype=torch.float64, seed=n).to(dtype)
    return X + X.mT


@pytest.mark.parametrize("dtype", DTYPES, ids=cases.ident)
@pytest.mark.parametrize("n", SIZES)
def test_families(n: int, dtype: torch.dtype, level: str) -> None:  # noqa: F811
    M = symmetric(n, dtype)
    w, V, status = native.eigh(M)
    assert status == 0
    assert bool((w.diff(dim=-1) >= 0).all())
    residual, orthogonality, error = worst_pairs(M, w, V)
    assert residual <= LIMIT
    assert orthogonality <= LIMIT
    assert error <= LIMIT
    values, status = native.eigvalsh(M)
    assert status == 0
    assert worst_pairs(M, values, V)[2] <= LIMIT
    assert V.mT.is_contiguous()  # columns, as LAPACK leaves them


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 8, 11])
def test_zeros_and_ones(n: int, level: str) -> None:  # noqa: F811
    """Exact zeros in every place: ties, splits, shifts that are eigenvalues to the last bit."""
    X = torch.randint(0, 2, (20_000, n, n), generator=cases.generator(n))
    for dtype in DTYPES:
        M = (X.tril() + X.tril(-1).mT).to(dtype)
        w, V, status = native.eigh(M)
        assert status == 0
        assert max(worst_pairs(M, w, V)) <= LIMIT


@pytest.mark.parametrize("n", [2, 3])
def test_small_eigenvalues_are_right_relative_to_themselves(n: int, level: str) -> None:  # noqa: F811
    """Jacobi's gift, for matrices graded by rows and columns: LAPACK's would be right relative to the largest alone."""
    grades = torch.logspace(0, -8, n, dtype=torch.float64)
    X = cases.random(200, n, n, seed=3)
    well = X @ X.mT / n + torch.eye(n, dtype=torch.float64)
    for order in (grades, grades.flip(0)):
        M = (well * order * order.unsqueeze(-1)).float()
        w = native.eigh(M).w.double()
        scaled = M.double() / order / order.unsqueeze(-1)
        determinant = torch.linalg.det(scaled) * grades.prod() ** 2
        assert float((w.prod(-1) / determinant - 1).abs().max()) < 100 * cases.eps(torch.float32)


@pytest.mark.parametrize("dtype", DTYPES, ids=cases.ident)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 17, 33])
def test_the_same_bits_whatever_the_batch_the_place_and_the_threads(n: int, dtype: torch.dtype, level: str) -> None:  # noqa: F811
    M = torch.cat([symmetric(n, dtype)[:150], matrices(n, dtype)])
    w, V, _ = native.eigh(M)
    values, _ = native.eigvalsh(M)
    for count in (1, 2, 3, 7, 16, 33):
        some = torch.randperm(len(M), generator=cases.generator(count))[:count]
        alone = native.eigh(M[some])
        assert same_bits(alone.w, w[some])
        assert same_bits(alone.V, V[some])
        assert same_bits(native.eigvalsh(M[some])[0], values[some])
    many = M.repeat(math.ceil(2e6 / (native.work(n) * len(M))) + 1, 1, 1)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert team.threads(len(many) * native.work(n)) in (1, 3)
        shared = native.eigh(many)
    finally:
        torch.set_num_threads(threads)
    assert same_bits(shared.w, w.repeat(len(many) // len(M), 1))
    assert same_bits(shared.V.mT, V.mT.repeat(len(many) // len(M), 1, 1))


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=cases.ident)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 16, 33])
def test_a_broken_matrix_leaves_the_others_alone(n: int, dtype: torch.dtype, broken: float, level: str) -> None:  # noqa: F811
    M = matrices(n, dtype)
    w, V, _ = native.eigh(M)
    hurt = M.clone()
    where = {5: (n - 1, 0), 17: (0, 0), 30: (0, n - 1)}
    for i, (row, column) in where.items():
        hurt[i, row, column] = broken
    hurt[38] = broken
    ill = torch.tensor([*where, 38])
    well = torch.ones(len(M), dtype=torch.bool).index_fill(0, ill, False)
    found = native.eigh(hurt)
    assert found.status & native.NOT_FINITE
    assert same_bits(found.w[well], w[well])
    assert same_bits(found.V[well], V[well])
    assert bool(found.w[ill].isnan().all())
    assert bool(found.V[ill].isnan().all())
    values, status = native.eigvalsh(hurt)
    assert status & native.NOT_FINITE
    assert bool(values[ill].isnan().all())


def test_only_the_symmetric_part_counts(level: str) -> None:  # noqa: F811
    for n in (1, 2, 3, 5, 17):
        X = cases.random(20, n, n, seed=n)
        X[3] *= 0
        X[3, 0, 0] = 1.7e308  # twice that overflows
        w, _, status = native.eigh(X)
        assert status == (native.NOT_SYMMETRIC if n > 1 else 0)
        assert torch.allclose(w, torch.linalg.eigvalsh(X / 2 + X.mT / 2), rtol=1e-12)
        M = X.tril() + X.tril(-1).mT
        assert native.eigh(M).status == 0
        assert same_bits(native.eigh(M).w, native.eigh(M.triu() + M.triu(1).mT).w)


def test_memory_of_any_kind(level: str) -> None:  # noqa: F811
    M = matrices(5, torch.float32, 24)
    w, V, _ = native.eigh(M)
    room = torch.empty(24 * 25 + 1)
    apart = torch.empty(24, 5, 10)[..., ::2]
    inner = torch.empty(24, 7, 7)[:, 1:6, 1:6]
    for place in (room[1:].view(24, 5, 5), apart, inner, torch.empty(5, 24, 5).transpose(0, 1)):
        place.copy_(M)
        found = native.eigh(place)
        assert same_bits(found.w, w)
        assert same_bits(found.V, V)
    minus = torch.complex(torch.zeros_like(M), -M).conj().imag
    assert minus.is_neg()
    assert same_bits(native.eigh(minus).w, w)
    assert same_bits(native.eigh(M[:1].expand(9, 2, 5, 5)).w, w[:1].expand(9, 2, 5))
    assert same_bits(native.eigh(M.mT).w, w)
    with torch.no_grad():
        assert native.runs_on(M)
        assert native.runs_on(torch.nn.Parameter(M))


@pytest.mark.parametrize("count", [1, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 6, 16, 17])
def test_nothing_is_written_outside(n: int, count: int, level: str) -> None:  # noqa: F811
    """Numbers around the output stay, and those around the input are not needed."""
    for dtype in DTYPES:
        M = matrices(n, dtype, count)
        rooms = [torch.full((size + 64,), 7.0, dtype=dtype) for size in (count * n, count * n * n)]
        w, V = (room[32:-32] for room in rooms)
        native._EIGH[dtype](n, M.data_ptr(), w.data_ptr(), V.data_ptr(), count, 1)
        for room in rooms:
            assert bool((room[:32] == 7).all())
            assert bool((room[-32:] == 7).all())
        assert same_bits(w.view(count, n), native.eigh(M).w)


def test_what_is_refused() -> None:
    M = torch.eye(3)
    assert native.runs_on(M)
    for x in (
        M.to("meta"),
        M.half(),
        M.to(torch.complex64),
        M.to_sparse(),
        M[:0, :0],
        M.expand(0, 3, 3),
        torch.eye(native.LARGEST + 1),
    ):
        assert not native.runs_on(x)
    torch.func.vmap(lambda x: x.add(float(native.runs_on(x))))(torch.zeros(2, 3, 3))  # asked inside, says no
    seen = []
    torch.func.vmap(lambda x: (seen.append(native.runs_on(x)), x)[1])(torch.zeros(2, 3, 3))
    assert seen == [False]
