"""How far a sweep is, and how long the rest of it will take."""

import time
from collections.abc import Callable, Collection

from spectralgrad_lab.records.trial import Trial
from spectralgrad_lab.sweep.local import Event


class Pace:
    """Hears of every epoch and every end, and counts in trainings: one at epoch 2 of 8 is a quarter done.

    Args:
        trials: how many there are.
        told: those that had ended before: they say nothing of the pace.
        clock: seconds.

    >>> now = iter((0.0, 10.0))
    >>> pace = Pace(4, clock=lambda: next(now))
    >>> for epochs in (2, 4):  # its first two epochs were done before
    ...     pace(Event(Trial(epochs=8), epochs))
    >>> pace.done, pace.left()  # a quarter of a training took 10 s, and 3.5 are left
    (0, 'about 2 min left')
    """

    def __init__(self, trials: int, told: Collection[Trial] = (), clock: Callable[[], float] = time.monotonic) -> None:
        self.trials, self.told, self.clock = trials, told, clock
        self.start, self.done = clock(), 0
        self.running: dict[Trial, int] = {}  # epochs
        self._first: dict[Trial, int] = {}  # epochs that were done before this sweep
        self._ended = 0.0  # what this sweep did of trainings that have ended

    def __call__(self, event: Event) -> None:
        trial = event.trial
        if event.outcome is None:
            self.running[trial] = event.epochs
            self._first[trial] = min(self._first.get(trial, event.epochs), event.epochs)  # a kill may have cost some
            return
        self.running.pop(trial, None)
        self.done += 1
        self._ended += 0 if trial in self.told else 1 - self._first.get(trial, 0) / trial.epochs

    @property
    def passed(self) -> float:
        """Seconds since the beginning."""
        return self.clock() - self.start

    def left(self) -> str:
        """How long the rest will take at the pace so far, in words; empty where nothing is known or nothing is left."""
        begun = self.running.items()
        here = self._ended + sum((epochs - self._first[trial]) / trial.epochs for trial, epochs in begun)
        rest = self.trials - self.done - sum(epochs / trial.epochs for trial, epochs in begun)
        return f"about {in_words(self.passed * rest / here)} left" if here > 0 and rest > 0 else ""


def in_words(seconds: float) -> str:
    """
    >>> [in_words(x) for x in (7.6, 89, 91, 5400, 5401, 360000)]
    ['8 s', '89 s', '2 min', '90 min', '2 h', '100 h']
    """
    for unit, size in (("s", 1), ("min", 60)):
        if seconds <= 90 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 3600:.0f} h"
