"""What docs/speed.md says of a record of the section `cpu`: a line for each work, a column for each set of instructions."""

from typing import Any

from spectralgrad.kernels.cpu.load import LEVELS
from spectralgrad_lab.records import machine as record

from .native_cases import KABSCH, SECTION
from .rows import Row
from .table import number, summary, target

PART = "cpu"
_HEADS = {"avx512": "AVX-512", "avx2": "AVX2", "baseline": "baseline"}


def is_one(rows: list[Row]) -> bool:
    """Whether the record is one of the section `cpu` alone."""
    return bool(rows) and all(row.section == SECTION for row in rows)


def measured(about: dict[str, Any], rows: list[Row], link: str) -> str:
    """Machine, circumstances, the count of targets and the table."""
    parts = [record.describe(about), f"{summary(rows)} [The whole table]({link}), with times and quartiles."]
    parts += [warning] if (warning := record.disturbance(about)) else []
    parts += ["**Partial**: stopped before the end."] if about.get("partial") else []
    return "\n\n".join([*parts, table(rows)])


def table(rows: list[Row]) -> str:
    """The figures with their targets.

    >>> row = Row("cpu", "3x3, float32, avx2", 3, 1000, "ratio", 44.0, target=50.0, function="eigh", dtype="float32")
    >>> print(table([row]))
    | work                      | AVX2                   |
    | ------------------------- | ---------------------- |
    | eigh float32, 1000 of 3x3 | 44 (>= 50, **missed**) |
    """
    lines: dict[str, dict[str, str]] = {}
    for row in rows:
        shape, _, level = row.case.replace(f", {row.dtype}", "").partition(", ")
        things = "clouds, points" if row.function == KABSCH else "of"
        work = f"{row.function} {row.dtype}, {row.batch} {things} {shape}"
        lines.setdefault(work, {})[level] = _cell(row)
    levels = [level for level in reversed(LEVELS) if any(level in cells for cells in lines.values())]
    return record.table(
        ["work", *(_HEADS[level] for level in levels)],
        [[work, *(cells.get(level, cells.get("", "")) for level in levels)] for work, cells in lines.items()],
    )


def _cell(row: Row) -> str:
    if row.figure is None:
        return "failed"
    goal = "" if row.target is None else f" ({target(row)}{', **missed**' if row.verdict == 'missed' else ''})"
    return f"{number(row.figure)}{goal}"
