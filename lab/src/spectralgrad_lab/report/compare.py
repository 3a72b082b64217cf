"""The paper's numbers and ours in one table: what is printed of a cell stands above what we found."""

from collections.abc import Callable, Sequence

from spectralgrad_lab.records.results import Printed

from .cells import Cell
from .tables import Show, arrange, lines_of

# What a printed row «SVD: min» or column «CIFAR-10: mean ± std» holds, and the line of ours that it belongs to.
WHATS = {"success rate": "finite", "min": "min", "mean": "mean", "mean ± std": "mean"}
PRINTED = "{}, printed"
Known = dict[tuple[str, str, str], str | None]


def compare(printed: Sequence[Printed], cells: Sequence[Cell]) -> list[Printed]:
    """Our tables, with the printed lines in them; nothing if no cell of ours is printed.

    >>> paper = Printed(("d = 4",), {"SVD: mean": ("4.54 ± 0.08",)})
    >>> [table] = compare([paper], [Cell("SVD", "d = 4", 2, errors=(5.0, 4.0)), Cell("SVD", "d = 8", 2)])
    >>> list(table.rows)[2:5], table.rows["SVD: mean, printed"]
    (['SVD: min', 'SVD: mean, printed', 'SVD: mean'], ('4.54 ± 0.08', ''))
    """
    known = {key: text for table in printed for key, text in _known(table).items()}
    columns = {column for table in printed for column in table.columns}
    alone = columns.pop() if len(columns) == len({cell.column for cell in cells}) == 1 else ""
    shown: dict[str, Show] = {}
    for name, show in lines_of(cells).items():
        for what, ours in WHATS.items():
            own = "min" if name == "best seed" else name
            if what == "mean ± std" or ours != own:
                continue
            find = _finder(known, what, alone)
            if any(find(cell) != "" for cell in cells):
                shown[PRINTED.format(what)] = find
        shown[name] = show
    return arrange(cells, shown) if any(name.endswith("printed") for name in shown) else []


def _finder(known: Known, what: str, alone: str) -> Callable[[Cell], str | None]:
    """What is printed of a cell; None where it is illegible, empty where there is nothing. ``alone`` is the only column."""

    def find(cell: Cell) -> str | None:
        for column in dict.fromkeys((cell.column, "", alone)):
            if (cell.row, column, what) in known:
                return known[cell.row, column, what]
        return ""

    return find


def _known(table: Printed) -> Known:
    """Row, column and what -> the printed text; what is not said is the mean."""
    found: Known = {}
    for name, texts in table.rows.items():
        row, of_row = _split(name)
        for title, text in zip(table.columns, texts, strict=True):
            column, of_column = _split(title)
            what = of_row or of_column or "mean"
            found[row, column, "mean" if what == "mean ± std" else what] = text
    return found


def _split(name: str) -> tuple[str, str]:
    """
    >>> _split("SVD: min"), _split("min"), _split("(1e-2, 9): x")
    (('SVD', 'min'), ('', 'min'), ('(1e-2, 9): x', ''))
    """
    head, _, what = name.rpartition(": ")
    return (head, what) if what in WHATS else (name, "")
