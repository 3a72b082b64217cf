"""The command line."""

import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

INTERRUPTED = 130  # exit code


@contextmanager
def _leaving_at_once() -> Iterator[None]:
    """Ctrl-C ends the process, with one line: while torch is imported an exception may come out of any of its modules,
    as another one or not at all, and nothing is at work yet that would be lost."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is None:
        yield
        return

    def leave(*_: object) -> None:
        os.write(2, b"spectralgrad: stopped.\n")
        os._exit(INTERRUPTED)

    before = signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit code: 0, 1 for a failure, 2 for wrong use, 3 out of --seconds, 130 after Ctrl-C."""
    arguments = sys.argv[1:] if argv is None else argv
    try:
        with _leaving_at_once():
            from .app import app
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        carried = f"--target carry --python-version {'.'.join(map(str, sys.version_info[:2]))} --only-binary=:all: typer"
        print(
            f"spectralgrad: the command line needs {error.name}: pip install spectralgrad-lab. Without a network, run "
            f"pip install {carried} elsewhere, and name that folder in PYTHONPATH.",
            file=sys.stderr,
        )
        return 2
    for stream in (sys.stdout, sys.stderr):  # a terminal that has no infinity sign gets a question mark, not a traceback
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        app(args=arguments, prog_name="spectralgrad", obj=tuple(arguments))
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except OSError as error:  # of --help and its kin, which are no commands: those answer by themselves
        print(f"spectralgrad: {error.strerror or error}.", file=sys.stderr)
        return 1
    return 0
