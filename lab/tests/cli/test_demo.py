"""The demo tells the story: every method at every size, and what fails is in its table."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from spectralgrad_lab.cli import main, why
from spectralgrad_lab.cli.demo import BASE, METHODS, SEEDS, SIZES, SPEC, conclusion, entries
from spectralgrad_lab.records.results import Computed
from spectralgrad_lab.records.store import Store
from spectralgrad_lab.records.trial import Trial
from spectralgrad_lab.report.findings import gather
from spectralgrad_lab.style_network.workplace import Workplace


def test_the_grid_is_whole() -> None:
    made = entries("smoke")
    assert {(entry.row, entry.column) for entry in made} == {
        (row, f"d = {d}") for row in ("batch norm", *METHODS) for d in SIZES
    }
    assert len({trial for entry in made for trial in entry.trials}) == SEEDS * (1 + len(METHODS) * len(SIZES))


def end(store: Store, trial: Trial, wrong: float, *, fails: bool = False, error: float = 5.0) -> None:
    with store.recording(trial) as recording:
        recording.append("epoch", epoch=0, step=12, seconds=1.0, train_error=wrong, test_error=error)
        status, reason = ("failed", "the gradient is not finite") if fails else ("finished", "")
        recording.append("end", status=status, reason=reason, step=15, test_error=error, best_error=error)


@pytest.mark.parametrize(("failing", "straying"), [("svd", "pi"), ("clip", "exact")])
def test_the_conclusion_is_what_the_records_say(failing: str, straying: str, tmp_path: Path) -> None:
    store = Store(tmp_path)
    for entry in entries("smoke"):
        for trial in entry.trials:
            if store.outcome(trial) is None:
                large = trial.layer == "zca" and trial.d == 64
                end(
                    store,
                    trial,
                    80.0 if large and trial.method == straying else 2.0,
                    fails=large and trial.method == failing,
                )
    store.save_computed("demo-why", "smoke", Computed(remarks=("Why: ties.",)))
    said = conclusion(store)
    names = {method: name for name, method in METHODS.items()}
    assert f"{names[failing]} was not finite in 2 of 10 trainings (d = 64)" in said
    assert f"{names[straying]} stayed finite yet did not learn in 2 of 10 (d = 64)" in said
    well = said.partition("all trainings of ")[2].partition(" stayed")[0].split(", ")
    assert set(well) == {"batch norm", *METHODS} - {names[failing], names[straying]}
    assert said.endswith("Why: ties.")
    assert gather(SPEC, "smoke", store).state == "62 of 62 trainings run: 60 finite, 58 converged"  # judged, small as it is


def test_what_learns_and_guesses_in_the_test_is_not_counted_as_well(tmp_path: Path) -> None:
    """PI can: its running matrix is a mean of matrices that differ from step to step."""
    store = Store(tmp_path)
    for entry in entries("smoke"):
        for trial in entry.trials:
            if store.outcome(trial) is None:
                end(store, trial, 2.0, error=80.0 if trial.method == "pi" and trial.d in (16, 64) else 5.0)
    said = conclusion(store)
    assert "PI stayed finite yet did not learn in 4 of 10 (d = 16, d = 64)" in said
    assert "PI" not in said.partition("all trainings of ")[2].replace("SVD-PI", "").partition(" stayed")[0]


def test_the_picture_of_why_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small training in the place of the demo's: gaps, coefficients and gradients are those of its layer."""
    monkeypatch.setattr(why, "BASE", replace(BASE, width=8, epochs=1, train_samples=256, test_samples=64))
    found = why.why("smoke", Workplace(tmp_path, None, "cpu", print))
    curves = {curve.label: curve for curve in found.curves}
    gaps, inverse = curves[f"{why.GAPS}: d = 64"].y, curves[f"{why.COEFFICIENTS}: SVD: 1/gap"].y
    assert len(gaps) == 63
    assert [x for x in inverse if math.isfinite(x)] == pytest.approx([1 / gap for gap in gaps if gap > 0])
    assert sum(gap < 1e-6 for gap in gaps) > 30  # nine inputs, 64 channels
    assert max(curves[f"{why.COEFFICIENTS}: SVD-Clip"].y) == 100
    assert min(curves[f"{why.GAPS}: d = 4"].y) > 1e-5
    assert len(curves[f"{why.NORMS}: Exact"].y) == 2  # steps
    assert all(x > 0 for x in curves[f"{why.NORMS}: Exact"].y)
    assert len(gather(why.WHY, "smoke", _saved(tmp_path, found)).panels) == 4
    assert re.match(r"Why: at d = 64, in step [12], ", found.remarks[0])  # rounding says when it dies, if at all


def test_why_trains_again_with_the_threads_of_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker has one and this process all: sums would round otherwise, and SVD die elsewhere or not at all."""
    threads, before = [], torch.get_num_threads()
    torch.set_num_threads(1)
    store = Store(tmp_path)
    end(store, replace(BASE, layer="zca", method="svd", d=64, seed=0), 0.1)
    torch.set_num_threads(2)
    seen = why.Seen([torch.ones(1, 64)], [1.0])
    monkeypatch.setattr(why, "_watch", lambda _: threads.append(torch.get_num_threads()) or seen)
    try:
        why.why("smoke", Workplace(tmp_path, None, "cpu", print))
        assert (set(threads), torch.get_num_threads()) == ({1}, 2)
    finally:
        torch.set_num_threads(before)


def _saved(folder: Path, found: Computed) -> Store:
    store = Store(folder)
    store.save_computed(why.WHY.id, "smoke", found)
    assert repr(store.load_computed(why.WHY.id, "smoke")) == repr(found)  # as text: a norm may be NaN, which equals nothing
    return store


@pytest.mark.slow
def test_the_demo_shows_what_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "-o", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert str(tmp_path / "page" / "index.html") in said.replace("\n", "")
    assert "Conclusion. SVD was not finite in" in said
    assert (tmp_path / "page" / "demo-why.png").exists()
    store = Store(tmp_path / "records")
    outcomes = {trial: store.outcome(trial) for trial in store.trials()}
    failed = {(trial.method, trial.d) for trial, outcome in outcomes.items() if outcome and outcome.status == "failed"}
    assert ("svd", 64) in failed
    assert not {method for method, _ in failed} & {"taylor", "exact", "svd-pi"}
