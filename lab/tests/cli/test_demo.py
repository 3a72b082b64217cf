"""The demo tells the story: every method at every size, and what fails is in its table."""

from pathlib import Path

import pytest

from spectralgrad_lab.cli import main
from spectralgrad_lab.cli.demo import METHODS, SEEDS, SIZES, entries
from spectralgrad_lab.records.store import Store


def test_the_grid_is_whole() -> None:
    made = entries("smoke")
    assert {(entry.row, entry.column) for entry in made} == {
        (row, f"d = {d}") for row in ("batch norm", *METHODS) for d in SIZES
    }
    assert len({trial for entry in made for trial in entry.trials}) == SEEDS * (1 + len(METHODS) * len(SIZES))


@pytest.mark.slow
def test_the_demo_shows_what_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "-o", str(tmp_path)]) == 0
    assert str(tmp_path / "page" / "index.html") in capsys.readouterr().out.replace("\n", "")
    store = Store(tmp_path / "records")
    outcomes = {trial: store.outcome(trial) for trial in store.trials()}
    failed = {(trial.method, trial.d) for trial, outcome in outcomes.items() if outcome and outcome.status == "failed"}
    assert ("svd", 64) in failed
    assert not {method for method, _ in failed} & {"taylor", "exact", "svd-pi"}
