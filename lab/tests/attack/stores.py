"""A store that is full, read-only, gone or shared; a clock that jumps: a named error, no number of the record changes."""

import itertools
import multiprocessing
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from spectralgrad.errors import SpectralError
from spectralgrad_lab.deadline import Deadline, OutOfTime
from spectralgrad_lab.records.lock import BusyError
from spectralgrad_lab.records.store import Store
from spectralgrad_lab.training import train as trainer

from .kills import RANDOM, Subject, classifier
from .mounts import mount_small, remount
from .processes import start

TRIAL = replace(RANDOM, epochs=4)
SUBJECT = Subject(partial(classifier, TRIAL), (TRIAL,))
PAGE, ROOM = 4096, 64 << 20  # bytes
FILES, CHECKPOINTS = (
    range(1, 5),
    range(5, 60),
)  # pages that are full within the first files; within the first two checkpoints
JUMP = 86_400.0  # seconds


class Skipped(Exception):
    """This process may not mount anything."""


def stores(count: int, draw: Random) -> Iterator[str | None]:
    """``count`` trainings, in turn under each of the conditions below; yields what was not named, lost or changed."""
    with TemporaryDirectory() as top:
        SUBJECT.finish(Path(top, "whole"))
        whole = SUBJECT.results(Path(top, "whole"))
        for number, condition in zip(range(count), itertools.cycle(CONDITIONS), strict=False):
            folder = Path(top, str(number))
            folder.mkdir()
            process = start(_run, condition, folder, draw.randrange(10**9), whole)
            process.join()
            said = Path(folder, "said")
            found = said.read_text() if said.exists() else f"nothing: exit code {process.exitcode}"
            if found.startswith("skipped"):
                print(f"  {condition}: {found}", flush=True)
            yield None if not found or found.startswith("skipped") else f"{condition}: {found}"


def _run(condition: str, folder: Path, seed: int, whole: list[Any]) -> None:
    try:
        trainer.CHECKPOINT = 0.0  # after every epoch
        CONDITIONS[condition](folder / "store", Random(seed))
        found = "" if SUBJECT.results(folder / "store") == whole else "the record differs from that of an undisturbed run"
    except Skipped as reason:
        found = f"skipped: {reason}"
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    Path(folder, "said").write_text(found)


def _train(folder: Path, **options: Any) -> None:
    trainer.run_trial(TRIAL, Store(folder), device="cpu", **options)


def _refused(work: Callable[[], None], words: str) -> bool:
    """Whether it was refused in these words; any other error passes."""
    try:
        work()
    except SpectralError as error:
        if words not in str(error):
            raise
        return True
    return False


def _mounted(store: Path, size: int) -> None:
    try:
        mount_small(store, size)
    except OSError as error:
        raise Skipped(error) from error


def _full(store: Path, draw: Random) -> None:
    size = PAGE * draw.choice(draw.choice([FILES, CHECKPOINTS]))
    _mounted(store, size)
    assert _refused(lambda: _train(store), "No space left on device"), f"{size} bytes were enough"
    remount(store, size=ROOM)
    _train(store)


def _read_only(store: Path, draw: Random) -> None:
    _mounted(store, ROOM)
    if draw.random() < 0.7:  # or it is empty
        _until(store, draw.randrange(TRIAL.epochs - 1))
    remount(store, size=ROOM, read_only=True)
    assert _refused(lambda: _train(store), "Read-only file system"), "written to a read-only disk"
    remount(store, size=ROOM)
    _train(store)


def _vanishes(store: Path, draw: Random) -> None:
    at = draw.randrange(TRIAL.epochs)
    way = draw.choice([shutil.rmtree, lambda folder: folder.rename(folder.with_name("elsewhere"))])

    def progress(line: dict[str, Any]) -> None:
        if line["epoch"] == at:
            way(store)

    assert _refused(lambda: _train(store, progress=progress), "No such file or directory"), "nobody missed it"
    _train(store)


def _two_writers(store: Path, draw: Random) -> None:
    """The other one comes at a drawn epoch, and is refused; what it found is written by the first alone."""
    at, refused = draw.randrange(TRIAL.epochs - 1), []

    def progress(line: dict[str, Any]) -> None:
        if line["epoch"] == at:
            other = multiprocessing.get_context("fork").Process(target=_write_too, args=(store, store.with_name("other")))
            other.start()
            other.join()
            refused.append(store.with_name("other").read_text())

    _train(store, progress=progress)
    assert refused == ["BusyError"], refused


def _write_too(store: Path, said: Path) -> None:
    try:
        _train(store)
        said.write_text("it wrote")
    except BusyError:
        said.write_text("BusyError")


def _clock(store: Path, draw: Random) -> None:
    """It jumps a day back, or forth, at one look in two; --seconds may end it early or late, and nothing else changes."""
    real, shift = time.time, 0.0

    def jumping() -> float:
        nonlocal shift
        shift += draw.choice([0.0, 0.0, -JUMP, JUMP])
        return real() + shift

    time.time = jumping
    while Store(store).outcome(TRIAL) is None:
        try:
            _train(store, deadline=Deadline.after(draw.uniform(0, 2)))
        except OutOfTime:
            continue
    assert all(line["seconds"] >= 0 for line in Store(store).lines(TRIAL) if line["kind"] == "epoch"), "time ran backwards"


def _until(store: Path, epoch: int) -> None:
    """Train up to that epoch, and be interrupted."""

    def progress(line: dict[str, Any]) -> None:
        if line["epoch"] == epoch:
            raise KeyboardInterrupt

    try:
        _train(store, progress=progress)
    except KeyboardInterrupt:
        return


CONDITIONS: dict[str, Callable[[Path, Random], None]] = {
    "two writers": _two_writers,
    "a clock that jumps": _clock,
    "a store that vanishes": _vanishes,
    "a full disk": _full,
    "a read-only disk": _read_only,
}
