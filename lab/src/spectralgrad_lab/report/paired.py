"""Differences seed by seed: one seed gives both trainings the same batches, and what it adds to both goes out."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from spectralgrad_lab.artifacts.spec import Entry

from .cells import SPECTRUM, Cell, deviation_of, mean_of

PAIRS = 3  # fewer say nothing of the spread
LEVEL = 0.95  # of the interval, two-sided


class Difference(NamedTuple):
    """A cell less another one, over the seeds that succeeded in both, with a 95 % interval of Student's t."""

    row: str
    column: str
    reference: str
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return mean_of(self.values)

    @property
    def half(self) -> float:
        """Half of the interval's width.

        >>> round(Difference("a", "", "b", (1.0, 2.0, 3.0)).half, 3)
        2.484
        """
        n = len(self.values)
        return t_quantile(n - 1) * deviation_of(self.values) / math.sqrt(n)

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves out 0."""
        return abs(self.mean) > self.half

    def shown(self) -> str:
        """
        >>> Difference("a", "", "b", (-1.0, -2.0, -3.0)).shown()
        '-2.00 [-4.48, +0.48]'
        """
        low, high = self.mean - self.half, self.mean + self.half
        return f"{self.mean:+.2f} [{low:+.2f}, {high:+.2f}]"


def differences(entries: Sequence[Entry], cells: Sequence[Cell]) -> list[Difference]:
    """Of each cell less its reference: batch norm with the same network and data, else the first row of its column.

    Only where at least three seeds succeeded in both. Cells that show neither error nor accuracy have none.
    """
    found = []
    for entry, cell in zip(entries, cells, strict=True):
        other = _reference(entry, entries)
        if other is None or cell.figure in ("solver_failures", *SPECTRUM):
            continue
        base = cells[other]
        if entries[other].trials == entry.trials:
            continue
        theirs = dict(zip(base.seeds, base.errors, strict=True))
        values = [x - theirs[seed] for seed, x in zip(cell.seeds, cell.errors, strict=True) if seed in theirs]
        values = [x for x in values if math.isfinite(x)]
        if len(values) >= PAIRS:
            name = base.row if base.column == cell.column else f"{base.row}, {base.column}"
            found.append(Difference(cell.row, cell.column, name, tuple(values)))
    return found


def _reference(entry: Entry, entries: Sequence[Entry]) -> int | None:
    """Which entry this one is compared with; None if there is none."""
    if not entry.trials:
        return None
    alike = [
        i
        for i, other in enumerate(entries)
        if other.trials and other.figure == entry.figure and _setting(other) == _setting(entry)
    ]
    norms = [i for i in alike if entries[i].trials[0].layer == "bn"]
    same = [i for i in alike if entries[i].column == entry.column]
    return next(iter([*(i for i in norms if i in same), *norms, *same]), None)


def _setting(entry: Entry) -> tuple[str, str, int]:
    trial = entry.trials[0]
    return trial.data, trial.model, trial.epochs


def t_quantile(freedom: int, level: float = LEVEL) -> float:
    """The t with P(|T| <= t) = level, of Student's distribution with ``freedom`` whole degrees of freedom.

    >>> [round(t_quantile(n), 3) for n in (1, 2, 9)]
    [12.706, 4.303, 2.262]
    """
    low, high = 0.0, 1.0
    while _inside(high, freedom) < level:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _inside(middle, freedom) < level else (low, middle)
    return high


def _inside(t: float, freedom: int) -> float:
    """P(|T| <= t): the finite sum for whole degrees of freedom (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine, odd = math.cos(angle), freedom % 2
    term = cosine if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(2 + odd, freedom, 2):
        term *= cosine**2 * (k - 1) / k
        total += term
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total
