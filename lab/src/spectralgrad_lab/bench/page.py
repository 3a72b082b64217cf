"""From records to the page: the marked parts of docs/speed.md, and its figures. Nothing is measured here.

A part is what stands between `<!-- bench:NAME -->` and `<!-- /bench:NAME -->`, each on a line of its own.
"""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spectralgrad.errors import OptionError
from spectralgrad_lab.files import write_whole
from spectralgrad_lab.records import machine as record

from . import native_page, on_request
from .rows import Row
from .table import EXPLAINED, losses, number, summary, target

DRAWN = ("eigh", "backward", "inv_sqrtm", "whitening")
ACROSS = 2  # panels side by side
APART = 1.4  # the ratio of two sizes whose labels do not touch
FIGURES = "figures"  # a folder beside the page
TICKS = (0.2, 0.5, 0.8, 1, 1.5, 2, 3, 4, 6, 10, 20, 40, 100, 200, 400, 1000)  # of the vertical axes


def read(path: Path) -> tuple[dict[str, Any], list[Row]]:
    """A record: its circumstances and its rows."""
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        return about, [Row.from_record(line) for line in about.pop("rows")]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise OptionError(
            f"bench: {path.name} is no record of `spectralgrad bench` ({type(error).__name__}: {error}). "
            "Pass a .json file that `spectralgrad bench --write` left."
        ) from None


def replace_part(text: str, name: str, content: str) -> str:
    """The page with one part replaced.

    >>> print(replace_part("a\\n<!-- bench:x -->\\nold\\n<!-- /bench:x -->\\nb", "x", "new"))
    a
    <!-- bench:x -->
    <BLANKLINE>
    new
    <BLANKLINE>
    <!-- /bench:x -->
    b
    """
    begin, end = f"<!-- bench:{name} -->", f"<!-- /bench:{name} -->"
    pattern = re.compile(rf"^{re.escape(begin)}$.*?^{re.escape(end)}$", re.DOTALL | re.MULTILINE)
    if len(pattern.findall(text)) != 1:
        raise OptionError(f"bench: the page must have the lines {begin} and {end} once, in this order.")
    return pattern.sub(lambda _: f"{begin}\n\n{content}\n\n{end}", text)


def records_of(text: str) -> list[str]:
    """The file names of the records that a filled page links to, in order.

    >>> records_of("[The whole table](../results/bench-x.md)")
    ['bench-x.json']
    """
    return [f"{name}.json" for name in re.findall(r"\[The whole table\]\([^)]*?([^/)]+)\.md\)", text)]


def _cell(rows: list[Row]) -> str:
    if not rows:
        return ""
    (row,) = rows
    if row.figure is None:
        return "failed"
    unit = " ms" if row.kind == "milliseconds" else ""
    goal = "" if row.target is None else f" ({target(row)}{', **missed**' if row.verdict == 'missed' else ''})"
    return f"{number(row.figure)}{unit}{goal}"


def _columns(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of one section by batch or, where there are several, by case."""
    by_case = len({row.case for row in rows}) > 1
    columns: dict[str, list[Row]] = {}
    for row in rows:
        columns.setdefault(row.case if by_case else f"B = {row.batch}", []).append(row)
    return columns


def pivot(rows: list[Row]) -> str:
    """The figures of one section, d downwards, and across what `_columns` says."""
    columns = _columns(rows)
    lines = []
    for d in dict.fromkeys(row.d for row in rows):
        lines.append([str(d), *(_cell([row for row in column if row.d == d]) for column in columns.values())])
    return record.table(["d", *columns], lines)


def _link(path: Path, page: Path) -> str:
    """From the page to the table beside a record."""
    return os.path.relpath(path.with_suffix(".md"), page.parent).replace(os.sep, "/")


def measured(path: Path, page: Path) -> str:
    """What the page says of one record."""
    about, rows = read(path)
    name, full = record.machine_name(about), _link(path, page)
    parts = [f"### {name}", record.describe(about), f"{summary(rows)} [The whole table]({full}), with times and quartiles."]
    parts += [warning] if (warning := record.disturbance(about)) else []
    if "gpu" not in about["machine"] and about["machine"]["torch_threads"] < 2:
        parts.append("Measured with one thread: the targets of time are for two or more, so there are none here.")
    if about.get("partial"):
        parts.append("**Partial**: stopped before the end.")
    if _panels(rows):
        parts.append(f"![speed by d and batch, {name}]({FIGURES}/{_figure_of(path)})")
    for section in dict.fromkeys(row.section for row in rows):
        if section in on_request.SECTIONS:  # the whole table has it, with a column a method or a note
            parts.append(f"`{section}`: {EXPLAINED[section]}. See the whole table.")
            continue
        some = [row for row in rows if row.section == section]
        shapes = {row.case for row in some}
        shape = f", input {shapes.pop()}" if len(shapes) == 1 and shapes != {""} else ""
        parts += [f"`{section}`: {EXPLAINED.get(section, '')}{shape}.", pivot(some)]
    return "\n\n".join(parts)


def lost(path: Path) -> str:
    """What the page lists under «where we lose»."""
    about, rows = read(path)
    found = [f"- {sentence}" for sentence in losses(rows)] or ["- Nothing: every target is met and nobody was faster."]
    return "\n".join([f"{record.machine_name(about)}:", "", *found])


def _figure_of(path: Path) -> str:
    """The file name of a record's figure: its own, for a machine may have several records."""
    return f"speed-{record.slug(path.stem.removeprefix('bench-'))}.svg"


def draw(path: Path, folder: Path) -> Path | None:
    """Ratios by d, a line for each batch; returns the SVG file, None if nothing is to draw."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    about, rows = read(path)
    panels = _panels(rows)
    if not panels:
        return None
    file = folder / _figure_of(path)
    folder.mkdir(parents=True, exist_ok=True)
    with rc_context({"svg.hashsalt": "spectralgrad", "svg.fonttype": "none"}):  # the same file from the same record
        down, across = -(-len(panels) // ACROSS), min(len(panels), ACROSS)
        figure = Figure(figsize=(4.6 * across, 3.4 * down), layout="constrained")
        FigureCanvasSVG(figure)
        for place, (section, some) in enumerate(panels.items(), start=1):
            axes = figure.add_subplot(down, across, place)
            _panel(axes, some)
            axes.set_title(section, loc="left", fontweight="bold")
        figure.suptitle(record.machine_name(about))
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file


def _panels(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """What is drawn: the sections that have a figure at several d."""
    drawn = {section: [row for row in rows if row.section == section and row.figure is not None] for section in DRAWN}
    return {section: some for section, some in drawn.items() if len({row.d for row in some}) > 1}


def _panel(axes: Any, rows: Sequence[Row]) -> None:
    for name, some in _columns(rows).items():
        x, y = [row.d for row in some], [row.figure or 0.0 for row in some]
        low = [row.spread[0] if row.spread else value for row, value in zip(some, y, strict=True)]
        high = [row.spread[1] if row.spread else value for row, value in zip(some, y, strict=True)]
        (line,) = axes.plot(x, y, marker="o", markersize=4, label=name)
        axes.vlines(x, low, high, color=line.get_color(), linewidth=1)
        with_target = [row for row in some if row.target is not None]
        axes.scatter([row.d for row in with_target], [row.target for row in with_target], marker="_", color=line.get_color())
    axes.axhline(1, color="grey", linewidth=0.8, linestyle=":")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    ticks = [tick for tick in TICKS if low <= tick <= high]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])  # 2, where the default writes 2 x 10^0
    axes.minorticks_off()
    sizes = sorted({row.d for row in rows})
    axes.set_xticks(sizes, _spaced(sizes))
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("d (dash: target)")
    axes.set_ylabel("times faster" if rows[0].at_least else "times batch norm's")
    axes.legend(fontsize="small", frameon=False)


def _spaced(sizes: Sequence[int]) -> list[str]:
    """Labels of ascending sizes, empty where one would run into the next.

    >>> _spaced([64, 100, 128])
    ['64', '', '128']
    """
    shown: list[int] = []
    for size in reversed(sizes):
        if not shown or shown[-1] >= APART * size:
            shown.append(size)
    return [str(size) if size in shown else "" for size in sizes]


def write_page(records: Sequence[Path], page: Path) -> list[Path]:
    """Fill the marked parts of the page from the records, in this order, and draw their figures; returns the files.

    Records of the native kernels have a part of their own, which a page needs for them alone.
    """
    text = page.read_text(encoding="utf-8")
    native = [path for path in records if native_page.is_one(read(path)[1])]
    records = [path for path in records if path not in native]
    if native:
        tables = (native_page.measured(*read(path), _link(path, page)) for path in native)
        text = replace_part(text, native_page.PART, "\n\n".join(tables))
    text = replace_part(text, "measured", "\n\n".join(measured(path, page) for path in records))
    text = replace_part(text, "losses", "\n\n".join(lost(path) for path in records))
    figures = [draw(path, page.parent / FIGURES) for path in records]
    write_whole(page, text.encode())
    return [page, *(file for file in figures if file is not None)]
