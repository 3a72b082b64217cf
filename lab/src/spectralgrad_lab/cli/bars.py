"""How far a sweep is, on stderr: a line for each training that ends; below bars on a terminal, else a line now and then."""

import os
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType, TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column

from spectralgrad_lab.artifacts.spec import Entry
from spectralgrad_lab.records.outcome import Outcome, number
from spectralgrad_lab.records.trial import Trial
from spectralgrad_lab.sweep.local import Event

from .pace import Pace

SPEAKS = os.environ.get("RANK", "0") == "0"  # of several processes that torchrun starts one tells
BAR = 20  # columns
EVERY = 30.0  # seconds between two lines about what runs
NAMELESS: Mapping[Trial, str] = MappingProxyType({})


def label(trial: Trial) -> str:
    """A trial in a few words.

    >>> label(Trial(layer="zca", method="taylor", d=16))
    'zca taylor d = 16, seed 0'
    """
    words = trial.layer if trial.layer == "bn" else f"{trial.layer} {trial.method} d = {trial.d or 'all'}"
    return f"{words}, seed {trial.seed}"


def places(entries: Iterable[Entry]) -> dict[Trial, str]:
    """Each trial by its row, column and seed: two rows may differ in a field that `label` does not tell.

    The column is left out where there is one alone, or where the row's columns share the trial.

    >>> one, two = Trial(layer="zca", d=4), Trial(layer="zca", d=8)
    >>> cells = [Entry("BN", "d = 4", (Trial(),)), Entry("BN", "d = 8", (Trial(),))]
    >>> list(places([*cells, Entry("Exact", "d = 4", (one,)), Entry("Exact", "d = 8", (two,))]).values())
    ['BN, seed 0', 'Exact, d = 4, seed 0', 'Exact, d = 8, seed 0']
    """
    cells = list(entries)
    several = len({cell.column for cell in cells}) > 1
    found: dict[Trial, str] = {}
    for cell in cells:
        shared = {trial for other in cells if other.row == cell.row and other is not cell for trial in other.trials}
        for trial in cell.trials:
            words = (cell.row, cell.column if several and trial not in shared else "", f"seed {trial.seed}")
            found.setdefault(trial, ", ".join(filter(None, words)))
    return found


def ending(outcome: Outcome, *, judged: bool = True) -> str:
    """How a trial ended, in a few words; whether it converged only where that is judged.

    >>> ending(Outcome("finished", "", ({"train_loss": 0.1},), 4.4444, 4.2, 12.3, classes=10))
    'finished, converged, test error 4.44 % (best epoch 4.20 %), 12 s'
    >>> ending(Outcome("failed", "the gradient is not finite", (), None, None, 0.2))
    'failed: the gradient is not finite, 0 s'
    """
    if outcome.status != "finished":
        return f"{outcome.status}: {outcome.reason}, {outcome.seconds:.0f} s"
    learned = {True: "converged, ", False: "not converged, ", None: ""}[outcome.converged if judged else None]
    last, best = number(outcome.test_error), number(outcome.best_error)
    return f"finished, {learned}test error {last:.2f} % (best epoch {best:.2f} %), {outcome.seconds:.0f} s"


class _Teller(ABC):
    """Listens to `sweep.run_trials`, and tells of each training that ends in a line.

    Args:
        trials: how many there are; none where an artifact is computed.
        name: of what is run.
        told: trials that are known to have ended: of them no line.
        names: of trials; the others are told by `label`.
        judged: whether to tell if they converged.
    """

    def __init__(
        self,
        trials: int,
        name: str = "",
        told: Collection[Trial] = (),
        *,
        names: Mapping[Trial, str] = NAMELESS,
        judged: bool = True,
    ) -> None:
        self.name, self.told, self.names, self.judged = name, told, names, judged
        self.pace = Pace(trials, told)

    def __call__(self, event: Event) -> None:
        self.pace(event)
        if event.outcome is not None and event.trial not in self.told:
            self.say(f"{self.head()} {self.called(event.trial)}: {ending(event.outcome, judged=self.judged)}")

    def called(self, trial: Trial) -> str:
        return self.names.get(trial) or label(trial)

    def head(self) -> str:
        count = f"[{self.pace.done}/{self.pace.trials}]" if self.pace.trials else ""
        return f"{self.name} {count}".strip()

    @abstractmethod
    def say(self, text: str) -> None:
        """Write a line."""


class Bars(_Teller):
    """On a terminal: bars below the lines; a context manager."""

    def __init__(self, trials: int, *args: Any, **options: Any) -> None:
        super().__init__(trials, *args, **options)
        columns = (  # where the terminal is narrow the name takes two lines, and the rest stays as it is
            TextColumn("{task.description}", markup=False, table_column=Column()),
            BarColumn(BAR, table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[count]}"),
            TimeElapsedColumn(table_column=Column(no_wrap=True)),
        )
        self.progress = Progress(*columns, console=Console(stderr=True, quiet=not SPEAKS), transient=True)
        self.all = self.progress.add_task(self.name, total=trials or None, count=f"0/{trials}" if trials else "")
        self.running: dict[Trial, TaskID] = {}

    def __enter__(self) -> "Bars":
        self.progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.progress.stop()

    def say(self, text: str) -> None:
        """A line above the bars."""
        self.progress.console.print(text, markup=False, highlight=False)

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        trial = event.trial
        if event.outcome is not None:
            if trial in self.running:
                self.progress.remove_task(self.running.pop(trial))
        else:
            if trial not in self.running:
                self.running[trial] = self.progress.add_task(self.called(trial), total=trial.epochs, count="")
            count = f"{event.epochs}/{trial.epochs}"
            self.progress.update(self.running[trial], completed=event.epochs, count=count)
        done, words = self.pace.done, ", ".join(filter(None, (self.name, self.pace.left())))
        self.progress.update(self.all, description=words, completed=done, count=f"{done}/{self.pace.trials}")


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Lines(_Teller):
    """Where there is no terminal: a line now and then about what runs; a context manager.

    Args:
        write: takes a line.
        every: seconds between two lines about what runs.
        args, options: of `_Teller`.
    """

    def __init__(self, *args: Any, write: Callable[[str], None] = _to_stderr, every: float = EVERY, **options: Any) -> None:
        super().__init__(*args, **options)
        self.write, self.every = write, every
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._now_and_then, daemon=True)

    def __enter__(self) -> "Lines":
        self.thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.over.set()
        self.thread.join()

    def say(self, text: str) -> None:
        if SPEAKS:
            self.write(text)

    def _now_and_then(self) -> None:
        while not self.over.wait(self.every):
            running = list(self.pace.running.items())
            some = [f"{self.called(trial)}: epoch {epochs} of {trial.epochs}" for trial, epochs in running]
            times = ", ".join(filter(None, (f"{self.pace.passed:.0f} s", self.pace.left())))
            self.say(f"{self.head()} {'; '.join(some) or 'at work'} ({times})")


def progress_of(trials: int, *args: Any, **options: Any) -> Bars | Lines:
    """Bars on a terminal, lines elsewhere; arguments as those of `_Teller`."""
    kind = Bars if Console(stderr=True).is_terminal else Lines
    return kind(trials, *args, **options)
