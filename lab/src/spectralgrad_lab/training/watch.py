"""Looking after a training: numbers that stop being finite, and the figures of the condition monitor by epoch."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

import spectralgrad as sg

FAILED_ATTEMPTS = ("solver_retry_float64", "solver_retry_jitter", "solver_failed")
MEANS = (
    *("condition_range", "range", "smallest_gap", "mean_ratio"),
    *("at_floor", "kept_rank", "gradient_before", "gradient_after"),
)
_NEVER = 2**62
_CAUSES = ("the loss is not finite", "the gradient is not finite")


class Diverged(Exception):
    """The training has failed: why, and in which step (1 is the first)."""

    def __init__(self, reason: str, step: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.step = step


class Finiteness:
    """The first step whose loss or gradient was not finite, kept on the device: to notice it does not make the host wait.

    Args:
        device: where the training is.
        step: steps done before.

    >>> seen = Finiteness(torch.device("cpu"))
    >>> seen.note(torch.tensor(1.0), [torch.ones(2)])
    >>> seen.note(torch.tensor(1.0), [torch.tensor([1.0, float("nan")])])
    >>> seen.check()
    Traceback (most recent call last):
    spectralgrad_lab.training.watch.Diverged: the gradient is not finite
    """

    def __init__(self, device: torch.device, step: int = 0) -> None:
        self.first = torch.full((), _NEVER, dtype=torch.int64, device=device)  # 2 step + cause
        self.step = torch.full((), step, dtype=torch.int64, device=device)

    def note(self, loss: Tensor, gradients: Sequence[Tensor]) -> None:
        """Look at the next step; no gradients where a scaler looks after them."""
        with torch.no_grad():
            self.step += 1
            code = torch.where(torch.isfinite(loss), _NEVER, 2 * self.step)
            if gradients:
                # The largest entry, which does not overflow as a sum of squares does.
                largest = get_total_norm(gradients, math.inf)
                code = torch.minimum(code, torch.where(torch.isfinite(largest), _NEVER, 2 * self.step + 1))
            torch.minimum(self.first, code, out=self.first)  # in place: a CUDA graph knows this tensor

    def check(self) -> None:
        """Raise `Diverged` if something was noted; here the host waits."""
        code = int(self.first)
        if code != _NEVER:
            raise Diverged(_CAUSES[code % 2], code // 2)


def failed_attempts() -> int:
    """Attempts of solvers that failed, in this process so far."""
    counted = sg.counts()
    return sum(counted.get(event, 0) for event in FAILED_ATTEMPTS)


def figures(records: Iterable[Mapping[str, Any]], eps: float) -> dict[str, float | None]:
    """The monitor's records of an epoch as means over steps, layers and groups.

    ``condition`` is the mean of the finite ones and ``singular`` the share of the others; ``condition_shifted`` is that of
    the covariance + eps I, which is what is decomposed and always finite. ``condition_range`` is l_1 / l_r before eps,
    and ``range`` is r, the rank that the covariance can have. None where there is no number.

    >>> one = {"condition": 8.0, "largest": 8.0, "smallest": 1.0, "at_floor": 0}
    >>> two = {"condition": float("inf"), "largest": 6.0, "smallest": -1e-9, "at_floor": 2}
    >>> found = figures([one, two], eps=1.0)
    >>> found["condition"], found["singular"], found["condition_shifted"], found["at_floor"]
    (8.0, 0.5, 5.75, 1.0)
    """
    found = list(records)
    conditions = [float(record["condition"]) for record in found]
    shifted = [(float(r["largest"]) + eps) / (max(float(r["smallest"]), 0.0) + eps) for r in found if eps > 0]
    result = {
        "condition": _mean(conditions),
        "singular": sum(math.isinf(x) for x in conditions) / len(conditions) if conditions else None,
        "condition_shifted": _mean(shifted),
    }
    return result | {name: _mean([r[name] for r in found if r.get(name) is not None]) for name in MEANS}


def _mean(values: Sequence[float]) -> float | None:
    finite = [float(value) for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else None
