"""The claim: the exact gradient costs no more than torch's. Forward + backward of `inv_sqrtm`, every method side by side.

All do the same work on the same covariances of 4d samples with the same random cotangent; the ratio is our time over
torch's in the same round.
"""

import math
import statistics
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from . import inputs, peers
from .case import Case
from .measure import SETS, Call, Effort, measure, timed_row
from .on_request import ZCA_OF_SAMPLES
from .peers import EXACT, TORCH, Root
from .rows import Row

ROUNDS = 11  # at least
ZCA_EPS = 1e-5


def requirement(d: int, batch: int, seconds: float) -> float | None:
    """The largest ratio allowed to us where torch takes ``seconds``; between 1 and 2 ms none is set.

    >>> requirement(4, 1, 2e-4), requirement(4, 1, 1.5e-3), requirement(4, 1, 1.0)
    (1.5, None, 1.15)
    """
    if batch == 256 and d >= 32 and torch.get_num_threads() > 1:
        return 0.7  # the batch is spread over threads, which torch does not do
    return 1.5 if seconds < 1e-3 else 1.15 if seconds > 2e-3 else None


def _forward_backward(function: Root, sets: list[Tensor], G: Tensor) -> Call:
    leaves = [x.clone().requires_grad_() for x in sets]
    return lambda i: torch.autograd.grad(function(leaves[i]), leaves[i], G)


def time_roots(case: Case, device: torch.device, effort: Effort) -> list[Row]:
    """M -> M^(-1/2), with a requirement; or X -> (X X^T / n + eps I)^(-1/2), where kornia can take part, with none."""
    dtype = getattr(torch, case.dtype)
    functions: dict[str, Root | None]
    if case.function == ZCA_OF_SAMPLES:
        X, G = inputs.samples(case.d, 4 * case.d, dtype), inputs.cotangents(case.d, 1, dtype)[0]
        sets, functions = [X] * SETS, peers.zca_of_samples(ZCA_EPS)
    else:
        wide = (inputs.covariances(case.d, case.batch, seed=seed, dtype=torch.float64) for seed in range(SETS))
        sets, G = [M.to(dtype) for M in wide], inputs.cotangents(case.d, case.batch, dtype)
        functions = {method.name: method.inv_sqrtm for method in peers.methods()}
    builds = {name: partial(_forward_backward, f, sets, G) for name, f in functions.items() if f is not None}
    ours, torchs = builds.pop(EXACT)(), builds.pop(TORCH)()
    effort = replace(effort, least=min(ROUNDS, effort.most), peers_up_to=math.inf)
    times = measure(ours, (TORCH, torchs), builds, device, effort, EXACT)
    row = timed_row(case, times, TORCH, at_least=False, method=EXACT)
    required = case.function != ZCA_OF_SAMPLES
    limit = requirement(case.d, case.batch, statistics.median(times.seconds[TORCH])) if required else None
    return [replace(row, target=limit, dtype=case.dtype)]
