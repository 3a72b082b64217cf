"""What an artifact gives: tables, curves, surfaces and pictures, in a form that a record can hold."""

from dataclasses import dataclass, field
from typing import Literal

SCALES = ("smoke", "short", "paper")
Scale = Literal["smoke", "short", "paper"]


@dataclass(frozen=True)
class Printed:
    """A table as the paper prints it; None where the text lost the cell, which is never filled in."""

    columns: tuple[str, ...]
    rows: dict[str, tuple[str | None, ...]]  # label -> one cell for each column
    caption: str = ""
    misprints: tuple[str, ...] = ()  # what is wrong in it, in words


@dataclass(frozen=True)
class Curve:
    """Numbers to draw."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]


@dataclass(frozen=True)
class Surface:
    """Numbers z[i][j] over y[i] and x[j], with contours at levels and marked points (name, x, y)."""

    x: tuple[float, ...]
    y: tuple[float, ...]
    z: tuple[tuple[float, ...], ...]
    levels: tuple[float, ...] = ()
    points: tuple[tuple[str, float, float], ...] = ()
    x_label: str = ""
    y_label: str = ""


@dataclass(frozen=True)
class Axes:
    """One pair of axes of several: the curves called «title: name» belong to it."""

    title: str
    x_label: str = ""
    y_label: str = ""
    log: str = ""


@dataclass(frozen=True)
class GalleryPicture:
    """One picture of a gallery.

    Args:
        row, column: its place.
        data: a whole JPEG or PNG file.
        alt: what it shows, for those who do not see it.
        original: it is of the user's data: never published, and not missed where it is not there.
    """

    row: str
    column: str
    data: bytes = field(repr=False)
    alt: str = ""
    original: bool = False


@dataclass(frozen=True)
class Computed:
    """What an artifact without trials of its own gives; a point cloud is a curve whose points are not joined."""

    tables: tuple[Printed, ...] = ()
    curves: tuple[Curve, ...] = ()
    surfaces: tuple[Surface, ...] = ()
    x_label: str = ""
    y_label: str = ""
    log: str = ""  # axes in logarithms: "", "x", "y" or "xy"
    agrees: bool | None = None  # with the paper's own numbers, where it has exact ones
    remarks: tuple[str, ...] = ()
    pictures: tuple[GalleryPicture, ...] = ()  # row by row
    axes: tuple[Axes, ...] = ()  # where one pair is not enough
