"""Statistics over seeds, against numpy and by hand; how cells are arranged; CSV."""

import csv
import io
import math
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from spectralgrad_lab.artifacts.spec import Entry, Figure
from spectralgrad_lab.records.store import Store, opening
from spectralgrad_lab.records.trial import Trial
from spectralgrad_lab.report.cells import SPECTRUM, Cell, Failure, measure
from spectralgrad_lab.report.tables import arrange, cell_lines, group_failures, to_csv

ERRORS = [5.25, 4.5, 7.125]


def entry(n: int) -> Entry:
    return Entry("SVD", "d = 4", tuple(Trial(layer="zca", method="svd", d=4, epochs=2, seed=seed) for seed in range(n)))


def record(store: Store, trial: Trial, status: str, error: float | None, reason: str = "") -> None:
    with store.recording(trial) as recording:
        recording.append("epoch", epoch=0, seconds=2.0, train_loss=1.0, test_error=50.0)
        recording.append("end", status=status, reason=reason, test_error=error, best_error=error)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "records")


def test_statistics_equal_numpys(store: Store) -> None:
    some = entry(6)
    for trial, error in zip(some.trials, ERRORS, strict=False):
        record(store, trial, "finished", error)
    record(store, some.trials[3], "failed", None, "the loss is NaN")
    with store.recording(some.trials[4]) as recording:
        recording.append("epoch", epoch=0, seconds=2.0, test_error=0.0)  # goes on: counts for nothing
    cell = measure(some, store)
    assert (cell.planned, cell.run, cell.finite) == (6, 4, 3)
    assert cell.success == 75.0
    assert cell.min == min(ERRORS)
    assert cell.max == max(ERRORS)
    assert math.isclose(cell.mean, float(np.mean(ERRORS)))
    assert math.isclose(cell.std, float(np.std(ERRORS, ddof=1)))
    assert cell.seconds == 8.0
    assert cell.failures == (Failure("SVD", "d = 4", 3, "the loss is NaN", 1),)
    assert cell.shown_finite() == cell.shown_converged() == "75 % (3/4, 2 to run)"
    assert cell.shown_mean() == "5.62 ± 1.35"


def test_a_record_whose_monitor_is_null_has_no_count_of_failures(store: Store) -> None:
    """Null is no damage: `lines` says so."""
    some = replace(entry(1), figure="solver_failures")
    with store.recording(some.trials[0]) as recording:
        recording.append("epoch", epoch=0, monitor=None)
        recording.append("end", status="finished", reason="", test_error=20.0, best_error=20.0)
    assert measure(some, store).shown_mean() == "–"


def test_cells_of_a_row_show_different_figures_of_the_same_trainings(store: Store) -> None:
    top1 = entry(1)
    with store.recording(top1.trials[0]) as recording:
        for epoch, (top5, failures) in enumerate([(9.0, 2), (7.0, 1)]):
            recording.append("epoch", epoch=epoch, test_error=20.0, top5_error=top5, monitor={"solver_failures": failures})
        recording.append("end", status="finished", reason="", test_error=20.0, best_error=20.0)
    shown = {figure: measure(replace(top1, figure=figure), store).mean for figure in {*get_args(Figure)} - {*SPECTRUM}}
    accuracies = {"accuracy": 80.0, "top5_accuracy": 93.0}
    assert shown == {"test_error": 20.0, "top5_error": 7.0, "solver_failures": 3.0, **accuracies}
    assert measure(replace(top1, figure="solver_failures"), store).shown_mean() == "3"


def test_a_record_without_a_figure_shows_a_dash(store: Store) -> None:
    """As those of before the figure was recorded."""
    some = entry(1)
    record(store, some.trials[0], "finished", 5.0)
    assert measure(replace(some, figure="top5_error"), store).shown_mean() == "–"


@pytest.mark.parametrize(
    ("cell", "success", "smallest", "mean"),
    [
        (Cell("r", "c", 3), "not run", "–", "–"),
        (Cell("r", "c", 1, failures=(Failure("r", "c", 0, "NaN", 0),)), "0 % (0/1)", "–", "–"),
        (Cell("r", "c", 1, errors=(4.0,)), "100 % (1/1)", "4.00", "4.00"),  # one seed has no deviation
        (Cell("r", "c", 2, errors=(math.nan, 4.0)), "100 % (2/2)", "4.00", "4.00"),  # finished, but without an error
        (Cell("r", "c", 2, errors=(4.0, 4.0)), "100 % (2/2)", "4.00", "4.00 ± 0.00"),
    ],
)
def test_cells_without_all_numbers(cell: Cell, success: str, smallest: str, mean: str) -> None:
    assert (cell.shown_finite(), cell.shown_min(), cell.shown_mean()) == (success, smallest, mean)


def test_a_grid_has_five_lines_for_each_row() -> None:
    cells = [Cell(row, column, 1, errors=(1.0,)) for row in ("SVD", "BN") for column in ("d = 4", "d = 8")]
    [table] = arrange(cells[:-1])  # one cell is not there
    assert table.columns == ("d = 4", "d = 8")
    shown = ("finite", "converged", "min", "mean", "best epoch")
    assert list(table.rows) == [f"{row}: {what}" for row in ("SVD", "BN") for what in shown]
    assert table.rows["BN: min"] == ("1.00", "")


def test_one_column_has_one_line_for_each_row() -> None:
    [table] = arrange([Cell("85", "Error (%)", 1, errors=(1.0,)), Cell("90", "Error (%)", 1, errors=(2.0,))])
    assert table.columns == ("finite", "converged", "min", "mean", "best epoch")
    assert table.rows == {
        "85": ("100 % (1/1)", "not judged", "1.00", "1.00", "–"),
        "90": ("100 % (1/1)", "not judged", "2.00", "2.00", "–"),
    }


def test_columns_with_rows_of_their_own_are_tables_of_their_own() -> None:
    cells = [Cell(row, column, 1, errors=(1.0,)) for row, column in (("85", "a"), ("90", "a"), ("2", "b"), ("4", "b"))]
    assert [(table.caption, list(table.rows)) for table in arrange(cells)] == [("a", ["85", "90"]), ("b", ["2", "4"])]


def test_failures_of_one_reason_stand_in_one_line() -> None:
    failures = [
        Failure("SVD", "d = 8", seed, reason, epochs) for seed, reason, epochs in ((0, "a", 1), (1, "a", 1), (2, "b", 0))
    ]
    assert group_failures([Cell("SVD", "d = 8", 3, failures=tuple(failures))]) == [
        "SVD, d = 8, seeds 0, 1: a (after 1 whole epoch)",
        "SVD, d = 8, seed 2: b (before the end of the first epoch)",
    ]


def test_csv_keeps_the_numbers_and_disarms_formulas() -> None:
    hostile = '=HYPERLINK("http://x")'
    cell = Cell("+SVD", "d = 4", 3, errors=(1 / 3, 2 / 3), failures=(Failure("+SVD", "d = 4", 2, hostile, 0),))
    header, line = csv.reader(io.StringIO(to_csv(cell_lines([cell]))))
    read = dict(zip(header, line, strict=True))
    assert read["row"] == "'+SVD"
    assert float(read["mean"]) == pytest.approx(0.5)
    assert float(read["success_rate_percent"]) == pytest.approx(200 / 3, abs=1e-6)
    assert read["failures"] == f"seed 2: {hostile}"  # begins with a word: no formula
    assert to_csv([[hostile, "-1e-3", "-", ""]]) == '"\'=HYPERLINK(""http://x"")",-1e-3,-,\r\n'
    for text in ("=1", "+1+1", "-cmd|x", "@SUM(A1)", " =1+1", "\t=1", "\n=1", "+inf", "-nan", "-1_000", "\uff1d1+1"):
        (line,) = csv.reader(io.StringIO(to_csv([[text]])))
        assert line == [f"'{text}"], text
    for number in ("-0.5", "+2", "1e-3", "-.5", "7", "-1E+30"):
        assert to_csv([[number]]) == f"{number}\r\n"


def test_a_record_of_another_trial_does_not_count(store: Store) -> None:
    some = entry(1)
    record(store, replace(some.trials[0], lr=0.2), "finished", 1.0)
    assert measure(some, store).run == 0
    record(store, some.trials[0], "finished", 1.0)
    assert measure(some, store).run == 1


# --- success: finite, and better than guessing


LIMIT = 45.0  # half of guessing's 90 %


def learn(store: Store, trial: Trial, losses: list[float], errors: list[float | None], **start: object) -> None:
    """A finished training; epochs without an error were not evaluated, and have no such key."""
    known = [error for error in errors if error is not None]
    with store.held(trial) as recording:
        recording.start(**{**opening(trial), **start})
        for epoch, (loss, error) in enumerate(zip(losses, errors, strict=True)):
            evaluated = {} if error is None else {"test_error": error, "test_loss": 1.0, "top5_error": error / 2}
            recording.append("epoch", epoch=epoch, seconds=1.0, train_loss=loss, train_error=loss, **evaluated)
        recording.append("end", status="finished", reason="", test_error=known[-1], best_error=min(known))


def test_a_success_is_better_than_guessing_in_its_last_epoch(store: Store) -> None:
    some = entry(3)
    learn(store, some.trials[0], [90.0, LIMIT - 0.01], [50.0, 10.0])
    learn(store, some.trials[1], [5.0, LIMIT + 0.01], [10.0, 11.0])  # it had learned, and lost it again
    record(store, some.trials[2], "failed", None, "NaN")
    cell = measure(some, store)
    assert (cell.run, cell.finite, cell.successes) == (3, 2, 1)
    assert (cell.shown_finite(), cell.shown_converged()) == ("67 % (2/3)", "33 % (1/3)")
    assert (cell.mean, cell.seeds) == (10.0, (0,))  # what failed to learn has no part in the mean
    [line] = [line for line in group_failures([cell]) if "seed 1" in line]
    assert "did not converge: training error 45.0 %, test error 11.0 %, above 45.0 %" in line
    learn(store, entry(4).trials[3], [9.0, 9.0], [10.0, 82.7])  # it learned the training images alone
    assert "test error 82.7 %, above" in group_failures([measure(entry(4), store)])[-1]
    smoke = measure(some, store, judged=False)
    assert (smoke.successes, smoke.shown_converged(), smoke.mean) == (2, "not judged", 10.5)


@pytest.mark.parametrize(
    ("data", "start", "error", "converged"),
    [
        ("cifar100", {}, 49.0, True),  # half of 99
        ("cifar100", {"classes": 10}, 49.0, False),  # the start line knows better
        ("folder", {}, 49.0, None),
        ("folder", {"classes": 1000}, 49.0, True),
        ("digits", {"classes": 1}, 3.0, None),
    ],
)
def test_classes_come_from_the_start_line_or_the_data_set(
    data: str, start: dict[str, object], error: float, converged: bool | None, store: Store
) -> None:
    trial = Trial(data=data, epochs=1)
    learn(store, trial, [error], [5.0], **start)
    outcome = store.outcome(trial)
    assert outcome is not None
    assert outcome.converged is converged
    cell = measure(Entry("a", "b", (trial,)), store)
    assert cell.unknown == (converged is None)
    assert ("unknown" in cell.shown_converged()) == (converged is None)


def test_best_and_last_of_the_epochs_that_were_evaluated(store: Store) -> None:
    some = entry(2)
    for trial, errors in zip(some.trials, ([None, 8.0, None, 9.0], [7.0, None, None, 6.0]), strict=True):
        learn(store, trial, [1.0] * 4, list(errors))
    cell = measure(some, store)
    assert (cell.errors, cell.bests) == ((9.0, 6.0), (8.0, 6.0))
    assert (cell.shown_mean(), cell.shown_best()) == ("7.50 ± 2.12", "7.00 ± 1.41")
    top5 = measure(replace(some, figure="top5_accuracy"), store)
    assert (top5.errors, top5.bests) == ((95.5, 97.0), (96.0, 97.0))
    assert top5.shown_min() == "97.00"  # the best seed
    [table] = arrange([replace(top5, column="a"), replace(top5, column="b")])
    assert "SVD: best seed" in table.rows
    header, line = csv.reader(io.StringIO(to_csv(cell_lines([cell]))))
    read = dict(zip(header, line, strict=True))
    assert (read["mean"], read["best_epoch_mean"], read["converged"]) == ("7.5", "7.0", "2")


def test_a_figure_of_the_spectrum_is_that_of_the_last_epoch_and_of_the_first(store: Store) -> None:
    trial = Trial(layer="zca", d=64, epochs=2)
    with store.recording(trial) as recording:
        for epoch, (ratio, floor) in enumerate(((0.5, 37.0), (0.7, 1.0))):
            monitor = {"mean_ratio": ratio, "at_floor": floor, "condition_range": 1.25e7}
            recording.append("epoch", epoch=epoch, seconds=1.0, train_error=5.0, monitor=monitor)
        recording.append("end", status="finished", reason="", test_error=6.0, best_error=6.0)
    cells = {name: measure(Entry(name, "a", (trial,), name), store) for name in ("mean_ratio", "at_floor", "tied_ratio")}
    assert [(cell.errors, cell.bests) for cell in cells.values()] == [
        ((0.7,), (0.5,)),
        ((1.0,), (37.0,)),
        ((0.7,), ((0.5 * 27 + 36) / 63,)),  # 36 of 63 pairs tie at eps
    ]
    [table] = arrange([cells["at_floor"]])
    assert table.columns == ("finite", "first epoch", "last epoch")
    assert measure(Entry("x", "a", (trial,), "condition_range"), store).shown_mean() == "1.2e+07"
