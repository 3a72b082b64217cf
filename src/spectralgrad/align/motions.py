"""The motion between two clouds as one autograd node on CUDA: one kernel there and one back (kernels/clouds.cu).

For float32 in up to four coordinates. The plain composition of clouds.py stays for all else, and for what a plain node
cannot do: torch.func, forward mode, torch.compile, value checks, the second derivative.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from spectralgrad.context import compiling, is_plain_backward, transforming
from spectralgrad.counters import device_counter
from spectralgrad.kernels import clouds
from spectralgrad.kernels.clouds import Clouds, Rounding, Slopes
from spectralgrad.linalg.autograd import call, composed_gradients

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
        return call(_Motion, x, y, w, scaled, rounding, plain)  # type: ignore[no-any-return]
    return _align(Clouds(x, y, w), scaled, False, rounding)[0]


def _align(given: Clouds, scaled: bool, keep: bool, rounding: Rounding) -> tuple[tuple[Tensor, ...], Tensor | None]:
    device = given.x.device
    counters = device_counter("nonfinite_input", device), device_counter(NOT_UNIQUE, device)
    R, t, s, kept = clouds.align(given, scaled, keep, rounding, *counters)
    return ((R, t) if s is None else (R, t, s)), kept


class _Motion(Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, y: Tensor, w: Tensor | None, scaled: bool, rounding: Rounding, plain: Composition
    ) -> tuple[Tensor, ...]:
        found, kept = _align(Clouds(x, y, w), scaled, True, rounding)
        ctx.save_for_backward(x, y, w, kept)
        ctx.scaled, ctx.eps, ctx.plain = scaled, rounding.values, plain
        ctx.set_materialize_grads(False)
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        x, y, w, kept = ctx.saved_tensors
        needs = ctx.needs_input_grad[:3]
        if is_plain_backward(*(grad for grad in grads if grad is not None)):
            slopes = Slopes(*grads, *([] if ctx.scaled else [None]))
            return *clouds.spread(Clouds(x, y, w), kept, slopes, needs, ctx.scaled, ctx.eps), None, None, None
        wanted = [i for i, grad in enumerate(grads) if grad is not None]

        def composed(*given: Tensor) -> tuple[Tensor, ...]:
            found = ctx.plain(*given)
            return tuple(found[i] for i in wanted)

        return *composed_gradients(needs, composed, (x, y, w), tuple(grads[i] for i in wanted)), None, None, None
