"""A whitening step as two operators, which torch.compile takes as a whole: just the launches of whitening.py.

The forward operator has a gradient, the backward operator. Neither writes into anything: running statistics are moved by
the compiled code, from what `statistics_of` finds, and so torch.compile knows what changes. What a forward pass leaves for
the backward one is the one buffer that holds all of it.
"""

from typing import Any

import torch
from torch import Tensor

from spectralgrad.context import constant_when_compiled
from spectralgrad.counters import device_counter

from . import affine, buffers, nvrtc, spectral, tiles, whitening
from .ops import differentiable, opaque, operator
from .whitening import Step, StepOptions

NONFINITE = "nonfinite_input"


@constant_when_compiled
def runs_on(kind: str, index: int | None, group_size: int) -> bool:
    """Whether the operators run on this device in groups of so many channels; `whitening.runs_on` without a tensor.

    It makes the counter too: inside a CUDA graph's memory it would not outlive the graph.
    """
    device = torch.device(kind, index)  # type: ignore[arg-type]
    if kind != "cuda" or nvrtc.obstacle(device) is not None or group_size > tiles.largest_group(device):
        return False
    device_counter(NONFINITE, device)
    return spectral.fits(group_size, torch.float32, index or 0)


def _whiten_fake(x: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int, eps: float) -> tuple[Tensor, Tensor]:
    C = int(x.shape[1])
    return affine.like(x), x.new_empty(buffers.places(*whitening.sizes(C, C // groups))[1], dtype=torch.float32)


@opaque(
    "whiten(Tensor x, Tensor? weight, Tensor? bias, int groups, float eps) -> (Tensor, Tensor)",
    _whiten_fake,
    exact_strides=True,
)
def _whiten(x: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int, eps: float) -> tuple[Tensor, Tensor]:
    y, kept = whitening.forward(x, weight, bias, StepOptions(groups, eps, device_counter(NONFINITE, x.device)))
    return y, kept.buffer


Three = tuple[Tensor, Tensor, Tensor]


def _gradients_fake(
    g: Tensor, x: Tensor, weight: Tensor | None, kept: Tensor, groups: int, eps: float, needs_input: bool
) -> Three:
    C = int(x.shape[1])
    dx = affine.like(x) if needs_input else x.new_empty(0)
    return dx, kept.new_empty(0 if weight is None else C), kept.new_empty(C)


@opaque(
    "whiten_gradients(Tensor g, Tensor x, Tensor? weight, Tensor kept, int groups, float eps, bool needs_input) "
    "-> (Tensor, Tensor, Tensor)",
    _gradients_fake,
    exact_strides=True,
)
def _gradients(
    g: Tensor, x: Tensor, weight: Tensor | None, kept: Tensor, groups: int, eps: float, needs_input: bool
) -> Three:
    """Of x, weight and bias; empty where there is none."""
    step = whitening.Kept(kept, groups, x.shape[1] // groups, eps)
    dx, dweight, dbias = whitening.backward(g, x, weight, step, needs_input)
    return x.new_empty(0) if dx is None else dx, kept.new_empty(0) if dweight is None else dweight, dbias


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, _, *ctx.options = inputs
    ctx.save_for_backward(x, weight, output[1])
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, g: Tensor, _: None) -> tuple[Any, ...]:
    x, weight, kept = ctx.saved_tensors
    needs = ctx.needs_input_grad
    found = operator("whiten_gradients")(g, x, weight, kept, *ctx.options, needs[0])
    return *(gradient if need else None for gradient, need in zip(found, needs, strict=False)), None, None


differentiable("whiten", _save, _backward)


def whiten(x: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int, eps: float) -> tuple[Tensor, Tensor]:
    """`whitening.forward` as an operator with its gradient: the output, and the buffer of the step."""
    return operator("whiten")(x, weight, bias, groups, eps)  # type: ignore[no-any-return]


def statistics_of(kept: Tensor, groups: int, d: int) -> tuple[Tensor, Tensor]:
    """mean (C,) and covariance (groups, d, d) of a step, from its buffer."""
    C = groups * d
    mean, covariance = _places(C, d)
    return kept.narrow(0, mean, C), kept.narrow(0, covariance, C * d).view(groups, d, d)


@constant_when_compiled
def _places(C: int, d: int) -> tuple[int, int]:
    first = dict(zip(Step._fields, buffers.places(*whitening.sizes(C, d))[0], strict=True))
    return first["mean"], first["covariance"]
