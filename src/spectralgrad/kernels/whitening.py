"""A training step of ZCA whitening on CUDA: five kernels forward, four backward, and nothing between them.

    y = weight * W (x - mean) + bias,   W = (C + eps I)^(-1/2),   C the covariance of x in groups of channels

A step of small matrices costs what its launches cost on the host; every addition, view and division of d x d numbers as an
operation of its own costs as much as the whole decomposition. So they ride along with the kernels of moments.py, affine.py,
jacobi.py and spectral.py, which also are how each part of this is tested, and launches go on by themselves once they were
recorded (launcher.py). nn/passes.py derives the gradient. The plain-torch twin is the general node there.
"""

from functools import lru_cache, partial
from typing import NamedTuple

import torch
from torch import Tensor

from . import affine, buffers, jacobi, launcher, moments, nvrtc, spectral, tiles
from .affine import AffineMap, InputMap, ParameterGradients, Samples, ScaledMatrix
from .buffers import Eigenpairs, Matrices, Part
from .moments import Centre, Covariances, Running
from .spectral import MatrixFunction, ScalarFunction, Scaled

__all__ = ["Gradients", "Kept", "Running", "StepOptions", "backward", "forward", "runs_on"]

_NO_RUNNING = (None, None, None, None)


class StepOptions(NamedTuple):
    """What a step is asked for."""

    groups: int  # a divisor of C
    eps: float  # the shift of the covariance; eigenvalues below it count as it
    nonfinite: Tensor  # an int64 counter of groups with NaN or Inf
    running: Running | None = None  # updated in place
    start: Tensor | None = None  # (groups, d, d), a guess of the eigenvectors; see `jacobi.eigh`


class Step(NamedTuple):
    """What a forward pass computes, in parts of one buffer. (C,) and (groups, d, d)"""

    mean: Part
    correction: Part
    w: Part  # eigenvalues, (C,)
    covariance: Part
    shifted: Part
    V: Part
    W: Part
    B: Part  # weight * W

    @property
    def centre(self) -> Centre:
        return Centre(self.mean, self.correction)

    def root(self, eps: float) -> MatrixFunction:
        """W as a function of covariance + eps I."""
        return MatrixFunction(_inverse_root(eps), Eigenpairs(w=self.w, V=self.V))


class Kept(NamedTuple):
    """What a forward pass leaves for the backward one."""

    buffer: Tensor  # holds a `Step`
    groups: int
    d: int
    eps: float

    @property
    def step(self) -> Step:
        return Step(*buffers.parts_of(self.buffer, *sizes(self.groups * self.d, self.d)))

    @property
    def matrices(self) -> Matrices:
        return Matrices(self.groups, self.d, like=self.buffer)

    def of_groups(self, name: str) -> Tensor:
        """A part of the step, by its name, as (groups, d, d)."""
        part: Part = getattr(self.step, name)
        return part.tensor().view(self.groups, self.d, self.d)


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
    y, buffer = affine.like(x), torch.empty(_total(C, d), dtype=torch.float32, device=x.device)
    kept = Kept(buffer, groups, d, eps)
    *averages, momentum = running or _NO_RUNNING
    memory = (x, weight, bias, y, buffer, nonfinite, *averages, start)
    kind = ("whiten", index, x.shape, x.stride(), x.dtype, groups, eps, momentum, *[each is None for each in memory])
    launcher.sequence(kind, index, memory, partial(_launch_forward, x, weight, bias, options, y, kept))
    if running is not None:
        torch.autograd.graph.increment_version(running[:3])
    return y, kept


def _launch_forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, options: StepOptions, y: Tensor, kept: Kept
) -> None:
    groups, eps, nonfinite, running, start = options
    step, matrices = kept.step, kept.matrices
    root = step.root(eps)
    filled = Covariances(mean=step.mean, correction=step.correction, covariance=step.covariance, shifted=step.shifted)
    moments.launch_covariances(x, groups, eps, filled, running)
    jacobi.launch(matrices, jacobi.Problem(M=step.shifted, start=start), root.pairs, nonfinite)
    spectral.launch_value(matrices, root, step.W, Scaled(weight=weight, out=step.B))
    affine.launch_transform(x, AffineMap(A=step.B, d=kept.d, centre=step.centre, bias=bias), y)


def backward(g: Tensor, x: Tensor, weight: Tensor | None, kept: Kept, needs_input: bool) -> Gradients:
    """What the gradient ``g`` (N, C, *) of the output is for x, weight and bias; x only where ``needs_input``."""
    if (index := x.device.index) is not None and index != torch.cuda.current_device():
        with torch.cuda.device(index):
            return backward(g, x, weight, kept, needs_input)
    g, x, buffer = tiles.readable(g), tiles.readable(x), kept.buffer
    dx = affine.like(x) if needs_input else None
    found = Gradients(dx, None if weight is None else torch.empty_like(weight), buffer.new_empty(x.shape[1]))
    memory = (g, x, weight, buffer, *found)
    of_g, of_x = (g.stride(), g.dtype), (x.shape, x.stride(), x.dtype)
    kind = ("whiten backward", index, of_g, of_x, kept.groups, kept.eps, weight is None, needs_input)
    launcher.sequence(kind, index, memory, partial(_launch_backward, g, x, weight, kept, found))
    return found


def _launch_backward(g: Tensor, x: Tensor, weight: Tensor | None, kept: Kept, out: Gradients) -> None:
    step, d, C, n = kept.step, kept.d, x.shape[1], x.numel() // x.shape[1]
    dW, dS, mean_of_g = buffers.parts(x, C * d, C * d, C)
    samples = Samples(g, x, d, step.centre)
    filled = ParameterGradients(A=dW, weight=out.weight, bias=out.bias, mean=mean_of_g)
    affine.launch_gradients(samples, ScaledMatrix(weight=weight, A=step.W), filled)
    if out.x is not None:
        # twice, for dS + dS^T: a spectral function's derivative is symmetric
        spectral.launch_derivative(kept.matrices, step.root(kept.eps), dW, dS, 2 / n)
        affine.launch_combine(samples, InputMap(A=step.B, S=dS, shift=mean_of_g), out.x)


@lru_cache
def _total(C: int, d: int) -> int:
    """Numbers of the buffer that holds a `Step`."""
    return buffers.places(*sizes(C, d))[1]


@lru_cache
def _inverse_root(eps: float) -> ScalarFunction:
    return ScalarFunction("INVERSE_SQRT", floor=eps)
