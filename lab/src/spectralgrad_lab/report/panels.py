"""What is drawn, as numbers: the panels of a figure, from the records of trainings or from a computed result."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate

from spectralgrad_lab.artifacts.spec import Entry, Figure, Form, Spec, trials_of
from spectralgrad_lab.records.outcome import number
from spectralgrad_lab.records.recording import Line
from spectralgrad_lab.records.results import Axes, Computed, Curve
from spectralgrad_lab.records.store import Store
from spectralgrad_lab.records.trial import Trial

from .cells import Cell, mean_of
from .colours import method_of
from .panel import Panel, PanelKind, Series
from .survival import all_lives, survival
from .tables import is_split, names

SURFACE: PanelKind = "surface"
CONTOUR: PanelKind = "contour"
CURVES: dict[Form, tuple[str, str]] = {  # form -> what is drawn by epoch or by time, and where it stands in a record
    "loss": ("training loss", "train_loss"),
    "error": ("test error (%)", "test_error"),
    "condition": ("condition of the covariance on its range", "condition_range"),
    "time": ("training error (%)", "train_error"),
}
FIGURES: dict[Figure, str] = {
    "test_error": "test error (%)",
    "top5_error": "top-5 test error (%)",
    "accuracy": "test accuracy (%)",
    "top5_accuracy": "top-5 test accuracy (%)",
    "solver_failures": "failures of the solver",
    "mean_ratio": "mean l_i / l_(i-1) above the floor",
    "tied_ratio": "mean l_i / l_(i-1), ties at the floor as 1",
    "at_floor": "eigenvalues at most eps",
    "kept_rank": "eigenvectors kept",
    "condition_range": "condition of the covariance on its range",
}
SHIFTED = "condition number of the covariance + eps I"
OLDER = {"condition_range": "condition"}  # what stands in its place in records that were written before it


def panels_of_training(spec: Spec, entries: Sequence[Entry], cells: Sequence[Cell], store: Store) -> list[Panel]:
    """The figure of an artifact that is trained; nothing if there is nothing to draw."""
    if spec.form in CURVES:
        y_label, name = CURVES[spec.form]
        columns = names(entries)[1]
        drawn = [_by_epoch(spec.form, column, name, y_label, entries, store) for column in columns]
        if spec.form == "condition" and _any_singular(entries, store):
            drawn += [_by_epoch(spec.form, column, "condition_shifted", SHIFTED, entries, store) for column in columns]
    elif spec.form == "survival":
        drawn = survival(all_lives(entries, store))
    elif is_split(entries):
        drawn = [_errors(*_of_column(column, entries, cells), title=column) for column in names(entries)[1]]
    elif spec.form == "success":
        drawn = _success(entries, cells)
    else:
        failed = any(cell.failures or cell.strays for cell in cells)  # else the table says enough of success
        figures = list(dict.fromkeys(entry.figure for entry in entries))
        drawn = [*(_success(entries, cells) if failed else []), *(_errors(*_of(x, entries, cells)) for x in figures)]
    return [panel for panel in drawn if any(line.x for line in panel.lines)]


def panels_of_computed(spec: Spec, result: Computed) -> list[Panel]:
    """The figure of an artifact that is computed."""
    drawn: list[Panel] = []
    for surface in result.surfaces:
        for kind, title in ((SURFACE, "surface"), (CONTOUR, "contours")):
            drawn.append(Panel(title, kind, x_label=surface.x_label, y_label=surface.y_label, surface=surface))
    if result.axes:
        drawn += [_of_axes(axes, result) for axes in result.axes]
    elif result.curves and spec.form == "points":
        drawn += _clouds(result)
    elif result.curves:
        lines = tuple(_line(curve) for curve in result.curves)
        form: PanelKind = "arrows" if spec.form == "direction" and _are_arrows(result.curves) else "lines"
        drawn.append(Panel("", form, lines, result.x_label, result.y_label, result.log))
    return drawn


def _of_axes(axes: Axes, result: Computed) -> Panel:
    head = f"{axes.title}: "
    own = [replace(curve, label=curve.label.removeprefix(head)) for curve in result.curves if curve.label.startswith(head)]
    return Panel(axes.title, "lines", tuple(_line(curve) for curve in own), axes.x_label, axes.y_label, axes.log)


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
        tuple(mean_of(clock[i]) if by_time else float(i + 1) for i in order),  # epoch 0 is the first one, after it has run
        tuple(mean_of(at[i]) for i in order),
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


def _success(entries: Sequence[Entry], cells: Sequence[Cell]) -> list[Panel]:
    """Trainings that stayed finite, and where that is judged those that converged too."""
    shown: dict[str, Get] = {"stayed finite": lambda cell: (_percent(cell.finite, cell.run), math.nan, math.nan)}
    if any(cell.judged for cell in cells):
        shown["stayed finite and converged"] = lambda cell: (cell.success, math.nan, math.nan)
    made = []
    for name, get in shown.items():
        lines, ticks = _by_column(entries, cells, get)
        title = f"success rate: {name}"
        made.append(Panel(title, "lines", lines, y_label="trainings (%)", ticks=ticks, percent=True))
    return made


def _percent(count: int, of: int) -> float:
    return 100 * count / of if of else math.nan


def _of_column(column: str, entries: Sequence[Entry], cells: Sequence[Cell]) -> tuple[list[Entry], list[Cell]]:
    return [entry for entry in entries if entry.column == column], [cell for cell in cells if cell.column == column]


def _of(figure: Figure, entries: Sequence[Entry], cells: Sequence[Cell]) -> tuple[list[Entry], list[Cell]]:
    return [entry for entry in entries if entry.figure == figure], [cell for cell in cells if cell.figure == figure]


def _errors(entries: Sequence[Entry], cells: Sequence[Cell], title: str = "") -> Panel:
    name = FIGURES[cells[0].figure] if cells else ""
    lines, ticks = _by_column(entries, cells, lambda cell: (cell.mean, cell.min, cell.max))
    return Panel(
        title or f"{name.partition(' (')[0]}: mean, and range over seeds", "lines", lines, y_label=name, ticks=ticks
    )


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
