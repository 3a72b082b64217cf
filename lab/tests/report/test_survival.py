"""How long trainings lasted: exact intervals against scipy, censored trainings, and what the page shows of it."""

from pathlib import Path

import pytest
from scipy import stats

from spectralgrad_lab.artifacts.registry import find
from spectralgrad_lab.artifacts.spec import Entry
from spectralgrad_lab.records.store import Store
from spectralgrad_lab.records.trial import Trial
from spectralgrad_lab.report.answer import answer
from spectralgrad_lab.report.findings import files_of, gather, pictures_of
from spectralgrad_lab.report.survival import Life, Lives, hazards, lives_of, poisson_interval, survival


@pytest.mark.parametrize("count", [0, 1, 5, 40])
@pytest.mark.parametrize("level", [0.9, 0.95])
def test_the_interval_is_garwoods(count: int, level: float) -> None:
    low, high = (1 - level) / 2, (1 + level) / 2
    expected = (stats.chi2.ppf(low, 2 * count) / 2 if count else 0.0, stats.chi2.ppf(high, 2 * count + 2) / 2)
    assert poisson_interval(count, level) == pytest.approx(expected, rel=1e-9)


def record(store: Store, trial: Trial, reached: int, status: str | None) -> None:
    """Epochs of 100 steps; then an end, or none."""
    with store.recording(trial) as recording:
        for epoch in range(reached // 100):
            recording.append("epoch", epoch=epoch, step=100 * (epoch + 1), seconds=1.0, train_error=5.0, test_error=6.0)
        if status:
            reason = "the gradient is not finite" if status == "failed" else ""
            recording.append("end", status=status, reason=reason, step=reached, test_error=6.0, best_error=6.0)


def test_what_has_not_ended_counts_up_to_its_last_epoch(tmp_path: Path) -> None:
    store, trials = Store(tmp_path), tuple(Trial(seed=seed) for seed in range(5))
    for trial, reached, status in zip(trials, (150, 300, 200, 50), ("failed", "finished", None, None), strict=False):
        record(store, trial, reached, status)
    found = lives_of(Entry("SVD", "CIFAR-10, d = 4", trials), store)
    assert found.lives == (Life(150, True), Life(300, False), Life(200, False))  # the others have no epoch yet
    assert (found.failures, found.exposure) == (1, 650)
    assert found.hazard == pytest.approx(1000 / 650)
    [panel] = survival([found])
    assert (panel.lines[0].x, panel.lines[0].y) == ((1.0, 150.0, 150.0, 300.0), (100.0, 100.0, *[100 * 2 / 3] * 2))


def test_survival_of_the_papers_steps_comes_from_both_ends_of_the_interval() -> None:
    some = Lives("SVD", "CIFAR-10, d = 4", tuple(Life(100_000, i == 0) for i in range(5)))
    low, high = (stats.chi2.ppf(p, k) / 2 / 500_000 for p, k in ((0.025, 2), (0.975, 4)))
    assert some.surviving(1000) == pytest.approx((2.718281828459045 ** (-1000 * high), 2.718281828459045 ** (-1000 * low)))
    [cells] = hazards([some]).rows.values()
    assert cells == ("1 of 5", "100,000", "500,000", "0.002 [5.1e-05, 0.011]", "22 to 99 %")


def test_the_page_has_table_curves_and_answer(tmp_path: Path) -> None:
    store, spec = Store(tmp_path), find("ours-survival")
    for entry in spec.entries("short")[:5] if spec.entries else ():
        for trial in entry.trials:
            record(store, trial, 50 + trial.seed if trial.d == 64 else 12_500, "failed" if trial.d == 64 else "finished")
    found = gather(spec, "short", store)
    assert answer(found) == ("Failed: SVD, CIFAR-10, d = 64, 5 of 5 in 260 steps; of the others none, 20 in 250,000 steps.")
    assert [(panel.title, len(panel.lines)) for panel in found.panels] == [("CIFAR-10", 5)]
    assert "SVD, CIFAR-10, d = 64" in found.tables[0].rows
    files = files_of(found, pictures_of(found))
    assert b"5 of 5" in files["ours-survival-2.csv"]
    assert "ours-survival.png" in files
