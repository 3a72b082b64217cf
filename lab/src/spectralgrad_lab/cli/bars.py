"""How far a sweep is, on stderr: bars on a terminal, else a line for each end and one now and then."""

import os
import sys
import threading
import time
from collections.abc import Callable, Collection
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from spectralgrad_lab.records.outcome import Outcome, number
from spectralgrad_lab.records.trial import Trial
from spectralgrad_lab.sweep.local import Event

SPEAKS = os.environ.get("RANK", "0") == "0"  # of several processes that torchrun starts one tells
EVERY = 30.0  # seconds between two lines about what runs


def label(trial: Trial) -> str:
    """A trial in a few words.

    >>> label(Trial(layer="zca", method="taylor", d=16))
    'zca taylor d = 16, seed 0'
    """
    words = trial.layer if trial.layer == "bn" else f"{trial.layer} {trial.method} d = {trial.d or 'all'}"
    return f"{words}, seed {trial.seed}"


def ending(outcome: Outcome) -> str:
    """How a trial ended, in a few words.

    >>> ending(Outcome("finished", "", ({"train_loss": 0.1},), 4.4444, 4.2, 12.3, classes=10))
    'finished, converged, test error 4.44 % (best epoch 4.20 %), 12 s'
    >>> ending(Outcome("failed", "the gradient is not finite", (), None, None, 0.2))
    'failed: the gradient is not finite, 0 s'
    """
    if outcome.status != "finished":
        return f"{outcome.status}: {outcome.reason}, {outcome.seconds:.0f} s"
    learned = {True: "converged, ", False: "not converged, ", None: ""}[outcome.converged]
    last, best = number(outcome.test_error), number(outcome.best_error)
    return f"finished, {learned}test error {last:.2f} % (best epoch {best:.2f} %), {outcome.seconds:.0f} s"


class Bars:
    """Listens to `sweep.run_trials`, on a terminal; a context manager."""

    def __init__(self, trials: int) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self.progress = Progress(*columns, console=Console(stderr=True, quiet=not SPEAKS), transient=True)
        self.all = self.progress.add_task("trials", total=trials)
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
        trial = event.trial
        if event.outcome is not None:
            self.progress.advance(self.all)
            if trial in self.running:
                self.progress.remove_task(self.running.pop(trial))
            return
        if trial not in self.running:
            self.running[trial] = self.progress.add_task(label(trial), total=trial.epochs)
        self.progress.update(self.running[trial], completed=event.epochs)


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _silence(text: str) -> None:
    """Another process tells."""


class Lines:
    """Listens to `sweep.run_trials` where there is no terminal; a context manager.

    Args:
        trials: how many there are.
        name: of what is run, before each line.
        told: trials that are known to have ended: of them no line.
        write: takes a line.
        every: seconds between two lines about what runs.
    """

    def __init__(
        self,
        trials: int,
        name: str = "",
        told: Collection[Trial] = (),
        write: Callable[[str], None] = _to_stderr,
        every: float = EVERY,
    ) -> None:
        self.trials, self.name, self.told, self.every = trials, name, told, every
        self.write = write if SPEAKS else _silence
        self.done, self.start = 0, time.monotonic()
        self.running: dict[Trial, int] = {}
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._now_and_then, daemon=True)

    def __enter__(self) -> "Lines":
        self.thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.over.set()
        self.thread.join()

    def say(self, text: str) -> None:
        self.write(text)

    def __call__(self, event: Event) -> None:
        if event.outcome is None:
            self.running[event.trial] = event.epochs
            return
        self.done += 1
        self.running.pop(event.trial, None)
        if event.trial not in self.told:
            self.write(f"{self._head()} {label(event.trial)}: {ending(event.outcome)}")

    def _head(self) -> str:
        return f"{self.name} [{self.done}/{self.trials}]".strip()

    def _now_and_then(self) -> None:
        while not self.over.wait(self.every):
            some = [f"{label(trial)}: epoch {epochs} of {trial.epochs}" for trial, epochs in list(self.running.items())]
            passed = f"{time.monotonic() - self.start:.0f} s"
            self.write(f"{self._head()} {'; '.join(some) or 'at work'} ({passed})")


def progress_of(trials: int, name: str = "", told: Collection[Trial] = ()) -> Bars | Lines:
    """Bars on a terminal, lines elsewhere."""
    return Bars(trials) if Console(stderr=True).is_terminal else Lines(trials, name, told)
