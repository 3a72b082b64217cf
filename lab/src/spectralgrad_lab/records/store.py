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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from spectralgrad.errors import OptionError
from spectralgrad_lab.files import set_aside, write_whole

from .decoded import Damage, computed_from
from .described import Described
from .lines import problem_of
from .lock import BusyError
from .machine import circumstances, slug
from .outcome import Outcome, outcome_of
from .recording import DamagedError, Files, Line, Recording, StoreError, open_recording, read_lines, refusal
from .results import Computed, GalleryPicture
from .strict_json import to_json
from .trial import FORMAT, Trial

__all__ = ["Outcome", "Recording", "Store", "StoreError", "opening"]

HEAD = "spectralgrad records, format "
T = TypeVar("T", bound=Described)
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
        self.damaged: dict[Path, str] = {}  # files that were found damaged and left out, and what is wrong
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
        files = self.files(trial)
        own = partial(_require_own, files.record, trial)
        return open_recording(files, trial.PARTS, f"`Store`: trial {trial.key}", own)

    @contextmanager
    def recording(self, trial: Trial, *, gpu: bool = False) -> Iterator[Recording]:
        """`held`, with a start line that is written first; ``gpu``: it runs on the current CUDA device."""
        with self.held(trial) as held:
            held.start(**opening(trial, gpu))
            yield held

    def clear(self, trial: Described) -> None:
        """Remove what a kill after the last line of a trial left beside its record, unless somebody is at it now."""
        files = self.files(trial)
        if files.checkpoint.exists() or files.lock.exists():
            with suppress(BusyError, StoreError), self.held(trial):
                pass

    def lines(self, trial: Described) -> list[Line]:
        """The lines of a trial; of epochs that were run again the last run, and of ends the last.

        None where its record is damaged, or is that of another trial: `damaged` then says so.
        """
        path = self.files(trial).record
        try:
            found = read_lines(path, trial.PARTS)
            _require_own(path, trial, found)
        except DamagedError as error:
            self.damaged[path] = str(error)
            return []
        self.damaged.pop(path, None)
        return found

    def outcome(self, trial: Trial) -> Outcome | None:
        """How a trial ended; None if it has not."""
        return outcome_of(self.lines(trial))

    def trials(self) -> list[Trial]:
        """Every trial that has a record, in the order of their keys; `damaged` names those that cannot be used."""
        found = []
        for path in sorted((self.folder / "trials").glob("*.jsonl")):
            try:
                lines = read_lines(path, Trial.PARTS)
                if lines:  # or it was killed while it wrote its first line
                    found.append(_own_trial(path, Trial, lines))
            except DamagedError as error:
                self.damaged[path] = str(error)
        return found

    def save_computed(self, id: str, scale: str, result: Computed, *, gpu: bool = False) -> None:
        """Write the result of an artifact that is computed; an older one is replaced at once or not at all.

        Its pictures are files of their own, written before the record that names them.
        """
        path = self._computed(id, scale)
        bare = asdict(replace(result, pictures=()))
        try:
            path.parent.mkdir(exist_ok=True)
            if self.damaged.pop(path, None) and path.exists():
                set_aside(path)
            bare["pictures"] = _save_pictures(path.with_suffix(""), result.pictures)
            text = to_json({"id": id, "scale": scale, **_about(gpu), "result": bare}, indent=1)
            write_whole(path, (text + "\n").encode())
        except OSError as error:
            raise refusal("written", path, error) from error

    def load_computed(self, id: str, scale: str) -> Computed | None:
        """What `save_computed` wrote; None if there is nothing, or if it is damaged: `damaged` then says so."""
        whole, path = self.head_of_computed(id, scale), self._computed(id, scale)
        if whole is None:
            return None
        try:
            found = computed_from(whole.get("result"), path.with_suffix(""))
            self.damaged.pop(path, None)
            return found
        except Damage as error:
            self.damaged[path] = str(DamagedError(path, str(error)))
        except OSError as error:
            self.damaged[path] = str(DamagedError(path, f"a picture: {error.strerror or error}"))
        return None

    def head_of_computed(self, id: str, scale: str) -> Line | None:
        """The record of a computed artifact as it was written: machine, versions, source and date; None if there is none."""
        path = self._computed(id, scale)
        try:
            found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
            problem = "" if found is None else problem_of({"kind": "start", **found}, Trial.PARTS)
        except OSError as error:
            raise refusal("read", path, error) from error
        except (ValueError, TypeError) as error:
            problem = str(error)[:60] or type(error).__name__
        except RecursionError:
            problem = "it is nested too deeply"
        if problem:
            self.damaged[path] = str(DamagedError(path, problem))
            return None
        return found

    def damage_of(self, trials: Iterable[Described], *computed: tuple[str, str]) -> list[str]:
        """What was said of damaged records of these trials, and of computed artifacts (id, scale)."""
        paths = [*(self.files(trial).record for trial in trials), *(self._computed(*each) for each in computed)]
        return [self.damaged[path] for path in dict.fromkeys(paths) if path in self.damaged]

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


def _own_trial(path: Path, kind: type[T], lines: list[Line]) -> T:
    """The trial of the start line of a record.

    Raises:
        DamagedError: it has none, or the record is another's.
    """
    said = lines[0].get("trial")
    try:
        trial = kind.from_json(said if isinstance(said, str) else json.dumps(said))
        key = trial.key
    except (OptionError, TypeError, ValueError, RecursionError) as error:
        raise DamagedError(path, str(error)[:120]) from error
    if trial.files.record.parts[-2:] != path.parts[-2:]:
        raise DamagedError(path, f"it holds the record of trial {key}")
    return trial


def _require_own(path: Path, trial: Described, lines: list[Line]) -> None:
    """Raise `DamagedError` for the record of another trial under the name of this one."""
    if lines and _own_trial(path, type(trial), lines).key != trial.key:
        raise DamagedError(path, "it holds the record of another trial")
