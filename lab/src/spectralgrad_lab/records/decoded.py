"""A computed result read back from its record: every value is looked at, so that a damaged one is noticed here."""

import math
from pathlib import Path
from typing import Any, TypeVar

from .results import Axes, Computed, Curve, GalleryPicture, Printed, Surface

LOGS = ("", "x", "y", "xy")
T = TypeVar("T")


class Damage(ValueError):
    """What is wrong with a value, in words."""


def computed_from(x: Any, folder: Path) -> Computed:
    """Lists become tuples again, and words like «NaN» numbers, but only where numbers belong.

    Args:
        x: of the record.
        folder: of its pictures. Those of the user's data may have been removed, so that the rest can be published: these are
            left out.

    Raises:
        Damage: another type than was written, a name that is missing, or numbers that do not belong together.
        OSError: a picture cannot be read.
    """
    x = _is(x, dict, "the result")
    agrees, log = _get(x, "agrees"), _text(_get(x, "log"))
    if agrees is not None and not isinstance(agrees, bool):
        raise Damage("agrees must be true, false or null")
    if log not in LOGS:
        raise Damage(f"log must be one of {LOGS}")
    return Computed(
        tables=tuple(_printed(table) for table in _list(_get(x, "tables"))),
        curves=tuple(_curve(curve) for curve in _list(_get(x, "curves"))),
        surfaces=tuple(_surface(surface) for surface in _list(_get(x, "surfaces"))),
        x_label=_text(_get(x, "x_label")),
        y_label=_text(_get(x, "y_label")),
        log=log,
        agrees=agrees,
        remarks=_texts(_get(x, "remarks")),
        pictures=_pictures(folder, _list(x.get("pictures", []))),  # older records have none
        axes=tuple(_axes(axes) for axes in _list(x.get("axes", []))),
    )


def _get(x: Any, name: str) -> Any:
    if name not in _is(x, dict, "a value"):
        raise Damage(f"{name} is missing")
    return x[name]


def _is(x: Any, kind: type[T], what: str) -> T:
    if not isinstance(x, kind):
        raise Damage(f"{what} must be a {kind.__name__}, got {type(x).__name__}")
    return x


def _list(x: Any) -> list[Any]:
    return _is(x, list, "a list")


def _text(x: Any) -> str:
    return _is(x, str, "a text")


def _texts(x: Any) -> tuple[str, ...]:
    return tuple(_text(value) for value in _list(x))


def _number(x: Any) -> float:
    if isinstance(x, bool) or not isinstance(x, int | float | str):
        raise Damage(f"a number was {type(x).__name__}")
    try:
        value = float(x)
    except (ValueError, OverflowError) as error:
        raise Damage(f"a number was {str(x)[:20]!r}") from error
    if isinstance(x, str) and math.isfinite(value):
        raise Damage(f"a number was the text {x[:20]!r}")
    return value


def _numbers(x: Any) -> tuple[float, ...]:
    return tuple(_number(value) for value in _list(x))


def _printed(x: Any) -> Printed:
    columns = _texts(_get(x, "columns"))
    rows = {}
    for label, cells in _is(_get(x, "rows"), dict, "rows").items():
        rows[label] = tuple(None if cell is None else _text(cell) for cell in _list(cells))
        if len(rows[label]) != len(columns):
            raise Damage(f"a row has {len(rows[label])} cells for {len(columns)} columns")
    return Printed(columns, rows, _text(_get(x, "caption")), _texts(_get(x, "misprints")))


def _curve(c: Any) -> Curve:
    x, y = _numbers(_get(c, "x")), _numbers(_get(c, "y"))
    if len(x) != len(y):
        raise Damage(f"a curve has {len(x)} x and {len(y)} y")
    return Curve(_text(_get(c, "label")), x, y)


def _surface(s: Any) -> Surface:
    x, y, levels = (_numbers(_get(s, name)) for name in ("x", "y", "levels"))
    z = tuple(_numbers(row) for row in _list(_get(s, "z")))
    if len(z) != len(y) or any(len(row) != len(x) for row in z):
        raise Damage("a surface is no grid over its x and y")
    points = []
    for point in _list(_get(s, "points")):
        if len(_list(point)) != 3:
            raise Damage("a point is a name and two numbers")
        points.append((_text(point[0]), _number(point[1]), _number(point[2])))
    return Surface(x, y, z, levels, tuple(points), _text(_get(s, "x_label")), _text(_get(s, "y_label")))


def _axes(x: Any) -> Axes:
    values = {name: _text(_get(x, name)) for name in ("title", "x_label", "y_label", "log")}
    if values["log"] not in LOGS:
        raise Damage(f"log must be one of {LOGS}")
    return Axes(**values)


def _pictures(folder: Path, entries: list[Any]) -> tuple[GalleryPicture, ...]:
    found = []
    for entry in entries:
        row, column, alt = (_text(_get(entry, name)) for name in ("row", "column", "alt"))
        original = _is(_get(entry, "original"), bool, "original")
        # Whatever a record says, nothing outside of its folder is read.
        path = folder / (Path(_text(_get(entry, "file")).replace("\0", "")).name or "unnamed")
        if original and not path.exists():
            continue
        found.append(GalleryPicture(row, column, path.read_bytes(), alt, original))
    return tuple(found)
