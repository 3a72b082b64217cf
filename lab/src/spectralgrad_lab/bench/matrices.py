"""The sections on matrices: eigh forward, backward of a spectral function, forward + backward of M^(-1/2)."""

from functools import partial

import torch
from torch import Tensor

import spectralgrad as sg

from . import peers
from .case import Case
from .inputs import covariances, normal, symmetric
from .measure import SETS, Call, Effort, measure, timed_row
from .rows import Row


def _inputs(case: Case, device: torch.device) -> list[Tensor]:
    return [covariances(case.d, case.batch, device, seed) for seed in range(SETS)]


def time_eigh(case: Case, device: torch.device, effort: Effort) -> list[Row]:
    """M -> eigenpairs."""
    sets = _inputs(case, device)
    other = peers.xitorch_eigh()
    optional = {} if other is None else {peers.XITORCH: lambda: lambda i: other(sets[i])}
    times = measure(
        lambda i: sg.eigh(sets[i]), (peers.TORCH_EIGH, lambda i: torch.linalg.eigh(sets[i])), optional, device, effort
    )
    return [timed_row(case, times, peers.TORCH_EIGH, at_least=True)]


def _backward(root: peers.Root, sets: list[Tensor], G: Tensor) -> Call:
    """Backward alone, of a graph that is kept."""
    leaves = [M.clone().requires_grad_() for M in sets]
    outputs = [root(M) for M in leaves]
    return lambda i: torch.autograd.grad(outputs[i], leaves[i], G, retain_graph=True)


def _forward_backward(root: peers.Root, sets: list[Tensor], G: Tensor) -> Call:
    leaves = [M.clone().requires_grad_() for M in sets]
    return lambda i: torch.autograd.grad(root(leaves[i]), leaves[i], G)


def time_root(case: Case, device: torch.device, effort: Effort) -> list[Row]:
    """M -> M^(-1/2): backward alone, or forward + backward, as the section says; random symmetric cotangent."""
    sets = _inputs(case, device)
    G = symmetric(normal(case.batch, case.d, case.d, device=device, seed=SETS))
    build = _backward if case.section == "backward" else _forward_backward
    optional = {name: partial(build, root, sets, G) for name, root in peers.inverse_roots().items()}
    baseline = (peers.TORCH, build(peers.torch_inv_sqrtm, sets, G))
    times = measure(build(sg.inv_sqrtm, sets, G), baseline, optional, device, effort)
    return [timed_row(case, times, peers.TORCH, at_least=True)]
