"""Interrupts while a batch is spread over threads, many batches without growth of memory, and new processes."""

import multiprocessing
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from random import Random

import torch
from torch import Tensor

import spectralgrad as sg
from spectralgrad.linalg.solvers import lapack

SIZE = (120, 16, 16)  # above the threshold of the team
THREADS = 2
GROWTH = 64.0  # MiB that many batches may add
PATIENCE = 10.0  # seconds until an interrupt counts as lost
CALLERS, CROWDED = 8, 10  # Python threads at once; one batch in ten is theirs


def batch(seed: int = 0) -> Tensor:
    M = torch.randn(SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return M + M.mT


@contextmanager
def several_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def interrupts(count: int, draw: Random) -> Iterator[str | None]:
    """Ctrl-C at drawn moments, one at a time; yields those that were lost. In the main thread."""
    M = batch()
    expected = torch.linalg.eigvalsh(M)
    sent = threading.Semaphore(0)

    def send() -> None:
        for _ in range(count):
            sent.acquire()
            time.sleep(draw.uniform(0, 0.01))
            os.kill(os.getpid(), signal.SIGINT)

    ignored: list[object] = []
    hook, sys.unraisablehook = sys.unraisablehook, ignored.append
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # started in the background, Python has none
    sender = threading.Thread(target=send, daemon=True)
    try:
        with several_threads():
            if not lapack.worth_spreading(M):
                yield "the batch is not spread: nothing was tested"
                return
            sender.start()
            for number in range(count):
                try:
                    sent.release()
                    end = time.monotonic() + PATIENCE
                    while time.monotonic() < end:
                        sg.eigh(M)
                    yield f"interrupt {number} was lost"
                except KeyboardInterrupt:
                    yield None
            if not torch.allclose(sg.eigh(M)[0], expected):
                yield "wrong eigenvalues after the interrupts"
    finally:
        sys.unraisablehook = hook
        signal.signal(signal.SIGINT, handler)
    if ignored:
        yield f"{len(ignored)} exceptions were ignored"


def batches(count: int, draw: Random) -> Iterator[str | None]:
    """Spread batches, a tenth of them from eight threads at once: values stay right, memory stays where it was."""
    M = batch(draw.randrange(1000))
    expected = torch.linalg.eigvalsh(M)

    def wrong(_: int) -> str | None:
        return None if torch.allclose(sg.eigh(M)[0], expected, rtol=0, atol=1e-12) else "wrong eigenvalues"

    crowd = count // CROWDED
    with several_threads(), ThreadPoolExecutor(CALLERS) as pool:
        yield from pool.map(wrong, range(crowd))
        before = _resident()
        for number in range(count - crowd):
            yield wrong(number)
    grown = _resident() - before
    if grown > GROWTH:
        yield f"memory grew by {grown:.0f} MiB"


def starts(count: int, draw: Random) -> Iterator[str | None]:
    """fork, spawn and forkserver from a process whose threads are at work."""
    with several_threads():
        sg.eigh(batch())
        for method in multiprocessing.get_all_start_methods()[:count]:
            context = multiprocessing.get_context(method)
            process = context.Process(target=_solve, args=(method == "fork",))
            process.start()
            process.join(120)
            if process.exitcode == 0:
                yield None
            else:
                process.kill()
                yield f"{method}: exit code {process.exitcode}"


def _solve(forked: bool) -> None:
    M = torch.randn(200, 24, 24, dtype=torch.float64)  # torch's own operations on so many numbers are parallel
    M = M + M.mT
    if not forked:
        torch.set_num_threads(THREADS)
    assert torch.allclose(sg.eigh(M)[0], torch.linalg.eigvalsh(M))


def _resident() -> float:
    """MiB now; the peak where the system does not tell."""
    try:
        with open("/proc/self/statm") as file:  # noqa: PTH123
            return int(file.read().split()[1]) * resource.getpagesize() / 2**20
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
