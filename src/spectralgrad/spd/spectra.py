"""Matrix functions of what stood the checks at the door, and what a scale does to them.

What is derived from definite matrices, such as A^(-1/2) B A^(-1/2), may be singular to rounding although they are not.
Its eigenvalues are clamped to rounding size then, and counted, as on devices where nobody looks.
"""

import math

import torch
from torch import Tensor

from spectralgrad.context import may_look, may_read
from spectralgrad.linalg.calculus import directional, evaluate
from spectralgrad.linalg.choices import AUTO
from spectralgrad.linalg.elementary import Exp, InverseSqrt, Log, Sqrt
from spectralgrad.linalg.functions import Spectral
from spectralgrad.linalg.precision import hermitian_part, matmul
from spectralgrad.linalg.scalars import Scalar
from spectralgrad.linalg.scaling import exponent, shifted

LOG_2 = math.log(2.0)
_STEP = 32  # two scales differ by multiples of this, or not at all: matrices that are close stay so to the last digit
_HUGE = {torch.float32: 40, torch.float64: 200}  # exponents of A^(-1/2) that no A of ordinary scale has, unless it is zero


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


def near_1(X: Tensor, keep: int = 0) -> tuple[Tensor, Tensor]:
    """X / 2^k of scale 1, and k (*B,), 0 where it is at most ``keep``."""
    k = exponent(X.detach())
    k = torch.where(k.abs() <= keep, 0, k)
    return times_power(X, -k), k


def times_power(X: Tensor, k: Tensor) -> Tensor:
    """X 2^k for constants k (*B,), cut to the largest number."""
    return X if is_zero(k) else shifted(X, k)


def is_zero(k: Tensor) -> bool:
    """Whether exponents can be read, and all are 0."""
    return may_read(k) and not bool(k.any())


def near_scale_of(A: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
    """B / 2^m near the scale of A, and m (*B,): mostly 0."""
    m = steps(exponent(B.detach()) - exponent(A.detach()))
    return (B if is_zero(m) else shifted(B.expand(*m.shape, *B.shape[-2:]), -m)), m


def steps(k: Tensor) -> Tensor:
    """The nearest exponents by which scales may differ."""
    return _STEP * torch.round(k / _STEP)


def whitener(A: Tensor) -> tuple[Tensor, Tensor | None]:
    """A^(-1/2) / 2^p and p (*B,), for a zero matrix that nobody saw, whose P B P would overflow; mostly None."""
    P = inverse_sqrt(A)
    if may_look(A):
        return P, None
    p = exponent(P.detach())
    p = torch.where(p > _HUGE[p.dtype], p, 0)
    return times_power(P, -p), p


def expanded(X: Tensor, *others: Tensor) -> Tensor:
    """X with the batch that all of them broadcast to."""
    batch = torch.broadcast_shapes(X.shape[:-2], *(y.shape[:-2] for y in others))
    return X.expand(*batch, *X.shape[-2:])
