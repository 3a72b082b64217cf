"""`trace`: every decomposition, torch's and ours, where it was called and what its gradient did."""

import gc
import tracemalloc
from typing import Any

import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from spectralgrad.linalg import node


class Pool(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        w, V = torch.linalg.eigh(x)  # the line that the sentence names
        return V @ torch.diag_embed(w.rsqrt()) @ V.mT


LINE = Pool.forward.__code__.co_firstlineno + 1


class Ours(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return sg.inv_sqrtm(x)


class Net(torch.nn.Module):
    def __init__(self, pool: torch.nn.Module) -> None:
        super().__init__()
        self.head = torch.nn.Sequential(torch.nn.Identity(), pool)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x).sum()


def batch(tied: int | None = 2) -> Tensor:
    w = torch.arange(1.0, 5).repeat(3, 1)
    if tied is not None:
        w[tied, 1] = w[tied, 2]
    return torch.diag_embed(w).requires_grad_()


def test_the_sentence_names_module_line_and_pair() -> None:
    model = Net(Pool())
    with sg.diagnostics.trace() as t:
        model(batch()).backward()
    assert t.first is t.records[0]
    assert (t.first["module"], t.first["line"], t.first["file"]) == ("model.head.1", LINE, __file__)
    assert (t.first["matrix"], t.first["pair"], t.first["tied_pairs"], t.first["gap"]) == (2, (1, 2), 1, 0.0)
    assert t.sentence.startswith(
        f"The NaN began at model.head.1, line {LINE} of {__file__}: eigenvalues 1 and 2 of matrix 2 tie"
    )
    assert "inv_sqrtm" in t.sentence
    assert "torch.linalg.eigh" in str(t)
    assert torch.isfinite(torch.tensor(t.first["gradient_in"]))
    assert t.first["gradient_out"] != t.first["gradient_out"]


def test_ours_are_listed_and_keep_their_gradient() -> None:
    model = Net(Ours())
    x = batch()
    with sg.diagnostics.trace() as t:
        model(x).backward()
    (record,) = t.records  # not once more for what it asks of torch
    assert (record["function"], record["module"], record["tied_pairs"]) == ("inv_sqrtm", "model.head.1", 1)
    assert record["gradient_out"] == pytest.approx(float(x.grad.norm()))  # type: ignore[union-attr]
    assert t.first is None
    assert t.sentence.startswith("No gradient broke")


def test_condition_and_amplification() -> None:
    with sg.diagnostics.trace() as t:
        torch.linalg.svd(torch.diag(torch.tensor([4.0, 3.0, 0.5])))
    assert t.records[0]["condition"] == 8
    assert t.records[0]["gap"] == 0.25
    assert t.records[0]["amplification"] == 4
    assert t.records[0]["gradient_in"] is None


def test_a_gradient_that_came_broken_is_not_blamed_on_the_decomposition() -> None:
    x = batch(None)
    with sg.diagnostics.trace() as t:
        (torch.linalg.eigh(x).eigenvalues.sum() * torch.nan).backward()
    assert t.first is None
    assert "before it came" in t.sentence


def test_around_nothing_and_around_a_model_that_raises() -> None:
    before = node._Node.forward, node._Node.backward
    with sg.diagnostics.trace() as t:
        pass
    assert t.records == []
    assert str(t) == "No decomposition ran in this block."
    with pytest.raises(torch.linalg.LinAlgError), sg.diagnostics.trace() as t:
        Net(Pool())(torch.full((3, 3), torch.nan))
    assert f"Net.head.1, line {LINE} of {__file__}" in t.sentence
    assert "torch.linalg.eigh failed" in t.sentence
    assert (node._Node.forward, node._Node.backward) == before  # off, nothing is left


def test_memory_is_bounded_and_the_worst_are_kept() -> None:
    gaps = torch.linspace(1, 2, 300)
    matrices = [torch.diag(torch.tensor([1.0, 1 + float(g) / 4])).requires_grad_() for g in gaps]
    matrices[17] = torch.eye(2, requires_grad=True)
    with sg.diagnostics.trace(most=5) as t:
        for M in matrices:
            torch.linalg.eigh(M)
    assert t.calls == 300
    assert len(t.records) == 5
    assert min(x["gap"] for x in t.records) == 0
    assert max(x["gap"] for x in t.records) < 0.21
    with sg.diagnostics.trace(most=5):
        tracemalloc.start()
        for M in matrices:
            torch.linalg.eigh(M)
        gc.collect()
        first = tracemalloc.get_traced_memory()[0]
        for M in matrices:
            torch.linalg.eigh(M)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - first
        tracemalloc.stop()
    assert grown < 20_000
    with pytest.raises(sg.errors.OptionError, match="most"):
        sg.diagnostics.trace(most=0)


def test_nested_and_with_drop_in() -> None:
    model: Any = Net(Pool())
    x = batch()
    with sg.diagnostics.trace() as outer, sg.drop_in(), sg.diagnostics.trace() as inner:
        model(x).backward()
    assert x.grad is not None
    assert bool(x.grad.isfinite().all())
    assert len(inner.records) >= 1
    assert len(outer.records) >= 1
    assert outer.first is None
