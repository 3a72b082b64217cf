"""Which way an input goes through a layer with batch statistics, and the four ways.

    Plain      torch operations that autograd follows (statistics.py): every device, torch.func, forward mode, compile
    OneNode    one autograd node around four passes over the input (nodes.py): large ones on a CPU, GPUs with kernels
    Kernels    the same with the decomposition in kernels too (kernels/whitening.py): a training step of ZCA whitening
    Compiled   that step as operators of torch.compile (kernels/whitening_ops.py); the rest is plain, for it to fuse

All of them compute the same y = weight * A (x - mean) + bias, and move the layer's running statistics in the same way.
`route_of` chooses; a test may hand in its own.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import Parameter

from spectralgrad.context import (
    checking,
    compiling,
    exporting,
    has_dispatch_modes,
    in_torch_func,
    transforming,
    without_hooks,
)
from spectralgrad.counters import device_counter
from spectralgrad.kernels import tiles, whitening, whitening_ops
from spectralgrad.linalg.choices import is_differentiated_through
from spectralgrad.linalg.covariance import Moments, moments_of

from . import passes
from .nodes import (
    ScatterMap,
    WhitenedStep,
    mean_and_scatter,
    normalized,
    pullback_of,
    scaled,
    transformed,
    whitened,
)
from .normalizer import BatchMap
from .ranks import merged_moments
from .statistics import affine, as_input, as_samples, owned

if TYPE_CHECKING:
    from .normalizer import Normalizer


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
        if layer.process_group is None:
            layer.require_batch(x, X.shape[-1], batch.scatter)
        else:
            batch, broken = merged_moments(layer.who, batch, layer.process_group)
            layer.require_batch(x, batch.samples, batch.scatter, broken)
        found = layer.from_batch(batch.scatter, batch.samples)
        y = as_input(affine(X, found.A, batch.mean, layer.weight, layer.bias), x)
        layer.remember(batch.samples, batch.mean, found)
        return y

    def by_running(self, layer: "Normalizer", x: Tensor) -> Tensor:
        dtype = working_dtype(layer, x)
        assert layer.running_mean is not None
        X, A, mean = (
            as_samples(x, layer.group_size, dtype),
            layer.from_running(dtype).to(dtype),
            layer.running_mean.to(dtype),
        )
        return as_input(affine(X, A, mean.view(X.shape[:-1]), layer.weight, layer.bias), x)


class OneNode(Route):
    def by_batch(self, layer: "Normalizer", x: Tensor) -> Tensor:
        if layer.process_group is not None or is_differentiated_through(layer.solver):
            return self._in_two(layer, x)
        samples = x.numel() // x.shape[1]
        mean, correction, scatter = passes.grouped_moments(x.detach(), layer.groups)
        layer.require_batch(x, samples, scatter)
        scatter.requires_grad_(torch.is_grad_enabled() and x.requires_grad)
        with without_hooks():
            found = layer.from_batch_in_node(scatter, samples)
            A = _as_matrices(found.A)
        small = ScatterMap(samples, mean, correction, A, found.pullback or pullback_of(A, scatter))
        y = normalized(x, layer.weight, layer.bias, small, _composition(layer))
        layer.remember(samples, mean, found)
        return y

    def _in_two(self, layer: "Normalizer", x: Tensor) -> Tensor:
        """Two nodes, and between them what autograd follows: the exchange of ranks, or iterations that draw their starts."""
        x = x.view_as(x)  # one tensor for both uses: its two gradients join before they meet those of other users of x
        mean, scatter = mean_and_scatter(x, layer.groups)
        count = torch.full((), x.numel() // x.shape[1], dtype=torch.float64, device=x.device)
        batch, broken = Moments(count, mean.view(scatter.shape[:-1]), scatter), None
        if layer.process_group is not None:
            batch, broken = merged_moments(layer.who, batch, layer.process_group)
        layer.require_batch(x, batch.samples, batch.scatter, broken)
        found = layer.from_batch(batch.scatter, batch.samples)
        y = transformed(x, scaled(layer.weight, _as_matrices(found.A)), batch.mean.flatten(), layer.bias)
        layer.remember(batch.samples, batch.mean, found)
        return y

    def by_running(self, layer: "Normalizer", x: Tensor) -> Tensor:
        dtype = working_dtype(layer, x)
        assert layer.running_mean is not None
        A, mean = layer.from_running(dtype).to(dtype), owned(layer.running_mean, dtype)
        return transformed(x, scaled(layer.weight, _as_matrices(A)), mean, layer.bias)


class Kernels(OneNode):
    def by_batch(self, layer: "Normalizer", x: Tensor) -> Tensor:
        layer.require_samples(x, x.numel() // x.shape[1])
        nonfinite = device_counter("nonfinite_input", x.device)
        options = whitening.StepOptions(layer.groups, layer.eps, nonfinite, layer.averages(), layer.starting_basis(x))
        step = WhitenedStep(*whitening.forward(x, layer.weight, layer.bias, options))  # kernels: autograd sees none of it
        y = whitened(x, layer.weight, layer.bias, step, _composition(layer))
        layer.remember_step(step)
        return y


class Compiled(Plain):
    def by_batch(self, layer: "Normalizer", x: Tensor) -> Tensor:
        samples = x.numel() // x.shape[1]
        layer.require_samples(x, samples)
        y, kept = whitening_ops.whiten(x, layer.weight, layer.bias, layer.groups, layer.eps)
        mean, covariance, W = whitening_ops.statistics_of(kept, layer.groups, layer.group_size)
        layer.remember(samples, mean, BatchMap(W, covariance, {"running_covariance": covariance}))
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
    """Whether the passes of nodes.py gain something for ``x`` (N, C, *).

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


def _as_matrices(A: Tensor) -> Tensor:
    """(groups, d, d), also of a diagonal (groups, d)."""
    return torch.diag_embed(A) if A.ndim == 2 else A


def _composition(layer: "Normalizer") -> Callable[..., Tensor]:
    """What a node computes of x, weight and bias by the batch's statistics, in plain torch."""

    def composed(x: Tensor, weight: "Tensor | None", bias: "Tensor | None") -> Tensor:
        X = as_samples(x, layer.group_size, working_dtype(layer, x))
        batch = moments_of(X)
        A = layer.from_batch(batch.scatter, batch.samples).A
        return as_input(affine(X, A, batch.mean, weight, bias), x)

    return composed
