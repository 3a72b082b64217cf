"""A progress bar on a terminal; silent elsewhere."""

import sys
from typing import TextIO

WIDTH = 30


class Progress:
    """`bar.show(3, 10, "eigh d = 64")` redraws one line; `bar.clear()` removes it."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = sys.stderr if stream is None else stream
        self.on = self.stream.isatty()

    def show(self, done: int, total: int, what: str) -> None:
        if self.on:
            full = WIDTH * done // max(total, 1)
            self.stream.write(f"\r\x1b[K[{'#' * full}{'.' * (WIDTH - full)}] {done}/{total} {what}"[:119])
            self.stream.flush()

    def clear(self) -> None:
        if self.on:
            self.stream.write("\r\x1b[K")
            self.stream.flush()
