"""What is drawn, as numbers: the panels of a figure, from the records of trainings or from a computed result."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from spectralgrad_lab.artifacts.spec import Entry, Form, Spec, trials_of
from spectralgrad_lab.records.recording import Line
from spectralgrad_lab.records.results import Computed, Curve, Surface
from spectralgrad_lab.records.store import Store
from spectralgrad_lab.records.trial import Trial

from .colours import method_of
from .tables import Cell, is_split, names, number

PanelKind = Literal["lines", "arrows", "points", "surface", "contour"]
SURFACE: PanelKind = "surface"
CONTOUR: PanelKind = "contour"
CURVES: dict[Form, tuple[str, str]] = {  # form -> what is drawn by epoch or by time, and where it stands in a record
    "loss": ("training loss", "train_loss"),
    "error": ("test error (%)", "test_error"),
    "condition": ("condition of the covariance on its range", "condition_range"),
    "time": ("training error (%)", "train_error"),
}
SHIFTED = "condition number of the covariance + eps I"
OLDER = {"condition_range": "condition"}  # what stands in its place in records that were written before it


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


def panels_of_training(spec: Spec, entries: Sequence[Entry], cells: Sequence[Cell], store: Store) -> list[Panel]:
    """The figure of an artifact that is trained; nothing if there is nothing to draw."""
    if spec.form in CURVES:
        y_label, name = CURVES[spec.form]
        columns = names(entries)[1]
        drawn = [_by_epoch(spec.form, column, name, y_label, entries, store) for column in columns]
        if spec.form == "condition" and _any_singular(entries, store):
            drawn += [_by_epoch(spec.form, column, "condition_shifted", SHIFTED, entries, store) for column in columns]
    elif is_split(entries):
        drawn = [_errors(*_of_column(column, entries, cells), title=column) for column in names(entries)[1]]
    elif spec.form == "success":
        drawn = [_success(entries, cells)]
    else:
        failed = any(cell.failures for cell in cells)  # else the table says enough of success
        drawn = [*([_success(entries, cells)] if failed else []), _errors(entries, cells)]
    return [panel for panel in drawn if any(line.x for line in panel.lines)]


def panels_of_computed(spec: Spec, result: Computed) -> list[Panel]:
    """The figure of an artifact that is computed."""
    drawn: list[Panel] = []
    for surface in result.surfaces:
        for kind, title in ((SURFACE, "surface"), (CONTOUR, "contours")):
            drawn.append(Panel(title, kind, x_label=surface.x_label, y_label=surface.y_label, surface=surface))
    if result.curves and spec.form == "points":
        drawn += _clouds(result)
    elif result.curves:
        lines = tuple(_line(curve) for curve in result.curves)
        form: PanelKind = "arrows" if spec.form == "direction" and _are_arrows(result.curves) else "lines"
        drawn.append(Panel("", form, lines, result.x_label, result.y_label, result.log))
    return drawn


def _clouds(result: Computed) -> list[Panel]:
    """«original: points» and «original: marked» are two clouds in one pair of axes, «original»."""
    groups: dict[str, list[Series]] = {}
    for curve in result.curves:
        title, _, name = curve.label.rpartition(": ")
        groups.setdefault(title or name, []).append(Series(name, curve.x, curve.y))
    return [Panel(title, "points", tuple(lines), result.x_label, result.y_label) for title, lines in groups.items()]


def epochs_of(trial: Trial, store: Store) -> list[Line]:
    """The epochs of a trial, whether it has ended or not."""
    return [line for line in store.lines(trial) if line.get("kind") == "epoch"]


def _any_singular(entries: Sequence[Entry], store: Store) -> bool:
    """Whether a record without the condition on the range had an infinite one: then that of covariance + eps I is drawn."""
    epochs = [epoch for trial in trials_of(entries) for epoch in epochs_of(trial, store)]
    return any(_value(epoch, "singular") > 0 for epoch in epochs if "condition_range" not in (epoch.get("monitor") or {}))


def _by_epoch(form: Form, column: str, name: str, y_label: str, entries: Sequence[Entry], store: Store) -> Panel:
    drawn = [name, "train_error"] if form == "error" else [name]
    lines = []
    for entry in entries:
        if entry.column == column:
            runs = [(epochs_of(trial, store), _failed(trial, store)) for trial in entry.trials]
            lines += [_over_seeds(entry, runs, each, companion=each != name, by_time=form == "time") for each in drawn]
    return Panel(
        column if len(names(entries)[1]) > 1 else "",
        "lines",
        tuple(line for line in lines if line.x or (line.failed and not line.companion)),
        "seconds of training" if form == "time" else "epoch",
        "training and test error (%)" if form == "error" else y_label,
        "y" if form == "condition" else "",
    )


def _over_seeds(
    entry: Entry, runs: Sequence[tuple[list[Line], bool]], name: str, *, companion: bool, by_time: bool
) -> Series:
    """Mean and range at each epoch, over the seeds that have a finite number there."""
    at: dict[int, list[float]] = {}
    clock: dict[int, list[float]] = {}
    for epochs, _ in runs:
        times = accumulate(number(epoch.get("seconds", 0)) for epoch in epochs)
        for epoch, time in zip(epochs, times, strict=True):
            if math.isfinite(_value(epoch, name)):
                at.setdefault(int(epoch["epoch"]), []).append(_value(epoch, name))
                clock.setdefault(int(epoch["epoch"]), []).append(time)
    order = sorted(at)
    several = len([run for run in runs if run[0]]) > 1
    return Series(
        f"{entry.row}, training" if companion else entry.row,
        tuple(_mean(clock[i]) if by_time else float(i + 1) for i in order),  # epoch 0 is the first one, after it has run
        tuple(_mean(at[i]) for i in order),
        tuple(min(at[i]) for i in order) if several else (),
        tuple(max(at[i]) for i in order) if several else (),
        method_of(entry.row, entry.trials[0] if entry.trials else None),
        sum(bool(epochs) or failed for epochs, failed in runs),
        0 if companion else sum(failed for _, failed in runs),
        companion,
    )


def _failed(trial: Trial, store: Store) -> bool:
    outcome = store.outcome(trial)
    return outcome is not None and outcome.status == "failed"


def _value(epoch: Line, name: str) -> float:
    """A figure of an epoch; the monitor's stand in a dictionary of their own."""
    monitor = epoch.get("monitor") or {}
    return number(epoch.get(name, monitor.get(name, monitor.get(OLDER.get(name, name)))))


def _success(entries: Sequence[Entry], cells: Sequence[Cell]) -> Panel:
    lines, ticks = _by_column(entries, cells, lambda cell: (cell.success, math.nan, math.nan))
    return Panel("success rate", "lines", lines, y_label="trainings that finished (%)", ticks=ticks, percent=True)


def _of_column(column: str, entries: Sequence[Entry], cells: Sequence[Cell]) -> tuple[list[Entry], list[Cell]]:
    return [entry for entry in entries if entry.column == column], [cell for cell in cells if cell.column == column]


def _errors(entries: Sequence[Entry], cells: Sequence[Cell], title: str = "test error: mean, and range over seeds") -> Panel:
    lines, ticks = _by_column(entries, cells, lambda cell: (cell.mean, cell.min, cell.max))
    return Panel(title, "lines", lines, y_label="test error (%)", ticks=ticks)


Get = Callable[[Cell], tuple[float, float, float]]  # a value and its range, which may be NaN


def _by_column(entries: Sequence[Entry], cells: Sequence[Cell], get: Get) -> tuple[tuple[Series, ...], tuple[str, ...]]:
    """A line for each row over the columns; with one column only, the rows stand on the x axis instead."""
    rows, columns = names(entries)
    if len(columns) == 1:
        found = [_values("", [(rows.index(cell.row), get(cell)) for cell in cells], "")]
        return tuple(line for line in found if line.x), tuple(rows)
    found = []
    for row in rows:
        some = [(columns.index(cell.column), get(cell)) for cell in cells if cell.row == row]
        methods = {method_of(row, entry.trials[0]) for entry in entries if entry.row == row and entry.trials}
        # A row may have batch norm in one of its columns; the others say what it is.
        own = methods - {"bn"} if len(methods) > 1 else methods
        found.append(_values(row, some, own.pop() if len(own) == 1 else ""))
    return tuple(line for line in found if line.x), tuple(columns)


def _values(label: str, values: Sequence[tuple[int, tuple[float, float, float]]], method: str) -> Series:
    drawn = sorted((x, value) for x, value in values if math.isfinite(value[0]))
    x, y = tuple(float(x) for x, _ in drawn), tuple(value[0] for _, value in drawn)
    if not all(math.isfinite(value[1]) for _, value in drawn):
        return Series(label, x, y, method=method)
    return Series(label, x, y, tuple(value[1] for _, value in drawn), tuple(value[2] for _, value in drawn), method)


def _line(curve: Curve) -> Series:
    return Series(curve.label, curve.x, curve.y, method=method_of(curve.label))


def _are_arrows(curves: Sequence[Curve]) -> bool:
    return all(len(curve.x) <= 2 for curve in curves)


def _mean(x: Sequence[float]) -> float:
    return sum(x) / len(x)
