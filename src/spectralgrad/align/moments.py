"""Means, cross-covariance and variances of two clouds: in plain torch, and as one autograd node for the CPU.

With shares p_i = w_i / sum w, a_i = x_i - mx and b_i = y_i - my,

    mx = sum p_i x_i,     my = sum p_i y_i,     A = sum p_i b_i a_i^T,     v = sum p_i |a_i|^2 .

Plain torch passes some thirty times over the points, there and back. The node passes once in each direction (passes.py).
The plain composition stays for what a plain node cannot do: torch.func, forward mode, torch.compile, the second derivative.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from spectralgrad.context import compiling, is_plain_backward, may_read, transforming
from spectralgrad.linalg.autograd import call, composed_gradients
from spectralgrad.linalg.moves import cast
from spectralgrad.linalg.precision import matmul

from .passes import Moments, backward, coincide, forward

__all__ = ["Moments", "moments", "moments_at_once"]

_ROOM = 2.0**8  # for slopes of shares near the largest number: their sum over coordinates must not meet two infinities


def moments(x: Tensor, y: Tensor, share: Tensor | None, eps: float) -> Moments:
    """Those of points (*B, N, d) in float64, rounded to ``eps`` before, with shares (*B, N, 1), in plain torch."""
    (mean_x, a, variance, single_x), (mean_y, b, _, single_y) = (_around_mean(z, share, eps) for z in (x, y))
    weighted = b / b.shape[-2] if share is None else b / _ROOM * (share * _ROOM)
    A = matmul(weighted.mT, a)
    return Moments(mean_x, mean_y, A, variance, single_x, single_y)


def _around_mean(x: Tensor, share: Tensor | None, eps: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The mean (*B, d), the points around it (*B, N, d), their variance (*B,), and whether they are one point (*B,)."""
    mean = x.mean(-2, keepdim=True) if share is None else matmul(share.mT, x)
    centred = x - mean
    squares = centred.square().sum(-1, keepdim=True)  # (*B, N, 1)
    variance = (squares.mean(-2) if share is None else (squares * share).sum(-2)).squeeze(-1)
    mean, seen = mean.squeeze(-2), squares.detach()
    seen = seen if share is None else torch.where(share.detach() == 0, 0, seen)
    return mean, centred, variance, coincide(mean.detach(), seen.amax((-2, -1)), variance.detach(), eps)


def moments_at_once(x: Tensor, y: Tensor, weights: Tensor | None, batch: torch.Size, eps: float) -> Moments | None:
    """Those of points (*B, N, d) and weights (*B, N) as given, by the node. None where something asks for the other way:
    transforms, values that are not finite, weights that cannot be used, and sizes near the ends of the range.
    """
    given = (x, y) if weights is None else (x, y, weights)
    if compiling() or transforming() or not all(map(may_read, given)) or 0 in batch:
        return None
    x, y = (points if points.shape[:-2] == batch else points.expand(*batch, -1, -1) for points in (x, y))
    w = weights if weights is None or weights.shape[:-1] == batch else weights.expand(*batch, -1)
    with torch.no_grad():
        found = forward(x, y, w, eps)
    if found is None or not (torch.is_grad_enabled() and any(z.requires_grad for z in given)):
        return found
    return Moments(*call(_Node, x, y, w, found))


class _Node(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, w: Tensor | None, found: Moments) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x, y, w, found.mean_x, found.mean_y)
        ctx.mark_non_differentiable(found.single_x, found.single_y)
        ctx.set_materialize_grads(False)
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        x, y, w, *means = ctx.saved_tensors
        needs = ctx.needs_input_grad[:3]
        if is_plain_backward(*(grad for grad in grads if grad is not None)):
            return *backward(x, y, w, means, grads[:4], needs), None
        of_x, of_y = needs[0] or needs[2], needs[1] or needs[2]
        wanted = [i for i, needed in enumerate((of_x, of_y, True, of_x)) if needed and grads[i] is not None]
        plain = partial(_composed, wanted=wanted)
        return *composed_gradients(needs, plain, (x, y, w), tuple(grads[i] for i in wanted)), None


def _composed(x: Tensor, y: Tensor, w: Tensor | None, wanted: list[int]) -> tuple[Tensor, ...]:
    """The wanted ones of `moments`, of usable weights (*B, N)."""
    X, Y, share = cast(x, torch.float64), cast(y, torch.float64), None
    if w is not None:
        w = cast(w, torch.float64) if w.is_floating_point() else w.to(torch.float64)
        w = torch.where(w != 0, w, 0)  # the weight of a point that is not looked at has gradient 0
        share = (w / w.sum(-1, keepdim=True)).unsqueeze(-1)
        X, Y = (torch.where(share != 0, points, 0) for points in (X, Y))
    found = moments(X, Y, share, 0.0)
    return tuple(found[i] for i in wanted)
