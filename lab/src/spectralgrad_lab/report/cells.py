"""From outcomes to numbers: of a cell's seeds how many stayed finite and converged, and with which figure of the test."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from spectralgrad_lab.artifacts.spec import Entry, Figure
from spectralgrad_lab.records.outcome import Outcome, number
from spectralgrad_lab.records.store import Store

DASH = "–"  # no trial finished, or none was run
NOT_JUDGED = "not judged"
CHANNELS = 64  # after the first convolution
SPECTRUM = ("mean_ratio", "tied_ratio", "at_floor", "kept_rank", "condition_range")  # of the monitor's line of an epoch
ERRORS: dict[str, str] = {"accuracy": "test_error", "top5_accuracy": "top5_error"}  # 100 % less the accuracy


class Failure(NamedTuple):
    """A trial that is no success."""

    row: str
    column: str
    seed: int
    reason: str
    epochs: int


@dataclass(frozen=True)
class Cell:
    """One entry over its seeds: errors or another figure, after the last epoch and at the best one; std divides by n - 1.

    A success is a training that stayed finite and, where that is ``judged``, converged. Statistics are over successes.

    Args:
        row, column: its place.
        planned: how many trials it has.
        errors, bests, seeds: of the successes: the figure after the last epoch, at the best epoch that was evaluated, and
            the seeds.
        failures: trials that did not stay finite.
        strays: trials that did, yet are no better than guessing.
        seconds: of all.
        judged: whether convergence counts.
        unknown: successes of whose convergence the records do not tell.
        figure: what is shown.

    >>> cell = Cell("SVD", "d = 4", planned=3, errors=(5.0, 4.0), failures=(Failure("SVD", "d = 4", 2, "NaN", 1),))
    >>> cell.run, cell.finite, cell.mean, round(cell.success, 1)
    (3, 2, 4.5, 66.7)
    >>> cell.shown_mean(), cell.shown_finite(), cell.shown_converged()
    ('4.50 ± 0.71', '67 % (2/3)', 'not judged')
    """

    row: str
    column: str
    planned: int
    errors: tuple[float, ...] = ()
    failures: tuple[Failure, ...] = ()
    seconds: float = 0.0
    bests: tuple[float, ...] = ()
    seeds: tuple[int, ...] = ()
    strays: tuple[Failure, ...] = ()
    judged: bool = False
    unknown: int = 0
    figure: Figure = "test_error"

    @property
    def successes(self) -> int:
        return len(self.errors)

    @property
    def finite(self) -> int:
        return self.successes + len(self.strays)

    @property
    def run(self) -> int:
        return self.finite + len(self.failures)

    @property
    def success(self) -> float:
        """In percent of those that were run; NaN if none was."""
        return 100 * self.successes / self.run if self.run else math.nan

    @property
    def is_accuracy(self) -> bool:
        return self.figure in ERRORS

    @property
    def known(self) -> list[float]:
        """The figures of the last epoch that are numbers."""
        return finite_of(self.errors)

    @property
    def min(self) -> float:
        return min(self.known, default=math.nan)

    @property
    def max(self) -> float:
        return max(self.known, default=math.nan)

    @property
    def mean(self) -> float:
        return mean_of(self.known)

    @property
    def std(self) -> float:
        """NaN for fewer than two trials."""
        return deviation_of(self.known)

    def shown_finite(self) -> str:
        return self._share(self.finite)

    def shown_converged(self) -> str:
        if not self.judged or not self.run:
            return NOT_JUDGED if self.run else "not run"
        return self._share(self.successes) if not self.unknown else f"unknown of {self.unknown}"

    def shown_min(self) -> str:
        """Of the best seed: the smallest error, or the largest accuracy."""
        return self._rounded(self.max if self.is_accuracy else self.min) if self.known else DASH

    def shown_mean(self) -> str:
        return self._spread(self.known)

    def shown_best(self) -> str:
        """Mean over seeds, of each its best epoch."""
        return self._spread(finite_of(self.bests))

    def _share(self, count: int) -> str:
        if not self.run:
            return "not run"
        rest = f", {self.planned - self.run} to run" if self.planned > self.run else ""
        return f"{100 * count / self.run:.0f} % ({count}/{self.run}{rest})"

    def _spread(self, values: Sequence[float]) -> str:
        if not values:
            return DASH
        return self._rounded(mean_of(values)) + (f" ± {self._rounded(deviation_of(values))}" if len(values) > 1 else "")

    def _rounded(self, x: float) -> str:
        if self.figure == "condition_range":
            return f"{x:.2g}"
        return f"{x:.0f}" if self.figure == "solver_failures" and x == round(x) else f"{x:.2f}"


def figure_of(outcome: Outcome, figure: Figure) -> tuple[float, float]:
    """What a cell shows of a training, after the last epoch and at its best; NaN where its record does not have it.

    >>> epochs = ({"test_error": 8.0, "top5_error": 2.0}, {}, {"test_error": 9.0, "top5_error": 1.0})
    >>> outcome = Outcome("finished", "", epochs, 9.0, 8.0, 1.0)
    >>> figure_of(outcome, "test_error"), figure_of(outcome, "accuracy"), figure_of(outcome, "top5_error")
    ((9.0, 8.0), (91.0, 92.0), (1.0, 1.0))
    """
    if figure in ERRORS:
        last, best = figure_of(outcome, "test_error" if figure == "accuracy" else "top5_error")
        return 100 - last, 100 - best
    if figure == "test_error":
        return number(outcome.test_error), number(outcome.best_error)
    if figure == "solver_failures":
        return sum(number((line.get("monitor") or {}).get("solver_failures")) for line in outcome.epochs), math.nan
    if figure in SPECTRUM:
        seen = [_of_spectrum(figure, line.get("monitor") or {}) for line in outcome.epochs]
        return (seen[-1], seen[0]) if seen else (math.nan, math.nan)
    values = outcome.evaluated(figure)
    return (values[-1], min(values)) if values else (math.nan, math.nan)


def measure(entry: Entry, store: Store, *, judged: bool = True) -> Cell:
    """What the records say of one cell; ``judged``: a success must have converged."""
    failures: list[Failure] = []
    strays: list[Failure] = []
    results: list[tuple[int, float, float]] = []
    seconds, unknown = 0.0, 0
    for trial in entry.trials:
        outcome = store.outcome(trial)
        if outcome is None or outcome.status not in ("finished", "failed"):
            continue  # not run, or running now
        taken = number(outcome.seconds)
        seconds += taken if math.isfinite(taken) else 0.0
        place = (entry.row, entry.column, trial.seed)
        if outcome.status == "failed":
            failures.append(Failure(*place, outcome.reason or "no reason recorded", len(outcome.epochs)))
        elif judged and outcome.converged is False:
            strays.append(Failure(*place, _stray(outcome), len(outcome.epochs)))
        else:
            results.append((trial.seed, *figure_of(outcome, entry.figure)))
            unknown += judged and outcome.converged is None
    seeds, errors, bests = zip(*results, strict=True) if results else ((), (), ())
    return Cell(
        entry.row, entry.column, len(entry.trials), errors, tuple(failures), seconds, bests, seeds, tuple(strays), judged,
        unknown, entry.figure,
    )  # fmt: skip


def _of_spectrum(figure: str, seen: Mapping[str, Any]) -> float:
    """A figure of the monitor's; tied_ratio is the mean of all neighbouring ratios, those at the floor, eps / eps, as 1.

    >>> round(_of_spectrum("tied_ratio", {"mean_ratio": 0.63, "at_floor": 37.0}), 3)
    0.841
    """
    if figure != "tied_ratio":
        return number(seen.get(figure))
    ratio, at_floor = number(seen.get("mean_ratio")), number(seen.get("at_floor"))
    return (ratio * (CHANNELS - at_floor) + max(at_floor - 1, 0.0)) / (CHANNELS - 1)


def _stray(outcome: Outcome) -> str:
    training, test = outcome.last_errors
    return f"did not converge: training error {training:.1f} %, test error {test:.1f} %, above {outcome.limit:.1f} %"


def finite_of(values: Sequence[float]) -> list[float]:
    return [x for x in values if math.isfinite(x)]


def mean_of(values: Sequence[float]) -> float:
    """NaN of nothing."""
    return sum(values) / len(values) if values else math.nan


def deviation_of(values: Sequence[float]) -> float:
    """The sample's standard deviation; NaN of fewer than two."""
    if len(values) < 2:
        return math.nan
    mean = mean_of(values)
    return math.sqrt(sum((x - mean) ** 2 for x in values) / (len(values) - 1))
