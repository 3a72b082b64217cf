"""Activation checkpointing runs a forward pass twice; the running statistics are updated by the first alone."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.utils.checkpoint import checkpoint

import spectralgrad.nn as snn

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "zca": lambda: snn.DecorrelatedBatchNorm1d(4),
    "pca": lambda: snn.DecorrelatedBatchNorm1d(4, whitening="pca"),
    "cumulative": lambda: snn.DecorrelatedBatchNorm1d(4, momentum=None),
    "running whitening": lambda: snn.DecorrelatedBatchNorm1d(4, running="whitening"),
    "denoise": lambda: snn.PCADenoise1d(4, rank=2),
    "spd": lambda: snn.SPDBatchNorm(4),
}


def sample(layer: nn.Module) -> Tensor:
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(0)) * torch.arange(1.0, 5.0) + 1
    if isinstance(layer, snn.SPDBatchNorm):
        return x.unsqueeze(-1) * x.unsqueeze(-2) + torch.eye(4)
    return x


def trained(part: nn.Module, reentrant: bool | None) -> Tensor:
    """The gradient of an input after one step, by checkpointing or, for None, without."""
    x = sample(part[0]).requires_grad_()
    y = part(x) if reentrant is None else checkpoint(part, x, use_reentrant=reentrant)
    y.square().sum().backward()
    assert x.grad is not None
    return x.grad


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
def test_a_batch_counts_once(make: Callable[[], nn.Module], reentrant: bool) -> None:
    torch.manual_seed(0)
    part = nn.Sequential(make(), nn.Linear(4, 4))  # without a layer after it, torch ends the second pass early
    plain = copy.deepcopy(part)
    torch.testing.assert_close(trained(part, reentrant), trained(plain, None))
    assert part[0].num_batches_tracked == 1
    for name, buffer in plain[0].named_buffers():
        torch.testing.assert_close(part[0].get_buffer(name), buffer, rtol=0, atol=0)
    trained(part, None)  # and the next batch counts again
    assert part[0].num_batches_tracked == 2


@pytest.mark.parametrize("reentrant", [False, True])
def test_torch_counts_twice(reentrant: bool) -> None:
    """Control: the pass is really run again. If this fails, docs/integrations.md says too much of torch."""
    part = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 4))
    trained(part, reentrant)
    assert part[0].num_batches_tracked == 2


@pytest.mark.parametrize("momentum", [0.1, None])
def test_an_ensemble_trains_as_its_members_do(momentum: float | None) -> None:
    """By functional_call and vmap, without a warning of a missing rule; each member has running statistics of its own."""
    torch.manual_seed(0)
    members = [nn.Sequential(nn.Linear(4, 3), snn.DecorrelatedBatchNorm1d(3, momentum=momentum)).double() for _ in range(3)]
    parameters, buffers = stack_module_state(members)
    skeleton = copy.deepcopy(members[0]).to("meta")
    x = sample(members[0]).double()  # in float32 a condition number of 10^4 leaves four digits
    for _ in range(2):
        together = vmap(lambda p, b: functional_call(skeleton, (p, b), (x,)))(parameters, buffers)
    for i, member in enumerate(members):
        member(x)
        torch.testing.assert_close(together[i], member(x))
        for name, buffer in member.named_buffers():
            torch.testing.assert_close(buffers[name][i], buffer)
