"""Marks for parametrized tests."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

import pytest


def slow_but(quick: Collection[str], values: Mapping[str, Any] | Iterable[str]) -> list[Any]:
    """All values as parameters; those that are not named ``quick`` are marked slow: `make test-all` runs them too."""
    found = values if isinstance(values, Mapping) else {name: name for name in values}
    missing = set(quick) - set(found)
    assert not missing, f"no such values: {missing}"
    return [pytest.param(value, id=name, marks=() if name in quick else pytest.mark.slow) for name, value in found.items()]


def covering(grid: Sequence[Mapping[str, Any]], strength: int) -> set[int]:
    """The points of a grid that together hold each combination of ``strength`` values that the grid holds.

    Greedy: next comes the point with the most new combinations; among equals the one whose values were taken least often, so
    that each value of a long parameter does not meet the first value of a short one.

    Args:
        grid: of each point, parameter -> what tells its value from others.
        strength: 1: each value occurs; 2: each pair of values of two parameters.

    Returns:
        The places of the points in ``grid``.
    """
    held = [set(combinations(sorted(point.items()), min(strength, len(point)))) for point in grid]
    kept: set[int] = set()
    left: set[Any] = set().union(*held)
    taken: Counter[tuple[str, Any]] = Counter()
    while left:
        best = max(range(len(grid)), key=lambda i: (len(held[i] & left), -sum(taken[value] for value in grid[i].items())))
        kept.add(best)
        taken.update(grid[best].items())
        left -= held[best]
    return kept
