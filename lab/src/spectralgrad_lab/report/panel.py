"""What one pair of axes shows, as numbers."""

from dataclasses import dataclass
from typing import Literal

from spectralgrad_lab.records.results import Surface

PanelKind = Literal["lines", "arrows", "points", "surface", "contour"]


@dataclass(frozen=True)
class Series:
    """A curve, with the range over seeds if there is more than one, and where it broke off."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    method: str = ""
    seeds: int = 1
    failed: int = 0  # of the seeds
    companion: bool = False  # of the line before it: the same colour, dotted


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Args:
        kind: lines; arrows, from the first point of a line to its last; points that nothing joins; surface or contour of
            `surface`.
        ticks: names of x = 0, 1, 2, ...; empty for numbers.
        percent: y runs from 0 to 100.
    """

    title: str
    kind: PanelKind
    lines: tuple[Series, ...] = ()
    x_label: str = ""
    y_label: str = ""
    log: str = ""
    ticks: tuple[str, ...] = ()
    percent: bool = False
    surface: Surface | None = None

    def points(self) -> list[list[str]]:
        """Its numbers as lines of a CSV file, without a header."""
        if self.surface is not None:
            s = self.surface
            return [
                [self.title, "z", repr(x), repr(y), repr(z), ""]
                for y, row in zip(s.y, s.z, strict=True)
                for x, z in zip(s.x, row, strict=True)
            ]
        found = []
        for line in self.lines:
            bounds = zip(line.low, line.high, strict=True) if line.low else [("", "")] * len(line.x)
            for x, y, (low, high) in zip(line.x, line.y, bounds, strict=True):
                place = self.ticks[int(x)] if self.ticks else repr(x)
                found.append([self.title, line.label, place, repr(y), str(low), str(high)])
        return found


POINT_COLUMNS = ["panel", "label", "x", "y", "low (of a surface: z)", "high"]
