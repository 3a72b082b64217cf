"""torch's own OpenMP threads, for Python code.

After each parallel operation of torch its threads spin for some milliseconds, waiting for the next one, and take a core
from any thread that is not one of them. So a batch is best spread over those very threads. GNU OpenMP, which torch brings
on Linux, has one function for it. Inside, torch and LAPACK see that they run in parallel already and use one thread each.
"""

import ctypes
import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

_Work = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_forked = False


def _note_fork() -> None:
    global _forked
    _forked = True


os.register_at_fork(after_in_child=_note_fork)  # OpenMP's threads do not survive it, and it does not know


@lru_cache(maxsize=1)
def _gomp_parallel() -> Any:
    """GOMP_parallel of the OpenMP library that torch uses; None where that is another one or cannot be told."""
    maps = Path("/proc/self/maps")
    if not maps.exists() or "OpenMP" not in torch.__config__.parallel_info():
        return None
    loaded = {line.split(maxsplit=5)[-1] for line in maps.read_text().splitlines() if "libgomp" in line}
    ours = {path for path in loaded if Path(path).is_relative_to(Path(torch.__file__).parent)} or loaded
    if len(ours) != 1 or any("libiomp" in line or "libomp" in line for line in maps.read_text().splitlines()):
        return None
    try:
        function = ctypes.CDLL(ours.pop()).GOMP_parallel
    except (OSError, AttributeError):
        return None
    function.argtypes, function.restype = [_Work, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint], None
    return function


def is_available() -> bool:
    """Whether `run` works here."""
    return not _forked and _gomp_parallel() is not None


def run(work: Callable[[], None], threads: int) -> None:
    """Call ``work`` once in each of this many threads, the caller among them, and wait; raises what one of them raised."""
    errors: list[BaseException] = []

    def guarded(_: object) -> None:
        try:
            work()
        except BaseException as error:  # OpenMP cannot carry it, not even an interrupt: the caller raises it below
            errors.append(error)

    _gomp_parallel()(_Work(guarded), None, threads, 0)
    if errors:
        raise errors[0]
