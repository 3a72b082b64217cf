"""Which parameters are quick (`support.marks.covering`, and the marker of that name in conftest.py)."""

from itertools import combinations, product
from typing import Any

import pytest

from support.marks import covering

GRID = [dict(zip("abcd", point, strict=True)) for point in product(range(4), range(3), range(3), range(2))]


def pairs(grid: list[dict[str, int]]) -> set[Any]:
    return {pair for point in grid for pair in combinations(point.items(), 2)}


def test_each_pair_is_there() -> None:
    quick = [GRID[i] for i in sorted(covering(GRID, 2))]
    assert pairs(quick) == pairs(GRID)
    assert 12 <= len(quick) <= 14  # 12 pairs of the two largest parameters, out of 72 points


def test_each_value_is_there() -> None:
    quick = [GRID[i] for i in covering(GRID, 1)]
    assert {value for point in quick for value in point.items()} == {value for point in GRID for value in point.items()}
    assert len(quick) == 4
    assert [sum(point["d"] == d for point in quick) for d in range(2)] == [2, 2]  # spread, not all on the first


def test_only_what_the_grid_holds_is_asked_for() -> None:
    """A grid with holes; a strength above the number of parameters is the whole grid."""
    diagonal = [{"a": i, "b": i} for i in range(3)]
    assert covering(diagonal, 2) == covering(diagonal, 5) == {0, 1, 2}
    assert covering([], 2) == set()


@pytest.mark.covering(2)
@pytest.mark.parametrize("a", range(3))
@pytest.mark.parametrize("b", [0, pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize("c", range(2))
def test_marked(a: int, b: int, c: int) -> None:
    """Looked at by the next test."""


def test_the_marker(request: pytest.FixtureRequest) -> None:
    """Each pair of a = 0, 1, 2, b = 0, 2 and c = 0, 1 is in a quick test, and the other tests are slow."""
    tests = [item for item in request.session.items if getattr(item, "originalname", "") == "test_marked"]
    quick = [item.callspec.params for item in tests if not item.get_closest_marker("slow")]
    if not quick:
        pytest.skip("needs the other tests of this file to be collected")
    assert pairs(quick) == pairs([{"c": c, "b": b, "a": a} for a in range(3) for b in (0, 2) for c in range(2)])
    assert len(quick) == 6
