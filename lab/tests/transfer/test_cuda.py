"""A style transfer's map on a GPU."""

import pytest
import torch

from spectralgrad.kernels.graphs import Replayed
from support import cases

pytest.importorskip("numpy", reason="pictures need it, and a GPU machine may have torch and pytest alone")
from spectralgrad_lab.transfer.matching import nearest_map

pytestmark = pytest.mark.cuda


def test_replayed_is_called() -> None:
    """The map of a style transfer: first called, then recorded, then replayed with other values, on two streams."""
    replayed = Replayed(nearest_map)
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            for seed in range(4):
                C, S = (cases.random_covariance(64, 1, seed=2 * seed + i).cuda() for i in range(2))
                got, expected = replayed(C, S), nearest_map(C.cpu(), S.cpu())
                assert cases.relative_error(got.cpu(), expected) < 1e-7
    assert not replayed.refused
    assert sum(record is not None for record in replayed.records.values()) == 2
