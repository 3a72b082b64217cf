"""A whitening step with the papers' power iterations on the GPU: what their kernels cost beside the exact gradient."""

from dataclasses import replace
from typing import Any

import torch

import spectralgrad as sg

from .case import Case
from .inputs import normal
from .layers import layer_step
from .measure import SETS, Effort, measure, timed_row
from .on_request import POWER_KINDS
from .rows import Row

STEPS = 19  # as in the papers
EXACT = "exact gradient"
OPTIONS: dict[str, dict[str, Any]] = dict(
    zip(POWER_KINDS, ({"gradient": sg.PowerIteration(STEPS)}, {"solver": sg.PowerDeflation(STEPS)}), strict=True)
)


def time_power(case: Case, device: torch.device, effort: Effort) -> list[Row]:
    """Milliseconds of DecorrelatedBatchNorm2d with groups of d channels, forward + backward, by iterations of one kind."""
    leaves = [normal(*case.shape, device=device, seed=seed).requires_grad_() for seed in range(SETS)]
    gradient = normal(*case.shape, device=device, seed=SETS)
    ours, exact = (
        layer_step(sg.nn.DecorrelatedBatchNorm2d(case.shape[1], group_size=case.d, **options).to(device), leaves, gradient)
        for options in (OPTIONS[case.kind], {})
    )
    times = measure(ours, (EXACT, exact), {}, device, effort)
    row = timed_row(case, times, EXACT, at_least=False, kind="milliseconds")
    return [replace(row, case=f"{case.kind}, {case.label}")]
