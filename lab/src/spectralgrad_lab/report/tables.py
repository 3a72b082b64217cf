"""Cells in the papers' form, as tables of text and as CSV. Errors and accuracies are in percent."""

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations

from spectralgrad_lab.artifacts.spec import Entry
from spectralgrad_lab.records.results import Printed

from .cells import SPECTRUM, Cell, deviation_of, finite_of, mean_of

CELL_COLUMNS = (
    *("row", "column", "figure", "planned", "run", "finite", "converged", "success_rate_percent"),
    *("min", "mean", "std", "best_epoch_min", "best_epoch_mean", "best_epoch_std", "seconds", "failures"),
)


FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")  # with their wide forms
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def group_failures(cells: Iterable[Cell]) -> list[str]:
    """One line for each cell and reason, the seeds together.

    >>> from .cells import Failure
    >>> failures = (Failure("SVD", "d = 8", 0, "NaN", 0), Failure("SVD", "d = 8", 1, "NaN", 0))
    >>> group_failures([Cell("SVD", "d = 8", 2, failures=failures)])
    ['SVD, d = 8, seeds 0, 1: NaN (before the end of the first epoch)']
    """
    seeds: dict[tuple[str, str, str], list[str]] = {}
    for cell in cells:
        for failure in (*cell.failures, *cell.strays):
            when = f"after {failure.epochs} whole epochs" if failure.epochs > 1 else "after 1 whole epoch"
            when = when if failure.epochs else "before the end of the first epoch"
            where = ", ".join(name for name in (failure.row, failure.column) if name)
            seeds.setdefault((where, failure.reason, when), []).append(str(failure.seed))
    return [
        f"{where}, seed{'s' if len(some) > 1 else ''} {', '.join(some)}: {reason} ({when})"
        for (where, reason, when), some in seeds.items()
    ]


Show = Callable[[Cell], str | None]  # None is illegible


def lines_of(cells: Sequence[Cell]) -> dict[str, Show]:
    """What is shown of each cell, by name: finite, converged, the best seed and the mean after the last epoch, and the mean
    of the best epochs."""
    if any(cell.figure in SPECTRUM for cell in cells):
        return {"finite": Cell.shown_finite, "first epoch": Cell.shown_best, "last epoch": Cell.shown_mean}
    seed = "best seed" if any(cell.is_accuracy for cell in cells) else "min"
    return {
        "finite": Cell.shown_finite,
        "converged": Cell.shown_converged,
        seed: Cell.shown_min,
        "mean": Cell.shown_mean,
        "best epoch": Cell.shown_best,
    }


def arrange(cells: Sequence[Cell], shown: Mapping[str, Show] | None = None) -> list[Printed]:
    """The cells in the papers' form; what is shown of each, ``shown`` says, or `lines_of`.

    One column: a line for each row. Several: some lines for each row, named «row: min» and so on. Columns that are
    panels of their own, with other rows each: a table for each of them, with its name as caption.

    >>> [table] = arrange([Cell("SVD", "d = 4", 2, errors=(5.0, 4.0)), Cell("SVD", "d = 8", 2)])
    >>> table.columns, table.rows["SVD: mean"]
    (('d = 4', 'd = 8'), ('4.50 ± 0.71', '–'))
    """
    rows, columns = names(cells)
    shown = shown or lines_of(cells)
    if is_split(cells):
        return [_one_column([cell for cell in cells if cell.column == column], column, shown) for column in columns]
    if len(columns) == 1:
        return [_one_column(cells, "", shown)]
    at = {(cell.row, cell.column): cell for cell in cells}
    lines: dict[str, tuple[str | None, ...]] = {
        f"{row}: {what}": tuple(show(at[row, column]) if (row, column) in at else "" for column in columns)
        for row in rows
        for what, show in shown.items()
    }
    return [Printed(tuple(columns), lines)]


def _one_column(cells: Sequence[Cell], caption: str, shown: Mapping[str, Show]) -> Printed:
    lines = {cell.row: tuple(show(cell) for show in shown.values()) for cell in cells}
    return Printed(tuple(shown), dict(lines), caption)


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
        best = finite_of(cell.bests)
        failures = "; ".join(f"seed {failure.seed}: {failure.reason}" for failure in (*cell.failures, *cell.strays))
        converged = str(cell.successes) if cell.judged and not cell.unknown else ""
        counts = [str(x) for x in (cell.planned, cell.run, cell.finite)]
        figures = [cell.success, cell.min, cell.mean, cell.std]
        figures += [min(best, default=math.nan), mean_of(best), deviation_of(best), cell.seconds]
        lines.append([cell.row, cell.column, cell.figure, *counts, converged, *map(_full, figures), failures])
    return lines


def printed_lines(table: Printed) -> list[list[str]]:
    """A table as lines of a CSV file, header first; what is illegible says so."""
    return [
        ["", *table.columns],
        *([row, *("illegible" if x is None else x for x in cells)] for row, cells in table.rows.items()),
    ]


def to_csv(lines: Iterable[Sequence[str]]) -> str:
    """CSV text. A text that a spreadsheet could take for a formula gets an apostrophe before it; a number stays one.

    >>> to_csv([["a", "b"], ["=1+1", "-0.5"]])
    "a,b\\r\\n'=1+1,-0.5\\r\\n"
    """
    buffer = io.StringIO()
    csv.writer(buffer).writerows([_inert(cell) for cell in line] for line in lines)
    return buffer.getvalue()


def _inert(cell: str) -> str:
    starts_formula = cell.lstrip()[:1] in FORMULA or cell[:1] in ("\t", "\r", "\n")
    return f"'{cell}" if cell and starts_formula and cell != "-" and not NUMBER.fullmatch(cell) else cell


def _full(x: float) -> str:
    return "" if math.isnan(x) else repr(round(x, 6))
