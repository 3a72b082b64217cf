"""One writer at a time: a lock file that dies with its process."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spectralgrad.errors import SpectralError


class BusyError(SpectralError, RuntimeError):
    """Another process writes the same record."""


@contextmanager
def hold(path: Path, who: str) -> Iterator[None]:
    """Hold the lock file ``path`` inside the block.

    The lock is the kernel's (flock), so that of a killed process is free at once, whatever its file says; the process number
    in it is for people. The file is removed at the end.

    Args:
        path: of the lock file; its folder exists.
        who: what is locked, for the error.

    Raises:
        BusyError: another process holds it, or another part of this one.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, hold(Path(folder) / "a.lock", "`a`"):
    ...     try:
    ...         hold(Path(folder) / "a.lock", "`a`").__enter__()
    ...     except BusyError as error:
    ...         print(str(error)[:31])
    `a` is being written by process
    """
    file = _take(path, who)
    try:
        yield
    finally:
        # Removed while we hold it: a process that waits on the old file then finds it gone, and makes a new one.
        path.unlink(missing_ok=True)
        os.close(file)


def _take(path: Path, who: str) -> int:
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(file, 32).decode("ascii", "replace").strip() or "unknown"
            os.close(file)
            raise BusyError(
                f"{who} is being written by process {owner}. Wait for it, or end it: "
                "the same command then goes on where it stopped."
            ) from None
        except BaseException:
            os.close(file)
            raise
        if _is_there(file, path):
            try:
                os.truncate(file, 0)
                os.write(file, f"{os.getpid()}\n".encode())
            except BaseException:  # a full disk: nobody holds it then, this process neither
                path.unlink(missing_ok=True)
                os.close(file)
                raise
            return file
        os.close(file)


def _is_there(file: int, path: Path) -> bool:
    """Whether the open file is still the one of that name: its last holder removes it."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False
