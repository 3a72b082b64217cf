"""Differences seed by seed: the quantile against scipy, pairs by seed, and the reference of each cell."""

from dataclasses import replace

import pytest
from scipy import stats

from spectralgrad_lab.artifacts.spec import Entry, Figure
from spectralgrad_lab.records.trial import Trial
from spectralgrad_lab.report.cells import Cell
from spectralgrad_lab.report.paired import Difference, differences, t_quantile


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 9, 10, 30, 101])
@pytest.mark.parametrize("level", [0.5, 0.95, 0.999])
def test_the_quantile_is_scipys(freedom: int, level: float) -> None:
    assert t_quantile(freedom, level) == pytest.approx(float(stats.t.ppf((1 + level) / 2, freedom)), rel=1e-9)


def test_the_interval_is_scipys_paired_test() -> None:
    one, other = [5.0, 6.5, 4.0, 7.0], [5.5, 6.0, 5.0, 8.5]
    found = Difference("a", "", "b", tuple(x - y for x, y in zip(one, other, strict=True)))
    interval = stats.ttest_rel(one, other).confidence_interval(0.95)
    assert (found.mean - found.half, found.mean + found.half) == pytest.approx((interval.low, interval.high))
    assert not found.is_clear
    assert Difference("a", "", "b", (1.0, 1.1, 0.9)).is_clear


def entry(row: str, column: str, **changes: object) -> Entry:
    return Entry(row, column, tuple(Trial(seed=seed, **changes) for seed in range(4)))  # type: ignore[arg-type]


def cell(of: Entry, errors: tuple[float, ...], seeds: tuple[int, ...]) -> Cell:
    return Cell(of.row, of.column, 4, errors=errors, seeds=seeds)


def test_pairs_are_of_one_seed_and_of_three_at_least() -> None:
    norm, whitened = entry("BN", "d = 4"), entry("Exact", "d = 4", layer="zca", d=4)
    base = cell(norm, (1.0, 2.0, 4.0, 8.0), (0, 1, 2, 3))
    [found] = differences([norm, whitened], [base, cell(whitened, (9.0, 5.0, 1.5), (3, 2, 0))])
    assert (found.row, found.reference, found.values) == ("Exact", "BN", (1.0, 1.0, 0.5))
    assert differences([norm, whitened], [base, cell(whitened, (9.0, 5.0), (3, 2))]) == []
    fewer = cell(norm, (1.0, 2.0, 4.0), (0, 1, 2))  # a seed failed in the reference: it has no pair
    [found] = differences([norm, whitened], [fewer, cell(whitened, (9.0, 5.0, 1.5, 2.5), (3, 2, 0, 1))])
    assert found.values == (1.0, 0.5, 0.5)


def test_the_reference_is_batch_norm_of_the_same_network_and_data_or_the_first_row() -> None:
    some = [
        entry("18 Exact", "d = 4", layer="zca", model="resnet18"),
        entry("18 BN", "Batch Norm", model="resnet18"),
        entry("50 Exact", "d = 4", layer="zca", model="resnet50"),
        entry("50 Taylor", "d = 4", layer="zca", method="taylor", model="resnet50"),
    ]
    cells = [cell(each, (float(i), i + 1.0, i + 2.0), (0, 1, 2)) for i, each in enumerate(some)]
    named = {(x.row, x.reference): x.mean for x in differences(some, cells)}
    assert named == {("18 Exact", "18 BN, Batch Norm"): -1.0, ("50 Taylor", "50 Exact"): 1.0}


@pytest.mark.parametrize("figure", ["at_floor", "solver_failures"])
def test_counts_have_no_differences_in_points(figure: Figure) -> None:
    entries = [replace(entry(row, "d = 4", layer="zca", d=d), figure=figure) for row, d in (("a", 4), ("b", 8))]
    cells = [replace(cell(each, (1.0, 2.0, 4.0), (0, 1, 2)), figure=figure) for each in entries]
    assert differences(entries, cells) == []
    plain = [replace(each, figure="test_error") for each in entries]
    assert len(differences(plain, [replace(each, figure="test_error") for each in cells])) == 1
