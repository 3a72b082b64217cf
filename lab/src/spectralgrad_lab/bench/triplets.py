"""The sections on singular values: svd forward, and the polar factor forward + backward, against torch in the same run."""

from collections.abc import Callable

import torch
from torch import Tensor

import spectralgrad as sg

from . import peers
from .case import Case
from .inputs import normal
from .measure import SETS, Call, Effort, measure, timed_row
from .rows import Row

Factor = Callable[[Tensor], Tensor]
OURS: dict[str, Factor] = {
    "polar": sg.polar,
    "procrustes": sg.procrustes,
    "procrustes, special": lambda A: sg.procrustes(A, special=True),
}


def _matrices(case: Case, device: torch.device) -> list[Tensor]:
    dtype = getattr(torch, case.dtype)
    return [normal(case.batch, *case.shape, device=device, seed=seed, dtype=dtype) for seed in range(SETS)]


def time_svd(case: Case, device: torch.device, effort: Effort) -> list[Row]:
    """A -> U, S, Vh."""
    sets = _matrices(case, device)
    baseline: tuple[str, Call] = (peers.TORCH_SVD, lambda i: torch.linalg.svd(sets[i], full_matrices=False))
    return [
        timed_row(case, measure(lambda i: sg.svd(sets[i]), baseline, {}, device, effort), peers.TORCH_SVD, at_least=True)
    ]


def _by_torch(A: Tensor) -> Tensor:
    U, _, Vh = torch.linalg.svd(A, full_matrices=False)
    Q: Tensor = U @ Vh
    return Q


def time_polar(case: Case, device: torch.device, effort: Effort) -> list[Row]:
    """Milliseconds of Q and of its gradient in a random direction; torch differentiates through its svd."""
    leaves = [A.requires_grad_() for A in _matrices(case, device)]
    G = normal(case.batch, *case.shape, device=device, seed=SETS, dtype=leaves[0].dtype)

    def both(f: Factor) -> Call:
        return lambda i: torch.autograd.grad(f(leaves[i]), leaves[i], G)

    times = measure(both(OURS[case.function]), (peers.TORCH_SVD, both(_by_torch)), {}, device, effort)
    return [timed_row(case, times, peers.TORCH_SVD, at_least=False, kind="milliseconds")]
