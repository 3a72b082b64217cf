"""Matrix functions of what stood the checks at the door, and scales: everything is computed at scale 1 and scaled back last.

What is derived from definite matrices, such as A^(-1/2) B A^(-1/2), may be singular to rounding although they are not.
Its eigenvalues are clamped to rounding size then, and counted, as on devices where nobody looks.
"""

import math

import torch
from torch import Tensor

from spectralgrad.linalg.calculus import directional, evaluate
from spectralgrad.linalg.choices import AUTO
from spectralgrad.linalg.elementary import Exp, InverseSqrt, Log, Sqrt
from spectralgrad.linalg.functions import Spectral
from spectralgrad.linalg.moves import moved, moved_first
from spectralgrad.linalg.precision import hermitian_part, matmul
from spectralgrad.linalg.scalars import Scalar
from spectralgrad.linalg.scaling import exponent

LOG_2 = math.log(2.0)
ROOM = 40  # bits of a scale that stay where the result is homogeneous: its slopes are multiplied by the rest, squared
END = 1011  # the exponent of slopes up to which they are exact; beyond it sums of them would be no numbers
STEEP_END = END - 2 * ROOM  # where slopes are multiplied by roots of condition numbers on their way back
_STEP = 32  # scales differ by multiples of this, or not at all: matrices that are close stay so to the last digit


def function_of(X: Tensor, scalar: Scalar) -> Tensor:
    """f(X), exact at ties, twice differentiable."""
    return evaluate(Spectral("spd", scalar, AUTO), X)


def sqrt(X: Tensor) -> Tensor:
    return function_of(X, Sqrt())


def inverse_sqrt(X: Tensor) -> Tensor:
    return function_of(X, InverseSqrt())


def log(X: Tensor) -> Tensor:
    return function_of(X, Log())


def exp(X: Tensor) -> Tensor:
    return function_of(X, Exp())


def log_along(X: Tensor, E: Tensor) -> Tensor:
    """Dlog(X)[E]."""
    return directional(Spectral("spd", Log(), AUTO), X, E)


def exp_along(X: Tensor, E: Tensor) -> Tensor:
    """Dexp(X)[E]."""
    return directional(Spectral("spd", Exp(), AUTO), X, E)


def congruent(Q: Tensor, X: Tensor) -> Tensor:
    """Q^H X Q for Hermitian X, Hermitian to the last bit."""
    return hermitian_part(matmul(Q.mH, matmul(X, Q)))


def identity_like(X: Tensor) -> Tensor:
    return torch.eye(X.shape[-1], dtype=X.dtype, device=X.device)


def to_scale_1(X: Tensor) -> tuple[Tensor, Tensor]:
    """X / 2^k and k (*B,)."""
    k = exponent(X.detach())
    return moved(X, -k), k


def given_to_scale_1(X: Tensor) -> tuple[Tensor, Tensor]:
    """`to_scale_1` whose slopes in second derivatives, of size 2^-k, leave room for sums."""
    k = exponent(X.detach())
    return moved_first(X, -k, END), k


def beyond_room(k: Tensor) -> Tensor:
    """What of the exponents k lies beyond -40 to 40. Divided by this much and no more, slopes have room for sums."""
    return k - k.clamp(-ROOM, ROOM)


def whitener(A: Tensor) -> tuple[Tensor, Tensor]:
    """A^(-1/2) / 2^p for A of scale 1, and p (*B,): 0 but for a zero matrix that nobody saw, whose P B P would overflow."""
    P = inverse_sqrt(A)
    p = exponent(P.detach())
    p = torch.where(p > ROOM, p, 0)
    return moved(P, -p), p


def near_scale(X: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """X / 2^(k + m) and m (*B,), a multiple of 32 that brings it near scale 1: mostly 0. For k that broadcasts with X."""
    m = _STEP * torch.round((exponent(X.detach()) - k) / _STEP)
    return moved_first(X, -(k + m), END), m


def expanded(X: Tensor, *others: Tensor) -> Tensor:
    """X with the batch that all of them broadcast to."""
    batch = torch.broadcast_shapes(X.shape[:-2], *(y.shape[:-2] for y in others))
    return X.expand(*batch, *X.shape[-2:])
