"""Layers that start a decomposition from the last step's eigenvectors: on a GPU, here under the emulator."""

import copy

import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from spectralgrad.kernels import jacobi
from spectralgrad.nn import DecorrelatedBatchNorm2d
from support import cases
from support.on_cpu import on_cpu  # noqa: F401
from support.routes import one_node, take


@pytest.fixture
def starts(on_cpu: None, monkeypatch: pytest.MonkeyPatch) -> list[Tensor | None]:  # noqa: F811
    """The starting bases that the kernel was given, in the fused node with checks off: what happens on CUDA."""
    given: list[Tensor | None] = []
    eigh = jacobi.eigh

    def watched(M: Tensor, nonfinite: Tensor, start: Tensor | None = None) -> tuple[Tensor, Tensor]:
        given.append(start)
        return eigh(M, nonfinite, start)

    monkeypatch.setattr(jacobi, "eigh", watched)
    take(monkeypatch, one_node)
    return given


def run(layer: DecorrelatedBatchNorm2d, steps: int = 3) -> list[Tensor]:
    """Outputs and gradients of some training steps on batches that resemble each other."""
    found = []
    mix = cases.random(6, 6)
    with sg.checks(False):
        for seed in range(steps):
            x = torch.einsum("ij,njhw->nihw", mix, cases.random(40, 6, 3, 3, seed=seed)).requires_grad_()
            y = layer(x)
            y.backward(cases.random(*y.shape, seed=99))
            found += [y.detach(), x.grad]
    return found


def make(**options: bool) -> DecorrelatedBatchNorm2d:
    return DecorrelatedBatchNorm2d(6, group_size=3, dtype=torch.float64, solver=sg.Jacobi(), **options)


def test_results_do_not_depend_on_it(starts: list[Tensor | None]) -> None:
    cold = run(make())
    assert starts == [None] * 3
    starts.clear()
    layer = make(warm_start=True)
    warm = run(layer)
    assert starts[0] is None
    assert all(start is not None for start in starts[1:])
    for x, y in zip(warm, cold, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-10)
    assert "last_basis" not in layer.state_dict()
    assert not any("basis" in key for key in layer.state_dict())


def test_a_copy_goes_on_from_the_same_basis(starts: list[Tensor | None]) -> None:
    layer = make(warm_start=True)
    run(layer, 1)
    again = copy.deepcopy(layer)
    assert again.last_basis is not None
    assert torch.equal(again.last_basis, layer.last_basis)  # type: ignore[arg-type]


def test_a_basis_of_another_dtype_is_not_used(starts: list[Tensor | None]) -> None:
    layer = make(warm_start=True)
    run(layer, 1)
    assert layer.last_basis is not None
    layer.last_basis = layer.last_basis.float()
    starts.clear()
    run(layer, 1)
    assert starts == [None]


def test_the_basis_stays_where_it_lies(starts: list[Tensor | None]) -> None:
    """So that the replays of a CUDA graph go on from each other. Not in memory that may not change any more."""
    layer = make(warm_start=True)
    run(layer, 1)
    first, before = layer.last_basis, layer.last_basis.clone()  # type: ignore[union-attr]
    run(layer, 2)
    assert layer.last_basis is first
    assert not torch.equal(first, before)  # type: ignore[arg-type]
    with torch.inference_mode(), sg.checks(False):
        layer.last_basis = None
        layer(cases.random(40, 6, 3, 3))
    assert layer.last_basis.is_inference()  # type: ignore[union-attr]
    run(layer, 1)
    assert not layer.last_basis.is_inference()  # type: ignore[union-attr]


def test_nothing_is_kept_on_the_cpu() -> None:
    layer = DecorrelatedBatchNorm2d(4, warm_start=True)
    layer(cases.random(8, 4, 2, 2).float())
    assert layer.last_basis is None


def test_it_shows() -> None:
    assert "warm_start=True" in repr(DecorrelatedBatchNorm2d(4, warm_start=True))
    assert "warm_start" not in repr(DecorrelatedBatchNorm2d(4))
