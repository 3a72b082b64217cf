"""The records in results/, which older versions wrote, are still read."""

from pathlib import Path

import pytest

from spectralgrad_lab.records.recording import end_of, read_lines
from spectralgrad_lab.records.store import Store
from spectralgrad_lab.style_network.trial import StyleTrial

RESULTS = Path(__file__).parents[3] / "results"


def test_the_trials_of_the_h200_have_their_outcomes() -> None:
    store = Store(RESULTS / "laboratory-h200")
    trials = store.trials()
    assert len(trials) >= 14
    outcomes = [store.outcome(trial) for trial in trials]
    assert {outcome.status for outcome in outcomes if outcome is not None} == {"finished", "failed"}
    assert None not in outcomes


@pytest.mark.parametrize("path", sorted((RESULTS / "style-h200" / "logs").glob("*.jsonl")), ids=lambda path: path.stem)
def test_the_logs_of_the_style_networks_have_every_step(path: Path) -> None:
    lines = read_lines(path, StyleTrial.PARTS)
    trial, end = StyleTrial.from_json(lines[0]["trial"]), end_of(lines)
    assert trial.variant == path.stem
    assert [line["step"] for line in lines if line["kind"] == "log"] == list(range(50, trial.steps + 1, 50))
    assert end is not None
    assert (end["status"], end["step"]) == ("finished", trial.steps)
