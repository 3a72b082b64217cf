"""What is drawn: panels as numbers, colours, and pictures that change with them."""

import io
import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from PIL import Image

from lab_support.synthetic import CLOUDS, DIRECTION, PROBABILITY, SPECS, SURFACE, train
from lab_support.written import Written
from spectralgrad_lab.artifacts.spec import Entry, Spec
from spectralgrad_lab.records.results import Computed, Curve
from spectralgrad_lab.records.store import Store
from spectralgrad_lab.records.trial import Trial
from spectralgrad_lab.report.cells import measure
from spectralgrad_lab.report.colours import METHODS, PALETTE, looks, method_of
from spectralgrad_lab.report.figures import describe, draw, left_out
from spectralgrad_lab.report.panel import Panel, Series
from spectralgrad_lab.report.panels import panels_of_computed, panels_of_training


def panels(id: str, store: Store) -> list[Panel]:
    spec = SPECS[id]
    assert spec.entries is not None
    entries = spec.entries("short")
    return panels_of_training(spec, entries, [measure(entry, store) for entry in entries], store)


def line(panel: Panel, label: str) -> Series:
    [found] = [each for each in panel.lines if each.label == label]
    return found


def test_loss_curves_are_means_over_seeds(written: Written) -> None:
    first, last = panels("nips19-fig2", written.store)
    assert (first.title, first.x_label, first.y_label, first.log) == ("d = 4", "epoch", "training loss", "")
    drawn = line(first, "BN")
    by_hand = [2.3 + 0.2 * math.sin(1 + seed + 4) for seed in (0, 1)]
    assert drawn.x == (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    assert drawn.y[0] == pytest.approx(sum(by_hand) / 2)
    assert (drawn.low[0], drawn.high[0]) == pytest.approx((min(by_hand), max(by_hand)))
    broken = line(last, "SVD")  # in its first epoch: nothing to draw, but it is not forgotten
    assert (broken.x, broken.failed, broken.seeds) == ((), 2, 2)
    assert "SVD failed in the first epoch" in describe(last)


def test_trials_that_go_on_are_drawn_as_far_as_they_are(written: Written) -> None:
    drawn = line(panels("nips19-fig2", written.store)[0], "SVD-Taylor")
    assert len(drawn.x) == 6  # seed 0 has six epochs, seed 1 three
    assert drawn.low[2] < drawn.high[2]
    assert drawn.low[3] == drawn.high[3] == drawn.y[3]


@pytest.mark.parametrize(
    ("id", "x_label", "log", "first"),
    [("eccv22-fig1", "epoch", "y", 1e3), ("pami-fig6", "seconds of training", "", 72.0)],
)
def test_conditioning_is_logarithmic_and_time_is_added_up(
    written: Written, id: str, x_label: str, log: str, first: float
) -> None:
    panel = panels(id, written.store)[0]
    drawn = line(panel, "SVD-PI")
    assert (panel.x_label, panel.log) == (x_label, log)
    assert drawn.y[0] == pytest.approx(first, rel=0.01)
    assert drawn.x == ((1.5, 3.0, 4.5, 6.0, 7.5, 9.0) if "time" in SPECS[id].form else (1.0, 2.0, 3.0, 4.0, 5.0, 6.0))


def test_error_curves_have_training_beside_test(written: Written) -> None:
    panel = panels("pami-fig5", written.store)[0]
    test, training = line(panel, "BN"), line(panel, "BN, training")
    assert training.companion
    assert training.y == pytest.approx([0.8 * y for y in test.y])


def test_success_by_d(written: Written) -> None:
    finite, panel = panels("pami-fig1b", written.store)
    assert (finite.title, panel.title) == ("success rate: stayed finite", "success rate: stayed finite and converged")
    assert panel.percent
    assert panel.ticks == ("d = 4", "d = 8", "d = 16", "d = 32", "d = 64")
    assert line(panel, "SVD").y == (100.0, 0.0, 0.0, 0.0, 0.0)


def test_a_covariance_without_condition_number_is_drawn_with_eps(tmp_path: Path) -> None:
    store, trial = Store(tmp_path), Trial(layer="zca", d=64, epochs=1)
    with store.recording(trial) as recording:
        monitor = {"condition": None, "singular": 1.0, "condition_shifted": 1e4}
        recording.append("epoch", epoch=0, seconds=1.0, test_error=5.0, monitor=monitor)
    entries = (Entry("Exact", "d = 64", (trial,)),)
    spec = Spec("x", "ECCV22", "", "training", "condition")
    [panel] = panels_of_training(spec, entries, [measure(entries[0], store)], store)
    assert panel.y_label.endswith("+ eps I")
    assert panel.lines[0].y == (1e4,)


def test_the_condition_on_the_range_is_drawn_where_it_was_recorded(tmp_path: Path) -> None:
    store, trial = Store(tmp_path), Trial(layer="zca", d=64, epochs=1)
    with store.recording(trial) as recording:
        monitor = {"condition": 1e14, "singular": 0.5, "condition_shifted": 1e4, "condition_range": 1e3, "range": 27}
        recording.append("epoch", epoch=0, seconds=1.0, test_error=5.0, monitor=monitor)
    entries = (Entry("Exact", "d = 64", (trial,)),)
    spec = Spec("x", "ECCV22", "", "training", "condition")
    [panel] = panels_of_training(spec, entries, [measure(entries[0], store)], store)
    assert panel.y_label.endswith("on its range")
    assert panel.lines[0].y == (1e3,)


def test_rows_of_one_column_stand_on_the_axis(tmp_path: Path) -> None:
    store = Store(tmp_path)
    entries = tuple(Entry(row, "Error (%)", (Trial(layer="denoise", epochs=4, rank=int(row)),)) for row in ("2", "4", "8"))
    for entry in entries[:2]:
        train(store, entry.trials[0])
    spec = Spec("x", "NIPS19", "", "training")
    cells = [measure(entry, store) for entry in entries]
    [errors] = panels_of_training(spec, entries, cells, store)
    assert errors.ticks == ("2", "4", "8")
    assert errors.lines[0].x == (0.0, 1.0)  # the third is not run
    train(store, entries[2].trials[0], fails_at=0)
    cells = [measure(entry, store) for entry in entries]
    success, learned, errors = panels_of_training(spec, entries, cells, store)  # where something failed, success is drawn
    assert learned.lines[0].y == (100.0, 100.0, 0.0)
    assert success.lines[0].y == (100.0, 100.0, 0.0)
    assert errors.lines[0].x == (0.0, 1.0)


def test_columns_with_rows_of_their_own_are_panels_of_their_own(tmp_path: Path) -> None:
    """As Figure 3 of NIPS19; and a table with holes is none of these."""
    store, spec = Store(tmp_path), Spec("x", "NIPS19", "", "training")
    of_panels = (("85", "energy"), ("90", "energy"), ("2", "eigenvectors"), ("4", "eigenvectors"))
    with_holes = (("SVD-PI", "d = 4"), ("SVD-PI", "d = 8"), ("BN", "BN"))
    for places, titles in (
        (of_panels, ["energy", "eigenvectors"]),
        (with_holes, ["test error: mean, and range over seeds"]),
    ):
        entries = tuple(Entry(row, column, (Trial(epochs=4, seed=i),)) for i, (row, column) in enumerate(places))
        for entry in entries:
            train(store, entry.trials[0])
        cells = [measure(entry, store) for entry in entries]
        assert [panel.title for panel in panels_of_training(spec, entries, cells, store)] == titles


def test_computed_forms() -> None:
    surface, contour = panels_of_computed(SPECS["pami-fig4"], Computed(surfaces=(SURFACE,)))
    assert (surface.kind, contour.kind) == ("surface", "contour")
    [arrows] = panels_of_computed(SPECS["pami-fig3"], DIRECTION)
    assert arrows.kind == "arrows"
    [lines] = panels_of_computed(SPECS["pami-fig1a"], PROBABILITY)
    assert (lines.kind, lines.log) == ("lines", "xy")
    assert left_out(lines) == 1  # a probability of 0 has no logarithm
    assert "contours at 0.05, 0.2" in describe(contour)


def test_one_method_has_one_colour_everywhere() -> None:
    for method, colour in METHODS.items():
        for others in (["exact", "svd", "bn"], ["taylor"], []):
            methods = [*(other for other in others if other != method), method]
            assert looks(methods)[-1].colour == colour
    assert len(set(METHODS.values())) == len(METHODS)
    assert method_of("SVD-Taylor") == method_of("Ours", Trial(layer="zca", method="taylor")) == "taylor"
    assert method_of("SVD-PI") == "svd-pi"
    assert method_of("PI") == "pi"


def test_lines_of_one_method_can_be_told_apart() -> None:
    many = looks(["taylor"] * 3 + [""] * 20)
    assert len({(look.colour, look.dash) for look in many}) == len(many)


def _linear(colour: str) -> list[float]:
    values = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values]


def _contrast_on_white(colour: str) -> float:
    red, green, blue = _linear(colour)
    return 1.05 / (0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05)


def test_no_colour_is_lost_on_white() -> None:
    assert min(_contrast_on_white(colour) for colour in PALETTE) > 2.0
    assert _contrast_on_white("#f0e442") < 2.0  # the palette's yellow, which is why it is not there


def picture(panel: Panel) -> bytes:
    with Image.open(io.BytesIO(draw([panel]))) as image:
        return image.convert("RGB").tobytes()


BASE = Panel("t", "lines", (Series("SVD", (1.0, 2.0, 3.0), (1.0, 10.0, 5.0), method="svd"),), "x", "y")


@cache
def picture_of_base() -> bytes:
    return picture(BASE)


@pytest.mark.parametrize(
    "changes",
    [
        {"log": "y"},
        {"log": "x"},
        {"percent": True},
        {"ticks": ("a", "b", "c", "d")},
        {"title": "u"},
        {"kind": "arrows"},
        {"lines": (Series("SVD", (1.0, 2.0, 3.0), (1.0, 10.0, 6.0), method="svd"),)},
        {"lines": (Series("SVD", (1.0, 2.0, 3.0), (1.0, 10.0, 5.0), (0.5, 9.0, 4.0), (1.5, 11.0, 6.0), "svd"),)},
        {"lines": (Series("SVD", (1.0, 2.0, 3.0), (1.0, 10.0, 5.0), method="svd", failed=1),)},
        {"lines": (Series("SVD", (1.0, 2.0, 3.0), (1.0, 10.0, 5.0), method="taylor"),)},
        {"lines": (*BASE.lines, Series("SVD, training", (1.0, 2.0), (1.0, 2.0), companion=True))},
    ],
    ids=["log y", "log x", "percent", "ticks", "title", "arrows", "values", "range", "failed", "method", "companion"],
)
def test_what_a_panel_says_is_seen(changes: dict[str, object]) -> None:
    assert picture(replace(BASE, **changes)) != picture_of_base()  # type: ignore[arg-type]


def test_the_same_panel_is_the_same_picture() -> None:
    assert picture(BASE) == picture_of_base()


def test_names_are_neither_mathematics_nor_hidden() -> None:
    """A lone dollar is a syntax error to matplotlib, and a label that begins with _ is left out of its legends."""
    curves = (Curve("$\\frac", (1.0, 2.0), (1.0, 2.0)), Curve("_hidden", (1.0, 2.0), (2.0, 1.0)))
    [panel] = panels_of_computed(SPECS["pami-fig1a"], Computed(curves=curves, x_label="$", y_label="a$b$"))
    shown = picture(panel)
    unnamed = Panel("", "lines", (panel.lines[0], Series("", (1.0, 2.0), (2.0, 1.0))), "$", "a$b$")
    assert shown != picture(unnamed)


def test_numbers_that_are_not_finite_are_left_out_and_counted() -> None:
    curve = Curve("a", (1.0, 2.0, 3.0, 4.0), (1.0, math.nan, math.inf, 2.0))
    [panel] = panels_of_computed(SPECS["pami-fig1a"], Computed(curves=(curve,)))
    assert left_out(panel) == 2
    assert picture(panel)


def test_clouds_of_one_name_share_their_axes_and_are_not_joined() -> None:
    first, second = panels_of_computed(SPECS["pami-fig2"], CLOUDS)
    assert [(line.label, line.x) for line in first.lines] == [("points", (0.0, 1.0, 2.0)), ("marked", (2.0,))]
    assert (first.title, second.title, first.kind) == ("original", "ZCA", "points")
    assert describe(first) == "original: 3 points, x 0 to 2, y 0 to 2.5; 1 marked, x 2 to 2, y 2.5 to 2.5."
    joined = replace(first, kind="lines")
    assert draw([first]) != draw([joined])
    with Image.open(io.BytesIO(draw([first]))) as one, Image.open(io.BytesIO(draw([joined]))) as other:
        ink = [sum(value < 128 for value in picture.convert("L").tobytes()) for picture in (one, other)]
    assert ink[0] < ink[1]  # a line between the points would be more ink
