"""The sections on matrices: eigh forward, backward of a spectral function, forward + backward of M^(-1/2)."""

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

import spectralgrad as sg

from . import peers
from .case import AS_FAST, Case
from .inputs import covariances, normal, symmetric
from .measure import SETS, Call, Effort, measure, timed_row
from .rows import Row

COMPILED_BATCH = 256  # at other sizes peers that compile for each shape are left out: it takes longer than all else
OVERHEAD, CALL_SECONDS = 1.05, 5e-5  # what may be lost around another's routine: of its time, and for the call


def _inputs(case: Case, device: torch.device) -> list[Tensor]:
    dtype = getattr(torch, case.dtype)
    return [covariances(case.d, case.batch, device, seed, dtype) for seed in range(SETS)]


def time_eigh(case: Case, device: torch.device, effort: Effort) -> list[Row]:
    """M -> eigenpairs, against the baseline here: on CUDA cuSOLVER's batched routine, as torch 2.12 calls it.

    A case of the kind "as fast" has its target from that: ours may add 5 % and 0.05 ms.
    """
    sets = _inputs(case, device)
    others = peers.eigensolvers(device, compiled=case.batch == COMPILED_BATCH)
    optional = {name: partial(_call, eigh, sets) for name, eigh in list(others.items())[1:]}
    name, baseline = next(iter(others.items()))
    times = measure(lambda i: sg.eigh(sets[i]), (name, _call(baseline, sets)), optional, device, effort)
    row = replace(timed_row(case, times, name, at_least=True), dtype=case.dtype)
    if case.kind == AS_FAST and name in row.seconds:
        base = row.seconds[name][1]
        return [replace(row, target=base / (OVERHEAD * base + CALL_SECONDS))]
    return [row]


def _call(eigh: peers.Eigh, sets: list[Tensor]) -> Call:
    return lambda i: eigh(sets[i])


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
