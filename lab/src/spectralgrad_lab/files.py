"""Files that are whole or not there."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write that takes the place of ``path`` when the block ends well, and leaves nothing when it does not.

    When the block has ended, file and name are on the disk: a power cut leaves the new file or the old one.
    """
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with beside.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        _sync_folder(path.parent)
    finally:
        beside.unlink(missing_ok=True)


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


def discard_parts(path: Path) -> None:
    """Remove what killed writers of ``path`` left beside it. For the holder of its lock: no other writer is at work.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in (".a.0123abcd.part", ".b.0123abcd.part", "a"):
    ...         Path(folder, name).touch()
    ...     discard_parts(Path(folder, "a"))
    ...     sorted(path.name for path in Path(folder).iterdir())
    ['.b.0123abcd.part', 'a']
    """
    for left in path.parent.glob(f".{path.name}.*.part"):
        left.unlink(missing_ok=True)


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
