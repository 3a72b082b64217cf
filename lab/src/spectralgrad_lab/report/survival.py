"""How long trainings lasted: survival by step, failures in a thousand steps, and what these mean for a longer training."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from spectralgrad_lab.artifacts.spec import Entry
from spectralgrad_lab.records.recording import Line, end_of
from spectralgrad_lab.records.results import Printed
from spectralgrad_lab.records.store import Store

from .paired import LEVEL
from .panel import Panel, Series

PAPERS = 136_850  # steps: 350 epochs of 391
THOUSAND = 1000


class Life(NamedTuple):
    """One training: the step that it reached or failed in, and whether it failed. One that goes on counts up to here."""

    steps: int
    failed: bool


class Lives(NamedTuple):
    """The trainings of one cell.

    >>> some = Lives("SVD", "d = 64", (Life(30, True), Life(50, True), Life(920, False)))
    >>> some.failures, some.exposure, some.hazard
    (2, 1000, 2.0)
    >>> [round(x, 2) for x in some.interval]
    [0.24, 7.22]
    """

    row: str
    column: str
    lives: tuple[Life, ...]

    @property
    def failures(self) -> int:
        return sum(life.failed for life in self.lives)

    @property
    def exposure(self) -> int:
        """Steps of all trainings together."""
        return sum(life.steps for life in self.lives)

    @property
    def hazard(self) -> float:
        """Failures in a thousand steps, as if they came at a constant rate."""
        return THOUSAND * self.failures / self.exposure

    @property
    def interval(self) -> tuple[float, float]:
        """The exact 95 % interval of the hazard."""
        low, high = poisson_interval(self.failures)
        return THOUSAND * low / self.exposure, THOUSAND * high / self.exposure

    def surviving(self, steps: int = PAPERS) -> tuple[float, float]:
        """The part of trainings that would last so many steps: from the upper end of the hazard, and from the lower one."""
        low, high = self.interval
        return math.exp(-high * steps / THOUSAND), math.exp(-low * steps / THOUSAND)

    def curve(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Kaplan and Meier's survival in percent by step, as corners of a staircase; it ends with the longest training.

        >>> Lives("", "", (Life(10, True), Life(10, False), Life(40, True), Life(50, False))).curve()
        ((1.0, 10.0, 10.0, 40.0, 40.0, 50.0), (100.0, 100.0, 75.0, 75.0, 37.5, 37.5))
        """
        x, y = [1.0], [100.0]
        for step in sorted({life.steps for life in self.lives if life.failed}):
            at_risk = sum(life.steps >= step for life in self.lives)
            died = sum(life.failed and life.steps == step for life in self.lives)
            x += [float(step), float(step)]
            y += [y[-1], y[-1] * (1 - died / at_risk)]
        return (*x, float(max(life.steps for life in self.lives))), (*y, y[-1])


def lives_of(entry: Entry, store: Store) -> Lives:
    """What the records say of a cell, trainings that have not ended included: they lasted to their last epoch."""
    found = (_life(store.lines(trial)) for trial in entry.trials)
    return Lives(entry.row, entry.column, tuple(life for life in found if life is not None))


def _life(lines: list[Line]) -> Life | None:
    end = end_of(lines)
    if end is not None:
        return Life(int(end["step"]), end["status"] == "failed")
    steps = [int(line["step"]) for line in lines if line["kind"] == "epoch"]
    return Life(steps[-1], False) if steps else None


def all_lives(entries: Iterable[Entry], store: Store) -> list[Lives]:
    """Of every cell of which something has run."""
    return [found for found in (lives_of(entry, store) for entry in entries) if found.lives]


def hazards(found: Sequence[Lives]) -> Printed:
    """The table: failures, exposure, hazard, and the survival of the papers' 136,850 steps that goes with it."""
    rows: dict[str, tuple[str | None, ...]] = {
        f"{each.row}, {each.column}": (
            f"{each.failures} of {len(each.lives)}",
            ", ".join(f"{life.steps:,}" for life in sorted(each.lives) if life.failed) or "-",
            f"{each.exposure:,}",
            f"{each.hazard:.3g} [{each.interval[0]:.2g}, {each.interval[1]:.2g}]",
            "{:.0f} to {:.0f} %".format(*(100 * share for share in each.surviving())),
        )
        for each in found
    }
    columns = ("failed", "in step", "steps of all", "failures in 1000 steps", f"last {PAPERS:,} steps")
    caption = (
        "Failures in 1000 steps with their exact 95 % interval (Poisson), as if at a constant rate, and the part of "
        "trainings that would last the papers' 350 epochs at its two ends. What has not ended counts up to its last epoch."
    )
    return Printed(columns, rows, caption)


def survival(found: Sequence[Lives]) -> list[Panel]:
    """A panel for each data set, a line for each cell."""
    sets: dict[str, list[Series]] = {}
    for each in found:
        name, _, size = each.column.partition(", ")
        sets.setdefault(name, []).append(Series(f"{each.row}, {size}", *each.curve(), seeds=len(each.lives)))
    axes: dict[str, Any] = {"x_label": "step", "y_label": "still finite (%)", "log": "x", "percent": True}
    return [Panel(name, "lines", tuple(lines), **axes) for name, lines in sets.items()]


def lasted(found: Sequence[Lives]) -> str:
    """What failed, and in how many steps, in a sentence.

    >>> lasted([Lives("SVD", "d = 64", (Life(30, True), Life(970, False))), Lives("Exact", "d = 64", (Life(5000, False),))])
    'Failed: SVD, d = 64, 1 of 2 in 1,000 steps; of the others none, 1 in 5,000 steps.'
    """
    failed = [f"{x.row}, {x.column}, {x.failures} of {len(x.lives)} in {x.exposure:,} steps" for x in found if x.failures]
    rest = [x for x in found if not x.failures]
    many = f"{sum(len(x.lives) for x in rest)} in {sum(x.exposure for x in rest):,} steps"
    others = f"{'of the others none' if failed else 'None failed'}, {many}"
    return f"{'; '.join([*(['Failed: ' + failed[0], *failed[1:]] if failed else []), *([others] if rest else [])])}."


def poisson_interval(count: int, level: float = LEVEL) -> tuple[float, float]:
    """The means between which a Poisson count of events lies, each tail with half of what is left (Garwood's, exact).

    >>> [round(x, 3) for x in poisson_interval(0)], [round(x, 3) for x in poisson_interval(5)]
    ([0.0, 3.689], [1.623, 11.668])
    """
    tail = (1 - level) / 2
    return (_mean(count - 1, 1 - tail) if count else 0.0), _mean(count, tail)


def _mean(count: int, share: float) -> float:
    """The mean of which a Poisson number is at most ``count`` with this probability; it falls as the mean grows."""
    low, high = 0.0, 2.0 * (count + 10)
    for _ in range(100):
        middle = (low + high) / 2
        terms = (math.exp(k * math.log(middle) - middle - math.lgamma(k + 1)) for k in range(count + 1))
        low, high = (middle, high) if math.fsum(terms) > share else (low, middle)
    return high
