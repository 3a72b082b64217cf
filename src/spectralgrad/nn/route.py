"""Which way an input goes through a layer with batch statistics, and the four ways.

    Plain      torch operations that autograd follows: every device, torch.func, forward mode, compile
    OneNode    one autograd node around four passes over the input (passes.py): large ones on a CPU, GPUs with kernels
    Kernels    the same with the decomposition in kernels too (kernels/whitening.py): a training step of ZCA whitening
    Compiled   that step as operators of torch.compile (kernels/whitening_ops.py); the rest is plain, for it to fuse

All of them compute the same y = weight * A (x - mean) + bias, and move the layer's running statistics in the same way.
`route_of` chooses; a test may hand in its own.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import Parameter

from spectralgrad.context import (
    checking,
    compiling,
    exporting,
    has_dispatch_modes,
    in_backward,
    in_torch_func,
    may_look,
    transforming,
    without_hooks,
)
from spectralgrad.kernels import tiles, whitening, whitening_ops
from spectralgrad.linalg.choices import is_differentiated_through
from spectralgrad.linalg.covariance import Moments, moments_of
from spectralgrad.linalg.node import run
from spectralgrad.linalg.precision import matmul

from . import passes
from .inputs import format_of, owned
from .ranks import merged_moments

if TYPE_CHECKING:
    from .base import Normalizer


class Route(ABC):
    """A way from an input to the output."""

    def normalize(self, layer: "Normalizer", x: Tensor) -> Tensor:
        """y by the statistics that the layer's mode asks for."""
        by_batch = layer.training or layer.running_mean is None
        return self.by_batch(layer, x) if by_batch else self.by_running(layer, x)

    @abstractmethod
    def by_batch(self, layer: "Normalizer", x: Tensor) -> Tensor:
        """y by the statistics of the batch, or of the batches of all ranks; moves the running ones last."""

    @abstractmethod
    def by_running(self, layer: "Normalizer", x: Tensor) -> Tensor:
        """y by the running statistics."""


class Plain(Route):
    def by_batch(self, layer: "Normalizer", x: Tensor) -> Tensor:
        X = as_samples(x, layer.group_size, working_dtype(layer, x))  # (groups, d, n)
        batch = moments_of(X)
        broken, is_group = None, layer.process_group is not None
        if is_group:
            batch, broken = merged_moments(layer.who, batch, layer.process_group)
        looks, again = may_look(batch.scatter), in_backward()
        samples = (int(batch.samples) if looks else -1) if is_group else X.shape[-1]
        if samples == 1 or (looks and not bool(torch.isfinite(batch.scatter).all())):
            layer.refuse(x, samples, batch.scatter, broken)
        found = layer.from_batch(batch.scatter, batch.samples, looks)
        y = affine(X, found.A, batch.mean, layer.weight, layer.bias, x)
        if not again:
            layer.remember(batch.samples, batch.mean, found.covariance, found.running)
        return y

    def by_running(self, layer: "Normalizer", x: Tensor) -> Tensor:
        dtype = working_dtype(layer, x)
        assert layer.running_mean is not None
        X, A = as_samples(x, layer.group_size, dtype), owned(layer.from_running(dtype), dtype)
        mean = layer.running_mean.to(dtype)
        return affine(X, A, mean.view(X.shape[:-1]), layer.weight, layer.bias, x)


class OneNode(Route):
    def by_batch(self, layer: "Normalizer", x: Tensor) -> Tensor:
        if layer.process_group is not None or is_differentiated_through(layer.solver):
            return self._in_two(layer, x)
        samples = x.numel() // x.shape[1]
        mean, correction, scatter = passes.grouped_moments(x.detach(), layer.groups)
        looks = may_look(scatter)
        if samples == 1 or (looks and not bool(torch.isfinite(scatter).all())):
            layer.refuse(x, samples, scatter)
        scatter.requires_grad_(torch.is_grad_enabled() and x.requires_grad)
        with without_hooks():
            found = layer.from_batch_in_node(scatter, samples)
            A = _as_matrices(found.A)
        pullback = found.pullback or _pullback_of(A, scatter)
        y: Tensor = run(passes.Normalized(A, pullback, mean, correction, _normalized(layer)), x, layer.weight, layer.bias)
        if not in_backward():
            layer.remember(samples, mean, found.covariance, found.running)
        return y

    def _in_two(self, layer: "Normalizer", x: Tensor) -> Tensor:
        """Two nodes, and between them what autograd follows: the exchange of ranks, or iterations that draw their starts."""
        x = x.view_as(x)  # one tensor for both uses: its two gradients join before they meet those of other users of x
        mean, scatter = run(passes.MeanAndScatter(layer.groups, partial(_mean_and_scatter, layer)), x)
        count = torch.full((), x.numel() // x.shape[1], dtype=torch.float64, device=x.device)
        batch, broken = Moments(count, mean.view(scatter.shape[:-1]), scatter), None
        if layer.process_group is not None:
            batch, broken = merged_moments(layer.who, batch, layer.process_group)
        looks = may_look(batch.scatter)
        if looks and (int(batch.samples) == 1 or not bool(torch.isfinite(batch.scatter).all())):
            layer.refuse(x, int(batch.samples), batch.scatter, broken)
        found = layer.from_batch(batch.scatter, batch.samples, looks)
        y = _transformed(layer, x, found.A, batch.mean.flatten())
        if not in_backward():
            layer.remember(batch.samples, batch.mean, found.covariance, found.running)
        return y

    def by_running(self, layer: "Normalizer", x: Tensor) -> Tensor:
        dtype = working_dtype(layer, x)
        assert layer.running_mean is not None
        return _transformed(layer, x, owned(layer.from_running(dtype), dtype), owned(layer.running_mean, dtype))


class Kernels(OneNode):
    def by_batch(self, layer: "Normalizer", x: Tensor) -> Tensor:
        layer.require_samples(x, x.numel() // x.shape[1])
        node = passes.Whitened(layer.step_options(x), _normalized(layer))
        y: Tensor = run(node, x, layer.weight, layer.bias)
        layer.remember_step(node.kept)
        return y


class Compiled(Plain):
    def by_batch(self, layer: "Normalizer", x: Tensor) -> Tensor:
        samples = x.numel() // x.shape[1]
        layer.require_samples(x, samples)
        y, kept = whitening_ops.whiten(x, layer.weight, layer.bias, layer.groups, layer.eps)
        mean, covariance = whitening_ops.statistics_of(kept, layer.groups, layer.group_size)
        layer.remember(samples, mean, covariance, {"running_covariance": covariance})
        return y


PLAIN, ONE_NODE, KERNELS, COMPILED = Plain(), OneNode(), Kernels(), Compiled()
Takes = Callable[["Normalizer", Tensor], bool]


def working_dtype(layer: "Normalizer", x: Tensor) -> torch.dtype:
    """What to compute in: at least float32, at least what the input and the state have."""
    own = _own(layer)
    dtype = torch.promote_types(x.dtype, torch.float32)
    return dtype if own is None else torch.promote_types(dtype, own.dtype)


def _own(layer: "Normalizer") -> Tensor | None:
    """One of the layer's tensors, if it has any: they are of one dtype and device."""
    return layer.weight if layer.running_mean is None else layer.running_mean


def passes_take(layer: "Normalizer", x: Tensor) -> bool:
    """Whether the passes of passes.py gain something for ``x`` (N, C, *).

    On a GPU where their kernels run; on a CPU for maps that no core's cache holds. A layer on another device than its input
    is torch's to refuse: a kernel would be given addresses that its device has not.
    """
    gains = x.numel() >= passes.LEAST if x.is_cpu else x.is_cuda and tiles.fits(x, layer.group_size)
    if not gains or working_dtype(layer, x) != tiles.statistics_dtype(x):
        return False
    own = _own(layer)
    return own is None or own.device == x.device


def kernels_take_step(layer: "Normalizer", x: Tensor) -> bool:
    """Whether the kernels of a whole whitening step run for ``x``."""
    return whitening.runs_on(x, layer.group_size)


def operators_take_step(layer: "Normalizer", x: Tensor) -> bool:
    """`kernels_take_step` while torch.compile traces: nothing that it cannot follow."""
    samples = x.numel() // x.shape[1]
    fits = x.dtype in tiles.DTYPES and working_dtype(layer, x) == torch.float32 and 0 < samples <= tiles.MOST_SAMPLES
    return fits and whitening_ops.runs_on(x.device.type, x.device.index, layer.group_size)


def route_of(
    layer: "Normalizer",
    x: Tensor,
    *,
    takes: Takes = passes_take,
    takes_step: Takes = kernels_take_step,
    compiles_step: Takes = operators_take_step,
) -> Route:
    """The way of ``x`` (N, C, *), which the layer has checked.

    Args:
        takes, takes_step: whether the passes of one node, and the kernels of a whitening step, run for this; a test on
            the CPU says yes.
        compiles_step: whether those of a step run for it as operators.
    """
    if compiling():
        plain = exporting() or in_torch_func() or not layer.is_kernel_step(x)
        return PLAIN if plain or not compiles_step(layer, x) else COMPILED
    if not takes(layer, x) or not _is_plain_call(x):
        return PLAIN
    return KERNELS if takes_step(layer, x) and layer.is_kernel_step(x) and not checking(x) else ONE_NODE


def _is_plain_call(x: Tensor) -> bool:
    """Whether ``x`` is a tensor with entries in a plain forward pass: nothing looks into what happens to it."""
    return (
        x.numel() > 0
        and type(x) in (Tensor, Parameter)
        and not transforming()
        and not has_dispatch_modes()
        and not torch.jit.is_tracing()  # type: ignore[attr-defined]
    )


# What autograd follows.


def as_samples(x: Tensor, d: int, dtype: torch.dtype) -> Tensor:
    """(N, C, *) -> (C/d, d, n), n = N times all positions; no copy where the channels lie last in memory."""
    X = x.to(dtype).transpose(0, 1).flatten(1)
    return X.view(X.shape[0] // d, d, X.shape[1])


def affine(X: Tensor, A: Tensor, mean: Tensor, weight: Tensor | None, bias: Tensor | None, x: Tensor) -> Tensor:
    """weight * A (X - mean) + bias for X (groups, d, n), the samples of ``x``, in its shape, dtype and memory format.

    Centred first: after it a large mean would cost digits.
    """
    centred = X - mean.unsqueeze(-1)
    shape = (*X.shape[:-1], 1)
    diagonal = A.ndim == 2
    A = A.unsqueeze(-1) if diagonal else A
    if weight is not None:
        A = weight.to(X.dtype).view(shape) * A
    Y = A * centred if diagonal else matmul(A, centred)
    Y = Y if bias is None else Y + bias.to(X.dtype).view(shape)
    y = Y.to(x.dtype).reshape(x.shape[1], x.shape[0], *x.shape[2:]).transpose(0, 1)
    return y.contiguous() if x.is_contiguous() else y.contiguous(memory_format=format_of(x))


# What a node computes, in plain torch.


def _normalized(layer: "Normalizer") -> Callable[..., Tensor]:
    """x, weight, bias -> y by the batch's statistics."""

    def composed(x: Tensor, weight: "Tensor | None", bias: "Tensor | None") -> Tensor:
        X = as_samples(x, layer.group_size, working_dtype(layer, x))
        batch = moments_of(X)
        A = layer.from_batch(batch.scatter, batch.samples).A
        return affine(X, A, batch.mean, weight, bias, x)

    return composed


def _mean_and_scatter(layer: "Normalizer", x: Tensor) -> tuple[Tensor, Tensor]:
    """mean (C,) and scatter (groups, d, d)."""
    batch = moments_of(as_samples(x, layer.group_size, tiles.statistics_dtype(x)))
    return batch.mean.flatten(), batch.scatter


def _affine_of(x: Tensor, B: Tensor, mean: Tensor, bias: Tensor | None) -> Tensor:
    """B (x - mean) + bias, B (groups, d, d) and mean (C,)."""
    X = as_samples(x, B.shape[-1], B.dtype)
    return affine(X, B, mean.view(X.shape[:-1]), None, bias, x)


_TRANSFORMED = passes.Transformed(_affine_of)


def _transformed(layer: "Normalizer", x: Tensor, A: Tensor, mean: Tensor) -> Tensor:
    """weight * A (x - mean) + bias as one node, A and mean being inputs like x."""
    B = passes.scaled(layer.weight, _as_matrices(A)).contiguous()
    return run(_TRANSFORMED, x, B, mean, layer.bias)  # type: ignore[no-any-return]


def _pullback_of(A: Tensor, scatter: Tensor) -> Callable[[Tensor], Tensor]:
    """dA -> dS + dS^T through the graph that autograd has from the leaf ``scatter`` to ``A``."""

    def pullback(dA: Tensor) -> Tensor:
        # Kept for a second backward, which only the caller knows of. The graph goes with its node.
        (dS,) = torch.autograd.grad(A, scatter, dA, retain_graph=True)
        return (dS + dS.mT).contiguous()

    return pullback


def _as_matrices(A: Tensor) -> Tensor:
    """(groups, d, d), also of a diagonal (groups, d)."""
    return torch.diag_embed(A) if A.ndim == 2 else A
