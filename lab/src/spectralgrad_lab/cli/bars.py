"""Progress bars of a sweep, on stderr: one for all trials, one for each that runs."""

import os
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from spectralgrad_lab.records.trial import Trial
from spectralgrad_lab.sweep.local import Event

SPEAKS = os.environ.get("RANK", "0") == "0"  # of several processes that torchrun starts one tells


def label(trial: Trial) -> str:
    """A trial in a few words.

    >>> label(Trial(layer="zca", method="taylor", d=16))
    'zca taylor d = 16, seed 0'
    """
    words = trial.layer if trial.layer == "bn" else f"{trial.layer} {trial.method} d = {trial.d or 'all'}"
    return f"{words}, seed {trial.seed}"


class Bars:
    """Listens to `sweep.run_trials`; a context manager."""

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
