"""A batch of matrices spread over CPU threads, each solving its share with single-threaded LAPACK.

torch runs a batch one matrix after the other and hands LAPACK all threads for each: for n <= 128 that is slower than, or at
best as fast as, one thread, and for larger n two threads gain less than twice. The threads are torch's own where they can be
had (see team.py), else a pool whose workers pin themselves to one thread each; no setting of the caller changes. While the
pool starts, once in a process, torch's count for new threads is 1 for some microseconds: torch offers no way to pin a thread
without that, so another thread whose first torch operation falls into them keeps 1.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from . import team

_CHUNKS_PER_WORKER = 4  # small shares even out threads that the system slows down
WORTHWHILE_SECONDS = 1e-3  # handing work over costs a tenth of it
_WORTHWHILE_SECONDS_IN_POOL = 6e-3  # torch's own idle threads still spin for a while and take a core

_lock = threading.Lock()
_pool: ThreadPoolExecutor | None = None
_workers = 0


def _forget_pool() -> None:
    global _pool, _lock
    _pool, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_pool)  # threads do not survive a fork; a DataLoader worker makes its own pool


def _get_pool(workers: int) -> ThreadPoolExecutor:
    global _pool, _workers
    with _lock:
        if _pool is None or _workers < workers:
            _pool, _workers = _start_pool(workers), workers
        return _pool


def _start_pool(workers: int) -> ThreadPoolExecutor:
    threads = torch.get_num_threads()
    started = threading.Barrier(workers + 1)

    def pin() -> None:
        torch.get_num_threads()  # torch sets a new thread's count at its first use: let it, then overrule it
        torch.set_num_threads(1)
        started.wait()

    pool = ThreadPoolExecutor(workers, "spectralgrad")
    try:
        for _ in range(workers):
            pool.submit(pin)
        started.wait()
    except BaseException:  # an interrupt: nobody must wait at the barrier for ever
        started.abort()
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    finally:
        torch.set_num_threads(threads)  # the workers' call also set the count for threads yet to come: put it back
    return pool


def _run_in_pool(work: Callable[[], None], workers: int) -> None:
    jobs = [_get_pool(workers).submit(work) for _ in range(workers)]
    errors = [error for job in jobs if (error := job.exception()) is not None]  # waits for all: only an interrupt does not
    if errors:
        raise errors[0]


def may_spread(seconds: float) -> bool:
    """Whether there are threads that gain from sharing so much work of one core, which is above WORTHWHILE_SECONDS."""
    return torch.get_num_threads() > 1 and (team.is_available() or seconds > _WORTHWHILE_SECONDS_IN_POOL)


def in_chunks(work: Callable[..., None], rows: int, *tensors: Tensor) -> None:
    """Call ``work`` with chunks of at most so many rows of tensors of one length, inputs and outputs alike, in all threads.

    A chunk stays in the cache from its first operation to its last, and no operation in it uses more than one thread. What
    fits into one is done by the caller alone: threads that share it take turns at Python's lock after each operation.
    """
    length = len(tensors[0])
    workers = torch.get_num_threads() if length > rows else 1
    count = -(-length // (rows * workers)) * workers  # as many for each
    shares = iter(list(zip(*(x.tensor_split(count) for x in tensors), strict=True)))  # next() is atomic
    inference = torch.is_inference_mode_enabled()

    def run() -> None:
        with torch.inference_mode(inference), torch.no_grad():
            for share in shares:
                work(*share)

    if workers == 1:
        run()
    else:
        (team.run if team.is_available() else _run_in_pool)(run, workers)


def spread(solve: Callable[..., bool], X: Tensor, *results: Tensor) -> bool:
    """Solve the batch ``X`` (B, m, n) chunk by chunk in all threads: ``solve(chunk, *results)`` fills those of ``results``
    (B, ...). Whether it said yes each time."""
    workers = torch.get_num_threads()
    chunks = min(len(X), _CHUNKS_PER_WORKER * workers)
    inference = torch.is_inference_mode_enabled()  # a thread's own: the workers need the caller's to write its tensors
    shares = iter(list(zip(*(x.chunk(chunks) for x in (X, *results)), strict=True)))  # next() is atomic
    verdicts: list[bool] = []

    def work() -> None:
        with torch.inference_mode(inference), torch.no_grad():
            for share in shares:
                verdicts.append(solve(*share))

    (team.run if team.is_available() else _run_in_pool)(work, workers)
    return all(verdicts)
