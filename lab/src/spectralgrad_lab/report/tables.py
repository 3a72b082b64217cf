"""From outcomes to numbers: how many of a cell's seeds finished, and with which test error. Errors are in percent."""

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

from spectralgrad_lab.artifacts.spec import Entry, Figure
from spectralgrad_lab.records.results import Printed
from spectralgrad_lab.records.store import Outcome, Store

DASH = "–"  # no trial finished, or none was run
CELL_COLUMNS = (
    "row",
    "column",
    "planned",
    "run",
    "finished",
    "success_rate_percent",
    "min",
    "mean",
    "std",
    "seconds",
    "failures",
)


class Failure(NamedTuple):
    """A trial that did not finish."""

    row: str
    column: str
    seed: int
    reason: str
    epochs: int


@dataclass(frozen=True)
class Cell:
    """One entry over its seeds. The error of a trial is that of its last epoch; std divides by n - 1.

    >>> cell = Cell("SVD", "d = 4", planned=3, errors=(5.0, 4.0), failures=(Failure("SVD", "d = 4", 2, "NaN", 1),))
    >>> cell.run, cell.finished, cell.mean, round(cell.success, 1)
    (3, 2, 4.5, 66.7)
    >>> cell.shown_mean(), cell.shown_success()
    ('4.50 ± 0.71', '67 % (2/3)')
    """

    row: str
    column: str
    planned: int
    errors: tuple[float, ...] = ()  # of the finished trials
    failures: tuple[Failure, ...] = ()
    seconds: float = 0.0

    @property
    def finished(self) -> int:
        return len(self.errors)

    @property
    def run(self) -> int:
        return self.finished + len(self.failures)

    @property
    def success(self) -> float:
        """In percent of those that were run; NaN if none was."""
        return 100 * self.finished / self.run if self.run else math.nan

    @property
    def known(self) -> list[float]:
        """The errors that are numbers."""
        return [error for error in self.errors if math.isfinite(error)]

    @property
    def min(self) -> float:
        return min(self.known, default=math.nan)

    @property
    def max(self) -> float:
        return max(self.known, default=math.nan)

    @property
    def mean(self) -> float:
        return sum(self.known) / len(self.known) if self.known else math.nan

    @property
    def std(self) -> float:
        """NaN for fewer than two trials."""
        if len(self.known) < 2:
            return math.nan
        return math.sqrt(sum((error - self.mean) ** 2 for error in self.known) / (len(self.known) - 1))

    def shown_success(self) -> str:
        if not self.run:
            return "not run"
        rest = f", {self.planned - self.run} to run" if self.planned > self.run else ""
        return f"{self.success:.0f} % ({self.finished}/{self.run}{rest})"

    def shown_min(self) -> str:
        return f"{self.min:.2f}" if self.known else DASH

    def shown_mean(self) -> str:
        if not self.known:
            return DASH
        return f"{self.mean:.2f}" + (f" ± {self.std:.2f}" if len(self.known) > 1 else "")


def number(x: Any) -> float:
    """A number of a record; NaN for what is missing or written in words.

    >>> number(2), number(None), number("inf")
    (2.0, nan, inf)
    """
    try:
        return float(x)
    except (TypeError, ValueError):
        return math.nan


def figure_of(outcome: Outcome, figure: Figure) -> float:
    """What a cell shows of a training; NaN where its record, being older, does not have it."""
    if figure == "test_error":
        return number(outcome.test_error)
    if figure == "solver_failures":
        return sum(number(line.get("monitor", {}).get("solver_failures")) for line in outcome.epochs)
    return number(outcome.epochs[-1].get(figure)) if outcome.epochs else math.nan


def measure(entry: Entry, store: Store) -> Cell:
    """What the records say of one cell."""
    errors, failures, seconds = [], [], 0.0
    for trial in entry.trials:
        outcome = store.outcome(trial)
        if outcome is None or outcome.status not in ("finished", "failed"):
            continue  # not run, or running now
        taken = number(outcome.seconds)
        seconds += taken if math.isfinite(taken) else 0.0
        if outcome.status == "finished":
            errors.append(figure_of(outcome, entry.figure))
        else:
            reason = outcome.reason or "no reason recorded"
            failures.append(Failure(entry.row, entry.column, trial.seed, reason, len(outcome.epochs)))
    return Cell(entry.row, entry.column, len(entry.trials), tuple(errors), tuple(failures), seconds)


def group_failures(cells: Iterable[Cell]) -> list[str]:
    """One line for each cell and reason, the seeds together.

    >>> failures = (Failure("SVD", "d = 8", 0, "NaN", 0), Failure("SVD", "d = 8", 1, "NaN", 0))
    >>> group_failures([Cell("SVD", "d = 8", 2, failures=failures)])
    ['SVD, d = 8, seeds 0, 1: NaN (before the end of the first epoch)']
    """
    seeds: dict[tuple[str, str, str], list[str]] = {}
    for cell in cells:
        for failure in cell.failures:
            when = f"after {failure.epochs} whole epochs" if failure.epochs > 1 else "after 1 whole epoch"
            when = when if failure.epochs else "before the end of the first epoch"
            where = ", ".join(name for name in (failure.row, failure.column) if name)
            seeds.setdefault((where, failure.reason, when), []).append(str(failure.seed))
    return [
        f"{where}, seed{'s' if len(some) > 1 else ''} {', '.join(some)}: {reason} ({when})"
        for (where, reason, when), some in seeds.items()
    ]


def arrange(cells: Sequence[Cell]) -> list[Printed]:
    """The cells in the papers' form: of each row its success rate, smallest and mean error.

    One column: a line for each row. Several: three lines for each row, named «row: min» and so on. Columns that are
    panels of their own, with other rows each: a table for each of them, with its name as caption.

    >>> [table] = arrange([Cell("SVD", "d = 4", 2, errors=(5.0, 4.0)), Cell("SVD", "d = 8", 2)])
    >>> table.columns, table.rows["SVD: mean"]
    (('d = 4', 'd = 8'), ('4.50 ± 0.71', '–'))
    """
    rows, columns = names(cells)
    if is_split(cells):
        return [_one_column([cell for cell in cells if cell.column == column], column) for column in columns]
    if len(columns) == 1:
        return [_one_column(cells, "")]
    at = {(cell.row, cell.column): cell for cell in cells}
    shown = {"success rate": Cell.shown_success, "min": Cell.shown_min, "mean": Cell.shown_mean}
    lines: dict[str, tuple[str | None, ...]] = {
        f"{row}: {what}": tuple(show(at[row, column]) if (row, column) in at else "" for column in columns)
        for row in rows
        for what, show in shown.items()
    }
    return [Printed(tuple(columns), lines)]


def _one_column(cells: Sequence[Cell], caption: str) -> Printed:
    lines = {cell.row: (cell.shown_success(), cell.shown_min(), cell.shown_mean()) for cell in cells}
    return Printed(("success rate", "min", "mean"), dict(lines), caption)


def is_split(cells: Sequence[Cell | Entry]) -> bool:
    """Whether the columns are panels with rows of their own: no two of them share more than half of their rows.

    >>> is_split([Entry("85", "energy", ()), Entry("2", "eigenvectors", ()), Entry("4", "eigenvectors", ())])
    True
    >>> is_split([Entry("SVD", "d = 4", ()), Entry("SVD", "d = 8", ()), Entry("BN", "d = 4", ())])
    False
    """
    columns = names(cells)[1]
    rows = [{cell.row for cell in cells if cell.column == column} for column in columns]
    return len(columns) > 1 and all(2 * len(a & b) <= min(len(a), len(b)) for a, b in combinations(rows, 2))


def names(cells: Iterable[Cell | Entry]) -> tuple[list[str], list[str]]:
    """Rows and columns, each once, in order."""
    some = list(cells)
    return list(dict.fromkeys(cell.row for cell in some)), list(dict.fromkeys(cell.column for cell in some))


def cell_lines(cells: Iterable[Cell]) -> list[list[str]]:
    """The cells as lines of a CSV file, header first."""
    lines = [list(CELL_COLUMNS)]
    for cell in cells:
        figures = [_full(x) for x in (cell.success, cell.min, cell.mean, cell.std, cell.seconds)]
        failures = "; ".join(f"seed {failure.seed}: {failure.reason}" for failure in cell.failures)
        lines.append([cell.row, cell.column, str(cell.planned), str(cell.run), str(cell.finished), *figures, failures])
    return lines


def printed_lines(table: Printed) -> list[list[str]]:
    """A table as lines of a CSV file, header first; what is illegible says so."""
    return [
        ["", *table.columns],
        *([row, *("illegible" if x is None else x for x in cells)] for row, cells in table.rows.items()),
    ]


def to_csv(lines: Iterable[Sequence[str]]) -> str:
    """CSV text. What a spreadsheet would take for a formula gets an apostrophe before it.

    >>> to_csv([["a", "b"], ["=1+1", "-0.5"]])
    "a,b\\r\\n'=1+1,-0.5\\r\\n"
    """
    buffer = io.StringIO()
    csv.writer(buffer).writerows([_inert(cell) for cell in line] for line in lines)
    return buffer.getvalue()


def _inert(cell: str) -> str:
    starts_formula = cell[:1] in ("=", "+", "-", "@", "\t", "\r")
    return f"'{cell}" if starts_formula and cell != "-" and math.isnan(number(cell)) else cell


def _full(x: float) -> str:
    return "" if math.isnan(x) else repr(round(x, 6))
