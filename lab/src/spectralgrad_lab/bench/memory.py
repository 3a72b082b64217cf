"""Memory that a call frees serves the next one, while times are taken on a CPU.

glibc hands pieces of more than 32 MiB back to the system as they are freed, and smaller ones or not by what ran before. Then
each call begins with fresh pages, which take longer than batch norm itself: a ratio would tell how the system clears memory.
"""

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # parameters of mallopt, from malloc.h


def keep_freed() -> bool:
    """Keep what is freed for later calls of this process, and say so; False where the system's malloc is not glibc's."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    return mallopt is not None and mallopt(_MMAP_MAX, 0) == 1 and mallopt(_TRIM_THRESHOLD, 2**31 - 1) == 1
