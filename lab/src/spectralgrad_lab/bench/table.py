"""The rows as Markdown: one table, and the list of what we lose."""

from collections.abc import Sequence
from dataclasses import replace

from spectralgrad_lab.records import machine as record

from . import comparison, on_request
from .cases import SECTIONS
from .peers import OURS, PEERS
from .rows import Row

MARKS = {"met": "met", "missed": "MISSED", "failed": "FAILED", "-": ""}
EXPLAINED = {**SECTIONS, **on_request.SECTIONS}
HEADER = ["section", "case", "d", "B", "rounds", "ours", "against", "figure", "target", ""]


def number(x: float) -> str:
    """Three digits.

    >>> number(1234.5), number(0.00123), number(9.999e-8)
    ('1230', '0.00123', '1e-07')
    """
    if x != x or abs(x) == float("inf"):
        return str(x)
    return f"{float(f'{x:.3g}'):g}" if 1e-4 <= abs(x) < 1e6 else f"{x:.3g}"


def figure(row: Row) -> str:
    """The figure with its quartiles."""
    if row.figure is None:
        return "-"
    if row.kind == "share":
        return f"{100 * row.figure:.3g} %"
    unit = {"ratio": "x", "milliseconds": " ms", "error": ""}[row.kind]
    spread = "" if row.spread is None else f" ({number(row.spread[0])} to {number(row.spread[1])})"
    return f"{number(row.figure)}{unit}{spread}"


def target(row: Row) -> str:
    return "-" if row.target is None else f"{'>=' if row.at_least else '<='} {number(row.target)}"


def _value(row: Row, method: str) -> str:
    if method in row.failed:
        return row.failed[method] if method != OURS else "-"
    if method in row.seconds:
        return f"{number(1e3 * row.seconds[method][1])} ms"
    return number(row.errors[method]) if method in row.errors else "-"


def _peer(row: Row, name: str) -> str:
    return f"{number(row.ratios[name][1])}x" if name in row.ratios else row.failed.get(name, "")


def others(rows: list[Row]) -> list[str]:
    """Who has a column: the optional peers, and whoever else was measured beside ours and the baseline of some row."""
    measured = (name for row in rows for name in row.ratios if name not in (OURS, row.baseline))
    return list(dict.fromkeys([*PEERS, *measured]))


def line(row: Row, peers: Sequence[str] = PEERS) -> list[str]:
    """The cells of a row, under `HEADER` and the names of ``peers``."""
    against = f"{_value(row, row.baseline)} {row.baseline}" if row.baseline else "-"
    case = ", ".join(filter(None, (row.function, row.case)))
    what = [row.section, case, str(row.d), str(row.batch), str(row.rounds or "")]
    result = row.failed[OURS] if OURS in row.failed else figure(row)
    return [
        *what,
        _value(row, OURS),
        against,
        result,
        target(row),
        MARKS[row.verdict],
        *(_peer(row, name) if name != row.baseline else "" for name in peers),
    ]


def summary(rows: list[Row]) -> str:
    verdicts = [row.verdict for row in rows]
    counted = len(rows) - verdicts.count("-")
    failed = verdicts.count("failed")
    return f"{verdicts.count('met')} of {counted} targets met" + (f", {failed} cases failed" if failed else "") + "."


def losses(rows: list[Row]) -> list[str]:
    """A sentence for each row in which a target is missed, an error came, or somebody else is faster.

    Several sizes of one case that do so in the same way are one sentence.
    """
    found: dict[tuple[str, ...], list[Row]] = {}
    how: tuple[str, ...]
    for row in rows:
        if row.verdict == "failed":
            how = ("failed", str(len(found)))  # each by itself
        elif row.verdict == "missed":
            how = ("missed", target(row))
        elif row.faster:
            how = ("faster", *row.faster)
        else:
            continue
        found.setdefault((row.section, row.case, *how), []).append(row)
    return [_loss(some) for some in found.values()]


def _loss(rows: list[Row]) -> str:
    """What is lost in rows of one case, which are lost in one way."""
    row = rows[0]
    several = f" ({len(rows)} cases)" if len(rows) > 1 else ""
    sizes = ", ".join(
        f"{name} = {_range([getattr(row, what) for row in rows])}" for name, what in (("d", "d"), ("B", "batch"))
    )
    where = f"{row.section}{f', {row.case}' if row.case else ''}, {sizes}{several}"
    if row.verdict == "failed":
        reason = "; ".join(text if name == OURS else f"{name} {text}" for name, text in row.failed.items())
        return f"{where}: no figure, {reason}."
    ordered = sorted(rows, key=lambda row: row.figure or 0.0)
    figures = (
        figure(row) if not several else " to ".join(figure(replace(row, spread=None)) for row in (ordered[0], ordered[-1]))
    )
    if row.verdict == "missed":
        return f"{where}: {figures}, target {target(row)}."
    return f"{where}: {' and '.join(row.faster)} faster, {figures}."


def _range(sizes: list[int]) -> str:
    """The smallest and the largest.

    >>> _range([3]), _range([64, 8, 64])
    ('3', '8 to 64')
    """
    least, most = min(sizes), max(sizes)
    return str(least) if least == most else f"{least} to {most}"


def report(rows: list[Row]) -> str:
    """What the sections are, the tables, the count of targets."""
    present = [name for name in EXPLAINED if any(row.section == name for row in rows)]
    explained = "\n".join(f"- {name}: {EXPLAINED[name]}" for name in present)
    compared = comparison.report(rows)
    rows = [row for row in rows if row.section not in comparison.SECTIONS]
    return "\n\n".join([explained, *(_listed(rows) if rows or not compared else []), *compared])


def _listed(rows: list[Row]) -> list[str]:
    legend = (
        "Times are medians; figures have their quartiles. A figure with `x` is the ratio that its section names, and so is "
        "a peer's. Empty under a peer: not installed, no such function, or left out because the baseline takes over 0.3 s."
    )
    noted = any(row.note for row in rows)
    peers = others(rows)
    header = [*HEADER, *peers, *["note"] * noted]
    lines = [[*line(row, peers), *[row.note] * noted] for row in rows]
    return [legend, record.table(header, lines), summary(rows)]
