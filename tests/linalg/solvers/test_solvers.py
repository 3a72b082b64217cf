"""Solvers on LAPACK's symmetric test families, and on every shape, layout and thread they may meet."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from spectralgrad.errors import LinAlgError, OptionError
from spectralgrad.linalg.solvers import lapack, team, threads
from support import cases
from support.families import SCALES, assert_solves, disagreements, families, faults

MATRIX_SOLVERS = [sg.Lapack(), sg.Jacobi(), sg.SVD()]


@pytest.mark.covering(2)
@pytest.mark.parametrize("dtype", cases.DTYPES, ids=cases.ident)
@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 16, 33])
@pytest.mark.parametrize("solver", [sg.Lapack(), sg.Jacobi()], ids=cases.ident)
def test_families(solver: sg.Solver, n: int, dtype: torch.dtype) -> None:
    assert_solves(solver, *families(n, dtype, SCALES))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=cases.ident)
@pytest.mark.parametrize("n", [64, 130])
def test_families_of_large_matrices_by_lapack(n: int, dtype: torch.dtype) -> None:
    assert_solves(sg.Lapack(), *families(n, dtype, SCALES))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=cases.ident)
def test_large_matrices_by_jacobi(dtype: torch.dtype) -> None:
    """One family of n = 130, enough to see that it converges; all of them are the slow test below."""
    names, M = families(130, dtype, ["plain"])
    i = names.index("geometric, random signs, plain")
    assert_solves(sg.Jacobi(), names[i : i + 1], M[i : i + 1])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=cases.ident)
@pytest.mark.parametrize("n", [64, 130])
def test_families_of_large_matrices_by_jacobi(n: int, dtype: torch.dtype) -> None:
    assert_solves(sg.Jacobi(), *families(n, dtype, SCALES))


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", cases.DTYPES, ids=cases.ident)
@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 16, 33, 64, 130])
def test_semidefinite_families_by_svd(n: int, dtype: torch.dtype) -> None:
    assert_solves(sg.SVD(), *families(n, dtype, SCALES, semidefinite=True))


@pytest.mark.parametrize("dtype", cases.DTYPES, ids=cases.ident)
@pytest.mark.parametrize("scale", SCALES)
def test_indefinite_families_by_svd(scale: str, dtype: torch.dtype) -> None:
    """By itself, or by the fallback chain where it fails visibly."""
    for n in (2, 3, 8, 33):
        names, M = families(n, dtype, [scale])
        w, V = sg.eigh(M, solver=sg.SVD())
        assert faults(names, M, w, V) + disagreements(names, M, w, sg.eigh(M, solver=sg.Lapack())[0]) == []


def test_checks_above_can_fail() -> None:
    """Negative control: eigenvalues without their signs, vectors of another matrix, a wrong order."""
    names, M = families(8, torch.float64, SCALES)
    w, V = torch.linalg.eigh(M)
    assert faults(names, M, w, V) == []
    assert any("near underflow" in fault for fault in faults(names, M, w.abs().sort(-1).values, V))
    assert any("near overflow" in fault for fault in faults(names, M, w.abs().sort(-1).values, V))
    assert any("orthogonality" in fault for fault in faults(names, M, w, V * (1 + 1e-12)))
    assert any("order" in fault for fault in faults(names, M, w.flip(-1), V.flip(-1)))
    assert disagreements(names, M, w * (1 + 1e-12), w)


# Shapes and layouts.


@pytest.mark.parametrize("n", [0, 1, 4, 5])
@pytest.mark.parametrize("batch", [(), (1,), (2, 3), (0,), (2, 0)], ids=str)
@pytest.mark.parametrize("solver", cases.SOLVERS, ids=cases.ident)
def test_batch_shapes(solver: sg.Solver, batch: tuple[int, ...], n: int) -> None:
    M = cases.random_covariance(n, *batch) if n else torch.zeros(*batch, 0, 0, dtype=torch.float64)
    w, V = sg.eigh(M, solver=solver)
    assert w.shape == (*batch, n)
    assert V.shape == (*batch, n, n)
    torch.testing.assert_close((V * w.unsqueeze(-2)) @ V.mH, M, rtol=0, atol=1e-13)
    ones = M.flatten(0, -3) if batch else M[None]
    for one, w_one in zip(ones, w.reshape(len(ones), n), strict=True):
        torch.testing.assert_close(sg.eigh(one, solver=solver)[0], w_one, rtol=0, atol=1e-13)


@pytest.mark.parametrize("solver", cases.SOLVERS, ids=cases.ident)
def test_layouts_and_input_unchanged(solver: sg.Solver) -> None:
    M = cases.random_covariance(6, 3, dtype=torch.complex128)
    reference = sg.eigh(M, solver=solver)[0]
    wide = torch.zeros(3, 12, 12, dtype=M.dtype)
    wide[:, ::2, ::2] = M
    layouts = {
        "transposed": M.mT.contiguous().mT,
        "strided": wide[:, ::2, ::2],
        "batch last": M.movedim(0, -1).contiguous().movedim(-1, 0),
    }
    for name, X in layouts.items():
        assert not X.is_contiguous(), name
        before = X.clone()
        w, V = sg.eigh(X, solver=solver)
        torch.testing.assert_close(w, reference, rtol=0, atol=1e-13, msg=name)
        torch.testing.assert_close((V * w.unsqueeze(-2)) @ V.mH, M, rtol=0, atol=1e-13, msg=name)
        assert torch.equal(X, before), name
    expanded = M[0].expand(4, 6, 6)
    w, V = sg.eigh(expanded, solver=solver)
    torch.testing.assert_close(w, reference[0].expand(4, 6), rtol=0, atol=1e-13)
    torch.testing.assert_close((V * w.unsqueeze(-2)) @ V.mH, expanded, rtol=0, atol=1e-13)


def test_a_batch_mate_changes_nothing() -> None:
    """A matrix that is done waits for those that are not; what it waits with must not get worse."""
    names, M = families(33, torch.float32, ["plain"])
    i = names.index("equal, plain")
    together, alone = sg.eigh(M, solver=sg.Jacobi()), sg.eigh(M[i], solver=sg.Jacobi())
    torch.testing.assert_close(together[0][i], alone[0], rtol=0, atol=33 * cases.eps(torch.float32))
    identity = torch.eye(33, dtype=torch.float64)

    def loss_of_orthogonality(V: Tensor) -> float:
        return float(torch.linalg.matrix_norm(V.double().mT @ V.double() - identity, 1)) / (33 * cases.eps(torch.float32))

    assert loss_of_orthogonality(together[1][i]) <= loss_of_orthogonality(alone[1]) + 3


# Threads.


@pytest.fixture(params=["torch's threads", "a pool"])
def three_threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Three torch threads and no pool yet, whatever ran before; a batch is spread over them, or over a pool."""
    if request.param == "a pool":
        monkeypatch.setattr(team, "is_available", lambda: False)
    elif not team.is_available():
        pytest.skip("torch does not use GNU OpenMP here")
    before = torch.get_num_threads()
    monkeypatch.setattr(threads, "_pool", None)
    monkeypatch.setattr(threads, "_workers", 0)
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)
    if threads._pool is not None:
        threads._pool.shutdown()


@pytest.mark.usefixtures("three_threads")
def test_a_large_batch_in_inference_mode() -> None:
    """The mode belongs to a thread: the workers must take over the caller's, or they could not write its tensors."""
    M = large_batch()
    expected = sg.eigh(M)[0]
    with torch.inference_mode():
        w = sg.eigh(M)[0]
    assert w.is_inference()
    assert torch.equal(w, expected)


def large_batch(seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    M = cases.random_covariance(24, 18, 13, dtype=dtype, seed=seed)
    assert lapack.worth_spreading(M)
    return M


@pytest.mark.usefixtures("three_threads")
@pytest.mark.parametrize("dtype", cases.DTYPES, ids=cases.ident)
def test_spread_batch_equals_one_by_one(dtype: torch.dtype) -> None:
    M = large_batch(dtype=dtype)
    w, V = sg.Lapack().solve(M)
    assert (threads._pool is None) == team.is_available()
    torch.set_num_threads(1)  # as the workers have
    assert not lapack.worth_spreading(M)
    for i, one in enumerate(M.flatten(0, 1)):
        w_one, V_one = sg.Lapack().solve(one)
        assert torch.equal(w.flatten(0, 1)[i], w_one)
        assert torch.equal(V.flatten(0, 1)[i], V_one)


@pytest.mark.usefixtures("three_threads")
@pytest.mark.parametrize("shape", [(24, 18), (13, 24), (16, 16)])
@pytest.mark.parametrize("dtype", cases.DTYPES, ids=cases.ident)
def test_spread_singular_values(shape: tuple[int, int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    A, spread = cases.random(24, 13, *shape, dtype=dtype).transpose(0, 1), []
    original = lapack.spread
    monkeypatch.setattr(lapack, "spread", lambda *args: spread.append(1) or original(*args))
    U, S, Vh = lapack.triplets(A)
    assert spread == [1]
    k, rounding = min(shape), 30 * max(shape) * cases.eps(dtype)
    assert (U.shape, S.shape, Vh.shape) == ((13, 24, shape[0], k), (13, 24, k), (13, 24, k, shape[1]))
    torch.testing.assert_close(S, torch.linalg.svdvals(A), rtol=rounding, atol=rounding)
    torch.testing.assert_close((U * S.unsqueeze(-2)) @ Vh, A, rtol=0, atol=rounding)
    for Q in (U.mH @ U, Vh @ Vh.mH):
        torch.testing.assert_close(Q, torch.eye(k, dtype=dtype).expand_as(Q), rtol=0, atol=rounding)


@pytest.mark.usefixtures("three_threads")
def test_spread_singular_values_in_inference_mode_and_of_no_columns() -> None:
    A = cases.random(256, 24, 18)
    with torch.inference_mode():
        assert sg.svdvals(A).is_inference()
    assert [x.shape for x in lapack.triplets(A[..., :0])] == [(256, 24, 0), (256, 0), (256, 0, 0)]
    assert [x.shape for x in lapack.triplets(A[:0])] == [(0, 24, 18), (0, 18), (0, 18, 18)]


@pytest.mark.usefixtures("three_threads")
def test_what_is_worth_spreading() -> None:
    M = large_batch()
    assert not lapack.worth_spreading(M[0, 0])
    assert not lapack.worth_spreading(M[:1, :1])
    assert not lapack.worth_spreading(M[..., :2, :2])
    torch.set_num_threads(1)
    assert not lapack.worth_spreading(M)


@pytest.mark.usefixtures("three_threads")
@pytest.mark.parametrize(("rows", "shares"), [(7, [7]), (6, [2, 2, 3]), (1, [1] * 7 + [0] * 2)])
def test_chunks(rows: int, shares: list[int]) -> None:
    """As many for each thread, unless one chunk takes all: that is the caller's own work."""
    x, seen = torch.arange(7), []

    def work(part: Tensor) -> None:
        part.add_(1)  # writes in place, and each row once
        seen.append((len(part), threading.get_ident()))

    threads.in_chunks(work, rows, x)
    assert x.tolist() == list(range(1, 8))
    lengths, idents = zip(*seen, strict=True)
    assert sorted(lengths) == sorted(shares)
    assert len(shares) > 1 or idents == (threading.get_ident(),)


@pytest.mark.usefixtures("three_threads", "without_native")
def test_number_of_threads_is_left_alone() -> None:
    sg.eigh(large_batch())
    assert torch.get_num_threads() == 3
    later: list[int] = []
    thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert later == [3]
    torch.set_num_threads(4)  # the pool grows
    sg.eigh(large_batch())
    assert torch.get_num_threads() == 4
    assert threads._workers == (0 if team.is_available() else 4)


@pytest.mark.usefixtures("three_threads")
def test_several_python_threads_at_once() -> None:
    batches = [large_batch(seed) for seed in range(6)]
    expected = [torch.linalg.eigvalsh(M) for M in batches]
    with ThreadPoolExecutor(6) as pool:
        for _ in range(3):
            for (w, V), reference, M in zip(pool.map(sg.eigh, batches), expected, batches, strict=True):
                torch.testing.assert_close(w, reference, rtol=0, atol=1e-13)
                torch.testing.assert_close((V * w.unsqueeze(-2)) @ V.mH, M, rtol=0, atol=1e-13)


@pytest.mark.usefixtures("three_threads")
def test_a_failing_share_raises_after_all_are_done() -> None:
    M = large_batch()
    M[3, 5] = 0
    done: list[int] = []

    def solve(part: Tensor) -> bool:
        if bool((part == 0).all((-2, -1)).any()):
            raise LinAlgError("share of the zero matrix")
        time.sleep(0.01)
        done.append(len(part))
        return True

    with pytest.raises(LinAlgError, match="share of the zero matrix"):
        threads.spread(solve, M.flatten(0, 1))
    shares = [len(part) for part in M.flatten(0, 1).chunk(4 * 3)]
    assert len(done) == len(shares) - 1


def in_a_fork(succeeds: Callable[[], bool]) -> None:
    """Assert that a forked child says yes, within a minute."""
    child = os.fork()
    if child == 0:
        right = False
        try:
            right = succeeds()
        finally:
            os._exit(0 if right else 1)
    status, deadline = None, time.monotonic() + 60
    while status is None and time.monotonic() < deadline:
        pid, code = os.waitpid(child, os.WNOHANG)
        status = code if pid else None
        time.sleep(0.01)
    if status is None:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert status == 0, "the child hung" if status is None else "the child failed"


forking = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # Python warns of forks with threads: that is the test
    pytest.mark.usefixtures("three_threads"),
]


def forked(test: Callable[..., None]) -> Callable[..., None]:
    for mark in forking:
        test = mark(test)
    return test


@forked
def test_a_forked_child_has_one_thread_and_does_not_hang() -> None:
    """OpenMP's threads do not survive a fork: with three threads torch's own operations on so many numbers wait for ever."""
    M = large_batch()
    assert M.numel() > 2 * 32768
    expected, _ = sg.eigh(M)
    in_a_fork(lambda: torch.get_num_threads() == 1 and torch.equal(sg.eigh(M)[0], expected))
    assert torch.get_num_threads() == 3


@forked
@pytest.mark.usefixtures("without_native")
def test_a_forked_child_that_asks_for_threads_makes_its_own_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lapack, "WORTHWHILE_SECONDS", 0.0)
    monkeypatch.setattr(threads, "_WORTHWHILE_SECONDS_IN_POOL", 0.0)
    # Few enough numbers that torch's own operations stay off OpenMP, which no fork survives, with or without us.
    M = large_batch()[:4]  # (4, 13, 24, 24)
    assert lapack.worth_spreading(M)
    assert M.numel() < 32768
    expected, _ = sg.eigh(M)

    def succeeds() -> bool:
        torch.set_num_threads(3)
        return torch.equal(sg.eigh(M)[0], expected) and threads._pool is not None

    in_a_fork(succeeds)


# The papers' power iteration with deflation, and the choice of a solver.


def signless_loss(w: Tensor, V: Tensor, weights: Tensor) -> Tensor:
    """Depends on every eigenvalue and eigenvector, not on their signs."""
    return (w * weights[0]).sum() + (V.square() * weights).sum()


def power_matrix() -> Tensor:
    return cases.with_spectrum(2.0 ** torch.arange(5, dtype=torch.float64), seed=7)  # not the seed of a start


def test_power_deflation_converges_with_the_exact_gradient() -> None:
    weights = cases.random(5, 5, seed=1)
    M, N = power_matrix().requires_grad_(), power_matrix().requires_grad_()
    w, V = sg.eigh(M, solver=sg.PowerDeflation(120, cases.generator()))
    x, U = sg.eigh(N, gradient=sg.Exact())
    torch.testing.assert_close(w, x, rtol=1e-12, atol=0)
    torch.testing.assert_close((V.mT @ U).abs(), torch.eye(5, dtype=torch.float64), rtol=0, atol=1e-12)
    (gradient,) = torch.autograd.grad(signless_loss(w, V, weights), M)
    (exact,) = torch.autograd.grad(signless_loss(x, U, weights), N)
    assert cases.relative_error(gradient, exact) < 1e-10


def test_power_deflation_depends_on_its_options() -> None:
    M = power_matrix()

    def vectors(steps: int, seed: int) -> Tensor:
        return sg.eigh(M, solver=sg.PowerDeflation(steps, cases.generator(seed)))[1]

    assert torch.equal(vectors(2, 0), vectors(2, 0))
    assert not torch.allclose(vectors(2, 0).abs(), vectors(2, 1).abs(), atol=1e-3)
    assert not torch.allclose(vectors(2, 0).abs(), vectors(3, 0).abs(), atol=1e-3)
    shared = cases.generator()
    solver = sg.PowerDeflation(2, shared)
    assert not torch.equal(sg.eigh(M, solver=solver)[1], sg.eigh(M, solver=solver)[1])  # the generator moves on
    torch.manual_seed(5)
    first = sg.eigh(M, solver=sg.PowerDeflation(2))[1]
    torch.manual_seed(5)
    assert torch.equal(sg.eigh(M, solver=sg.PowerDeflation(2))[1], first)


@pytest.mark.parametrize("dtype", cases.DTYPES, ids=cases.ident)
def test_power_deflation_of_zero_empty_and_scaled_matrices(dtype: torch.dtype) -> None:
    for shape in [(1, 2, 3, 3), (2, 1, 1), (2, 0, 0), (0, 3, 3)]:
        M = torch.zeros(*shape, dtype=dtype, requires_grad=True)
        w, V = sg.eigh(M, solver=sg.PowerDeflation(5, cases.generator()))
        assert w.shape == shape[:-1]
        assert V.shape == shape
        (w.sum() + V.abs().sum()).backward()
        assert bool(V.isfinite().all())
        assert bool(M.grad.isfinite().all())
        assert bool((w == 0).all())
    for scale in (1e-8, 1e8, torch.finfo(dtype).max / 100, torch.finfo(dtype).tiny * 100):
        M = cases.with_spectrum(torch.tensor([1.0, 4.0], dtype=torch.float64), dtype=dtype, seed=7) * scale
        M.requires_grad_()
        w, V = sg.eigh(M, solver=sg.PowerDeflation(40, cases.generator()))
        V[0].abs().sum().backward()
        torch.testing.assert_close(w / scale, torch.tensor([1.0, 4.0], dtype=w.dtype), rtol=1e-5, atol=0)
        assert bool(M.grad.isfinite().all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=cases.ident)
def test_power_deflation_at_the_ends_of_the_range(dtype: torch.dtype) -> None:
    """Eigenvalues and slopes that are no numbers become the largest one."""
    info = torch.finfo(dtype)
    A = cases.with_spectrum(torch.tensor([1.0, 2.0, 4.0, 9.0])).to(dtype)
    A = A / A.abs().max()
    want = sg.eigh(A, solver=sg.PowerDeflation(40, cases.generator()))
    for scale in (50 * info.tiny * info.eps, info.tiny, info.max):
        M = (A * scale).requires_grad_()
        w, V = sg.eigh(M, solver=sg.PowerDeflation(40, cases.generator()))
        (g,) = torch.autograd.grad(V.sum(), M)
        assert g.isfinite().all()
        assert w.isfinite().all()
        if scale >= info.tiny:
            torch.testing.assert_close(V, want[1], rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(
                w.double() / scale, want[0].double().clamp(max=info.max / scale), rtol=1e-5, atol=1e-6
            )


def test_power_deflation_refuses_a_rule() -> None:
    with pytest.raises(OptionError, match=r"`eigh`: PowerDeflation brings its own gradient.*Exact\(\)"):
        sg.eigh(power_matrix(), gradient=sg.Exact(), solver=sg.PowerDeflation(5))
    with pytest.raises(OptionError, match="`inv_sqrtm`: PowerDeflation"):
        sg.inv_sqrtm(power_matrix(), gradient=sg.Taylor(9), solver=sg.PowerDeflation(5))


@pytest.mark.parametrize("dtype", cases.DTYPES, ids=cases.ident)
@pytest.mark.parametrize("shape", [(1, 1), (130, 130), (7, 3, 3)], ids=str)
@pytest.mark.usefixtures("without_native")
def test_auto_chooses_lapack_on_the_cpu(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    M = torch.zeros(*shape, dtype=dtype)
    assert sg.Auto().choose(M) == sg.Lapack()
    for chosen, direct in zip(sg.Auto().solve(M), sg.Lapack().solve(M), strict=True):
        assert torch.equal(chosen, direct)


@pytest.mark.parametrize("value", [0, -1, 1.5, "3", None, float("nan")], ids=repr)
def test_options_are_validated(value: object) -> None:
    with pytest.raises(OptionError, match="`Jacobi`: max_sweeps must be a whole number >= 1, got"):
        sg.Jacobi(max_sweeps=value)
    with pytest.raises(OptionError, match="`PowerDeflation`: steps must be a whole number >= 1, got"):
        sg.PowerDeflation(value)


def test_a_generator_must_be_one() -> None:
    with pytest.raises(OptionError, match="`PowerDeflation`: generator"):
        sg.PowerDeflation(5, generator=42)


def test_max_sweeps_changes_the_result() -> None:
    M = cases.random_covariance(12)
    with pytest.raises(LinAlgError, match="did not converge in 2 sweeps"):
        sg.Jacobi(max_sweeps=2).solve(M)
    sg.reset_counts()
    w, _ = sg.eigh(M, solver=sg.Jacobi(max_sweeps=2))  # the fallback chain takes over
    assert sg.counts() == {"solver_retry_float64": 1}
    torch.testing.assert_close(w, torch.linalg.eigvalsh(M), rtol=0, atol=1e-13)


@pytest.mark.parametrize("solver", [sg.NewtonSchulz(), "lapack", None, sg.Lapack], ids=repr)
def test_eigh_refuses_what_is_no_eigensolver(solver: object) -> None:
    with pytest.raises(OptionError, match="`eigh`: solver must be an eigensolver"):
        sg.eigh(torch.eye(2), solver=solver)


@pytest.mark.parametrize("solver", [*MATRIX_SOLVERS, sg.Auto()], ids=cases.ident)
def test_solvers_are_frozen_and_compare_by_value(solver: sg.Solver) -> None:
    assert solver == type(solver)()
    assert hash(solver) == hash(type(solver)())
    with pytest.raises(AttributeError):
        solver.max_sweeps = 3


@pytest.mark.skipif(not team.is_available(), reason="torch does not use GNU OpenMP here")
def test_shares_run_in_several_of_torchs_threads() -> None:
    """Three at the same time, and the caller is one of them."""
    seen, meet = [], threading.Barrier(3)

    def work() -> None:
        meet.wait(10)
        seen.append(threading.get_ident())

    team.run(work, 3)
    assert len(set(seen)) == 3
    assert threading.get_ident() in seen


@pytest.mark.skipif(not team.is_available(), reason="torch does not use GNU OpenMP here")
@pytest.mark.parametrize("where", ["the caller's share", "another share"])
def test_an_exception_inside_a_share_reaches_the_caller_when_all_have_ended(where: str) -> None:
    caller, meet, ended = threading.get_ident(), threading.Barrier(3), []

    def work() -> None:
        meet.wait(10)
        if (threading.get_ident() == caller) == (where == "the caller's share"):
            raise KeyboardInterrupt(where)
        time.sleep(0.05)
        ended.append(where)

    for _ in range(2):  # the threads can be had again
        ended.clear()
        with pytest.raises(KeyboardInterrupt, match=where):
            team.run(work, 3)
        assert len(ended) == (2 if where == "the caller's share" else 1)


def test_an_interrupt_while_the_pool_starts_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    before, alive = torch.get_num_threads(), threading.active_count()

    class Interrupted(threading.Barrier):
        def wait(self, timeout: float | None = None) -> int:
            if threading.current_thread() is threading.main_thread():
                raise KeyboardInterrupt
            return super().wait(timeout)

    monkeypatch.setattr(threads.threading, "Barrier", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        threads._start_pool(3)
    deadline = time.monotonic() + 10
    while threading.active_count() > alive and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == alive
    assert torch.get_num_threads() == before
