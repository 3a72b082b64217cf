"""Files that are whole or not there."""

import errno
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import BinaryIO

_LEFT = re.compile(r"\..+\.[0-9a-f]{8}\.part", re.DOTALL)
_swept: set[tuple[int, int]] = set()  # folders (device, inode) whose leftovers this process has removed


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write that takes the place of ``path`` when the block ends well, and leaves nothing when it does not.

    When the block has ended, file and name are on the disk: a power cut leaves the new file or the old one. What a killed
    writer left in the folder is removed by the next process that writes there.

    Raises:
        OSError: it cannot be written, or ``path`` is no file: a folder, a pipe, a device, links in a ring.
    """
    _require_plain(path)
    sweep(path.parent)
    beside, file = _new_part(path)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            beside.replace(path)  # while it is locked: no other process takes it for a leftover
        _sync_folder(path.parent)
    finally:
        beside.unlink(missing_ok=True)


def _require_plain(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is a pipe, a socket or a device, and no file", str(path))


def _new_part(path: Path) -> tuple[Path, BinaryIO]:
    """A new file beside ``path``, open and locked; the lock dies with this process."""
    while True:
        beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        file = beside.open("xb")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file.fileno()), beside.stat()):
                return beside, file
        except (BlockingIOError, FileNotFoundError):  # a sweeper came between the two: it is gone, or will be
            file.close()
        except OSError:  # a file system without locks: nothing is swept there either
            return beside, file


def sweep(folder: Path) -> None:
    """Remove what dead writers left in a folder, once in a process: parts that nobody has locked."""
    try:
        about = folder.stat()
        if (about.st_dev, about.st_ino) in _swept:
            return
        _swept.add((about.st_dev, about.st_ino))
        with os.scandir(folder) as entries:
            left = [
                folder / entry.name
                for entry in entries
                if _LEFT.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)
            ]
    except OSError:
        return  # whoever writes there gets the error
    for part in left:
        try:
            with part.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                part.unlink(missing_ok=True)
        except OSError:  # its writer lives, or somebody else removed it
            continue


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """The whole file or nothing.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_whole(Path(folder, "a"), b"new")
    ...     [path.name for path in Path(folder).iterdir()]
    ['a']
    """
    with replacing(path) as file:
        file.write(content)


def set_aside(path: Path) -> Path:
    """Give a file that cannot be used another name beside its own, and return it. Nothing is removed or overwritten.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for _ in range(2):
    ...         Path(folder, "a").touch()
    ...         print(set_aside(Path(folder, "a")).name)
    a.damaged
    a.damaged-2
    """
    for number in count(1):
        other = path.with_name(f"{path.name}.damaged{'' if number == 1 else f'-{number}'}")
        if not os.path.lexists(other):
            break
    path.rename(other)
    return other


def _sync_folder(folder: Path) -> None:
    """Make a rename last through a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
