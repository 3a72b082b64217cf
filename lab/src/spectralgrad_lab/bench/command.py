"""What `spectralgrad bench` does, without its flags: measure, print, keep; or fill the page. It needs torch alone."""

import sys
from collections.abc import Sequence
from pathlib import Path

from .memory import keep_freed
from .progress import Progress
from .run import Options, markdown, write
from .run import bench as measure

BROKEN = 1
STOPPED = 130  # the exit code of a program that Ctrl-C ended


def bench(options: Options, folder: Path | None = None) -> int:
    """Measure, print the tables and leave a record in ``folder``, if one is given.

    Returns:
        The exit code: 0, 1 if a section that is a promise has a miss, 130 after Ctrl-C.
    """
    if folder:
        folder.mkdir(parents=True, exist_ok=True)  # a folder that cannot be had is an error before, not after
    if not options.gpu:
        keep_freed()
    about, outcome = measure(options, Progress())
    print(markdown(about, outcome.rows), flush=True)
    if folder and outcome.rows:
        print(f"\nwrote {' and '.join(write(folder, options, about, outcome.rows))} to {folder}")
    if outcome.partial:
        print("spectralgrad bench: stopped; above is what was done.", file=sys.stderr)
        return STOPPED
    return BROKEN if outcome.broken else 0


def fill_page(records: Sequence[Path], page: Path) -> int:
    """Fill the page from records and draw its figures; returns the exit code: 0, 1 without matplotlib."""
    from .page import write_page

    try:
        written = write_page(records, page)
    except ModuleNotFoundError as error:
        print(f"spectralgrad bench --page: needs {error.name}. pip install spectralgrad-lab has it.", file=sys.stderr)
        return BROKEN
    for path in written:
        print(path)
    return 0
