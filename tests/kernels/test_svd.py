"""The kernels of the singular value decomposition, compiled for the CPU: families, shapes, layouts, scales, NaN."""

from functools import partial

import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from spectralgrad.kernels import nvrtc, qr, svd
from spectralgrad.kernels.strided import Vectors, strided
from support import cases
from support.on_cpu import SHARED_MEMORY, on_cpu  # noqa: F401
from support.triplets import SCALES, families, faults, with_singular_values

pytestmark = pytest.mark.usefixtures("on_cpu")
REALS = [torch.float32, torch.float64]
# In registers; Jacobi on the matrix, in one warp and in several; by a triangle of one piece and of several, and of n <= 4.
SMALL = [(1, 1), (2, 1), (1, 4), (2, 2), (4, 2), (3, 3), (3, 4), (4, 4)]
DIRECT = [(5, 5), (9, 1), (6, 13), (13, 6), (16, 16)]
BY_TRIANGLE = [(40, 7), (33, 2), *(pytest.param(*sizes, marks=pytest.mark.slow) for sizes in ((7, 40), (300, 5), (36, 36)))]


def solve(A: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
    """U, S, Vh and how many matrices were not finite."""
    counter = torch.zeros((), dtype=torch.int64)
    return *svd.svd(A, counter), int(counter)


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", REALS, ids=cases.ident)
@pytest.mark.parametrize(("m", "n"), [*SMALL, *DIRECT, *BY_TRIANGLE])
def test_families(m: int, n: int, dtype: torch.dtype) -> None:
    names, A = families(m, n, dtype, SCALES)
    U, S, Vh, broken = solve(A)
    assert broken == 0
    assert faults(names, A, U, S, Vh) == []
    assert U.is_contiguous()
    assert Vh.is_contiguous()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", REALS, ids=cases.ident)
def test_64(dtype: torch.dtype) -> None:
    A = cases.random(1, 64, 64, dtype=dtype)
    assert faults(["random"], A, *solve(A)[:3]) == []


def forget() -> None:
    svd._kernel.cache_clear()
    svd._compiled.cache_clear()


@pytest.mark.parametrize("dtype", REALS, ids=cases.ident)
@pytest.mark.parametrize(("memory", "place"), [(7 << 9, 1), (2 << 10, 2)])
def test_rows_in_global_memory(memory: int, place: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """The layouts of matrices that do not fit into shared memory, here forced on small ones: the same bits."""
    memory = memory * dtype.itemsize // 4
    A = cases.random(3, 20, 18, dtype=dtype)
    expected = solve(A)
    monkeypatch.setattr(nvrtc, "shared_memory", lambda _: memory)
    forget()
    layout = svd.shape(20, 18, dtype.itemsize, memory, svd.lanes_for(20, dtype.itemsize, 3))
    assert place == layout.IN_GLOBAL
    for x, y in zip(solve(A), expected, strict=True):
        assert torch.equal(torch.as_tensor(x), torch.as_tensor(y))
    forget()


@pytest.mark.parametrize("n", [14, 29])
def test_one_lane(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The layout for thousands of matrices, with and without idle threads."""
    assert svd.lanes_for(n, 4, 4096) == 1
    monkeypatch.setattr(svd, "lanes_for", partial(lambda f, m, size, _: f(m, size, 4096), svd.lanes_for))
    forget()
    names, A = families(n, n, torch.float32, ["plain"])
    assert faults(names, A, *solve(A)[:3]) == []
    forget()


@pytest.mark.parametrize("size", [4, 8])
def test_layouts(size: int) -> None:
    """What the kernels ask of a layout: whole warps, powers of two, memory that exists, room for every column."""
    for n in range(1, 513, 3):
        for batch in (1, 4096):
            layout = svd.shape(n, n, size, SHARED_MEMORY, svd.lanes_for(n, size, batch))
            assert n <= layout.N
            assert layout.N % 4 == layout.M % 4 == 0
            assert layout.TEAM % layout.LANES == 0
            assert layout.TEAM % 32 == 0 or 32 % layout.TEAM == 0
            assert layout.TEAM * layout.MATRICES % 32 == 0
            assert layout.TEAM // 32 <= layout.N
            assert layout.shared <= SHARED_MEMORY
            assert layout.IN_GLOBAL == 0 or n > 96
    for n in range(1, qr.LARGEST + 1):
        for m in (n, 33, 200, 10_000):
            piece = qr.shape(max(m, n), n, size)
            assert n <= piece.WARPS * piece.COLUMNS
            assert piece.WARPS <= 32
            assert piece.height >= n
            assert piece.shared <= SHARED_MEMORY


def scaled_columns(n: int, m: int, lowest: int, seed: int = 0) -> Tensor:
    """B D: a well-conditioned B with columns scaled by powers of two from 1 down to 2^lowest, in no order."""
    B = with_singular_values(cases.separated(min(m, n)), m, n, seed)
    D = torch.exp2(torch.linspace(0, lowest, n, dtype=torch.float64).round())
    return B * D[torch.randperm(n, generator=cases.generator(seed))]


@pytest.mark.parametrize(("m", "n"), [(4, 4), (3, 3), (4, 2), (12, 12), (9, 7), (50, 11), (34, 34)])
def test_small_singular_values_of_scaled_columns(m: int, n: int) -> None:
    """Each relative to itself, down to 1e-25 of the largest in float32, whose squares underflow; not so torch's."""
    A = scaled_columns(n, m, -84).float()
    # In float64 the kernel's own method is exact to 1e-13 of each; mpmath agrees where it can be asked (below).
    _, exact, _, _ = solve(A.double()[None])
    _, S, _, _ = solve(A[None])
    error = ((S.double() - exact) / exact).abs().max()
    torch_error = ((torch.linalg.svdvals(A).double() - exact[0]) / exact[0]).abs().max()
    assert error < 30 * cases.eps(torch.float32)
    assert n < 6 or torch_error > 1e-3  # of a few columns LAPACK may be lucky


@pytest.mark.parametrize(("m", "n"), [(4, 4), (6, 5), (40, 6)])
def test_small_singular_values_against_fifty_digits(m: int, n: int) -> None:
    mpmath = pytest.importorskip("mpmath")
    for dtype, lowest in ((torch.float32, -84), (torch.float64, -400)):
        A = scaled_columns(n, m, lowest).to(dtype)
        with mpmath.workdps(300):  # squares of 2^-400, and digits beside them
            gram = mpmath.matrix(A.double().mT.tolist()) * mpmath.matrix(A.double().tolist())
            exact = sorted((mpmath.sqrt(x) for x in mpmath.eigsy(gram, eigvals_only=True)), reverse=True)
            found = [mpmath.mpf(float(x)) for x in solve(A[None])[1][0]]
            worst = max(abs(x / y - 1) for x, y in zip(found, exact, strict=True))
        assert worst < 30 * cases.eps(dtype)


@pytest.mark.covering(1)
@pytest.mark.parametrize(("m", "n"), [(3, 3), (4, 2), (6, 6), (40, 6)])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_broken_matrix_spoils_no_other(m: int, n: int, value: float) -> None:
    A = cases.random(19, m, n, dtype=torch.float32)
    clean = solve(A)
    A[[5, 18], m - 1, 1] = value
    *found, broken = solve(A)
    assert broken == 2
    bad = torch.zeros(19, dtype=torch.bool)
    bad[[5, 18]] = True
    for x, y in zip(found, clean, strict=False):
        assert bool(x[bad].isnan().all())
        assert torch.equal(x[~bad], y[~bad])


LAYOUTS = {
    "columns first": lambda A: A.mT.contiguous().mT,
    "every second": lambda A: A.repeat_interleave(2, -1)[..., ::2],
    "batch of two dimensions": lambda A: A.reshape(2, 3, *A.shape[1:]).transpose(0, 1),
    "expanded": lambda A: A[:1].expand_as(A),
}


@pytest.mark.parametrize(("m", "n"), [(4, 3), (7, 9), (40, 6)])
@pytest.mark.parametrize("name", LAYOUTS)
def test_any_strides(name: str, m: int, n: int) -> None:
    """The bits of the contiguous matrix, and nothing is copied for a transposed one."""
    A = LAYOUTS[name](cases.random(6, m, n, dtype=torch.float32))
    for x, y in zip(solve(A), solve(A.contiguous()), strict=True):
        assert torch.equal(torch.as_tensor(x), torch.as_tensor(y))
    if name != "batch of two dimensions":
        assert strided(A).memory.data_ptr() == A.data_ptr()


@pytest.mark.parametrize(("m", "n"), [(4, 3), (9, 7), (40, 6)])
def test_a_wide_matrix_is_its_transpose(m: int, n: int) -> None:
    A = cases.random(3, m, n, dtype=torch.float32)
    U, S, Vh, _ = solve(A)
    U2, S2, Vh2, _ = solve(A.mT)
    assert torch.equal(S, S2)
    assert torch.equal(U.mT, Vh2)
    assert torch.equal(Vh.mT, U2)


# Q R


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", REALS, ids=cases.ident)
@pytest.mark.parametrize(("m", "n"), [(5, 5), (40, 7), (64, 33), (300, 3), (700, 6)])
def test_qr(m: int, n: int, dtype: torch.dtype) -> None:
    """Q R = A column by column, and Q^T Q = I, over one piece and several."""
    A = cases.random(2, m, n, dtype=dtype) * torch.logspace(0, -20, n, dtype=dtype)
    A[1, :, n // 2] = 0
    by = qr.factor(strided(A), A)
    Q = torch.empty(2, m, n, dtype=dtype)
    qr.apply(by, torch.eye(n, dtype=dtype).expand(2, n, n).contiguous(), Vectors(Q, n, 1))
    R = by.R.double() * torch.exp2(by.exponents.double())[:, None, None]
    residual = torch.linalg.vector_norm(Q.double() @ R - A.double(), dim=-2)
    ulp = max(m, n) * cases.eps(dtype)
    assert bool((residual <= ulp * torch.linalg.vector_norm(A.double(), dim=-2)).all())
    identity = torch.eye(n, dtype=torch.float64)
    assert float((Q.double().mT @ Q.double() - identity).abs().max()) <= ulp
    height = qr.shape(m, n, dtype.itemsize).height
    assert by.taus.numel() == 2 * n * -(-m // height)


# Through the door.


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    made: list[int] = []
    kernel = svd.svd
    monkeypatch.setattr(svd, "svd", lambda *args: made.append(1) or kernel(*args))
    return made


def test_auto_takes_the_kernels_and_lapack_does_not(calls: list[int]) -> None:
    A = cases.random(2, 6, 4)
    with sg.checks(False):
        U, S, Vh = sg.svd(A)
        assert len(calls) == 1
        for solver in (sg.Lapack(), sg.SVD()):
            expected = sg.svd(A, solver=solver)
            sg.singular_map(A, torch.sin, solver=solver)
            sg.polar(A, solver=solver)
        assert len(calls) == 1
    torch.testing.assert_close(S, expected.S)
    torch.testing.assert_close((U * S.unsqueeze(-2)) @ Vh, A)
    for f in (sg.svdvals, sg.nuclear_norm, sg.pinv, sg.polar, lambda X: sg.singular_map(X, torch.sin)):
        before = len(calls)
        f(A.requires_grad_())  # without a gradient values alone are LAPACK's on the CPU, which stands for a GPU here
        assert len(calls) == before + 1


def test_gradients_are_those_of_lapack(calls: list[int]) -> None:
    A, weight = cases.random(2, 6, 5), cases.random(6, 5, seed=1)

    def gradient(solver: sg.Solver) -> Tensor:
        X = A.clone().requires_grad_()
        U, S, Vh = sg.svd(X, solver=solver)
        (((U * S.sin().unsqueeze(-2)) @ Vh) * weight).sum().backward()
        assert X.grad is not None
        return X.grad

    ours = gradient(sg.Auto())
    assert calls
    torch.testing.assert_close(ours, gradient(sg.Lapack()), rtol=1e-10, atol=1e-10)


def test_bad_values_through_the_door() -> None:
    A = cases.random(3, 6, 6, dtype=torch.float32)
    A[1, 0, 0] = torch.nan
    with sg.checks(False):
        _, S, _ = sg.svd(A)
    assert bool(S[1].isnan().all())
    assert bool(S[[0, 2]].isfinite().all())


@pytest.mark.parametrize("shape", [(0, 3, 3), (2, 0, 3), (2, 3, 0), (0, 0), (0, 40, 7)])
def test_nothing_to_decompose(shape: tuple[int, ...], calls: list[int]) -> None:
    U, S, Vh = sg.svd(torch.zeros(shape))
    expected = torch.linalg.svd(torch.zeros(shape), full_matrices=False)
    assert [x.shape for x in (U, S, Vh)] == [x.shape for x in expected]
    assert not calls


def test_what_is_not_taken() -> None:
    assert svd.runs_on(torch.ones(2, 512, 512))
    assert svd.runs_on(torch.ones(128, 3000))
    assert not svd.runs_on(torch.ones(129, 600))
    assert not svd.runs_on(torch.ones(2, 3, 3, dtype=torch.complex64))
    assert not svd.runs_on(torch.ones(1).expand(2**16, 2**16))
    assert sg.Auto().triplets(torch.ones(2, 200, 200)) is None  # few large ones are torch's
    assert sg.Auto().triplets(torch.ones(1, 9000, 3)) is None
