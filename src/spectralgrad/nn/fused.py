"""Batch statistics and the map by them as single autograd nodes, each kernel one pass over the input.

y = B (x - m) + bias with B = weight * A(S), where m and S are the mean and the scatter of x. With Q = sum g (x - m)^T and
s = sum g over n samples, and dS the gradient of S, which a small graph from S to A gives for weight * Q,

    dweight = diag(Q A^T),   dbias = s,   dx = B^T (g - s/n) + (dS + dS^T)(x - m).

The mean needs no term of its own beyond s/n: S does not change with it to first order. So a training step passes twice
over x, and twice over g and x; autograd's composition of the same takes a dozen. That composition stays for everything
that kernels and plain nodes cannot do: torch.func, forward mode, torch.compile, and the second derivative.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import Parameter

from spectralgrad.kernels import buffers, tiles, whitening
from spectralgrad.kernels.affine import combine, transform, transform_sums
from spectralgrad.kernels.moments import grouped_moments
from spectralgrad.linalg.calculus import call, in_transform

from . import composed

FORCED = False  # for tests: take these nodes on the CPU too, with the kernels' twins

Composition = Callable[..., Any]  # the same function of the same tensors in plain torch, for the second derivative


def is_fusible(x: Tensor, group_size: int, dtype: torch.dtype) -> bool:
    """Whether ``x`` may go through the nodes here: a plain tensor, in a plain forward pass, that the kernels take."""
    if torch.compiler.is_compiling() or not (x.is_cuda or FORCED) or x.numel() == 0:
        return False
    if not (FORCED or (dtype == torch.float32 and tiles.fits(x, group_size))):
        return False
    return (
        type(x) in (Tensor, Parameter)
        and not in_transform()
        and torch._C._len_torch_dispatch_stack() == 0
        and not torch.jit.is_tracing()  # type: ignore[attr-defined]
    )


@dataclass
class Small:
    """The part of a step that does not see the input: scatter -> A, with its graph."""

    samples: int
    mean: Tensor  # (C,)
    rest: Tensor  # (C,): what rounding left in the mean
    scatter: Tensor  # (groups, d, d), the leaf of the graph where the input needs a gradient
    A: Tensor  # (groups, d, d)
    pullback: Callable[[Tensor], Tensor] | None = None  # dA -> dS + dS^T, where that is known without a graph

    def twice_dS(self, dA: Tensor) -> Tensor:
        """dS + dS^T for the gradient of A."""
        if self.pullback is not None:
            return self.pullback(dA)
        # Kept for a second backward, which only the caller knows of. The graph goes with this node.
        (dS,) = torch.autograd.grad(self.A, self.scatter, dA, retain_graph=True)
        return (dS + dS.mT).contiguous()


@dataclass
class Step:
    """A training step of whitening by kernels/whitening.py: its options, and after the forward pass what was found."""

    groups: int
    eps: float
    running: whitening.Running | None
    nonfinite: Tensor
    start: Tensor | None = None
    kept: whitening.Kept | None = None

    def of_groups(self, part: buffers.Part) -> Tensor:
        """A part of what was kept as (groups, d, d)."""
        d = round((part.size / self.groups) ** 0.5)
        return part.tensor().view(self.groups, d, d)


def small_graph() -> AbstractContextManager[Any]:
    """Where the small graph is built: out of reach of hooks on saved tensors.

    Activation checkpointing would drop what the small graph saves, and recompute the model a second time for the inner
    backward pass. There is nothing to gain: it is d x d.
    """
    if torch._C._autograd._top_saved_tensors_default_hooks(False) is None:
        return nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x)


def normalized(x: Tensor, weight: Tensor | None, bias: Tensor | None, small: Small, composition: Composition) -> Tensor:
    """weight * A (x - mean) + bias, with the gradient through the statistics; ``composition(x, weight, bias)`` the same."""
    return call(_Normalize, x, weight, bias, small, composition)  # type: ignore[no-any-return]


def whitened(x: Tensor, weight: Tensor | None, bias: Tensor | None, step: Step, composition: Composition) -> Tensor:
    """`normalized` for ZCA with the exact gradient, kernels from end to end; ``step`` is told what it found."""
    return call(_Whiten, x, weight, bias, step, composition)  # type: ignore[no-any-return]


def transformed(x: Tensor, B: Tensor, mean: Tensor, bias: Tensor | None) -> Tensor:
    """B (x - mean) + bias, B (groups, d, d) and mean (C,) being inputs like x."""
    return call(_Transform, x, B.contiguous(), mean, bias)  # type: ignore[no-any-return]


def mean_and_scatter(x: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """mean (C,) and scatter (groups, d, d) of x."""
    return call(_MeanAndScatter, x, groups)  # type: ignore[no-any-return]


def _composed_gradients(ctx: Any, composition: Composition, inputs: tuple[Any, ...], grads: tuple[Any, ...]) -> list[Any]:
    """The gradients of the first inputs through autograd's own composition, differentiable again.

    Taken at aliases of the inputs: at the inputs themselves they would include paths from one to another.
    """
    needed = ctx.needs_input_grad[: len(inputs)]
    aliases = [x.view_as(x) if need else x for x, need in zip(inputs, needed, strict=True)]
    out = composition(*aliases)
    wanted = [x for x, need in zip(aliases, needed, strict=True) if need]
    found = iter(torch.autograd.grad(out, wanted, grads, create_graph=True))
    return [next(found) if need else None for need in needed]


def scaled(weight: Tensor | None, A: Tensor) -> Tensor:
    """weight (C,) times the rows of A (groups, d, d)."""
    return A if weight is None else weight.to(A.dtype).view(A.shape[0], A.shape[1], 1) * A


class _Normalize(Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, small: Small, composition: Composition
    ) -> Tensor:
        B = scaled(weight, small.A.detach()).contiguous()
        ctx.save_for_backward(x, weight, bias, B)
        ctx.small, ctx.composition = small, composition
        return transform(x, B, small.mean, small.rest, bias)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        x, weight, bias, B = ctx.saved_tensors
        small: Small = ctx.small
        if torch.is_grad_enabled():
            return *_composed_gradients(ctx, ctx.composition, (x, weight, bias), (g,)), None, None
        Q, s = transform_sums(g, x, len(B), small.mean, small.rest)
        dx = dweight = dbias = None
        if ctx.needs_input_grad[0]:
            dx = combine(g, x, B, small.twice_dS(scaled(weight, Q)), small.mean, small.rest, s / small.samples)
        if ctx.needs_input_grad[1]:
            dweight = (Q * small.A.detach()).sum(-1).flatten().to(weight.dtype)
        if ctx.needs_input_grad[2]:
            dbias = s.to(bias.dtype)
        return dx, dweight, dbias, None, None


class _Whiten(Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, step: Step, composition: Composition
    ) -> Tensor:
        options = whitening.Options(
            groups=step.groups, eps=step.eps, nonfinite=step.nonfinite, running=step.running, start=step.start
        )
        y, step.kept = whitening.forward(x, weight, bias, options)
        ctx.save_for_backward(x, weight, bias)
        ctx.kept, ctx.composition = step.kept, composition
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        x, weight, bias = ctx.saved_tensors
        if torch.is_grad_enabled():
            return *_composed_gradients(ctx, ctx.composition, (x, weight, bias), (g,)), None, None
        needs = ctx.needs_input_grad
        dx, dweight, dbias = whitening.backward(g, x, weight, ctx.kept, needs[0])
        return dx, dweight if needs[1] else None, dbias if needs[2] else None, None, None


class _Transform(Function):
    """d(x) = B^T g,   dB = Q,   dmean = -B^T s,   dbias = s"""

    @staticmethod
    def forward(ctx: Any, x: Tensor, B: Tensor, mean: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, B, mean, bias)
        return transform(x, B, mean, None, bias)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        x, B, mean, bias = ctx.saved_tensors
        if torch.is_grad_enabled():
            return tuple(_composed_gradients(ctx, composed.transform, (x, B, mean, bias), (g,)))
        needs = ctx.needs_input_grad
        dx = transform(g, B, None, None, None, transposed=True) if needs[0] else None
        if not any(needs[1:4]):
            return dx, None, None, None
        Q, s = transform_sums(g, x, len(B), mean, None)
        dmean = -(B * s.view(B.shape[0], B.shape[1], 1)).sum(-2).flatten() if needs[2] else None
        return dx, Q if needs[1] else None, dmean, s.to(bias.dtype) if needs[3] else None


class _MeanAndScatter(Function):
    """dx = (G_S + G_S^T)(x - mean) + G_m / n: the scatter does not change with the mean to first order."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, groups: int) -> tuple[Tensor, Tensor]:
        mean, rest, scatter = grouped_moments(x, groups)
        ctx.save_for_backward(x, mean, rest)
        ctx.groups = groups
        return mean, scatter

    @staticmethod
    def backward(ctx: Any, g_mean: Tensor, g_scatter: Tensor) -> tuple[Any, ...]:
        x, mean, rest = ctx.saved_tensors
        if torch.is_grad_enabled():
            plain = partial(composed.mean_and_scatter, groups=ctx.groups, dtype=mean.dtype)
            return *_composed_gradients(ctx, plain, (x,), (g_mean, g_scatter)), None
        samples = x.numel() // x.shape[1]
        return transform(x, (g_scatter + g_scatter.mT).contiguous(), mean, rest, g_mean / samples), None
