"""Panels as pictures: PNG, by matplotlib without a display. The page shows each panel, the file beside it all of them."""

import io
import math
from collections.abc import Sequence
from typing import Any

from spectralgrad_lab.records.outcome import LARGEST, number

from .colours import Stroke, looks
from .panel import Panel, Series

PANEL_INCHES = (5.2, 3.9)
DOTS_PER_INCH = 120
ROUND = 10  # as many lines or fewer share one legend column
MANY = 40  # a curve of more points is drawn without markers
WARNING = "#a4262c"
TEXT: Any = {
    "font.size": 10,
    "axes.titlesize": 11,
    "legend.fontsize": 8.5,
    "figure.facecolor": "white",
    "axes.formatter.useoffset": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def draw(panels: Sequence[Panel], banner: str = "") -> bytes:
    """The panels beside each other, as a PNG file.

    Args:
        panels: one or more; three in a row, or two by two.
        banner: a warning above all of them.

    Returns:
        The bytes of the file, the same for the same panels.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    across = 2 if len(panels) == 4 else min(len(panels), 3)
    down = -(-len(panels) // across)
    with rc_context(TEXT):
        figure = Figure(figsize=(PANEL_INCHES[0] * across, PANEL_INCHES[1] * down), layout="constrained")
        FigureCanvasAgg(figure)
        places = figure.subfigures(down, across, squeeze=False).flat
        for panel, place in zip(panels, places, strict=False):  # the last row may have places left
            axes = place.add_subplot(**({"projection": "3d"} if panel.kind == "surface" else {}))
            _DRAWN[panel.kind](axes, panel)
            axes.set(xlabel=_plain(panel.x_label), ylabel=_plain(panel.y_label), title=_plain(panel.title))
        if banner:
            figure.suptitle(_plain(banner), color=WARNING, fontsize=10, fontweight="bold")
        buffer = io.BytesIO()
        figure.savefig(buffer, dpi=DOTS_PER_INCH, metadata={"Software": None})
    return smaller(buffer.getvalue())


def smaller(png: bytes) -> bytes:
    """The same picture with 256 colours, which is a third of the size."""
    from PIL import Image

    with Image.open(io.BytesIO(png)) as picture:
        buffer = io.BytesIO()
        picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
    return min(buffer.getvalue(), png, key=len)


def describe(panel: Panel) -> str:
    """A panel in words, for those who do not see it.

    >>> describe(Panel("d = 8", "lines", (Series("BN", (1.0, 2.0), (0.9, 0.3)),), "epoch", "training loss"))
    'd = 8: training loss by epoch. BN from 0.9 to 0.3.'
    """
    axes = " by ".join(name for name in (panel.y_label, panel.x_label) if name)
    head = ": ".join(name for name in (panel.title, axes) if name) or "figure"
    if panel.surface is not None:
        s = panel.surface
        levels = f", contours at {', '.join(f'{level:g}' for level in s.levels)}" if s.levels else ""
        x, y = f"{min(s.x):g} to {max(s.x):g}", f"{min(s.y):g} to {max(s.y):g}"
        return f"{head}, {s.x_label or 'x'} {x}, {s.y_label or 'y'} {y}{levels}."
    if panel.kind == "points":
        clouds = [f"{len(line.x)} {line.label}, x {_range(line.x)}, y {_range(line.y)}" for line in panel.lines]
        return f"{head}: {'; '.join(clouds)}."
    said = []
    for line in panel.lines:
        ends = f"from {line.y[0]:.4g} to {line.y[-1]:.4g}" if line.x else "failed in the first epoch"
        said.append(f"{line.label or 'all'} {ends}")
    return f"{head}. {'; '.join(said)}."


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.3g} to {max(values):.3g}" if values else "nowhere"


def is_empty(panel: Panel) -> bool:
    """Whether there is nothing to see: no point of any line can be drawn."""
    return panel.surface is None and left_out(panel) == sum(len(line.x) for line in panel.lines)


def left_out(panel: Panel) -> int:
    """How many points cannot be drawn: not finite or too large, or not positive on a logarithmic axis."""
    return sum(not _visible(x, y, panel.log) for line in panel.lines for x, y in zip(line.x, line.y, strict=True))


def _visible(x: float, y: float, log: str) -> bool:
    return abs(x) <= LARGEST and abs(y) <= LARGEST and not ("x" in log and x <= 0) and not ("y" in log and y <= 0)


def _looks(lines: Sequence[Series]) -> list[Stroke]:
    own = iter(looks([line.method for line in lines if not line.companion]))
    found: list[Stroke] = []
    for line in lines:
        found.append(found[-1]._replace(dash=":") if line.companion else next(own))
    return found


def _lines(axes: Any, panel: Panel) -> None:
    for scale, axis in (("x", axes.set_xscale), ("y", axes.set_yscale)):
        if scale in panel.log:
            axis("log")
    for i, (line, look) in enumerate(zip(panel.lines, _looks(panel.lines), strict=True)):
        _line(axes, panel, line, look, i)
    if panel.ticks:
        crowded = sum(len(name) for name in panel.ticks) > 40
        axes.set_xticks(
            range(len(panel.ticks)),
            [_plain(name) for name in panel.ticks],
            rotation=30 if crowded else 0,
            ha="right" if crowded else "center",
        )
        axes.set_xlim(-0.5, len(panel.ticks) - 0.5)
    elif panel.x_label == "epoch":
        last = max((line.x[-1] for line in panel.lines if line.x), default=1.0)
        axes.set_xlim(0.5, last + 0.5)
        axes.xaxis.get_major_locator().set_params(integer=True)
    if panel.percent:
        axes.set_ylim(-5, 105)
    axes.grid(alpha=0.3)
    _legend(axes, panel)


def _line(axes: Any, panel: Panel, line: Series, look: Stroke, i: int) -> None:
    shown = [k for k, (x, y) in enumerate(zip(line.x, line.y, strict=True)) if _visible(x, y, panel.log)]
    # Lines that lie on each other, all at 100 % say, stand a little apart; CSV and table have the numbers.
    shift = 0.06 * (i - (len(panel.lines) - 1) / 2) if panel.ticks else 0.0
    x, y = [line.x[k] + shift for k in shown], [line.y[k] for k in shown]
    label = line.label
    if line.failed:
        label += f" ({line.failed} of {line.seeds} failed{'' if line.x else ' in the first epoch'})"
    # Rows on the axis: nothing connects them unless they are numbers.
    alone = panel.ticks and not line.label and any(math.isnan(number(name)) for name in panel.ticks)
    style = {"color": look.colour, "linestyle": "none" if alone else look.dash, "linewidth": 1.6}
    axes.plot(x, y, marker=look.marker if len(shown) <= MANY else None, markersize=5, label=_plain(label) or None, **style)
    if line.low and panel.ticks:
        axes.vlines(x, [line.low[k] for k in shown], [line.high[k] for k in shown], color=look.colour, linewidth=1)
    elif line.low:
        axes.fill_between(
            x, [line.low[k] for k in shown], [line.high[k] for k in shown], color=look.colour, alpha=0.15, linewidth=0
        )
    if line.failed and x:
        axes.plot(x[-1], y[-1], "x", markersize=10, markeredgewidth=2.5, color=look.colour)


def _legend(axes: Any, panel: Panel) -> None:
    """Below the axes, where it hides nothing."""
    named = [line for line in panel.lines if line.label]
    if named:
        columns = (
            1 if max(len(line.label) for line in named) > 34 else 3 if len(named) > ROUND else 2 if len(named) > 1 else 1
        )
        axes.figure.legend(loc="outside lower center", ncols=columns, frameon=False)


def _plain(text: str) -> str:
    """Text that matplotlib takes for nothing else: neither for mathematics nor for a label to hide."""
    return (" " if text.startswith("_") else "") + text.replace("$", r"\$")


def _arrows(axes: Any, panel: Panel) -> None:
    """From the first point of a line to its last; from the origin if it has only one."""
    xs, ys = [0.0], [0.0]
    for line, look in zip(panel.lines, _looks(panel.lines), strict=True):
        ends = list(zip(line.x, line.y, strict=True))
        if not ends or not all(_visible(x, y, panel.log) for x, y in ends):
            continue
        (x0, y0), (x1, y1) = (ends[0] if len(ends) > 1 else (0.0, 0.0)), ends[-1]
        axes.annotate("", (x1, y1), (x0, y0), arrowprops={"arrowstyle": "-|>", "color": look.colour, "linewidth": 2})
        axes.plot([], [], color=look.colour, linewidth=2, label=_plain(line.label))
        xs, ys = [*xs, x0, x1], [*ys, y0, y1]
    axes.plot(xs, ys, linestyle="none")  # annotations do not count for the limits
    axes.margins(0.12)
    axes.axhline(0, color="grey", linewidth=0.8)
    axes.axvline(0, color="grey", linewidth=0.8)
    axes.grid(alpha=0.3)
    _legend(axes, panel)


def _points(axes: Any, panel: Panel) -> None:
    """Clouds, in axes of one scale: an angle is seen as it is."""
    for line, look in zip(panel.lines, _looks(panel.lines), strict=True):
        seen = [(x, y) for x, y in zip(line.x, line.y, strict=True) if _visible(x, y, panel.log)]
        axes.plot(
            [x for x, _ in seen],
            [y for _, y in seen],
            look.marker,
            markersize=4,
            color=look.colour,
            label=_plain(line.label),
            alpha=0.8,
        )
    axes.set_aspect("equal", adjustable="datalim")
    axes.grid(alpha=0.3)
    _legend(axes, panel)


def _surface(axes: Any, panel: Panel) -> None:
    x, y, z = _mesh(panel)
    axes.plot_surface(x, y, z, cmap="cividis", linewidth=0, antialiased=True)


def _contour(axes: Any, panel: Panel) -> None:
    assert panel.surface is not None
    x, y, z = _mesh(panel)
    filled = axes.contourf(x, y, z, levels=20, cmap="cividis")
    axes.figure.colorbar(filled, ax=axes)
    if panel.surface.levels:
        lines = axes.contour(x, y, z, levels=sorted(panel.surface.levels), colors="white", linewidths=1.6)
        axes.clabel(lines, fmt=lambda level: f"{level:g}")
    for name, px, py in panel.surface.points:
        axes.plot(px, py, "o", color="white", markeredgecolor="black", markersize=7)
        right, upper = px > _middle(panel.surface.x), py > _middle(panel.surface.y)  # there is no room beyond the edge
        where = {"ha": "right" if right else "left", "va": "top" if upper else "bottom"}
        offset = (-6 if right else 6, -6 if upper else 6)
        axes.annotate(_plain(name), (px, py), offset, textcoords="offset points", color="white", weight="bold", **where)


def _middle(x: Sequence[float]) -> float:
    return (min(x) + max(x)) / 2


def _mesh(panel: Panel) -> tuple[Any, Any, Any]:
    import numpy as np

    assert panel.surface is not None
    x, y = np.meshgrid(np.array(panel.surface.x), np.array(panel.surface.y))
    z = np.array(panel.surface.z)
    return x, y, np.ma.masked_where(~(abs(z) <= LARGEST), z)


_DRAWN = {"lines": _lines, "arrows": _arrows, "points": _points, "surface": _surface, "contour": _contour}
