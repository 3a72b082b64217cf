"""The library of native kernels: found beside this file and trusted, or not there, and why.

It is plain C to the outside and knows nothing of Python or torch: one serves every version of both. ctypes lets go of
Python's lock while it works. `SPECTRALGRAD_CPU` chooses the instructions, or "off": then plain torch does the same work.
"""

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import c_char_p, c_int
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .build import HERE, NAME, digest, is_whole

VARIABLE = "SPECTRALGRAD_CPU"
LEVELS = ("baseline", "avx2", "avx512")  # as library.cpp counts them; on ARM the baseline is NEON
SUFFIXES = {torch.float32: "f32", torch.float64: "f64"}
_AS_IT_IS = -1  # no level

Functions = dict[torch.dtype, Callable[..., int]]  # by the dtype that they take; none where there is no library


class Loaded(NamedTuple):
    """The library, or None and why not."""

    library: ctypes.CDLL | None
    obstacle: str | None


def load(path: Path, wanted: str) -> Loaded:
    """The library at ``path``, set to the level that is ``wanted``, or to the best one if that is empty."""
    if wanted == "off":
        return Loaded(None, f"{VARIABLE}=off")
    if wanted and wanted not in LEVELS:
        return Loaded(None, f"{VARIABLE} must be one of {', '.join(LEVELS)} or off, and is {wanted}")
    if not path.exists():
        return Loaded(None, "it was not compiled when the package was installed; with a C++ compiler: `make native`")
    if not is_whole(path):
        return Loaded(None, "the library is damaged: its end is missing")
    try:
        library = ctypes.CDLL(str(path))
        sources = library.spectralgrad_sources
        sources.restype = c_char_p
        compiled_from = sources().decode()
    except (OSError, AttributeError, UnicodeDecodeError) as error:
        return Loaded(None, f"the library is not one of this platform, or damaged: {error}")
    if compiled_from != digest():
        return Loaded(None, "the library was compiled from other sources than these; in a checkout: `make native`")
    if wanted and library.spectralgrad_level(LEVELS.index(wanted)) != LEVELS.index(wanted):
        return Loaded(None, f"{VARIABLE}={wanted}, which this processor does not have")
    return Loaded(library, None)


_library, _obstacle = load(HERE / NAME, os.environ.get(VARIABLE, ""))


def obstacle() -> str | None:
    """What keeps native kernels from running in this process, in words; None where they do."""
    return _obstacle


def level() -> str:
    """The instructions that kernels use."""
    return "" if _library is None else LEVELS[_library.spectralgrad_level(_AS_IT_IS)]


def levels() -> list[str]:
    """Those that this processor has, for `at_level`."""
    if _library is None:
        return []
    now = _library.spectralgrad_level(_AS_IT_IS)
    found = [name for i, name in enumerate(LEVELS) if _library.spectralgrad_level(i) == i]
    _library.spectralgrad_level(now)
    return found


@contextmanager
def at_level(name: str) -> Iterator[None]:
    """A block in which all threads use these instructions: for tests and measurements."""
    assert _library is not None
    now = _library.spectralgrad_level(_AS_IT_IS)
    _library.spectralgrad_level(LEVELS.index(name))
    try:
        yield
    finally:
        _library.spectralgrad_level(now)


def functions(name: str, *arguments: type) -> Functions:
    """The kernel of this name with its arguments, for each dtype."""
    if _library is None:
        return {}
    found = {dtype: getattr(_library, f"spectralgrad_{name}_{suffix}") for dtype, suffix in SUFFIXES.items()}
    for function in found.values():
        function.argtypes, function.restype = arguments, c_int
    return found


def set_team(start: Any, asks: Any) -> None:
    """Give the library OpenMP's functions, or None for no threads."""
    if _library is not None:
        _library.spectralgrad_team(start, asks)
