"""A folder of records.

    <folder>/FORMAT                        what this folder is
    <folder>/trials/<key>.jsonl            a classifier's training, with .ckpt and .lock while it runs
    <folder>/style/<name>/log.jsonl        a style network's training; its checkpoint, lock, weights and sheets are beside it
    <folder>/computed/<id>-<scale>.json    artifacts without trials
    <folder>/computed/<id>-<scale>/        their pictures, where they have some

What the lines of a training are, `recording` says. Nothing in a record names a host, a user or a path.
"""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from spectralgrad.errors import OptionError
from spectralgrad_lab.files import write_whole

from .described import Described
from .machine import circumstances, slug
from .outcome import Outcome, outcome_of
from .recording import Files, Line, Recording, StoreError, open_recording, read_lines, refusal
from .results import Axes, Computed, Curve, GalleryPicture, Printed, Surface
from .strict_json import to_json
from .trial import FORMAT, Trial

__all__ = ["Outcome", "Recording", "Store", "StoreError", "opening"]

HEAD = "spectralgrad records, format "
STYLE = "style"  # folder of the style-transfer trainings, which may have been there first


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
            raise refusal("used", self.folder, error) from error

    def _open(self) -> None:
        marker = self.folder / "FORMAT"
        self.folder.mkdir(parents=True, exist_ok=True)
        if not marker.exists():
            names = [path.name for path in self.folder.iterdir()]
            others = [name for name in names if not name.startswith(".FORMAT")] if STYLE not in names else []
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

    def files(self, trial: Described) -> Files:
        """Where a trial is recorded."""
        return trial.files.under(self.folder)

    def held(self, trial: Described) -> AbstractContextManager[Recording]:
        """Write the record of a trial, alone; it may have lines already: then this goes on with them.

        Raises:
            BusyError: another process writes it.
            StoreError: it cannot be written.
        """
        return open_recording(self.files(trial), trial.PARTS, f"`Store`: trial {trial.key}")

    @contextmanager
    def recording(self, trial: Trial, *, gpu: bool = False) -> Iterator[Recording]:
        """`held`, with a start line that is written first; ``gpu``: it runs on the current CUDA device."""
        with self.held(trial) as held:
            held.start(**opening(trial, gpu))
            yield held

    def lines(self, trial: Described) -> list[Line]:
        """The lines of a trial; of epochs that were run again the last run, and of ends the last."""
        return read_lines(self.files(trial).record, trial.PARTS)

    def outcome(self, trial: Trial) -> Outcome | None:
        """How a trial ended; None if it has not."""
        return outcome_of(self.lines(trial))

    def trials(self) -> list[Trial]:
        """Every trial that has a record, in the order of their keys."""
        found = []
        for path in sorted((self.folder / "trials").glob("*.jsonl")):
            lines = read_lines(path, Trial.PARTS)
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
        bare = asdict(replace(result, pictures=()))
        try:
            path.parent.mkdir(exist_ok=True)
            bare["pictures"] = _save_pictures(path.with_suffix(""), result.pictures)
            text = to_json({"id": id, "scale": scale, **_about(gpu), "result": bare}, indent=1)
            write_whole(path, (text + "\n").encode())
        except OSError as error:
            raise refusal("written", path, error) from error

    def load_computed(self, id: str, scale: str) -> Computed | None:
        """What `save_computed` wrote; None if there is nothing.

        Pictures of the user's data may have been removed, so that the rest can be published: these are left out.
        """
        whole = self.head_of_computed(id, scale)
        if whole is None:
            return None
        path = self._computed(id, scale)
        try:
            result = whole["result"]
            pictures = _load_pictures(path.with_suffix(""), result.get("pictures", []))  # older records have none
            return replace(_decode_computed(result), pictures=pictures)
        except OSError as error:
            raise refusal("read", path, error) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._damaged(id, scale, error) from error

    def head_of_computed(self, id: str, scale: str) -> Line | None:
        """The record of a computed artifact as it was written: machine, versions, source and date; None if there is none."""
        path = self._computed(id, scale)
        try:
            found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
        except OSError as error:
            raise refusal("read", path, error) from error
        except ValueError as error:
            raise self._damaged(id, scale, error) from error
        if found is not None and not isinstance(found, dict):
            raise self._damaged(id, scale, TypeError("no dictionary"))
        return found

    def _damaged(self, id: str, scale: str, error: Exception) -> StoreError:
        return StoreError(f"`Store`: {self._computed(id, scale)} is damaged ({error}). Remove it and run `{id}` again.")

    def _computed(self, id: str, scale: str) -> Path:
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", id) or not scale.isalpha():
            raise OptionError(f"`Store`: an id is lower-case words joined by -, a scale one word, got {id!r}, {scale!r}.")
        return self.folder / "computed" / f"{id}-{scale}.json"


def opening(trial: Trial, gpu: bool = False) -> Line:
    """The fields of a trial's start line: the trial in full, machine, versions, source and date."""
    return {"trial": asdict(trial), **_about(gpu)}


def _about(gpu: bool = False) -> Line:
    about = circumstances("", gpu)
    del about["command"]
    return about


def _save_pictures(folder: Path, pictures: Sequence[GalleryPicture]) -> list[dict[str, Any]]:
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


def _load_pictures(folder: Path, entries: Sequence[dict[str, Any]]) -> tuple[GalleryPicture, ...]:
    found = []
    for entry in entries:
        path = folder / Path(entry["file"]).name  # whatever a record says, nothing outside of its folder is read
        if entry["original"] and not path.exists():
            continue
        found.append(GalleryPicture(entry["row"], entry["column"], path.read_bytes(), entry["alt"], entry["original"]))
    return tuple(found)


def _numbers(x: list[Any]) -> tuple[float, ...]:
    return tuple(float(value) for value in x)


def _decode_computed(x: dict[str, Any]) -> Computed:
    """Lists become tuples again, and words like «NaN» numbers, but only where numbers belong."""

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
        axes=tuple(Axes(**axes) for axes in x.get("axes", [])),
    )
