"""The records of trials: append-only JSON lines that a person can read, and that a kill at any moment leaves whole.

    <folder>/FORMAT                        what this folder is
    <folder>/trials/<key>.jsonl            start, epoch, epoch, ..., end: one line each; the first holds the trial in full
    <folder>/trials/<key>.ckpt, .lock      while the trial runs
    <folder>/computed/<id>-<scale>.json    artifacts without trials
    <folder>/computed/<id>-<scale>/        their pictures, where they have some
    <folder>/style/                        the trainings of the style-transfer networks

A line is on the disk before `append` returns. A line that a kill cut short does not parse: it is ignored, and the next line
begins on its own. Nothing in a record names a host, a user or a path.
"""

import json
import math
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from spectralgrad.errors import OptionError, SpectralError
from spectralgrad_lab.files import write_whole

from .lock import hold
from .machine import circumstances, slug
from .results import Computed, Curve, Picture, Printed, Surface
from .trial import FORMAT, Trial

HEAD = "spectralgrad records, format "
NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}  # JSON has no numbers for them
STYLE = "style"  # folder of the style-transfer trainings, which may have been there first
TEXTS = ("kind", "reason", "trial")  # fields in which such a word is a word


class StoreError(SpectralError, RuntimeError):
    """A record directory cannot be used, read or written."""


class Outcome(NamedTuple):
    """How a trial ended: "finished", or "failed" with the reason; its epochs as they were recorded."""

    status: str
    reason: str
    epochs: tuple[dict[str, Any], ...]
    test_error: float | None
    best_error: float | None
    seconds: float


class Recording:
    """A trial that is being written; from `Store.recording`.

    Args:
        path: of the record.
        lines: what it holds already, the start of this run included.
    """

    def __init__(self, path: Path, lines: list[dict[str, Any]]) -> None:
        self.path = path
        self.lines = lines

    @property
    def checkpoint(self) -> Path:
        """Where the checkpoint belongs; it is removed by the end line."""
        return self.path.with_suffix(".ckpt")

    def append(self, kind: str, **fields: Any) -> None:
        """Write one line to the disk.

        Args:
            kind: "epoch" (epoch, step, train_loss, train_error, test_loss, test_error, seconds, monitor) or
                "end" (status "finished" or "failed", reason, step, epoch, test_error, best_error); the store writes "start".

        Raises:
            OptionError: another kind, or an end that is neither.
            StoreError: the disk is full or the like; the lines before it stand.
        """
        if kind not in ("epoch", "end") or (kind == "end" and fields.get("status") not in ("finished", "failed")):
            came = f"{kind!r} with status {fields.get('status')!r}" if kind == "end" else repr(kind)
            raise OptionError(f"`append`: a line is an epoch, or an end that is finished or failed, got {came}.")
        self._write({"kind": kind, **fields})
        if kind == "end":
            self.checkpoint.unlink(missing_ok=True)

    def _write(self, line: dict[str, Any]) -> None:
        try:
            with self.path.open("ab+") as file:
                if file.tell():
                    file.seek(-1, os.SEEK_END)
                    if file.read(1) != b"\n":  # a line was cut short: let this one begin on its own
                        file.write(b"\n")
                file.write(json.dumps(_encode(line), allow_nan=False).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise _refusal("written", self.path, error) from error
        self.lines.append(line)


class Store:
    """A folder of records.

    Args:
        folder: made if it is not there.

    Raises:
        StoreError: the folder is of another format, holds something else, or cannot be made.

    Example:

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = Store(Path(folder))
        ...     with store.recording(Trial(epochs=1)) as recording:
        ...         recording.append("epoch", epoch=0, seconds=2.0, train_loss=0.5)
        ...         recording.append("end", status="finished", reason="", epoch=0, test_error=0.1, best_error=0.1)
        ...     store.outcome(Trial(epochs=1)).test_error
        0.1
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        try:
            self._open()
        except OSError as error:
            raise _refusal("used", self.folder, error) from error

    def _open(self) -> None:
        marker = self.folder / "FORMAT"
        self.folder.mkdir(parents=True, exist_ok=True)
        if not marker.exists():
            names = [path.name for path in self.folder.iterdir()]
            others = [name for name in names if not name.startswith(".FORMAT") and name != STYLE]
            if others and not marker.exists():  # asked again: a colleague may have made it just now
                raise StoreError(
                    f"`Store`: {self.folder} holds other files ({sorted(others)[0]}, ...) and no records. "
                    "Choose an empty folder or a new one."
                )
            if not marker.exists():
                write_whole(marker, f"{HEAD}{FORMAT}\n".encode())
        came = marker.read_text(encoding="utf-8", errors="replace").strip()
        if came != f"{HEAD}{FORMAT}":
            raise StoreError(
                f"`Store`: {self.folder} must hold {HEAD}{FORMAT}; its FORMAT says {came[:60]!r}. "
                "Read it with the version that wrote it, or choose a new folder; nothing in it was changed."
            )

    def _path(self, trial: Trial) -> Path:
        return self.folder / "trials" / f"{trial.key}.jsonl"

    @contextmanager
    def recording(self, trial: Trial, *, gpu: bool = False) -> Iterator[Recording]:
        """Write the record of a trial, alone; a start line with trial, versions, machine and date is written first.

        Args:
            trial: it may have a record already: then this goes on with it.
            gpu: it runs on the current CUDA device, which the start line names.

        Raises:
            BusyError: another process writes it.
            StoreError: it cannot be written.
        """
        path = self._path(trial)
        try:
            path.parent.mkdir(exist_ok=True)
            lock = hold(path.with_suffix(".lock"), f"`Store`: trial {trial.key}")
            lock.__enter__()
        except OSError as error:
            raise _refusal("written", path, error) from error
        try:
            recording = Recording(path, self.lines(trial))
            recording._write({"kind": "start", "trial": asdict(trial), **_about(gpu)})
            yield recording
        finally:
            lock.__exit__(None, None, None)

    def lines(self, trial: Trial) -> list[dict[str, Any]]:
        """The lines of a trial; of epochs that were run again the last run, and of ends the last."""
        return _lines(self._path(trial))

    def outcome(self, trial: Trial) -> Outcome | None:
        """How a trial ended; None if it has not."""
        lines = self.lines(trial)
        if not lines or lines[-1]["kind"] != "end":
            return None
        end, epochs = lines[-1], tuple(line for line in lines if line["kind"] == "epoch")
        seconds = sum(float(line.get("seconds", 0.0)) for line in epochs)
        return Outcome(end["status"], end.get("reason", ""), epochs, end.get("test_error"), end.get("best_error"), seconds)

    def trials(self) -> list[Trial]:
        """Every trial that has a record, in the order of their keys."""
        found = []
        for path in sorted((self.folder / "trials").glob("*.jsonl")):
            lines = _lines(path)
            if not lines:
                continue  # killed while it wrote its first line
            trial = Trial.from_json(json.dumps(lines[0].get("trial", {})))
            if trial.key != path.stem:
                raise StoreError(f"`Store`: {path} holds the record of trial {trial.key}. Give it its own name back.")
            found.append(trial)
        return found

    def save_computed(self, id: str, scale: str, result: Computed, *, gpu: bool = False) -> None:
        """Write the result of an artifact that is computed; an older one is replaced at once or not at all.

        Its pictures are files of their own, written before the record that names them.
        """
        path = self._computed(id, scale)
        bare = _encode(asdict(replace(result, pictures=())))
        try:
            path.parent.mkdir(exist_ok=True)
            bare["pictures"] = _save_pictures(path.with_suffix(""), result.pictures)
            text = json.dumps({"id": id, "scale": scale, **_about(gpu), "result": bare}, indent=1)
            write_whole(path, (text + "\n").encode())
        except OSError as error:
            raise _refusal("written", path, error) from error

    def load_computed(self, id: str, scale: str) -> Computed | None:
        """What `save_computed` wrote; None if there is nothing.

        Pictures of the user's data may have been removed, so that the rest can be published: these are left out.
        """
        path = self._computed(id, scale)
        try:
            if not path.exists():
                return None
            result = json.loads(path.read_text(encoding="utf-8"))["result"]
            pictures = _load_pictures(path.with_suffix(""), result.get("pictures", []))  # older records have none
            return replace(_decode_computed(result), pictures=pictures)
        except OSError as error:
            raise _refusal("read", path, error) from error
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(f"`Store`: {path} is damaged ({error}). Remove it and run `{id}` again.") from error

    def _computed(self, id: str, scale: str) -> Path:
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", id) or not scale.isalpha():
            raise OptionError(f"`Store`: an id is lower-case words joined by -, a scale one word, got {id!r}, {scale!r}.")
        return self.folder / "computed" / f"{id}-{scale}.json"


def _about(gpu: bool = False) -> dict[str, Any]:
    about = circumstances("", gpu)
    del about["command"]
    return about


def _refusal(what: str, path: Path, error: OSError) -> StoreError:
    return StoreError(
        f"`Store`: {path} cannot be {what}: {error.strerror or error}. What was recorded before stands; "
        "make room or choose another folder, and run the same command again."
    )


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        text = path.read_bytes().decode("ascii", "replace") if path.exists() else ""
    except OSError as error:
        raise _refusal("read", path, error) from error
    starts: list[dict[str, Any]] = []
    epochs: list[dict[str, Any]] = []
    end: list[dict[str, Any]] = []
    for each in text.split("\n"):
        line = _parse(each)
        if line is None:
            continue
        if line["kind"] == "start":
            starts.append(line)
        elif line["kind"] == "epoch":  # run again from here: what came after it belonged to the run before
            epochs, end = [*(old for old in epochs if old["epoch"] < line["epoch"]), line], []
        else:
            end = [line]
    if text.strip("\0\n") and not starts and (epochs or end):
        raise StoreError(f"`Store`: {path} has no start line: it is no record, or a damaged one. Move it away.")
    return [*starts, *epochs, *end]


def _parse(text: str) -> dict[str, Any] | None:
    """A line; None if it was cut short."""
    try:
        line = json.loads(text)
    except ValueError:
        return None
    if not isinstance(line, dict) or line.get("kind") not in ("start", "epoch", "end"):
        return None
    return {key: value if key in TEXTS else _decode(value) for key, value in line.items()}


def _encode(x: Any) -> Any:
    """NaN and Inf as words."""
    if isinstance(x, dict):
        return {key: _encode(value) for key, value in x.items()}
    if isinstance(x, list | tuple):
        return [_encode(value) for value in x]
    if isinstance(x, float) and not math.isfinite(x):
        return "NaN" if math.isnan(x) else "Infinity" if x > 0 else "-Infinity"
    return x


def _decode(x: Any) -> Any:
    if isinstance(x, dict):
        return {key: _decode(value) for key, value in x.items()}
    if isinstance(x, list):
        return [_decode(value) for value in x]
    return NOT_FINITE.get(x, x) if isinstance(x, str) else x


def _save_pictures(folder: Path, pictures: Sequence[Picture]) -> list[dict[str, Any]]:
    """Write each picture to a file; the entries of the record that name them."""
    if not pictures:
        return []
    folder.mkdir(exist_ok=True)
    entries = []
    for i, picture in enumerate(pictures):
        suffix = "png" if picture.data.startswith(b"\x89PNG") else "jpg"
        name = f"{i:03d}-{slug(f'{picture.row} {picture.column}')[:60]}.{suffix}"
        write_whole(folder / name, picture.data)
        words = {"row": picture.row, "column": picture.column, "alt": picture.alt, "original": picture.original}
        entries.append({**words, "file": name})
    return entries


def _load_pictures(folder: Path, entries: Sequence[dict[str, Any]]) -> tuple[Picture, ...]:
    found = []
    for entry in entries:
        path = folder / Path(entry["file"]).name  # whatever a record says, nothing outside of its folder is read
        if entry["original"] and not path.exists():
            continue
        found.append(Picture(entry["row"], entry["column"], path.read_bytes(), entry["alt"], entry["original"]))
    return tuple(found)


def _numbers(x: list[Any]) -> tuple[float, ...]:
    return tuple(float(value) for value in x)


def _decode_computed(x: dict[str, Any]) -> Computed:
    """Lists become tuples again, and the words of `_encode` numbers, but only where numbers belong."""

    def printed(t: dict[str, Any]) -> Printed:
        rows = {label: tuple(cells) for label, cells in t["rows"].items()}
        return Printed(tuple(t["columns"]), rows, t["caption"], tuple(t["misprints"]))

    def surface(s: dict[str, Any]) -> Surface:
        x, y, levels = _numbers(s["x"]), _numbers(s["y"]), _numbers(s["levels"])
        points = tuple((name, float(a), float(b)) for name, a, b in s["points"])
        return Surface(x, y, tuple(_numbers(row) for row in s["z"]), levels, points, s["x_label"], s["y_label"])

    return Computed(
        tables=tuple(printed(table) for table in x["tables"]),
        curves=tuple(Curve(c["label"], _numbers(c["x"]), _numbers(c["y"])) for c in x["curves"]),
        surfaces=tuple(surface(s) for s in x["surfaces"]),
        x_label=x["x_label"],
        y_label=x["y_label"],
        log=x["log"],
        agrees=x["agrees"],
        remarks=tuple(x["remarks"]),
    )
