"""The Jacobi kernel's own source, compiled for the CPU: LAPACK's families, layouts, ties, shifts, NaN."""

import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from spectralgrad.kernels import jacobi
from support import cases
from support.families import SCALES, disagreements, families, faults
from support.on_cpu import SHARED_MEMORY, on_cpu  # noqa: F401

pytestmark = pytest.mark.usefixtures("on_cpu")
REALS = [torch.float32, torch.float64]


def layout_of(n: int, size: int, shared_memory: int, batch: int = 1) -> jacobi.Shape:
    return jacobi.shape(n, size, shared_memory, jacobi.division(n, size, batch))


def solve(M: Tensor) -> tuple[Tensor, Tensor, int]:
    """w, V and how many matrices were not finite."""
    counter = torch.zeros((), dtype=torch.int64)
    w, V = jacobi.eigh(M, counter)
    return w, V, int(counter)


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", REALS, ids=cases.ident)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 13, 16])
def test_families(n: int, dtype: torch.dtype) -> None:
    names, M = families(n, dtype, SCALES)
    w, V, broken = solve(M)
    assert broken == 0
    assert faults(names, M, w, V) + disagreements(names, M, w, torch.linalg.eigvalsh(M.double())) == []


@pytest.mark.parametrize(
    ("n", "dtype"),
    [
        (33, torch.float32),
        *(pytest.param(*given, marks=pytest.mark.slow) for given in ((33, torch.float64), (64, torch.float32))),
    ],
)
def test_a_matrix_of_several_warps(n: int, dtype: torch.dtype) -> None:
    names, M = families(n, dtype, ["plain"])
    w, V, _ = solve(M)
    assert faults(names, M, w, V) == []


@pytest.mark.parametrize("dtype", REALS, ids=cases.ident)
def test_rows_in_global_memory(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """The layout of matrices that do not fit into shared memory, here forced on small ones: the same bits."""
    M = cases.random_covariance(12, 3, dtype=dtype)
    w, V, _ = solve(M)
    monkeypatch.setattr(jacobi.nvrtc, "shared_memory", lambda _: 1 << 10)
    jacobi._kernel.cache_clear()
    assert layout_of(12, dtype.itemsize, 1 << 10).IN_GLOBAL
    w2, V2, _ = solve(M)
    assert torch.equal(w, w2)
    assert torch.equal(V, V2)


def test_only_the_symmetric_part_counts() -> None:
    M = cases.random(2, 6, 6, dtype=torch.float32)
    for x, y in zip(solve(M)[:2], solve((M + M.mT) / 2)[:2], strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_broken_matrix_spoils_no_other(value: float) -> None:
    """Sixteen matrices share a warp at n = 4: NaN stays where it was, and is counted."""
    M = cases.random_covariance(4, 70, dtype=torch.float32)
    clean = solve(M)
    M[[5, 33], 2, 1] = value
    w, V, broken = solve(M)
    assert broken == 2
    bad = torch.zeros(70, dtype=torch.bool)
    bad[[5, 33]] = True
    assert bool(w[bad].isnan().all())
    assert bool(V[bad].isnan().all())
    assert torch.equal(w[~bad], clean[0][~bad])
    assert torch.equal(V[~bad], clean[1][~bad])


def test_an_indefinite_matrix_among_definite_ones() -> None:
    """Matrices of one warp pass the barriers together, though only one of them is factored twice."""
    M = cases.random_covariance(4, 20, dtype=torch.float32)
    clean = solve(M)
    M[7] = cases.with_spectrum(torch.tensor([-1.0, -0.5, 0.5, 2.0], dtype=torch.float64)).float()
    w, _, _ = solve(M)
    assert torch.equal(w[:7], clean[0][:7])
    torch.testing.assert_close(w[7], torch.tensor([-1.0, -0.5, 0.5, 2.0]))


def test_small_eigenvalues_of_badly_scaled_features() -> None:
    """Each eigenvalue relative to itself, at condition 1e5 and more: better than LAPACK."""
    scale = torch.logspace(0, -3, 16, dtype=torch.float64)
    M = (scale[:, None] * cases.random_covariance(16, 4) * scale).float()
    exact = torch.linalg.eigvalsh(M.double())
    error = ((solve(M)[0].double() - exact) / exact).abs().max()
    lapack = ((torch.linalg.eigvalsh(M).double() - exact) / exact).abs().max()
    assert error < 1e-5
    assert error < lapack


def test_the_solver_uses_it_and_its_gradient_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """`Jacobi` goes through the kernel where that runs; without checks even M is handed over as it is."""
    calls = []
    eigh = jacobi.eigh
    monkeypatch.setattr(jacobi, "eigh", lambda *args: calls.append(1) or eigh(*args))
    M = cases.random_covariance(5, 2)
    with sg.checks(False):
        x = M.clone().requires_grad_()
        sg.inv_sqrtm(x, solver=sg.Jacobi()).sum().backward()
    assert calls
    y = M.clone().requires_grad_()
    sg.inv_sqrtm(y, solver=sg.Lapack()).sum().backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("batch", [1, 1000, 4096])
@pytest.mark.parametrize("size", [4, 8])
def test_layouts(size: int, batch: int) -> None:
    """What the kernel asks of a layout: whole warps, powers of two, enough threads, memory that exists."""
    for n in range(1, 513):
        layout = layout_of(n, size, SHARED_MEMORY, batch)
        assert n <= layout.N
        assert layout.N % (2 * layout.PLAYER) == layout.N % 4 == layout.PAD * size % 16 == 0
        assert layout.LANES & (layout.LANES - 1) == 0
        assert layout.LANES <= 32
        assert layout.TEAM % 32 == 0 or 32 % layout.TEAM == 0
        assert layout.TEAM % layout.LANES == 0
        assert layout.TEAM * layout.MATRICES % 32 == 0
        assert layout.TEAM * layout.MATRICES <= 1024
        assert layout.TEAM // 32 <= layout.N  # one entry for each warp in a vector of N
        assert layout.shared <= SHARED_MEMORY
    assert not layout_of(128, size, SHARED_MEMORY).IN_GLOBAL
    assert layout_of(256, size, SHARED_MEMORY).IN_GLOBAL


DIVISIONS = sorted({found for table in (jacobi._FEW, jacobi._MANY) for rows in table.values() for _, found in rows})


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", REALS, ids=cases.ident)
@pytest.mark.parametrize("n", [12, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 21))])
@pytest.mark.parametrize("division", DIVISIONS, ids=lambda found: f"{found.PLAYER}x{found.LANES}")
def test_every_division(division: jacobi.Division, n: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each that some n takes, here for one n: with and without idle threads, of one warp and of several."""
    monkeypatch.setattr(jacobi, "division", lambda *_: division)
    jacobi._kernel.cache_clear()
    names, M = families(n, dtype, ["plain"])
    w, V, _ = solve(M)
    assert faults(names, M, w, V) == []


def test_many_matrices_are_divided_otherwise() -> None:
    assert jacobi.division(32, 4, 4096) != jacobi.division(32, 4, 1)
    assert jacobi.division(100, 4, 4096) == jacobi.division(100, 4, 1)


# Starting from a basis.


def moved(M: Tensor, by: float, seed: int = 5) -> Tensor:
    """A matrix near ``M`` (*B, n, n), relative to its own directions: as the next batch's covariance is."""
    L = torch.linalg.cholesky(M)
    E = cases.random(*M.shape, seed=seed) * by
    return L @ (torch.eye(M.shape[-1], dtype=M.dtype) + (E + E.mT) / 2) @ L.mT


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", REALS, ids=cases.ident)
@pytest.mark.parametrize("n", [1, 3, 8, 16, 33])
def test_a_starting_basis_saves_sweeps_and_changes_nothing_else(n: int, dtype: torch.dtype) -> None:
    before = cases.random_covariance(n, 3)
    M = moved(before, 1e-3).to(dtype)
    start = torch.linalg.eigh(before)[1].to(dtype)
    counter, cold, warm = torch.zeros((), dtype=torch.int64), *torch.zeros(2, 3, dtype=torch.int32)
    w, _ = jacobi.eigh(M, counter, sweeps=cold)
    w2, V2 = jacobi.eigh(M, counter, start, warm)
    names = ["moved"] * 3
    assert faults(names, M, w2, V2) + disagreements(names, M, w2, w) == []
    if n >= 8:
        assert bool((warm <= cold - 2).all())


@pytest.mark.parametrize("what", ["indefinite", "singular", "zero", "nan"])
def test_a_starting_basis_and_any_matrix(what: str) -> None:
    start = cases.rotation(6, 2).float()
    M = {
        "indefinite": cases.with_spectrum(torch.linspace(-2, 3, 6, dtype=torch.float64), 2, seed=4),
        "singular": cases.with_spectrum(cases.rank_deficient(6), 2, seed=4),
        "zero": torch.zeros(2, 6, 6),
        "nan": torch.full((2, 6, 6), torch.nan),
    }[what].float()
    counter = torch.zeros((), dtype=torch.int64)
    w, V = jacobi.eigh(M, counter, start)
    if what == "nan":
        assert int(counter) == 2
        assert bool(V.isnan().all())
    else:
        assert faults([what] * 2, M, w, V) == []


@pytest.mark.parametrize("start", ["not orthonormal", "nan", "huge"])
def test_a_bad_starting_basis_is_not_used(start: str) -> None:
    """The result is that of the identity as a start, to the last bit."""
    M = cases.random_covariance(8, 2, dtype=torch.float32)
    given = {
        "not orthonormal": cases.rotation(8, 2).float() * 1.01,
        "nan": torch.full((2, 8, 8), torch.nan),
        "huge": cases.random(2, 8, 8).float() * 1e30,
    }[start]
    counter = torch.zeros((), dtype=torch.int64)
    identity = torch.eye(8).flip(-1).expand(2, 8, 8)
    for x, y in zip(jacobi.eigh(M, counter, given), jacobi.eigh(M, counter, identity), strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("times", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_basis_handed_on_many_times_stays_orthonormal(times: int) -> None:
    """Each step rounds; the step of Newton-Schulz takes it back."""
    counter, start, M = torch.zeros((), dtype=torch.int64), None, cases.random_covariance(4)
    for seed in range(times):
        step = moved(M, 1e-2, seed).float()
        w, start = jacobi.eigh(step, counter, start)
    assert start is not None
    assert faults(["last"], step[None], w[None], start[None]) == []
