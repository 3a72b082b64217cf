"""A training step of ZCA whitening on CUDA: five kernels forward, four backward, and nothing between them.

    y = weight * W (x - mean) + bias,   W = (C + eps I)^(-1/2),   C the covariance of x in groups of channels

A step of small matrices costs what its launches cost on the host; every addition, view and division of d x d numbers as an
operation of its own costs as much as the whole decomposition. So they ride along with the kernels of moments.py, affine.py,
jacobi.py and spectral.py, which also are how each part of this is tested; nn/nodes.py derives the gradient. The plain-torch
twin is the general node there.
"""

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from . import affine_launches, buffers, jacobi, moments, nvrtc, spectral, tiles
from .affine_launches import AffineMap, InputMap, ParameterGradients, Samples, ScaledMatrix
from .buffers import Eigenpairs, Matrices, Part
from .moments import Centre, Covariances, Running
from .spectral import MatrixFunction, ScalarFunction, Scaled

__all__ = ["Gradients", "Kept", "Running", "StepOptions", "backward", "forward", "runs_on"]


class StepOptions(NamedTuple):
    """What a step is asked for."""

    groups: int  # a divisor of C
    eps: float  # the shift of the covariance; eigenvalues below it count as it
    nonfinite: Tensor  # an int64 counter of groups with NaN or Inf
    running: Running | None = None  # updated in place
    start: Tensor | None = None  # (groups, d, d), a guess of the eigenvectors; see `jacobi.eigh`


class Kept(NamedTuple):
    """What a forward pass leaves for the backward one, in parts of one buffer. (C,) and (groups, d, d)"""

    matrices: Matrices
    centre: Centre
    covariance: Part
    V: Part
    root: MatrixFunction  # W as a function of covariance + eps I
    W: Part
    B: Part  # weight * W


class Step(NamedTuple):
    """What a step computes, in parts of one buffer. (C,) and (groups, d, d)"""

    mean: Part
    correction: Part
    w: Part  # eigenvalues, (C,)
    covariance: Part
    shifted: Part
    V: Part
    W: Part
    B: Part

    def kept(self, groups: int, d: int, eps: float) -> Kept:
        return Kept(
            matrices=Matrices(groups, d, like=self.mean.buffer),
            centre=Centre(self.mean, self.correction),
            covariance=self.covariance,
            V=self.V,
            root=MatrixFunction(_inverse_root(eps), Eigenpairs(w=self.w, V=self.V)),
            W=self.W,
            B=self.B,
        )


def sizes(C: int, d: int) -> tuple[int, ...]:
    """Of the parts of a `Step`."""
    return (C, C, C, *[C * d] * 5)


class Gradients(NamedTuple):
    """Of the input (N, C, *), the weight (C,) and the bias (C,)."""

    x: Tensor | None  # None where it is not needed
    weight: Tensor | None  # None where there is no weight
    bias: Tensor


def runs_on(x: Tensor, group_size: int) -> bool:
    """Whether `forward` takes ``x`` (N, C, *) in groups of ``group_size`` channels."""
    compiles = x.is_cuda and nvrtc.obstacle(x.device) is None and tiles.fits(x, group_size)
    return compiles and spectral.fits(group_size, torch.float32, x.device.index)


def forward(x: Tensor, weight: Tensor | None, bias: Tensor | None, options: StepOptions) -> tuple[Tensor, Kept]:
    """The output, and what `backward` needs.

    Args:
        x: (N, C, *), in float32, bfloat16 or float16; of more than one sample.
        weight, bias: (C,) in float32, or None.
    """
    if (index := x.device.index) is not None and index != torch.cuda.current_device():
        with torch.cuda.device(index):
            return forward(x, weight, bias, options)
    groups, eps, nonfinite, running, start = options
    x, C = tiles.readable(x), x.shape[1]
    d = C // groups
    step = Step(*buffers.parts(x, *sizes(C, d)))
    kept = step.kept(groups, d, eps)
    filled = Covariances(mean=step.mean, correction=step.correction, covariance=step.covariance, shifted=step.shifted)
    moments.launch_covariances(x, groups, eps, filled, running)
    if running is not None:
        torch.autograd.graph.increment_version(running[:3])
    jacobi.launch(kept.matrices, jacobi.Problem(M=step.shifted, start=start), kept.root.pairs, nonfinite)
    spectral.launch_value(kept.matrices, kept.root, kept.W, Scaled(weight=weight, out=kept.B))
    y = affine_launches.launch_transform(x, AffineMap(A=kept.B, d=d, centre=kept.centre, bias=bias))
    return y, kept


def backward(g: Tensor, x: Tensor, weight: Tensor | None, kept: Kept, needs_input: bool) -> Gradients:
    """What the gradient ``g`` (N, C, *) of the output is for x, weight and bias; x only where ``needs_input``."""
    if (index := x.device.index) is not None and index != torch.cuda.current_device():
        with torch.cuda.device(index):
            return backward(g, x, weight, kept, needs_input)
    matrices = kept.matrices
    C, d, n = x.shape[1], matrices.n, x.numel() // x.shape[1]
    dW, dS, mean_of_g = buffers.parts(x, C * d, C * d, C)
    dweight, dbias = None if weight is None else torch.empty_like(weight), matrices.like.new_empty(C)
    samples = Samples.of(g, x, d, kept.centre)
    filled = ParameterGradients(A=dW, weight=dweight, bias=dbias, mean=mean_of_g)
    affine_launches.launch_gradients(samples, ScaledMatrix(weight=weight, A=kept.W), filled)
    if not needs_input:
        return Gradients(x=None, weight=dweight, bias=dbias)
    # twice, for dS + dS^T: a spectral function's derivative is symmetric
    spectral.launch_derivative(matrices, kept.root, dW, dS, 2 / n)
    dx = affine_launches.launch_combine(samples, InputMap(A=kept.B, S=dS, shift=mean_of_g))
    return Gradients(x=dx, weight=dweight, bias=dbias)


@lru_cache
def _inverse_root(eps: float) -> ScalarFunction:
    return ScalarFunction("INVERSE_SQRT", floor=eps)
