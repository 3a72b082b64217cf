"""A GPU that is not there, for the predicates that say what runs on one."""

from collections.abc import Iterator

import pytest
import torch

from spectralgrad.kernels import nvrtc, syev, tiles


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """As if torch saw one H200; what is set here can be set once more."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(tiles, "has_triton", lambda: True)
    monkeypatch.setattr(nvrtc, "_libraries", lambda: ("NVRTC", "the driver"))
    monkeypatch.setattr(syev, "_library", lambda: "libcusolver")
    monkeypatch.setattr(nvrtc, "shared_memory", lambda _: 226 << 10)
    monkeypatch.setattr(nvrtc, "for_clusters", lambda _: 132)
    cached = tiles.obstacle, tiles.largest_group, nvrtc.obstacle, syev.obstacle
    for predicate in cached:
        predicate.cache_clear()
    yield monkeypatch
    for predicate in cached:
        predicate.cache_clear()
