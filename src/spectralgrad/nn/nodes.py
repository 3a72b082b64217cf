"""Batch statistics and the map by them as single autograd nodes, made of passes over the input (passes.py).

y = B (x - m) + bias with B = weight * A(S), where m and S are the mean and the scatter of x. With Q = sum g (x - m)^T and
s = sum g over n samples, and dS the gradient of S, which a small graph from S to A gives for weight * Q,

    dweight = diag(Q A^T),   dbias = s,   dx = B^T (g - s/n) + (dS + dS^T)(x - m).

The mean needs no term of its own beyond s/n: S does not change with it to first order. So a training step passes twice
over x, and twice over g and x; autograd's composition of the same takes a dozen. That composition (statistics.py) stays
for everything that passes and plain nodes cannot do: torch.func, forward mode, torch.compile, a batch of backward passes in
one (is_grads_batched), and the second derivative.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from spectralgrad.context import is_plain_backward
from spectralgrad.kernels import whitening
from spectralgrad.linalg.autograd import call, composed_gradients

from . import passes, statistics

Composition = Callable[..., Any]  # the same function of the same tensors in plain torch, for the second derivative


@dataclass
class ScatterMap:
    """The part of a step that does not see the input: scatter -> A, with its gradient."""

    samples: int
    mean: Tensor  # (C,)
    correction: Tensor  # (C,): what rounding left in the mean
    A: Tensor  # (groups, d, d)
    pullback: Callable[[Tensor], Tensor]  # dA -> dS + dS^T


def pullback_of(A: Tensor, scatter: Tensor) -> Callable[[Tensor], Tensor]:
    """dA -> dS + dS^T through the graph that autograd has from the leaf ``scatter`` to ``A``."""

    def pullback(dA: Tensor) -> Tensor:
        # Kept for a second backward, which only the caller knows of. The graph goes with its node.
        (dS,) = torch.autograd.grad(A, scatter, dA, retain_graph=True)
        return (dS + dS.mT).contiguous()

    return pullback


def normalized(x: Tensor, weight: Tensor | None, bias: Tensor | None, small: ScatterMap, composition: Composition) -> Tensor:
    """weight * A (x - mean) + bias, with the gradient through the statistics; ``composition(x, weight, bias)`` the same."""
    return call(_Normalize, x, weight, bias, small, composition)  # type: ignore[no-any-return]


class WhitenedStep(NamedTuple):
    """What a training step of whitening by kernels/whitening.py gave and kept."""

    y: Tensor
    kept: whitening.Kept


def whitened(x: Tensor, weight: Tensor | None, bias: Tensor | None, step: WhitenedStep, composition: Composition) -> Tensor:
    """``step.y`` as a function of x, weight and bias: `normalized` for ZCA with the exact gradient, in kernels alone."""
    return call(_Whiten, x, weight, bias, step, composition)  # type: ignore[no-any-return]


def transformed(x: Tensor, B: Tensor, mean: Tensor, bias: Tensor | None) -> Tensor:
    """B (x - mean) + bias, B (groups, d, d) and mean (C,) being inputs like x."""
    return call(_Transform, x, B.contiguous(), mean, bias)  # type: ignore[no-any-return]


def mean_and_scatter(x: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """mean (C,) and scatter (groups, d, d) of x."""
    return call(_MeanAndScatter, x, groups)  # type: ignore[no-any-return]


def scaled(weight: Tensor | None, A: Tensor) -> Tensor:
    """weight (C,) times the rows of A (groups, d, d)."""
    return A if weight is None else weight.to(A.dtype).view(A.shape[0], A.shape[1], 1) * A


class _Normalize(Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, small: ScatterMap, composition: Composition
    ) -> Tensor:
        B = scaled(weight, small.A.detach()).contiguous()
        ctx.save_for_backward(x, weight, bias, B)
        ctx.small, ctx.composition = small, composition
        return passes.transform(x, B, small.mean, small.correction, bias)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        x, weight, bias, B = ctx.saved_tensors
        small: ScatterMap = ctx.small
        if not is_plain_backward(g):
            return *composed_gradients(ctx.needs_input_grad[:3], ctx.composition, (x, weight, bias), (g,)), None, None
        Q, s = passes.transform_sums(g, x, len(B), small.mean, small.correction)
        dx = dweight = dbias = None
        if ctx.needs_input_grad[0]:
            dx = passes.combine(g, x, B, small.pullback(scaled(weight, Q)), small.mean, small.correction, s / small.samples)
        if ctx.needs_input_grad[1]:
            dweight = (Q * small.A.detach()).sum(-1).flatten().to(weight.dtype)
        if ctx.needs_input_grad[2]:
            dbias = s.to(bias.dtype)
        return dx, dweight, dbias, None, None


class _Whiten(Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, step: WhitenedStep, composition: Composition
    ) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        y, ctx.kept = step  # without y: it would hold its own node
        ctx.composition = composition
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        x, weight, bias = ctx.saved_tensors
        if not is_plain_backward(g):
            return *composed_gradients(ctx.needs_input_grad[:3], ctx.composition, (x, weight, bias), (g,)), None, None
        needs = ctx.needs_input_grad
        dx, dweight, dbias = whitening.backward(g, x, weight, ctx.kept, needs[0])
        return dx, dweight if needs[1] else None, dbias if needs[2] else None, None, None


class _Transform(Function):
    """d(x) = B^T g,   dB = Q,   dmean = -B^T s,   dbias = s"""

    @staticmethod
    def forward(ctx: Any, x: Tensor, B: Tensor, mean: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, B, mean, bias)
        return passes.transform(x, B, mean, None, bias)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        x, B, mean, bias = ctx.saved_tensors
        if not is_plain_backward(g):
            return tuple(composed_gradients(ctx.needs_input_grad, statistics.transform, (x, B, mean, bias), (g,)))
        needs = ctx.needs_input_grad
        dx = passes.transform(g, B, None, None, None, transposed=True) if needs[0] else None
        if not any(needs[1:4]):
            return dx, None, None, None
        Q, s = passes.transform_sums(g, x, len(B), mean, None)
        dmean = -(B * s.view(B.shape[0], B.shape[1], 1)).sum(-2).flatten() if needs[2] else None
        return dx, Q if needs[1] else None, dmean, s.to(bias.dtype) if needs[3] else None


class _MeanAndScatter(Function):
    """dx = (G_S + G_S^T)(x - mean) + G_m / n: the scatter does not change with the mean to first order."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, groups: int) -> tuple[Tensor, Tensor]:
        mean, correction, scatter = passes.grouped_moments(x, groups)
        ctx.save_for_backward(x, mean, correction)
        ctx.groups = groups
        return mean, scatter

    @staticmethod
    def backward(ctx: Any, g_mean: Tensor, g_scatter: Tensor) -> tuple[Any, ...]:
        x, mean, correction = ctx.saved_tensors
        if not is_plain_backward(g_mean, g_scatter):
            plain = partial(statistics.mean_and_scatter, groups=ctx.groups, dtype=mean.dtype)
            return *composed_gradients(ctx.needs_input_grad[:1], plain, (x,), (g_mean, g_scatter)), None
        samples = x.numel() // x.shape[1]
        return passes.transform(x, (g_scatter + g_scatter.mT).contiguous(), mean, correction, g_mean / samples), None
