"""The rule of the evidence: a verdict knows under which conditions something was seen, and over how many epochs."""

from dataclasses import replace
from pathlib import Path

import pytest
from scipy import stats

from spectralgrad_lab.records.store import Store
from spectralgrad_lab.records.trial import Trial
from spectralgrad_lab.report.paired import Difference
from spectralgrad_lab.report.survival import Life
from spectralgrad_lab.report.verdict import (
    Cell,
    Rate,
    Seen,
    at_most,
    difference,
    expected,
    of_difference,
    of_rate,
    seen,
    share_interval,
)

PAPER = Trial(data="cifar10", model="resnet18", epochs=350)
CELL = Cell("pami-table4", "SVD", "d = 4")


def found(failed: int, run: int, epochs: int = 8, **changes: str) -> Seen:
    lives = tuple(Life(100, i < failed) for i in range(run))
    return Seen(CELL, {}, lives, replace(PAPER, epochs=epochs, **changes), PAPER)  # type: ignore[arg-type]


@pytest.mark.parametrize("rate", [Rate(0, 15), Rate(1, 8), Rate(8, 15), Rate(15, 15)])
def test_the_interval_of_a_share_is_scipys(rate: Rate) -> None:
    interval = stats.binomtest(rate.failed, rate.of).proportion_ci(0.95, "exact")
    assert share_interval(rate) == pytest.approx((interval.low, interval.high), abs=1e-12)
    assert at_most(rate.failed, rate.of, 0.3) == pytest.approx(stats.binom.cdf(rate.failed, rate.of, 0.3))


def test_no_failure_in_few_epochs_says_nothing_of_a_rate_over_many() -> None:
    """0 of 4 in 8 epochs against 8 of 15 in 350: such a rate lets 0.7 to 3.5 % fail."""
    assert of_rate(found(0, 4), Rate(8, 15)) == (
        "not seen at 8 epochs: at the papers' rate 0.7 to 3.5 % of trainings fail in them"
    )
    assert expected(Rate(8, 15), 8 / 350)[0] == pytest.approx(1 - (1 - 0.2659) ** (8 / 350), rel=1e-3)


def test_a_rate_is_contradicted_only_by_the_papers_own_training() -> None:
    printed = Rate(15, 15)  # at least 78 % fail
    assert of_rate(found(0, 4, epochs=350), printed) == "contradicted"
    assert of_rate(found(0, 4, epochs=350, model="resnet50"), printed) == "not seen with ResNet-50"
    assert of_rate(found(0, 4, epochs=350, data="cifar100"), printed) == "not seen on CIFAR-100"
    assert of_rate(found(3, 3), printed) == "confirmed at 8 epochs"
    assert of_rate(found(1, 12, epochs=350), printed) == "contradicted"  # one failed, far too few


def test_what_never_fails_is_confirmed_as_far_as_was_looked() -> None:
    assert of_rate(found(0, 12), Rate(0, 15)) == "confirmed at 8 epochs: what fails one time in 4.5 would have been seen"
    assert of_rate(found(1, 12), Rate(0, 15)) == "not seen at 8 epochs"
    assert of_rate(found(1, 12, epochs=350), Rate(0, 15)) == "contradicted"


@pytest.mark.parametrize(
    ("values", "printed", "verdict"),
    [
        ((-1.0, -1.1, -0.9), -0.3, "confirmed at 8 epochs"),
        ((1.0, 1.1, 0.9), 0.3, "confirmed at 8 epochs"),
        ((1.0, 1.1, 0.9), -0.3, "not seen at 8 epochs: the printed -0.30 lies outside"),
        ((0.1, 0.0, -0.1), -0.3, "not seen at 8 epochs: the printed -0.30 lies outside"),
        ((0.5, 0.0, -0.5), -0.3, "not decidable with 3 seeds"),
    ],
)
def test_the_rule_of_a_difference(values: tuple[float, ...], printed: float, verdict: str) -> None:
    assert of_difference(Difference("a", "", "b", values), printed, "at 8 epochs") == verdict
    own = of_difference(Difference("a", "", "b", values), printed, "")
    assert own == verdict.replace(" at 8 epochs", "").replace("not seen", "contradicted")


def test_cells_are_read_with_the_conditions_of_their_paper(tmp_path: Path) -> None:
    store = Store(tmp_path)
    cell = Cell("eccv22-table4", "SVD", "CIFAR-10")
    entry = cell.entry()
    assert entry is not None
    for trial, error, learned in zip(entry.trials, (7.0, 8.0, 9.0), (3.0, 3.0, 80.0), strict=False):
        with store.recording(trial) as recording:
            recording.append("epoch", epoch=0, step=390, seconds=1.0, train_error=learned, test_error=error)
            recording.append("end", status="finished", reason="", step=390, test_error=error, best_error=error)
    one = seen(cell, store)
    assert one.conditions == "at 16 epochs, with ResNet-18"
    assert one.errors == {0: 7.0, 1: 8.0}  # the third has not learned
    assert (one.failed, len(one.lives)) == (0, 3)
    other = one._replace(errors={1: 7.5, 2: 1.0})
    assert difference(one, other).values == (0.5,)
