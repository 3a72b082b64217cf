"""What is replayed and what is called, without a GPU: the record is a stand-in that counts.

On a GPU: lab/tests/transfer/test_cuda.py.
"""

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

from spectralgrad.kernels import graphs
from spectralgrad.kernels.graphs import Replayed


class Stand:
    """A record that computes, and says how it was come by."""

    made = 0

    def __init__(self, function: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> None:
        Stand.made += 1
        self.function = function

    def __call__(self, *inputs: Tensor) -> Tensor:
        return self.function(*inputs)


class Counted:
    """x -> 2 x, with the number of calls."""

    calls = 0

    def __call__(self, x: Tensor) -> Tensor:
        self.calls += 1
        return 2 * x


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the CPU could replay."""
    monkeypatch.setattr(graphs, "Record", Stand)
    monkeypatch.setattr(graphs, "replayable", lambda _: True)
    monkeypatch.setattr(graphs, "kind_of", lambda inputs: tuple((x.shape, x.dtype) for x in inputs))
    monkeypatch.setattr(graphs.torch.cuda, "device", nullcontext)
    monkeypatch.setattr(Stand, "made", 0)


@pytest.mark.usefixtures("everywhere")
def test_a_record_is_made_for_what_comes_again() -> None:
    f = Replayed(Counted())
    made = []
    for x in (torch.ones(2), torch.ones(3), torch.full((2,), 5.0), torch.full((2,), 7.0), torch.ones(2).double()):
        assert torch.equal(f(x), 2 * x)
        made.append(Stand.made)
    assert made == [0, 0, 1, 1, 1]  # another size, and another dtype, are other kinds


@pytest.mark.usefixtures("everywhere")
def test_few_records_are_kept() -> None:
    f = Replayed(Counted())
    for n in range(graphs.MOST + 1):
        for _ in range(2):
            f(torch.ones(n))
    assert len(f.records) == graphs.MOST
    made = Stand.made
    f(torch.ones(graphs.MOST))
    assert Stand.made == made
    for _ in range(2):  # the first went
        f(torch.ones(0))
    assert Stand.made == made + 1


@pytest.mark.usefixtures("everywhere")
def test_what_cannot_be_recorded_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def refuse(function: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> None:
        tried.append(inputs)
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(graphs, "Record", refuse)
    counted = Counted()
    f = Replayed(counted)
    for value in range(4):
        assert torch.equal(f(torch.full((2,), float(value))), torch.full((2,), 2.0 * value))
    assert len(tried) == 1
    assert counted.calls == 4


def test_the_cpu_is_not_replayed() -> None:
    counted = Counted()
    f = Replayed(counted)
    for _ in range(3):
        f(torch.ones(2))
    assert counted.calls == 3
    assert not f.records
