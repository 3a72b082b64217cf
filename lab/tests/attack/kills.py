"""kill -9 at any moment of a training: the same call goes on, and its record ends as that of an unbroken run."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import torch

from spectralgrad_lab.artifacts.registry import find
from spectralgrad_lab.cli import main
from spectralgrad_lab.records.described import Described
from spectralgrad_lab.records.recording import Line, Recording
from spectralgrad_lab.records.store import Store
from spectralgrad_lab.records.trial import Trial
from spectralgrad_lab.style_network.train import trained
from spectralgrad_lab.style_network.trial import StyleTrial, style_trial
from spectralgrad_lab.training import checkpoint
from spectralgrad_lab.training import train as trainer

from .processes import start

Moment = float | str  # seconds after the start of the process, or one of those below
# Within a line; after it; when a checkpoint is written and not in its place; before the last line; right after it.
WORST = ("line", "between", "write", "end", "ended")
AT_LEAST = 0.75  # of the kills must fall into a training
LEFT = ("*.part", "*.ckpt", "*.lock", "lock")  # what a training that has ended leaves nowhere


def attempt(work: Callable[[Path], None], folder: Path, moment: Moment | None = None, threads: int = 1) -> int:
    """``work(folder)`` in a new process that is killed at the moment; its exit code, -9 if it was."""
    process = start(_attempt, work, folder, moment if isinstance(moment, str) else None, threads=threads)
    if isinstance(moment, float):
        process.join(moment)
        process.kill()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def _attempt(work: Callable[[Path], None], folder: Path, moment: str | None) -> None:
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)  # what a command says
    trainer.CHECKPOINT = 0.0  # after every epoch
    if moment == "write":
        Path.replace = _die  # type: ignore[assignment, method-assign]
    elif moment == "between":
        checkpoint.save = _die  # type: ignore[assignment]
    elif moment == "line":
        os.fsync = _die
    elif moment in ("end", "ended"):
        append = Recording.append

        def until_the_end(self: Recording, kind: str, **fields: Any) -> None:
            if kind == "end" and moment == "end":
                _die()
            if kind == "end":
                Path.unlink = _die  # type: ignore[assignment, method-assign]
            append(self, kind, **fields)

        Recording.append = until_the_end  # type: ignore[method-assign]
    work(folder)


def _die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


# What is killed.


def classifier(trial: Trial, folder: Path) -> None:
    trainer.run_trial(trial, Store(folder), device="cpu")


def command(folder: Path) -> None:
    """`spectralgrad run`, until its trainings have ended or its time is over."""
    with suppress(SystemExit):
        main(["run", ARTIFACT, "--device", "cpu", "--records", str(folder), "--seconds", "1"])


def style_network(trial: StyleTrial, folder: Path) -> None:
    trained(trial, folder, device="cpu")


@dataclass(frozen=True)
class Subject:
    work: Callable[[Path], None]
    trials: tuple[Described, ...]  # that it trains
    threads: int = 1

    def lines(self, folder: Path, *kinds: str) -> list[Line]:
        """Of all its trainings, as a report reads them: of parts that were run again the last run."""
        store = Store(folder)
        return [line for trial in self.trials for line in store.lines(trial) if line["kind"] in kinds]

    def has_ended(self, folder: Path) -> bool:
        return len(self.lines(folder, "end")) == len(self.trials)

    def finish(self, folder: Path) -> None:
        while not self.has_ended(folder):
            assert attempt(self.work, folder, threads=self.threads) == 0

    def results(self, folder: Path) -> list[Any]:
        """All that it recorded but the times, and the weights that it left."""
        lines = [{**line, "seconds": None} for line in self.lines(folder, "epoch", "log", "end")]
        weights = [torch.load(path, weights_only=True)["weights"] for path in sorted(folder.rglob("weights*.pt"))]
        return [*lines, *({name: x.tolist() for name, x in each.items()} for each in weights)]


# Power iteration draws its starts from torch's generator in every step: a resumed run must find it where it was.
RANDOM = Trial(
    width=8, epochs=6, batch=64, train_samples=192, test_samples=64, milestones=(2,),
    layer="zca", method="pi", d=4, iterations=3, eps=1e-2,
)  # fmt: skip
STYLE = style_trial("exact", "smoke", size=32, crop=24, width=4, group_size=8, hops=2, steps=8, every=2, save=2)
ARTIFACT = "nips19-table4b"  # two trainings
SUBJECTS = {
    "a training": Subject(partial(classifier, RANDOM), (RANDOM,)),
    "a training in two threads": Subject(partial(classifier, RANDOM), (RANDOM,), threads=2),
    "run --seconds": Subject(command, tuple(find(ARTIFACT).trials("smoke"))),
    "a style network": Subject(partial(style_network, STYLE), (STYLE,)),
}


def kills(count: int, draw: Random) -> Iterator[str | None]:
    """``count`` kills, shared out among the subjects, at the worst moments and at drawn ones."""
    inside: list[bool] = []
    with TemporaryDirectory() as top:
        for number, (name, subject) in enumerate(SUBJECTS.items()):
            share = len(range(number, count, len(SUBJECTS)))
            for fault in _kills_of(subject, share, Path(top, name), draw, inside):
                yield fault and f"{name}: {fault}"
    print(f"  {sum(inside)} of {count} kills inside a training", flush=True)
    if sum(inside) < AT_LEAST * count:
        yield f"only {sum(inside)} of {count} kills fell into a training"


def _kills_of(subject: Subject, count: int, top: Path, draw: Random, inside: list[bool]) -> Iterator[str | None]:
    """Kills of one subject; ``inside`` gets one more each time: whether it fell into a training."""
    begin = time.monotonic()
    subject.finish(top / "whole")
    usual, whole = time.monotonic() - begin, subject.results(top / "whole")
    earliest = usual / 4  # before, it imports and reads
    done = rounds = 0
    while done < count:
        rounds += 1
        folder = top / f"broken {rounds}"
        while done < count and not subject.has_ended(folder):
            before, begun = _open(subject, folder), len(subject.lines(folder, "start"))
            moment = draw.choice([draw.choice(WORST), draw.uniform(earliest, usual)])
            code = attempt(subject.work, folder, moment, subject.threads)
            if code == -signal.SIGKILL:
                done += 1
                inside.append(_open(subject, folder) > before)
                if isinstance(moment, float) and len(subject.lines(folder, "start")) == begun:  # it still imported
                    earliest = max(earliest, min(moment, 0.9 * usual))
                yield None
            elif code != 0:
                yield f"exit code {code}"
        subject.finish(folder)
        if subject.results(folder) != whole:
            yield f"the record differs from that of an unbroken run, {folder}"
        assert attempt(subject.work, folder, threads=subject.threads) == 0  # the same call once more: it has nothing to do
        left = [path.name for pattern in LEFT for path in folder.rglob(pattern)]
        if left:
            yield f"it left {left}"


def _open(subject: Subject, folder: Path) -> int:
    """How many times a training was begun and not ended."""
    return len(subject.lines(folder, "start")) - len(subject.lines(folder, "end"))
