"""How many threads share a batch: torch's number, where torch's own OpenMP can be had and there is work enough.

After each parallel operation torch's threads spin for some milliseconds and take a core from any thread that is not one of
them, so native kernels run in those very threads. A region of GNU OpenMP costs a microsecond; its address is found at run
time in the library that torch has loaded. Elsewhere one thread does all of the work.
"""

import ctypes
import os
from pathlib import Path
from typing import Any

import torch

from . import load

WORTHWHILE = 1e6  # products of numbers: about 80 us of one core with AVX-512
_asked = _alone = False  # whether OpenMP was looked for; whether there is one thread whatever torch says


def threads(work: float) -> int:
    """For a batch that takes so many products of numbers."""
    if work < WORTHWHILE or _alone:
        return 1
    if not _asked:
        _ask()
    return torch.get_num_threads()


def _note_fork() -> None:
    """OpenMP's threads do not survive a fork, and it does not know: a child has one thread."""
    global _alone
    _alone = True
    load.set_team(None, None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def _ask() -> None:
    global _asked, _alone
    openmp = _openmp()
    if openmp is None:
        _alone = True
    else:
        load.set_team(*(ctypes.cast(function, ctypes.c_void_p) for function in openmp))
    _asked = True


def _openmp() -> tuple[Any, Any] | None:
    """GOMP_parallel and omp_in_parallel of the OpenMP library that torch uses; None where that is not GNU's or cannot be
    told."""
    maps = Path("/proc/self/maps")
    if not maps.exists() or "OpenMP" not in torch.__config__.parallel_info():
        return None
    text = maps.read_text()
    loaded = {line.split(maxsplit=5)[-1] for line in text.splitlines() if "libgomp" in line}
    ours = {path for path in loaded if Path(path).is_relative_to(Path(torch.__file__).parent)} or loaded
    if len(ours) != 1 or "libiomp" in text or "libomp" in text:
        return None
    try:
        library = ctypes.CDLL(ours.pop())
        return library.GOMP_parallel, library.omp_in_parallel
    except (OSError, AttributeError):
        return None
