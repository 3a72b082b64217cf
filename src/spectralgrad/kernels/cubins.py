"""Compiled kernels on disk: the next process loads what this one compiled, in a millisecond instead of a second or two.

They lie in ``$SPECTRALGRAD_CACHE``, or in ``spectralgrad`` inside ``$XDG_CACHE_HOME`` or ``~/.cache``; an empty
``SPECTRALGRAD_CACHE`` keeps none. A file begins with the digest of what follows: a damaged one, or one of somebody else, is
compiled again. A folder that cannot be written costs time and nothing else.
"""

import hashlib
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_DIGEST = hashlib.sha256
_SIZE = _DIGEST().digest_size


def folder() -> Path | None:
    """Where compiled kernels lie; None where none are kept."""
    chosen = os.environ.get("SPECTRALGRAD_CACHE")
    if chosen is not None:
        return Path(chosen) if chosen else None
    caches = os.environ.get("XDG_CACHE_HOME")
    if caches:
        return Path(caches) / "spectralgrad"
    home = os.path.expanduser("~")  # noqa: PTH111  (Path.home() raises where there is none)
    return Path(home, ".cache", "spectralgrad") if home != "~" else None


def kept(parts: list[bytes], compile: Callable[[], bytes]) -> bytes:
    """The kernel that follows from ``parts`` (compiler, options, sources): from disk, or compiled and left there."""
    place = folder()
    if place is None:
        return compile()
    # Each part by its digest, so that no two lists of parts are joined to the same bytes.
    path = place / (_DIGEST(b"".join(_DIGEST(part).digest() for part in parts)).hexdigest() + ".cubin")
    cubin = _read(path)
    if cubin is None:
        cubin = compile()
        with suppress(OSError):
            _write(path, cubin)
    return cubin


def _read(path: Path) -> bytes | None:
    """What was written there by this user and is whole; else None."""
    try:
        with path.open("rb") as file:
            if hasattr(os, "getuid") and os.fstat(file.fileno()).st_uid != os.getuid():
                return None
            content = file.read()
    except OSError:
        return None
    digest, cubin = content[:_SIZE], content[_SIZE:]
    return cubin if cubin and _DIGEST(cubin).digest() == digest else None


def _write(path: Path, cubin: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(_DIGEST(cubin).digest() + cubin)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
