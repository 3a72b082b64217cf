"""A training step of ZCA whitening on CUDA: five kernels forward, four backward, and nothing between them.

    y = weight * W (x - mean) + bias,   W = (C + eps I)^(-1/2),   C the covariance of x in groups of channels

A step of small matrices costs what its launches cost on the host; every addition, view and division of d x d numbers as an
operation of its own costs as much as the whole decomposition. So they ride along with the kernels of moments.py, affine.py,
jacobi.py and spectral.py, which also are how each part of this is tested; nn/fused.py derives the gradient. The plain-torch
twin is the general node there.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from . import affine, jacobi, moments, nvrtc, spectral, tiles
from .tiles import Part


class Running(NamedTuple):
    """Averages that a step updates in place: mean (C,), covariance (groups, d, d), and the int64 number of batches."""

    mean: Tensor
    covariance: Tensor
    batches: Tensor
    momentum: float


class Kept(NamedTuple):
    """What a backward pass needs, as parts of one buffer. (C,) and (groups, d, d)"""

    mean: Part
    rest: Part
    w: Part
    covariance: Part
    shifted: Part  # covariance + eps I
    V: Part
    W: Part
    B: Part  # weight * W


def runs_on(x: Tensor, group_size: int) -> bool:
    """Whether `forward` takes ``x`` (N, C, *) in groups of ``group_size`` channels."""
    compiles = x.is_cuda and nvrtc.is_available() and tiles.fits(x, group_size)
    return compiles and spectral.fits(group_size, torch.float32, x.device.index)


def forward(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    groups: int,
    eps: float,
    running: Running | None,
    nonfinite: Tensor,
    start: Tensor | None = None,
) -> tuple[Tensor, Kept]:
    """The output, and what `backward` needs.

    Args:
        x: (N, C, *), in float32, bfloat16 or float16; of more than one sample.
        weight, bias: (C,) in float32, or None.
        groups: a divisor of C.
        eps: the shift of the covariance; eigenvalues below it count as it.
        running: updated in place, unless None.
        nonfinite: an int64 counter of groups with NaN or Inf.
        start: (groups, d, d), a guess of the eigenvectors; see `jacobi.eigh`.
    """
    if x.device.index is not None and x.device.index != torch.cuda.current_device():
        with torch.cuda.device(x.device):
            return forward(x, weight, bias, groups, eps, running, nonfinite, start)
    C = x.shape[1]
    d = C // groups
    kept = Kept(*tiles.parts(x, C, C, C, *[C * d] * 5))
    averages, momentum = (None, 0.0) if running is None else (running[:3], running.momentum)
    moments.grouped_covariances(x, groups, *kept[:2], kept.covariance, kept.shifted, eps, averages, momentum)
    if averages is not None:
        torch.autograd.graph.increment_version(averages)
    like = kept.mean.buffer
    jacobi.launch(kept.shifted, start, kept.w, kept.V, nonfinite, None, groups, d, like)
    spectral.launch_value(kept.V, kept.w, _function(eps), None, kept.W, weight, kept.B, None, groups, d, like)
    return affine.transform_by(x, kept.B, kept.mean, kept.rest, bias, d), kept


def backward(
    g: Tensor, x: Tensor, weight: Tensor | None, groups: int, eps: float, kept: Kept, needs_input: bool
) -> tuple[Tensor | None, Tensor | None, Tensor]:
    """The gradients of x, weight and bias. The first is None where it is not needed, the second where there is no weight."""
    if x.device.index is not None and x.device.index != torch.cuda.current_device():
        with torch.cuda.device(x.device):
            return backward(g, x, weight, groups, eps, kept, needs_input)
    C = x.shape[1]
    d, samples, like = C // groups, x.numel() // C, kept.mean.buffer
    dA, dS, shift = tiles.parts(x, C * d, C * d, C)
    dweight, dbias = None if weight is None else torch.empty_like(weight), like.new_empty(C)
    affine.sums_of_step(g, x, groups, kept.mean, kept.rest, weight, kept.W, dA, dweight, dbias, shift)
    if not needs_input:
        return None, dweight, dbias
    # twice, for dS + dS^T: a spectral function's derivative is symmetric
    spectral.launch_derivative(kept.V, kept.w, _function(eps), None, dA, dS, 2 / samples, groups, d, like)
    return affine.combine_by(g, x, kept.B, dS, kept.mean, kept.rest, shift, d), dweight, dbias


def _function(eps: float) -> spectral.Function:
    return spectral.Function("INVERSE_SQRT", floor=eps)
