"""How a training ended, and whether it learned anything."""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from .recording import Line, end_of

CLASSES = {"digits": 10, "cifar10": 10, "cifar100": 100, "tinyimagenet": 200}  # where an older start line does not say
CONVERGED = 0.5  # of the error of guessing
LARGEST = 1e100  # what is larger can be neither squared nor drawn


class Outcome(NamedTuple):
    """How a trial ended: "finished", or "failed" with the reason; its epochs as they were recorded.

    ``test_error`` is that of the last epoch that was evaluated, ``best_error`` the smallest of those evaluated.
    """

    status: str
    reason: str
    epochs: tuple[dict[str, Any], ...]
    test_error: float | None
    best_error: float | None
    seconds: float
    classes: int | None = None

    @property
    def converged(self) -> bool | None:
        """Whether it has learned: finite, and training and test error of the last epoch at most half of guessing's.

        None where the record does not say: no error, or a data set of unknown classes.

        >>> epochs = ({"train_error": 12.0},)
        >>> [Outcome("finished", "", epochs, error, 9.0, 1.0, classes=10).converged for error in (9.0, 82.7)]
        [True, False]
        """
        if self.status != "finished":
            return False
        errors = [error for error in self.last_errors if not math.isnan(error)]
        return max(errors) <= self.limit if errors and not math.isnan(self.limit) else None

    @property
    def last_errors(self) -> tuple[float, float]:
        """In percent, of training and of test, after the last epoch; NaN for what the record does not have."""
        return number(self.epochs[-1].get("train_error")) if self.epochs else math.nan, number(self.test_error)

    @property
    def limit(self) -> float:
        """The error in percent up to which a training has learned; NaN for unknown classes."""
        classes = self.classes or 0
        return CONVERGED * 100 * (1 - 1 / classes) if classes > 1 else math.nan

    def evaluated(self, name: str) -> list[float]:
        """A figure of the test, epoch by epoch, of those epochs that were evaluated and have it.

        >>> epochs = ({"epoch": 0}, {"epoch": 1, "test_error": 9.0}, {"epoch": 2, "test_error": 7.5})
        >>> Outcome("finished", "", epochs, 7.5, 7.5, 1.0).evaluated("test_error")
        [9.0, 7.5]
        """
        found = (number(line.get(name)) for line in self.epochs)
        return [x for x in found if not math.isnan(x)]


def outcome_of(lines: list[Line]) -> Outcome | None:
    """The outcome that the lines of a record tell; None if they have no end."""
    end, epochs = end_of(lines), tuple(line for line in lines if line["kind"] == "epoch")
    if end is None:
        return None
    seconds = sum(number(line.get("seconds", 0.0)) for line in epochs)
    errors = end.get("test_error"), end.get("best_error")
    return Outcome(end["status"], end.get("reason", ""), epochs, *errors, seconds, _classes(lines))


def number(x: Any) -> float:
    """A number of a record; NaN for what is missing or written in words, and infinite beyond `LARGEST`.

    >>> number(2), number(None), number("inf"), number(-1.7e308)
    (2.0, nan, inf, -inf)
    """
    try:
        value = float(x)
        return value if abs(value) <= LARGEST else math.copysign(math.inf, value) if value == value else value
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _classes(lines: Iterable[Line]) -> int | None:
    """How many classes the data have: as the last start line says, or as its data set is known to."""
    starts = [line for line in lines if line["kind"] == "start"]
    if not starts:
        return None
    said = starts[-1].get("classes")
    trial = starts[-1].get("trial")
    return int(said) if isinstance(said, int) else CLASSES.get(str(trial.get("data"))) if isinstance(trial, dict) else None
