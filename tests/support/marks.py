"""Marks for parametrized tests."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pytest


def slow_but(quick: Collection[str], values: Mapping[str, Any] | Iterable[str]) -> list[Any]:
    """All values as parameters; those that are not named ``quick`` are marked slow: `make test-all` runs them too."""
    found = values if isinstance(values, Mapping) else {name: name for name in values}
    missing = set(quick) - set(found)
    assert not missing, f"no such values: {missing}"
    return [pytest.param(value, id=name, marks=() if name in quick else pytest.mark.slow) for name, value in found.items()]
