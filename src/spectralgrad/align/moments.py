"""Means, cross-covariance and variances of two clouds: in plain torch, and as one autograd node for the CPU.

With shares p_i = w_i / sum w, a_i = x_i - mx and b_i = y_i - my,

    mx = sum p_i x_i,     my = sum p_i y_i,     A = sum p_i b_i a_i^T,     v = sum p_i |a_i|^2 .

Plain torch passes some thirty times over the points, there and back. The node passes once in each direction (passes.py).
The plain composition stays for what a plain node cannot do: torch.func, forward mode, torch.compile, the second derivative.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from spectralgrad.context import compiling, may_read, transforming
from spectralgrad.linalg.node import Shortcut, Some, run
from spectralgrad.linalg.precision import matmul

from .passes import Moments, backward, coincide, forward
from .points import widened

__all__ = ["Moments", "mean", "moments", "moments_at_once", "shares"]


def moments(x: Tensor, y: Tensor, share: Tensor | None, eps: float) -> Moments:
    """Those of points (*B, N, d) in float64, rounded to ``eps`` before, with shares (*B, N, 1), in plain torch."""
    (mean_x, a, variance, single_x), (mean_y, b, _, single_y) = (_around_mean(z, share, eps) for z in (x, y))
    A = matmul((b / b.shape[-2] if share is None else b * share).mT, a)
    return Moments(mean_x, mean_y, A, variance, single_x, single_y)


def shares(*w: Tensor) -> Tensor | None:
    """w / sum w (*B, N, 1) of weights (*B, N), if there are any."""
    return (w[0] / w[0].sum(-1, keepdim=True)).unsqueeze(-1) if w else None


def mean(x: Tensor, share: Tensor | None) -> Tensor:
    """(*B, d)"""
    return x.mean(-2) if share is None else matmul(share.mT, x).squeeze(-2)


def _around_mean(x: Tensor, share: Tensor | None, eps: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The mean (*B, d), the points around it (*B, N, d), their variance (*B,), and whether they are one point (*B,)."""
    middle = mean(x, share)
    centred = x - middle.unsqueeze(-2)
    squares = centred.square().sum(-1, keepdim=True)  # (*B, N, 1)
    variance = (squares.mean(-2) if share is None else (squares * share).sum(-2)).squeeze(-1)
    seen = squares.detach()
    seen = seen if share is None else torch.where(share.detach() == 0, 0, seen)
    return middle, centred, variance, coincide(middle.detach(), seen.amax((-2, -1)), variance.detach(), eps)


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
    return Moments(*run(_AtOnce(found), x, y, w))


class _AtOnce(Shortcut):
    """Moments that were found, and one pass back."""

    kept_outputs = slice(2)  # the means
    constants = (4, 5)  # which clouds are single points

    def __init__(self, found: Moments) -> None:
        self.found: Moments | None = found

    def value(self, *given: Any) -> tuple[Tensor, ...]:
        found, self.found = self.found, None  # the outputs must not hold themselves
        assert found is not None
        return tuple(found)

    def composition(self, x: Tensor, y: Tensor, w: Tensor | None) -> tuple[Tensor, ...]:
        """`moments`, of usable weights (*B, N)."""
        X, Y = widened(x), widened(y)
        if w is not None:
            w = torch.where(w != 0, widened(w), 0)  # the weight of a point that is not looked at has gradient 0
            X, Y = (torch.where((w != 0).unsqueeze(-1), points, 0) for points in (X, Y))
        return moments(X, Y, shares(*([] if w is None else [w])), 0.0)

    def pull_shortly(self, kept: Any, grads: Any, needed: Sequence[bool]) -> Some:
        x, y, w, *means = kept
        return backward(x, y, w, means, grads[:4], tuple(needed))

    def pull(self, kept: Any, grads: Any, needed: Sequence[bool]) -> Some:
        of_x, of_y = needed[0] or needed[2], needed[1] or needed[2]
        moving = (of_x, of_y, True, of_x, False, False)  # outputs that depend on what is needed
        return super().pull(kept, [g if each else None for g, each in zip(grads, moving, strict=True)], needed)
