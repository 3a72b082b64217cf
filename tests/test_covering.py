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
@pytest.mark.parametrize(("c", "d"), [(0, 0), (1, 0)])
def test_marked(a: int, b: int, c: int, d: int) -> None:
    """Looked at by the next test."""


def quick_of(name: str, request: pytest.FixtureRequest) -> list[dict[str, int]]:
    """The parameters of the quick tests of that name, as collected."""
    tests = [item for item in request.session.items if getattr(item, "originalname", "") == name]
    quick = [item.callspec.params for item in tests if not item.get_closest_marker("slow")]
    if not quick:
        pytest.skip("needs the other tests of this file to be collected")
    return quick


def test_the_marker(request: pytest.FixtureRequest) -> None:
    """Each pair of a = 0, 1, 2, b = 0, 2 and (c, d) is in a quick test, and the other tests are slow."""
    quick = quick_of("test_marked", request)
    whole = [{"c": c, "b": b, "a": a} for a in range(3) for b in (0, 2) for c in range(2)]
    assert pairs([{name: point[name] for name in "cba"} for point in quick]) == pairs(whole)
    assert len(quick) == 6


ROWS = [(0, 0), (0, 1), (1, 0), (1, 1)]


@pytest.mark.covering(1)
@pytest.mark.parametrize(("a", "b"), ROWS)
@pytest.mark.parametrize("c", range(2))
def test_marked_with_rows(a: int, b: int, c: int) -> None:
    """Looked at by the next test."""


def test_parameters_that_are_named_together_are_one(request: pytest.FixtureRequest) -> None:
    quick = quick_of("test_marked_with_rows", request)
    assert sorted((point["a"], point["b"]) for point in quick) == ROWS
