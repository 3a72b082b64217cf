"""A claim of the papers held against the records: one rule, which knows under which conditions something was seen.

- confirmed: the 95 % interval leaves out 0, on the papers' side; or failures came, and not fewer than the papers' rate lets
  one expect.
- contradicted: what came is not what is printed, and network, data and number of epochs are the paper's own.
- not seen at N epochs: the same, under other conditions; of a rate also where it could not have been seen in N epochs.
- not decidable: neither.
"""

import math
from typing import NamedTuple

from spectralgrad_lab.artifacts.registry import find
from spectralgrad_lab.artifacts.spec import Entry
from spectralgrad_lab.records.outcome import number
from spectralgrad_lab.records.recording import Line
from spectralgrad_lab.records.results import Scale
from spectralgrad_lab.records.store import Store
from spectralgrad_lab.records.trial import Trial

from .answer import DATA, MODELS
from .paired import Difference
from .survival import Life, lives_of

IMPROBABLE = 0.05  # what comes less often does not happen


class Cell(NamedTuple):
    """A cell of an artifact: its row and column, at one scale."""

    artifact: str
    row: str
    column: str
    scale: Scale = "short"

    def entry(self, scale: Scale | None = None) -> Entry | None:
        entries = find(self.artifact).entries
        found = entries(scale or self.scale) if entries is not None else ()
        return next((each for each in found if (each.row, each.column) == (self.row, self.column)), None)


class Seen(NamedTuple):
    """What the records hold of a cell.

    Args:
        cell: which.
        errors: seed -> test error in percent, of the trainings that converged.
        lives: of all that have run.
        trial: what was trained, with the first seed.
        paper: what its paper trained; None where the cell is ours alone.
    """

    cell: Cell
    errors: dict[int, float]
    lives: tuple[Life, ...]
    trial: Trial
    paper: Trial | None

    @property
    def failed(self) -> int:
        return sum(life.failed for life in self.lives)

    @property
    def conditions(self) -> str:
        """In words, what is not as in the paper; empty if all is.

        >>> from dataclasses import replace
        >>> paper = Trial(data="cifar10", model="resnet50", epochs=350)
        >>> Seen(Cell("a", "b", "c"), {}, (), replace(paper, model="resnet18", epochs=16), paper).conditions
        'at 16 epochs, with ResNet-18'
        """
        theirs, mine = self.paper or self.trial, self.trial
        parts = [f"at {mine.epochs} epochs" if mine.epochs != theirs.epochs else ""]
        parts += [f"with {MODELS[mine.model]}" if mine.model != theirs.model else ""]
        parts += [f"on {DATA[mine.data]}" if mine.data != theirs.data else ""]
        return ", ".join(filter(None, parts))


def seen(cell: Cell, store: Store) -> Seen:
    """What the records hold of a cell."""
    entry, paper = cell.entry(), cell.entry("paper")
    assert entry is not None, f"{cell.artifact} has no cell {cell.row}, {cell.column}"
    outcomes = {trial.seed: store.outcome(trial) for trial in entry.trials}
    errors = {seed: number(found.test_error) for seed, found in outcomes.items() if found is not None and found.converged}
    return Seen(cell, errors, lives_of(entry, store).lives, entry.trials[0], paper.trials[0] if paper else None)


def difference(one: Seen, other: Seen) -> Difference:
    """One cell less another, seed by seed."""
    seeds = sorted(one.errors.keys() & other.errors.keys())
    values = tuple(one.errors[seed] - other.errors[seed] for seed in seeds)
    return Difference(one.cell.row, one.cell.column, other.cell.row, values)


def last_epochs(cell: Cell, store: Store) -> dict[int, Line]:
    """Seed -> the line of the last epoch, of the trainings that finished."""
    entry = cell.entry()
    found = {trial.seed: store.outcome(trial) for trial in entry.trials} if entry is not None else {}
    return {seed: outcome.epochs[-1] for seed, outcome in found.items() if outcome is not None and outcome.epochs}


def of_difference(found: Difference, printed: float, conditions: str) -> str:
    """The verdict on a difference that a paper prints.

    >>> below = Difference("a", "", "b", (-0.9, -1.0, -1.1))
    >>> of_difference(below, -0.3, "at 8 epochs"), of_difference(below, 0.3, "")
    ('confirmed at 8 epochs', 'contradicted: the printed +0.30 lies outside')
    >>> of_difference(below, 0.3, "at 8 epochs")
    'not seen at 8 epochs: the printed +0.30 lies outside'
    >>> of_difference(Difference("a", "", "b", (-1.0, 0.0, 1.0)), -0.3, "at 8 epochs")
    'not decidable with 3 seeds'
    """
    low, high = found.mean - found.half, found.mean + found.half
    if (high < 0 and printed < 0) or (low > 0 and printed > 0):
        return " ".join(filter(None, ("confirmed", conditions)))
    if not low <= printed <= high:
        return f"{_against(conditions)}: the printed {printed:+.2f} lies outside"
    return f"not decidable with {len(found.values)} seeds"


class Rate(NamedTuple):
    """Failures of so many trainings, as a paper prints them."""

    failed: int
    of: int


def expected(printed: Rate, share: float) -> tuple[float, float]:
    """The part of trainings that fails in a ``share`` of a paper's epochs, if failures come at a constant rate: both ends of
    what the paper's own number of trainings leaves open (Clopper and Pearson, 95 %).

    >>> [round(x, 3) for x in expected(Rate(8, 15), 8 / 350)], [round(x, 3) for x in expected(Rate(15, 15), 1.0)]
    ([0.007, 0.035], [0.782, 1.0])
    """
    low, high = share_interval(printed)
    return 1 - (1 - low) ** share, 1 - (1 - high) ** share


def of_rate(found: Seen, printed: Rate) -> str:
    """The verdict on how often trainings fail, by what the paper's rate gives over the epochs that were run."""
    mine, theirs = found.trial, found.paper or found.trial
    runs, failed = len(found.lives), found.failed
    if printed.failed == 0:
        would = 1 / (1 - IMPROBABLE ** (1 / runs))
        calm = f"confirmed {found.conditions}: what fails one time in {would:.1f} would have been seen"
        return calm if failed == 0 else _against(found.conditions)
    low, high = expected(printed, mine.epochs / theirs.epochs)
    if at_most(failed, runs, low) < IMPROBABLE:
        return _against(found.conditions)
    if failed:
        return " ".join(filter(None, ("confirmed", found.conditions)))
    part = f"at least {100 * low:.1f} %" if high == 1 else f"{100 * low:.1f} to {100 * high:.1f} %"
    return f"not seen {found.conditions}: at the papers' rate {part} of trainings fail in them"


def _against(conditions: str) -> str:
    return f"not seen {conditions}" if conditions else "contradicted"


def share_interval(rate: Rate) -> tuple[float, float]:
    """The exact 95 % interval of Clopper and Pearson.

    >>> [round(x, 3) for x in share_interval(Rate(8, 15))]
    [0.266, 0.787]
    """
    tail = IMPROBABLE / 2
    low = _share(rate.failed - 1, rate.of, 1 - tail) if rate.failed else 0.0
    return low, (_share(rate.failed, rate.of, tail) if rate.failed < rate.of else 1.0)


def at_most(count: int, of: int, share: float) -> float:
    """P(a binomial number <= count)."""
    return math.fsum(math.comb(of, k) * share**k * (1 - share) ** (of - k) for k in range(count + 1))


def _share(count: int, of: int, probability: float) -> float:
    """The share with which ``count`` or less of ``of`` come with this probability; it falls as the share grows."""
    low, high = 0.0, 1.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if at_most(count, of, middle) > probability else (low, middle)
    return high
