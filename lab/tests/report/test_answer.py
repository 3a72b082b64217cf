"""The first minute: what was trained, what came out, where it ran; smoke never looks like a result."""

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from lab_support.synthetic import PRINTED, SPECS, always, grid, train
from spectralgrad_lab.artifacts import registry
from spectralgrad_lab.artifacts.spec import Entry, Spec
from spectralgrad_lab.records.results import Printed
from spectralgrad_lab.records.store import Store, opening
from spectralgrad_lab.records.trial import Trial
from spectralgrad_lab.report.answer import answer, trained
from spectralgrad_lab.report.cells import Cell
from spectralgrad_lab.report.compare import compare
from spectralgrad_lab.report.figures import draw
from spectralgrad_lab.report.findings import Findings, files_of, gather, pictures_of
from spectralgrad_lab.report.origin import cached, origin, origins
from spectralgrad_lab.report.page import write_page
from spectralgrad_lab.report.panel import Panel, Series


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "records")


SPEC = Spec("pami-table4", "PAMI", "errors", "training", printed=(PRINTED,), entries=always(grid(("BN", "SVD"), (4, 8), 3)))


def fill(store: Store, *, better: float = 0.0) -> None:
    for entry in grid(("BN", "SVD"), (4, 8), 3):
        for trial in entry.trials:
            error = 9.0 + 0.1 * trial.seed - (better if entry.row == "SVD" else 0.0) + 0.01 * (trial.seed * (trial.d or 0))
            if entry.row == "SVD" and trial.d == 8:
                train(store, trial, fails_at=1)
                continue
            with store.recording(trial) as recording:
                recording.append("epoch", epoch=0, seconds=1.0, train_loss=0.5, test_error=error)
                recording.append("end", status="finished", reason="", test_error=error, best_error=error)


def test_the_answer_names_what_failed_what_is_best_and_what_is_clear(store: Store) -> None:
    fill(store, better=2.0)
    found = gather(SPEC, "short", store)
    assert trained(found) == (
        "A small residual network with batch norm and decorrelated batch norm (ZCA) on scikit-learn's digits, 6 epochs, 3 "
        "seeds a cell."
    )
    said = answer(found)
    assert "Not always a success: SVD (d = 8 0 of 3); all others always." in said
    assert "Lowest mean error: SVD, d = 4, 7.14 ± 0.14 %." in said
    assert "Clearly below BN seed by seed: SVD, d = 4 (-2.00)." in said


def test_what_has_not_been_run_is_not_told_as_trained(store: Store) -> None:
    """Of three seeds one, of two rows one: neither «3 seeds a cell» nor batch norm."""
    for entry in grid(("BN", "SVD"), (4, 8), 1):
        if entry.row == "SVD":
            train(store, entry.trials[0], **({"fails_at": 1} if entry.column == "d = 8" else {}))
    found = gather(SPEC, "short", store)
    assert trained(found) == (
        "A small residual network with decorrelated batch norm (ZCA) on scikit-learn's digits, 6 epochs, 2 of "
        f"{found.planned} trainings so far."
    )
    assert "SVD (d = 8 0 of 1); all others that were run always." in answer(found)


def test_without_a_clear_difference_it_says_so(store: Store) -> None:
    fill(store)
    assert "No difference from BN is clear at 95 %." in answer(gather(SPEC, "short", store))


def test_each_difference_is_told_of_what_it_is_a_difference_from(store: Store) -> None:
    """Two networks: each has a batch norm of its own."""
    cells = networks(("resnet18", "cifar100", 25.0), ("resnet50", "cifar100", 22.0))
    spec = record(store, cells, better=1.0)
    said = answer(gather(spec, "short", store))
    assert "Clearly below resnet18, BN seed by seed: resnet18, d = 8 (-1.00)." in said
    assert "Clearly below resnet50, BN seed by seed: resnet50, d = 8 (-1.00)." in said


def test_without_a_clear_difference_every_reference_is_named(store: Store) -> None:
    spec = record(store, networks(("resnet18", "cifar100", 25.0), ("resnet50", "cifar100", 22.0)), better=0.0)
    assert "No difference from resnet18, BN or resnet50, BN is clear at 95 %." in answer(gather(spec, "short", store))


def test_the_best_is_told_of_each_data_set(store: Store) -> None:
    """The error on CIFAR-10 is not «lower» than that on CIFAR-100."""
    spec = record(store, networks(("resnet18", "cifar10", 5.0), ("resnet18", "cifar100", 25.0)), better=1.0)
    said = answer(gather(spec, "short", store))
    assert "Lowest mean error: resnet18, d = 8, 4.10 ± 0.10 %; resnet18, d = 8, 24.10 ± 0.10 %." in said


Cells = dict[Entry, float]  # and the error of their batch norm


def networks(*some: tuple[str, str, float]) -> Cells:
    """For each network and set a cell of batch norm and one of whitening, with three seeds."""
    found: Cells = {}
    for model, data, error in some:
        for column, how in (("BN", {}), ("d = 8", {"layer": "zca", "d": 8})):
            trials = tuple(Trial(model=model, data=data, epochs=1, seed=seed, **how) for seed in range(3))
            found[Entry(model, column, trials)] = error
    return found


def record(store: Store, cells: Cells, *, better: float) -> Spec:
    for entry, base in cells.items():
        for trial in entry.trials:
            error = base + 0.1 * trial.seed - (better if trial.layer == "zca" else 0.0)
            with store.recording(trial) as recording:
                recording.append("epoch", epoch=0, seconds=1.0, train_loss=0.5, test_error=error)
                recording.append("end", status="finished", reason="", test_error=error, best_error=error)
    return Spec("nips19-table3", "NIPS19", "errors", "training", entries=always(tuple(cells)))


def test_smoke_gives_no_answer_and_is_labelled_everywhere(store: Store, tmp_path: Path) -> None:
    fill(store, better=2.0)
    found = gather(SPEC, "smoke", store)
    assert answer(found) == "It runs: 9 of 12 trainings stayed finite. That says nothing of the paper's question."
    page = write_page(tmp_path / "page", store, {SPEC.id: SPEC}, "smoke")
    html = page.read_text(encoding="utf-8")
    label = "SMOKE TEST on digits: not the paper&#x27;s data"
    assert html.count(label) == 4  # the section, its table, its differences, its figure
    assert "side by side" not in html
    assert sorted(path.name for path in page.parent.iterdir()) == [
        "index.html", "pami-table4-smoke.csv", "pami-table4-smoke.png",
    ]  # fmt: skip
    short = write_page(tmp_path / "short", store, {SPEC.id: SPEC}, "short").read_text(encoding="utf-8")
    assert "SMOKE" not in short
    assert "Printed and ours, side by side" in short
    assert set(files_of(gather(SPEC, "short", store), pictures_of(gather(SPEC, "short", store)))) == {
        "pami-table4.csv", "pami-table4.png",
    }  # fmt: skip


def test_the_banner_is_drawn_into_the_picture() -> None:
    panel = Panel("t", "lines", (Series("SVD", (1.0, 2.0), (1.0, 3.0)),))
    assert draw([panel], "SMOKE") != draw([panel])


def test_equal_but_for_its_misprints_is_not_plainly_equal() -> None:
    """PAMI Figure 4's point C discards 3.9 % and not the 5 % that are printed."""
    said = "Equal to the paper's own numbers."
    for id, apart in (("nips19-fig1", ""), ("pami-fig4", " What is marked as a misprint does not count.")):
        spec = registry.find(id)
        assert spec.compute is not None
        assert answer(Findings(spec, "paper", result=spec.compute("paper"))) == said + apart


def test_artifacts_with_records_come_first(store: Store, tmp_path: Path) -> None:
    fill(store)
    some = {"nips19-table5": SPECS["nips19-table5"], SPEC.id: SPEC}
    html = write_page(tmp_path / "page", store, some, "short").read_text(encoding="utf-8")
    assert html.index('<section id="pami-table4"') < html.index('<section id="nips19-table5"')
    assert html.index('href="#pami-table4"') < html.index('href="#nips19-table5"')
    assert "<dt>Taylor</dt>" in html


def test_where_a_record_comes_from(store: Store) -> None:
    trial = Trial(epochs=1, precision="bf16-mixed")
    about = {**opening(trial), "machine": {"gpu": "NVIDIA H200"}, "versions": {"torch": "2.11.0"}, "source": "abc"}
    with store.held(trial) as recording:
        recording.start(**about, graph=True)
    words = "NVIDIA H200, torch 2.11.0, bf16, one CUDA graph a step"
    assert origins([trial], store) == [f"{words}; source abc (1 training)"]
    assert origin({**about, "graph": False}).endswith("bf16, no CUDA graph")
    assert origin(about).endswith("bf16")  # an older record does not say
    assert cached([{**about, "date": "2026-11-16 02:57 UTC"}]) == "recorded on 2026-11-16 on NVIDIA H200; not run again"


def test_what_is_printed_stands_beside_ours() -> None:
    cells = [Cell(row, "Error (%)", 1, errors=(5.0,)) for row in ("BN", "PCA")]
    paper = Printed(("Error (%)",), {"BN: min": ("4.66",), "BN: mean": ("4.81",), "PCA: min": (None,), "PCA: mean": ("5",)})
    [table] = compare([paper], cells)
    assert table.columns == ("finite", "converged", "min, printed", "min", "mean, printed", "mean", "best epoch")
    assert table.rows["PCA"][2:6] == (None, "5.00", "5", "5.00")  # illegible stays illegible
    by_set = Printed(("CIFAR-10: mean ± std", "CIFAR-10: min", "CIFAR-100: mean ± std"), {"BN": ("1", "2", "3")})
    both = [Cell("BN", name, 1, errors=(5.0,)) for name in ("CIFAR-10", "CIFAR-100")]
    [table] = compare([by_set], both)
    assert table.rows["BN: mean"] == ("1", "5.00", "3", "5.00")
    assert table.rows["BN: min"] == ("2", "5.00", "", "5.00")
    assert compare([by_set], [replace(both[0], row="other")]) == []


def test_epochs_without_evaluation_are_left_out_of_curves(store: Store) -> None:
    trial = Trial(epochs=3, layer="zca", d=4)
    with store.recording(trial) as recording:
        for epoch in range(3):
            test = {"test_error": 5.0 - epoch, "top5_error": 1.0} if epoch == 2 else {}
            recording.append("epoch", epoch=epoch, seconds=1.0, train_loss=0.5, train_error=4.0, **test)
        recording.append("end", status="finished", reason="", test_error=3.0, best_error=3.0)
    spec = Spec("x", "PAMI", "", "training", "error", entries=always((Entry("Exact", "", (trial,)),)))
    [panel] = gather(spec, "short", store).panels
    test, training = panel.lines
    assert (test.x, training.x) == ((3.0,), (1.0, 2.0, 3.0))
