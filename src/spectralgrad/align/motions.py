"""The motion between two clouds as one autograd node on CUDA: one kernel there and one back (kernels/clouds.cu).

For float32 in up to four coordinates. The plain composition of clouds.py stays for all else, and for what a plain node
cannot do: torch.func, forward mode, torch.compile, value checks, the second derivative.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from spectralgrad.context import compiling, transforming
from spectralgrad.counters import device_counter
from spectralgrad.kernels import clouds
from spectralgrad.kernels.clouds import Clouds, Rounding, Slopes
from spectralgrad.linalg.node import Shortcut, Some, run

from .procrustes import NOT_UNIQUE

Composition = Callable[..., tuple[Tensor, ...]]  # of x, y and w


def motion_at_once(
    given: tuple[Tensor, Tensor, Tensor | None], batch: torch.Size, scaled: bool, rounding: Rounding, plain: Composition
) -> tuple[Tensor, ...] | None:
    """R and t, with ``scaled`` also s, for points (*B, N, d) and weights (*B, N) without value checks. None where something
    asks for the composition, ``plain``.
    """
    if compiling() or transforming():
        return None
    x, y, w = given
    if w is not None and w.dtype == torch.bool:
        w = w.to(torch.float32)
    if not clouds.runs_on(x, y, w):
        return None
    x, y = (points if points.shape[:-2] == batch else points.expand(*batch, -1, -1) for points in (x, y))
    w = w if w is None or w.shape[:-1] == batch else w.expand(*batch, -1)
    if torch.is_grad_enabled() and any(z is not None and z.requires_grad for z in (x, y, w)):
        return run(_AtOnce(scaled, rounding, plain), x, y, w)  # type: ignore[no-any-return]
    return _align(Clouds(x, y, w), scaled, False, rounding)[0]


def _align(given: Clouds, scaled: bool, keep: bool, rounding: Rounding) -> tuple[tuple[Tensor, ...], Tensor | None]:
    device = given.x.device
    counters = device_counter("nonfinite_input", device), device_counter(NOT_UNIQUE, device)
    R, t, s, kept = clouds.align(given, scaled, keep, rounding, *counters)
    return ((R, t) if s is None else (R, t, s)), kept


class _AtOnce(Shortcut):
    def __init__(self, scaled: bool, rounding: Rounding, plain: Composition) -> None:
        self.scaled, self.rounding, self.plain = scaled, rounding, plain
        self.found: Tensor | None = None

    def composition(self, *given: Any) -> tuple[Tensor, ...]:
        return self.plain(*given)

    def value(self, *given: Any) -> tuple[Tensor, ...]:
        found, self.found = _align(Clouds(*given), self.scaled, True, self.rounding)
        return found

    def pull_shortly(self, kept: Any, grads: Any, needed: Sequence[bool]) -> Some:
        assert self.found is not None
        slopes = Slopes(*grads, *([] if self.scaled else [None]))
        return clouds.spread(Clouds(*kept[:3]), self.found, slopes, tuple(needed), self.scaled, self.rounding.values)
