"""torch's own OpenMP threads, for Python code.

After each parallel operation of torch its threads spin for some milliseconds, waiting for the next one, and take a core
from any thread that is not one of them. So a batch is best spread over those very threads. GNU OpenMP, which torch brings
on Linux, has two functions for it. Inside, torch and LAPACK see that they run in parallel already and use one thread each.
"""

import ctypes
import os
from collections.abc import Callable
from functools import lru_cache, partial
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import torch

_Work = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_forked = False


class _OpenMP(NamedTuple):
    start: Any  # GOMP_parallel_start(work, data, threads): all threads but the caller begin
    end: Any  # GOMP_parallel_end(): waits for them


def _note_fork() -> None:
    """OpenMP's threads do not survive a fork, it does not know, and the first parallel operation of torch waits for them
    for ever. So a child has one thread; `torch.set_num_threads` asks for more, at that risk. A DataLoader does the same."""
    global _forked
    _forked = True
    torch.set_num_threads(1)


os.register_at_fork(after_in_child=_note_fork)


@lru_cache(maxsize=1)
def _openmp() -> _OpenMP | None:
    """The OpenMP library that torch uses; None where that is not GNU's or cannot be told."""
    maps = Path("/proc/self/maps")
    if not maps.exists() or "OpenMP" not in torch.__config__.parallel_info():
        return None
    loaded = {line.split(maxsplit=5)[-1] for line in maps.read_text().splitlines() if "libgomp" in line}
    ours = {path for path in loaded if Path(path).is_relative_to(Path(torch.__file__).parent)} or loaded
    if len(ours) != 1 or any("libiomp" in line or "libomp" in line for line in maps.read_text().splitlines()):
        return None
    try:
        library = ctypes.CDLL(ours.pop())
        start, end = library.GOMP_parallel_start, library.GOMP_parallel_end
    except (OSError, AttributeError):
        return None
    start.argtypes, start.restype = [_Work, ctypes.c_void_p, ctypes.c_uint], None
    # It takes nothing; these are what a `with` hands to __exit__, and a C function leaves what it does not know unread.
    end.argtypes, end.restype = [ctypes.py_object] * 3, None
    return _OpenMP(start, end)


class _Region:
    """A parallel region around the block of a `with`.

    Ctrl-C is raised in the main thread between two steps of Python code, any two, and a region that is left without its end
    is a broken process. Here both methods are C functions, and `with` has no step between the first one and the block,
    nor between the block and the second one.
    """

    __enter__: Any = property(attrgetter("start"))
    __exit__: Any = property(attrgetter("end"))

    def __init__(self, openmp: _OpenMP, work: Any, threads: int) -> None:
        self.start, self.end = partial(openmp.start, work, None, threads), openmp.end


def is_available() -> bool:
    """Whether `run` works here."""
    return not _forked and _openmp() is not None


def run(work: Callable[[], None], threads: int) -> None:
    """Call ``work`` once in each of this many threads, the caller among them, and wait; raises what one of them raised.

    The caller's own call is plain Python code and not one that C code makes: an interrupt leaves it as any other code. In
    the others Python raises none.
    """
    errors: list[BaseException] = []
    openmp = _openmp()
    assert openmp is not None

    def guarded(_: object) -> None:
        try:
            work()
        except BaseException as error:  # OpenMP cannot carry it: the caller raises it below
            errors.append(error)

    callback = _Work(guarded)
    with _Region(openmp, callback, threads):
        work()
    if errors:
        raise errors[0]
