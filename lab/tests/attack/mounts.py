"""File systems of this process alone: one that is full, or read-only even for root. Linux, as root."""

import ctypes
import os
from pathlib import Path

# <sched.h>, <sys/mount.h>
_NEWNS, _RDONLY, _REMOUNT, _REC, _PRIVATE = 0x20000, 0x1, 0x20, 0x4000, 0x40000


def mount_small(folder: Path, size: int) -> None:
    """Put an empty file system of so many bytes at a folder; other processes see nothing of it.

    Raises:
        OSError: not allowed here.
    """
    _call("unshare", ctypes.c_int(_NEWNS))
    _mount("none", Path("/"), "", _REC | _PRIVATE, "")
    folder.mkdir()
    _mount("none", folder, "tmpfs", 0, f"size={size}")


def remount(folder: Path, *, size: int, read_only: bool = False) -> None:
    _mount("none", folder, "tmpfs", _REMOUNT | (_RDONLY if read_only else 0), f"size={size}")


def _mount(source: str, target: Path, kind: str, flags: int, data: str) -> None:
    words = [word.encode() or None for word in (source, str(target), kind, data)]
    _call("mount", *words[:3], ctypes.c_ulong(flags), words[3])


def _call(name: str, *args: object) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*args):
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")
