"""The paper's numbers and ours in one table, side by side."""

from collections.abc import Mapping, Sequence

from spectralgrad_lab.records.results import Printed

from .cells import Cell
from .tables import Show, arrange, is_split, lines_of, names

# What a printed row «SVD: min» or column «CIFAR-10: mean ± std» holds, and our lines that it stands beside.
WHATS = {"success rate": ("converged",), "min": ("min", "best seed"), "mean": ("mean",), "mean ± std": ("mean",)}
Known = dict[tuple[str, str, str], str | None]


def compare(printed: Sequence[Printed], cells: Sequence[Cell]) -> list[Printed]:
    """Our tables, with what is printed beside each number; nothing if no cell of ours is printed.

    >>> paper = Printed(("d = 4",), {"SVD: mean": ("4.54 ± 0.08",)})
    >>> [table] = compare([paper], [Cell("SVD", "d = 4", 2, errors=(5.0, 4.0)), Cell("SVD", "d = 8", 2)])
    >>> table.columns, table.rows["SVD: mean"]
    (('d = 4: printed', 'd = 4: ours', 'd = 8: ours'), ('4.54 ± 0.08', '4.50 ± 0.71', '–'))
    """
    known = {key: text for table in printed for key, text in _known(table).items()}
    columns = {column for table in printed for column in table.columns}
    alone = columns.pop() if len(columns) == len({cell.column for cell in cells}) == 1 else ""
    lines = lines_of(cells)
    finders = {name: _finder(known, what, alone) for what, ours in WHATS.items() for name in ours if what != "mean ± std"}
    if not any(find(cell) != "" for find in finders.values() for cell in cells):
        return []
    if len(names(cells)[1]) > 1 and not is_split(cells):
        return [_side_by_side(cells, lines, finders)]
    shown: dict[str, Show] = {}
    for name, show in lines.items():
        if name in finders and any(finders[name](cell) != "" for cell in cells):
            shown[f"{name}, printed"] = finders[name]
        shown[name] = show
    return arrange(cells, shown)


def _side_by_side(cells: Sequence[Cell], lines: Mapping[str, Show], finders: Mapping[str, Show]) -> Printed:
    """A column of ours, and before it the printed one where there is one."""
    rows, columns = names(cells)
    at = {(cell.row, cell.column): cell for cell in cells}
    has = {cell.column for cell in cells for find in finders.values() if find(cell) != ""}
    found: dict[str, tuple[str | None, ...]] = {}
    for row in rows:
        for name, show in lines.items():
            texts: list[str | None] = []
            for column in columns:
                cell = at.get((row, column))
                if column in has:
                    texts.append(finders[name](cell) if cell is not None and name in finders else "")
                texts.append("" if cell is None else show(cell))
            found[f"{row}: {name}"] = tuple(texts)
    titles = [
        f"{column}: {whose}" for column in columns for whose in ("printed", "ours") if whose == "ours" or column in has
    ]
    return Printed(tuple(titles), found)


def _finder(known: Known, what: str, alone: str) -> Show:
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
