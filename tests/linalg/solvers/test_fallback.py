"""The fallback chain: as asked, float64, jitter, a named error; and the counters that tell of it."""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from spectralgrad import counters
from spectralgrad.errors import ConvergenceError, LinAlgError, NonFiniteError
from spectralgrad.linalg.solvers import fallback
from support import cases

MARK = 50.0  # a matrix whose first entry is above this is one that the fake solvers cannot do
FAILURES = ["raises", "NaN in w", "NaN in V", "Inf in V"]
Factors = tuple[Tensor, ...]


@pytest.fixture(autouse=True)
def _fresh_counts() -> Iterator[None]:
    sg.reset_counts()
    yield
    sg.reset_counts()


def marked(M: Tensor) -> Tensor:
    """Which matrices (*B,) the fakes fail at."""
    return M[..., 0, 0].real > MARK


def spoil(M: Tensor, factors: Factors, failure: str) -> Factors:
    """Make the decomposition of the marked matrices fail in the given way."""
    bad = marked(M)
    if failure == "raises":
        if bool(bad.any()):
            raise LinAlgError("fake failure")
        return factors
    broken = list(factors)
    i = 0 if failure == "NaN in w" else 1
    value = torch.inf if failure == "Inf in V" else torch.nan
    broken[i] = broken[i].clone()
    broken[i][..., 0][bad if broken[i].ndim == M.ndim - 1 else bad.unsqueeze(-1).expand(broken[i].shape[:-1])] = value
    return tuple(broken)


@dataclass(frozen=True)
class Flaky(sg.Solver):
    """Fails at marked matrices only, and remembers how many matrices each call had."""

    failure: str
    calls: list[int] = field(default_factory=list, compare=False)

    def solve(self, H: Tensor) -> tuple[Tensor, Tensor]:
        self.calls.append(H[..., 0, 0].numel())
        return spoil(H, torch.linalg.eigh(H), self.failure)


class LapackThatFails:
    """Stands for `Lapack` inside the chain; fails at marked matrices as often as ``fails`` says, and keeps what it saw."""

    def __init__(self, fails: Callable[[Tensor], Tensor] | None = None) -> None:
        self.fails, self.seen = fails, []

    def __call__(self) -> "LapackThatFails":
        return self

    def solve(self, H: Tensor) -> tuple[Tensor, Tensor]:
        if bool(H.any()):  # zeros are stand-ins for shapes
            self.seen.append(H.clone())
            if self.fails is not None and bool(self.fails(H).any()):
                raise LinAlgError("fake failure of LAPACK")
        w, V = torch.linalg.eigh(H)
        return w, V


def batch(bad: list[int], dtype: torch.dtype = torch.float32, n: int = 4, size: int = 7) -> Tensor:
    """(7, n, n) covariances, the bad ones scaled so that the fakes know them."""
    M = cases.random_covariance(n, size, dtype=torch.complex128 if dtype.is_complex else torch.float64)
    M = M + torch.eye(n)
    M[bad] *= MARK  # the first entry is above 1 everywhere
    return M.to(dtype)


def assert_decomposes(M: Tensor, w: Tensor, V: Tensor) -> None:
    tolerance = 20 * cases.eps(M.dtype)
    scale = M.abs().amax((-2, -1), keepdim=True)
    torch.testing.assert_close((V * w.unsqueeze(-2)) @ V.mH / scale, M / scale, rtol=0, atol=tolerance)
    torch.testing.assert_close(V.mH @ V, torch.eye(M.shape[-1], dtype=M.dtype).expand_as(M), rtol=0, atol=tolerance)
    assert w.dtype == M.real.dtype
    assert V.dtype == M.dtype


# Eigenpairs.


@pytest.mark.parametrize("dtype", cases.DTYPES, ids=cases.ident)
@pytest.mark.parametrize("bad", [[0], [6], [2, 3], [0, 2, 5], list(range(7))], ids=str)
@pytest.mark.parametrize("failure", FAILURES)
def test_only_the_failing_are_retried(
    failure: str, bad: list[int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    M = batch(bad, dtype)
    lapack = LapackThatFails()
    monkeypatch.setattr(fallback, "Lapack", lapack)
    w, V = sg.eigh(M, solver=Flaky(failure))
    assert_decomposes(M, w, V)
    assert sg.counts() == {"solver_retry_float64": len(bad)}
    wide = torch.complex128 if dtype.is_complex else torch.float64
    assert {H.dtype for H in lapack.seen} == {wide}
    assert torch.equal(torch.cat(lapack.seen), M[bad].to(wide))


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("shape", [(), (1,), (2, 3)], ids=str)
def test_batch_shapes_survive(shape: tuple[int, ...], failure: str) -> None:
    M = batch([0], size=6)[: max(1, shape[0] * 3 if len(shape) > 1 else 1)].reshape(*shape, 4, 4)
    w, V = sg.eigh(M, solver=Flaky(failure))
    assert w.shape == (*shape, 4)
    assert_decomposes(M, w, V)
    assert sg.counts() == {"solver_retry_float64": 1}


def test_nothing_is_retried_or_counted_without_a_failure() -> None:
    solver = Flaky("raises")
    sg.eigh(batch([]), solver=solver)
    assert solver.calls == [7]
    assert sg.counts() == {}


def test_a_sum_that_overflows_is_no_failure() -> None:
    """Finite eigenvalues near the largest number: the quick check of their sum gives Inf, the closer look passes."""
    M = torch.eye(4) * (torch.finfo(torch.float32).max / 2)
    w, _ = sg.eigh(M)
    torch.testing.assert_close(w, M.diagonal())
    assert sg.counts() == {}


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("name", ["sqrtm", "inv_sqrtm", "logm", "expm", "projector", "spectral_map"])
def test_every_function_goes_through_the_chain(name: str, failure: str) -> None:
    functions = {
        "projector": lambda M, **solver: sg.projector(M, rank=2, **solver),
        "spectral_map": lambda M, **solver: sg.spectral_map(M, torch.sin, **solver),
    }
    function = functions.get(name) or getattr(sg, name)
    M = batch([1, 4], torch.float64) / MARK * 1.5
    M[[1, 4]] *= MARK / 1.5  # large enough to be marked, small enough for exp
    X = M.clone().requires_grad_()
    value = function(X, solver=Flaky(failure))
    torch.testing.assert_close(value, function(M), rtol=1e-9, atol=1e-9)
    assert sg.counts() == {"solver_retry_float64": 2}
    value[1].trace().backward()
    assert bool(X.grad.isfinite().all())


@pytest.mark.parametrize("dtype", cases.DTYPES, ids=cases.ident)
def test_jitter_comes_after_float64(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """LAPACK fails at two of the three retried matrices, as long as nothing was added to them."""
    M = batch([1, 3, 6], dtype)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    stubborn = M[[1, 6]].to(wide)

    def fails(H: Tensor) -> Tensor:
        return (H.unsqueeze(1) == stubborn).all((-2, -1))

    lapack = LapackThatFails(fails)
    monkeypatch.setattr(fallback, "Lapack", lapack)
    w, V = sg.eigh(M, solver=Flaky("raises"))
    assert_decomposes(M, w, V)
    assert sg.counts() == {"solver_retry_float64": 3, "solver_retry_jitter": 2}
    jittered = lapack.seen[-1]
    change = (jittered - stubborn).abs().amax((-2, -1)) / stubborn.abs().amax((-2, -1))
    assert bool((change > 0).all())
    assert bool((change <= 8 * cases.eps(dtype)).all())  # rounding size: nobody could tell


@pytest.mark.parametrize("shape", [(7,), (1, 7), (7, 1)], ids=str)
def test_nothing_helps(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    M = batch([2, 5]).reshape(*shape, 4, 4)
    monkeypatch.setattr(fallback, "Lapack", LapackThatFails(marked))
    with pytest.raises(ConvergenceError, match=r"`sqrtm`: 2 of 7 finite 4 x 4 matrices .* the first has index 2") as caught:
        sg.sqrtm(M, solver=Flaky("raises"))
    assert isinstance(caught.value, torch.linalg.LinAlgError)
    assert isinstance(caught.value, sg.errors.SpectralError)
    assert sg.counts() == {"solver_retry_float64": 2, "solver_retry_jitter": 2, "solver_failed": 2}
    with pytest.raises(ConvergenceError, match="`eigh`: 2 of 7"):
        sg.eigh(M, solver=Flaky("NaN in V"))


def test_other_errors_are_not_swallowed() -> None:
    class Wrong(sg.Solver):
        def solve(self, H: Tensor) -> tuple[Tensor, Tensor]:
            raise ZeroDivisionError("a fault in the solver, not in the matrix")

    with pytest.raises(ZeroDivisionError):
        sg.eigh(batch([]), solver=Wrong())


# Non-finite input where values may not be looked at.


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf], ids=repr)
@pytest.mark.parametrize("solver", cases.SOLVERS, ids=cases.ident)
def test_nonfinite_input_without_checks(solver: sg.Solver, value: float) -> None:
    M = batch([])
    reference, _ = sg.eigh(M, solver=solver)
    M[2, 1, 1] = value
    M[5, 0, 3] = M[5, 3, 0] = value
    with pytest.raises(NonFiniteError, match="`eigh`: `M` must be finite"):
        sg.eigh(M, solver=solver)
    assert sg.counts() == {}
    with sg.checks(False):
        w, V = sg.eigh(M, solver=solver)
    assert sg.counts() == {"nonfinite_input": 2}
    good = [0, 1, 3, 4, 6]
    assert bool(w[[2, 5]].isnan().all())
    assert bool(V[[2, 5]].isnan().all())
    torch.testing.assert_close(w[good], reference[good])
    assert_decomposes(M[good], w[good], V[good])


def test_nonfinite_input_and_a_failing_solver() -> None:
    M = batch([1])
    M[2, 1, 1] = torch.nan
    with sg.checks(False):
        w, _ = sg.eigh(M, solver=Flaky("raises"))
    assert w.isnan().any(-1).tolist() == [False, False, True, False, False, False, False]
    assert sg.counts() == {"nonfinite_input": 1, "solver_retry_float64": 1}


def test_under_vmap() -> None:
    M = batch([1, 4]).reshape(7, 1, 4, 4)
    clean = M.clone()
    M[3, 0, 2, 2] = torch.nan
    w, V = torch.func.vmap(lambda X: sg.eigh(X, solver=Flaky("raises")))(M)
    assert w.isnan().all(-1).flatten().tolist() == [i == 3 for i in range(7)]
    good = [0, 1, 2, 4, 5, 6]
    assert_decomposes(clean[good], w[good], V[good])
    assert sg.counts() == {"nonfinite_input": 1, "solver_retry_float64": 2}
    root = torch.func.vmap(sg.sqrtm)(M)
    assert root.isnan().all(-1).all(-1).flatten().tolist() == [i == 3 for i in range(7)]
    assert sg.counts()["nonfinite_input"] == 2


# Singular values.


def flaky_svd(monkeypatch: pytest.MonkeyPatch, fails: Callable[[Tensor], Tensor], failure: str) -> list[Tensor]:
    """Make torch's SVD fail at some matrices; returns the list of what it will have seen."""
    seen: list[Tensor] = []
    true_svd = torch.linalg.svd

    def svd(A: Tensor, full_matrices: bool = True) -> Factors:
        seen.append(A)
        bad = fails(A)
        U, S, Vh = true_svd(A, full_matrices=full_matrices)
        if failure == "raises" and bool(bad.any()):
            raise LinAlgError("fake failure of the SVD")
        return U, S.masked_fill(bad.unsqueeze(-1), torch.nan), Vh

    monkeypatch.setattr(torch.linalg, "svd", svd)
    return seen


def rectangles(bad: list[int], dtype: torch.dtype, m: int, n: int) -> Tensor:
    A = cases.random(7, m, n, dtype=torch.complex128 if dtype.is_complex else torch.float64)
    A[:, 0, 0] = 1
    A[bad, 0, 0] = 2 * MARK
    return A.to(dtype)


def assert_svd(A: Tensor, U: Tensor, S: Tensor, Vh: Tensor) -> None:
    scale = A.abs().amax((-2, -1), keepdim=True)
    product = (U * S.unsqueeze(-2)) @ Vh / scale
    torch.testing.assert_close(product, A / scale, rtol=0, atol=50 * cases.eps(A.dtype))
    assert U.dtype == A.dtype
    assert S.dtype == A.real.dtype


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=cases.ident)
@pytest.mark.parametrize(("m", "n"), [(4, 4), (5, 3), (3, 5)], ids=str)
@pytest.mark.parametrize("failure", ["raises", "NaN"])
@pytest.mark.usefixtures("without_native")
def test_svd_retries_only_the_failing(
    failure: str, m: int, n: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three matrices fail in single precision, one of them in double precision too, unless something is added to it."""
    bad = [0, 3, 4]
    A = rectangles(bad, dtype, m, n)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    stubborn = A[3].to(wide)

    def fails(X: Tensor) -> Tensor:
        return (stubborn == X).all((-2, -1)) if X.dtype == wide else marked(X)

    seen = flaky_svd(monkeypatch, fails, failure)
    U, S, Vh = sg.svd(A)
    assert_svd(A, U, S, Vh)
    assert sg.counts() == {"solver_retry_float64": 3, "solver_retry_jitter": 1}
    retried = [X for X in seen if X.dtype == wide]
    assert torch.equal(retried[0], A[bad].to(wide))
    assert all(bool((marked(X) | ~X.any(-1).any(-1)).all()) for X in retried)  # zeros are stand-ins for shapes
    change = (retried[-1] - stubborn).abs().max() / stubborn.abs().max()
    assert 0 < change <= 8 * cases.eps(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=cases.ident)
@pytest.mark.usefixtures("without_native")
def test_svd_in_double_precision_is_retried_too(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """There float64 brings nothing new, so that the jitter must help."""
    A = rectangles([2], dtype, 5, 3)
    flaky_svd(monkeypatch, lambda X: (A[2] == X).all((-2, -1)), "raises")
    assert_svd(A, *sg.svd(A))
    assert sg.counts() == {"solver_retry_float64": 1, "solver_retry_jitter": 1}


@pytest.mark.parametrize(("m", "n"), [(4, 4), (5, 3), (3, 5)], ids=str)
@pytest.mark.parametrize("failure", ["raises", "NaN"])
@pytest.mark.usefixtures("without_native")
def test_svd_when_nothing_helps(failure: str, m: int, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    A = rectangles([4, 6], torch.float32, m, n)
    flaky_svd(monkeypatch, marked, failure)
    with pytest.raises(ConvergenceError, match=rf"`svd`: 2 of 7 finite {m} x {n} matrices .* the first has index 4"):
        sg.svd(A)
    assert sg.counts() == {"solver_retry_float64": 2, "solver_retry_jitter": 2, "solver_failed": 2}


@pytest.mark.parametrize(("m", "n"), [(4, 4), (5, 3), (3, 5)], ids=str)
def test_svd_of_nonfinite_input(m: int, n: int) -> None:
    A = rectangles([], torch.float64, m, n)
    clean = A.clone()
    A[1, 0, 0] = torch.nan
    A[2, 1, 1] = torch.inf
    with pytest.raises(NonFiniteError, match="`svd`: `A` must be finite, got 1 NaN and 1 Inf"):
        sg.svd(A)
    good = [0, 3, 4, 5, 6]
    with sg.checks(False):
        plain = sg.svd(A)
    for U, S, Vh in (plain, torch.func.vmap(sg.svd)(A)):
        for x in (U, S, Vh):
            assert bool(x[[1, 2]].isnan().all())
        assert_svd(clean[good], U[good], S[good], Vh[good])
    assert sg.counts() == {"nonfinite_input": 4}


# The counters.


class SlowCounter(Counter[str]):
    """Lets other threads in between reading and writing."""

    def __getitem__(self, key: str) -> int:
        value = super().__getitem__(key)
        time.sleep(1e-4)
        return value


class SlowDict(dict):  # type: ignore[type-arg]
    def get(self, key: object, default: object = None) -> object:
        value = super().get(key, default)
        time.sleep(1e-3)
        return value


def count_in_threads(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    monkeypatch.setattr(counters, "_host", SlowCounter())
    monkeypatch.setattr(counters, "_device", SlowDict())
    happened = torch.tensor([True, False, True])
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: [counters.count("host", 2) for _ in range(20)], range(8)))
        list(pool.map(lambda _: [counters.count_on_device("device", happened) for _ in range(5)], range(8)))
    return sg.counts()


def test_counters_are_thread_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    assert count_in_threads(monkeypatch) == {"device": 8 * 5 * 2, "host": 8 * 20 * 2}


def test_counters_without_their_lock_would_not_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control of the test above."""
    monkeypatch.setattr(counters, "_lock", contextlib.nullcontext())
    counts = count_in_threads(monkeypatch)
    assert counts["device"] < 8 * 5 * 2
    assert counts["host"] < 8 * 20 * 2


def test_decomposing_in_threads_counts_everything() -> None:
    M = batch([1, 2])
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: sg.eigh(M, solver=Flaky("raises")), range(40)))
    assert sg.counts() == {"solver_retry_float64": 80}


def test_reset_counts() -> None:
    counters.count("host")
    counters.count_on_device("device", torch.tensor(True))
    assert sg.counts() == {"device": 1, "host": 1}
    sg.reset_counts()
    assert sg.counts() == {}
    counters.count_on_device("device", torch.tensor([True, True]))
    assert sg.counts() == {"device": 2}


def test_counts_is_a_copy() -> None:
    counters.count("host")
    sg.counts()["host"] = 100
    assert sg.counts() == {"host": 1}


def test_shapes_tried_out_on_the_meta_device_are_not_counted() -> None:
    sg.reset_counts()
    counters.count_on_device("tried", torch.ones(3, dtype=torch.bool, device="meta"))
    assert sg.counts() == {}
