"""The CPU as if it were a GPU: for tests of what runs there."""

import importlib
from collections.abc import Iterator

import pytest

import spectralgrad as sg

LOOKING = ("iteration", "lyapunov", "roots", "polar", "refinement")  # modules that ask whether the host may look


@pytest.fixture
def unwatched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What holds on CUDA: the host may not look, and nothing is checked."""
    for name in LOOKING:
        monkeypatch.setattr(
            importlib.import_module(f"spectralgrad.linalg.products.{name}"), "host_may_look", lambda _: False
        )
    sg.reset_counts()
    with sg.checks(False):
        yield
    sg.reset_counts()
