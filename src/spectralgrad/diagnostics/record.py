"""What a record holds, and records as text. docs/layers/diagnostics.md explains each entry."""

from typing import Any

Record = dict[str, Any]

OF_GROUP = (
    "condition",
    "condition_range",
    "range",
    "largest",
    "smallest",
    "smallest_gap",
    "mean_ratio",
    "at_floor",
    "kept_rank",
)
OF_LAYER = ("gradient_before", "gradient_after", "solver_failures", "nonfinite_inputs")
COLUMNS = ("step", "layer", "group", *OF_GROUP, *OF_LAYER)


def table(records: list[Record]) -> str:
    """Records as text in columns, with the names above."""
    rows = [list(COLUMNS), *([_short(record[name]) for name in COLUMNS] for record in records)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def _short(x: Any) -> str:
    return "-" if x is None else f"{x:.4g}" if isinstance(x, float) else str(x)
