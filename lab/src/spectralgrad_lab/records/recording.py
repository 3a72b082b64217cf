"""The record of one training: append-only JSON lines that a person can read, and that a kill at any moment leaves whole.

    start, part, part, ..., end        one line each; the parts are the epochs of a classifier, the logs of a style network
    start, ..., stop, start, ..., end  where its time was up in between, or a kill left no line at all

A line is on the disk before `Recording.append` returns. A line that a kill cut short does not parse: it is ignored, and the
next line begins on its own.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from spectralgrad.errors import OptionError, SpectralError
from spectralgrad_lab.files import set_aside, sweep

from .lines import Line, Parts, problem_of, problem_of_all
from .lock import hold
from .strict_json import from_json, to_json

__all__ = ["DamagedError", "Files", "Line", "Parts", "Recording", "StoreError", "end_of", "open_recording", "read_lines"]

WORDS = ("kind", "reason", "trial")  # fields in which «NaN» is a word


class StoreError(SpectralError, RuntimeError):
    """A record directory cannot be used, read or written."""


class DamagedError(StoreError):
    """A file of the records can be read, but is not what was written; it is left out, and what it held is run again."""

    def __init__(self, path: Path, why: str) -> None:
        self.path = path
        super().__init__(
            f"`Store`: {path} is damaged ({why}). It is left out; the next run sets it aside as {path.name}.damaged and "
            "trains or computes it again"
        )


class Files(NamedTuple):
    """Where a training is recorded; checkpoint and lock are there while it runs."""

    record: Path
    checkpoint: Path
    lock: Path

    def under(self, folder: Path) -> "Files":
        return Files(*(folder / path for path in self))


class Recording:
    """A training that is being written; from `open_recording`.

    Args:
        path: of the record.
        checkpoint: where the checkpoint belongs; it is removed by the end line.
        parts: what its lines are called.
        lines: what it holds already.
    """

    def __init__(self, path: Path, checkpoint: Path, parts: Parts, lines: list[Line]) -> None:
        self.path, self.checkpoint, self.parts, self.lines = path, checkpoint, parts, lines

    @property
    def has_ended(self) -> bool:
        return end_of(self.lines) is not None

    def start(self, **fields: Any) -> None:
        """Write the line with which a run begins: the trial in full, versions, machine and date."""
        self._write({"kind": "start", **fields})

    def append(self, kind: str, **fields: Any) -> None:
        """Write one line to the disk.

        Args:
            kind: "epoch" (epoch, step, train_loss, train_error, test_loss, test_error, seconds, monitor), "log" (step,
                losses, seconds), "stop" or "end" (status "finished" or "failed", reason, step, ...).

        Raises:
            OptionError: another kind, or an end that is neither.
            StoreError: the disk is full or the like; the lines before it stand.
        """
        if kind not in (self.parts.kind, "stop", "end") or (
            kind == "end" and fields.get("status") not in ("finished", "failed")
        ):
            came = f"{kind!r} with status {fields.get('status')!r}" if kind == "end" else repr(kind)
            part = f"{'an' if self.parts.kind[0] in 'aeiou' else 'a'} {self.parts.kind}"
            raise OptionError(f"`append`: a line is a stop, {part}, or an end that is finished or failed, got {came}.")
        self._write({"kind": kind, **fields})
        if kind == "end":
            self.checkpoint.unlink(missing_ok=True)

    def _write(self, line: Line) -> None:
        try:
            with self.path.open("ab+") as file:
                if file.tell():
                    file.seek(-1, os.SEEK_END)
                    if file.read(1) != b"\n":  # a line was cut short: let this one begin on its own
                        file.write(b"\n")
                file.write(to_json(line).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise refusal("written", self.path, error) from error
        self.lines.append(line)


@contextmanager
def open_recording(
    files: Files, parts: Parts, who: str, require: Callable[[list[Line]], None] = lambda _: None
) -> Iterator[Recording]:
    """Hold the record of a training, alone, to write it or to go on with it.

    Args:
        files: where it is, or will be; folders are made.
        parts: what its lines are called.
        who: what is locked, for the error.
        require: raises `DamagedError` for lines that are not of this training.

    Raises:
        BusyError: another process writes it.
        StoreError: it cannot be written.
    """
    try:
        files.record.parent.mkdir(parents=True, exist_ok=True)
        lock = hold(files.lock, who)
        lock.__enter__()
    except OSError as error:
        raise refusal("written", files.record, error) from error
    try:
        sweep(files.checkpoint.parent)
        recording = Recording(files.record, files.checkpoint, parts, _lines_or_aside(files.record, parts, require))
        if recording.has_ended:  # a kill came between its last line and this
            files.checkpoint.unlink(missing_ok=True)
        yield recording
    finally:
        lock.__exit__(None, None, None)


def _lines_or_aside(path: Path, parts: Parts, require: Callable[[list[Line]], None]) -> list[Line]:
    """The lines of a record; a damaged one is renamed, never removed, and a new one begins."""
    try:
        lines = read_lines(path, parts)
        require(lines)
        return lines
    except DamagedError:
        try:
            set_aside(path)
        except OSError as error:
            raise refusal("set aside", path, error) from error
        return []


def read_lines(path: Path, parts: Parts) -> list[Line]:
    """The lines of a record: starts, parts, stops and the end. Of parts that were run again the last run counts.

    Raises:
        DamagedError: it is not what was written. A line that a kill cut short is no damage.
        StoreError: it cannot be read.

    >>> read_lines(Path("/nonexistent"), Parts("epoch", "epoch"))
    []
    """
    try:
        text = path.read_bytes().decode("ascii", "replace") if path.exists() else ""
    except OSError as error:
        raise refusal("read", path, error) from error
    starts: list[Line] = []
    done: list[Line] = []
    stops: list[Line] = []
    end: list[Line] = []  # one at most
    for each in text.split("\n"):
        line = _parse(path, each, parts)
        kind = line.get("kind")
        if kind == "start":
            starts.append(line)
        elif kind == parts.kind:  # run again from here: what came after it belonged to the run before
            done, end = [*(old for old in done if old[parts.number] < line[parts.number]), line], []
        elif kind == "stop":
            stops.append(line)
        elif kind == "end":
            end = [line]
    problem = problem_of_all(starts, done, end, parts)
    if problem:
        raise DamagedError(path, problem)
    return [*starts, *done, *stops, *end]


def end_of(lines: list[Line]) -> Line | None:
    """The line with which a training ended; None if it has not."""
    return lines[-1] if lines and lines[-1]["kind"] == "end" else None


def _parse(path: Path, text: str, parts: Parts) -> Line:
    """A line; an empty one if it was cut short."""
    try:
        line = from_json(text, WORDS)
    except RecursionError as error:
        raise DamagedError(path, "a line is nested too deeply") from error
    except ValueError:
        return {}
    problem = problem_of(line, parts)
    if problem:
        raise DamagedError(path, problem)
    return line  # type: ignore[no-any-return]


def refusal(what: str, path: Path, error: OSError) -> StoreError:
    """The error for a file of the records that cannot be read or written."""
    return StoreError(
        f"`Store`: {path} cannot be {what}: {error.strerror or error}. What was recorded before stands; "
        "make room or choose another folder, and run the same command again."
    )
