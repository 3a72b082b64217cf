"""Powers of the covariance of feature maps, from the samples themselves where those are fewer than the channels."""

from typing import NamedTuple

import torch
from torch import Tensor

from spectralgrad.linalg.choices import (
    ForPower,
    Gradient,
    RootSolver,
    knows_no_eigenvalues,
)
from spectralgrad.linalg.functions import inv_sqrtm, sqrtm
from spectralgrad.linalg.moves import cast, held, moved
from spectralgrad.linalg.precision import hermitian_part, in_widest, matmul
from spectralgrad.linalg.products import NewtonSchulz
from spectralgrad.linalg.products.roots import newton_root
from spectralgrad.linalg.scaling import exponent
from spectralgrad.validation import asymmetry_tolerance

from .covariances import power_by_pairs

_ZERO = 4  # times eps of the trace: a Gram matrix's eigenvalues below it are rounding, as in linalg/scalars.py
_NEWTON_SHIFT = 1e-11  # of a matrix of trace 1, in float64: first-order in the root, and leaves five digits to converge in

_MODERATE = 24  # the power of two that huge features are brought down to
_ROOM = 512  # bits, 64 in float32: for products of gradients at the end of the range with entries of 2^48
_SUMMANDS = 16  # powers of two: squares of up to 2^32 entries can be added below the largest number


def as_columns(x: Tensor) -> Tensor:
    """Maps (*B, C, H, W) as samples (*B, C, H W), at least in float32; nothing is checked."""
    return x.to(torch.promote_types(x.dtype, torch.float32)).flatten(-2)


def centred(X: Tensor) -> tuple[Tensor, Tensor]:
    """X (*B, C, n) less its mean over positions, and that mean (*B, C, 1).

    First the map is taken relative to its first position, a constant for autograd since nothing but the mean feels it.
    So a constant map becomes exactly zero: its difference from a rounded mean would be noise, which whitening and
    normalisation would blow up. The second mean is what rounding left in the first.
    """
    n = max(X.shape[-1], 1)
    anchor = X.detach()[..., :1].sum(-1, keepdim=True)  # a sum, so that no position at all gives 0
    Z = X - anchor
    mean = Z.sum(-1, keepdim=True) / n
    Z = Z - mean
    rest = Z.sum(-1, keepdim=True) / n
    return Z - rest, anchor + (mean + rest)


def covariance(X: Tensor, eps: float = 0.0) -> Tensor:
    """X X^T / n + eps I (*B, C, C) of centred X (*B, C, n)."""
    C = hermitian_part(matmul(X, X.mT)) / max(X.shape[-1], 1)
    return C + eps * _identity(C) if eps else C


def _identity(M: Tensor) -> Tensor:
    return torch.eye(M.shape[-1], dtype=M.dtype, device=M.device)


def nonzero_max(X: Tensor) -> Tensor:
    """max |X| (*B, 1, 1), a constant for autograd; 1 where all is zero."""
    largest = X.detach().abs().amax((-2, -1), keepdim=True)
    return torch.where(largest > 0, largest, 1)


def within_squares(X: Tensor, power: float = 1.0, *, also_small: bool = False) -> tuple[Tensor, Tensor]:
    """X (*B, C, n) over a power of two (*B, 1, 1), and that: 1, unless sums of squares would overflow.

    ``power``: of those sums, which shall not overflow either.
    ``also_small``: or lose digits below the smallest normal number; not where an eps is added, which counts beside them.
    What is too large comes down to 2^24. There an eps of 1e-5 is still below the rounding of the largest variance, and the
    derivative of an inverse root, of size 2^-72, far above the smallest number.
    """
    if X.shape[-1] == 0:
        return X, X.new_ones((*X.shape[:-2], 1, 1))
    largest = nonzero_max(X)
    power = max(power, 1.0)
    limit = (torch.finfo(X.dtype).max ** 0.5 * 2.0**-_SUMMANDS) ** (1 / power)
    scale = torch.exp2(torch.ceil(torch.log2(largest)) - _MODERATE // power)
    outside = largest > limit
    if also_small:
        outside |= largest < torch.finfo(X.dtype).tiny ** 0.5 * 2.0**_SUMMANDS
    scale = torch.where(outside, scale, 1)
    return X / scale, scale


# Powers of covariances.


class CovariancePower(NamedTuple):
    """M^power of M = X X^T / n + eps I, at a scale where it and its products are numbers."""

    matrix: Tensor  # M^power / scale^degree (*B, C, C), symmetric to rounding
    X: Tensor  # (*B, C, n)
    scale: Tensor  # (*B, 1, 1), about |X|, a constant for autograd
    degree: float
    room: int = 128  # bits that gradients of the matrix leave on their way back, see `held`

    def normalised(self) -> "CovariancePower":
        """Divided by its Frobenius norm; 0 stays 0."""
        S = self.matrix / nonzero_max(self.matrix)
        squares = S.square().sum((-2, -1), keepdim=True)
        return self._replace(matrix=S / torch.where(squares > 0, squares, 1).sqrt(), degree=0.0)

    def value(self) -> Tensor:
        """M^power (*B, C, C) in the dtype of X, symmetric; the largest number where it overflows."""
        S = _scaled_back(self.matrix, self.scale, self.degree, self.X.dtype, room=self.room)
        return torch.lerp(S, S.mT, 0.5)  # after the cast: of fewer bytes

    def times_map(self) -> Tensor:
        """M^power X (*B, C, n) in the dtype of X; the largest number where it overflows."""
        X = self.X / self.scale.to(self.X.dtype)
        k, j = exponent(self.matrix.detach()), exponent(X.detach())
        unit = matmul(moved(self.matrix, -k).to(X.dtype), moved(X, -j))
        return _scaled_back(unit, self.scale, self.degree + 1, X.dtype, more=k + j)


def covariance_power(X: Tensor, power: float, eps: float, way: ForPower, looked: bool = False) -> CovariancePower:
    """(X X^T / n + eps I)^power of centred X (*B, C, n). ``looked``: X may be looked at, and is finite."""
    given, (channels, n) = X, X.shape[-2:]
    if power == 1 and eps:
        X, scale = within_squares(X)
        return CovariancePower(covariance(X, eps), given, scale, 2, _ROOM)
    if power == 1:
        X, norm = _unit(X)
        return CovariancePower(matmul(X, X.mT), given, norm / n**0.5, 2)
    gradient, solver, dtype, exact = way
    X = X.to(dtype)
    if eps or not exact:
        X, scale = within_squares(X, power)
        return CovariancePower(power_of(covariance(X, eps), power, eps, gradient, solver), given, scale, 2 * power, _ROOM)
    X, norm = _unit(X)  # so that squares neither overflow nor underflow; not for rules, some have absolute thresholds
    if n < channels:
        S = _gram_power(X, power, solver, given.dtype)
    else:
        S = power_of(hermitian_part(matmul(X, X.mT)), power, eps, gradient, solver, looked)
    # Not math.sqrt, which fixes the size that torch.export was to leave open.
    return CovariancePower(S, given, norm / n**0.5, 2 * power)


def _scaled_back(
    S: Tensor, scale: Tensor, degree: float, dtype: torch.dtype, *, room: int = 128, more: Tensor | None = None
) -> Tensor:
    """S scale^degree 2^more in a dtype, the largest number where it overflows; ``scale`` (*B, 1, 1), ``more`` (*B,).

    A degree up to 1 takes no entry of a map's size out of range. ``room``: bits that gradients leave, see `held`.
    """
    if more is None and degree <= 1:
        return (S * scale**degree if degree else S).to(dtype)
    k = degree * in_widest(scale)[..., 0, 0].log2()
    S = S * torch.exp2(k - k.ceil()).to(S.dtype)[..., None, None]  # at most 1: S may be the largest number
    k = k.ceil() if more is None else k.ceil() + more
    return cast(moved(held(S, room), k), dtype)


def _unit(X: Tensor) -> tuple[Tensor, Tensor]:
    """X / |X|_F (*B, C, n) and that norm (*B, 1, 1), a constant for autograd; 1 where X is zero."""
    largest = nonzero_max(X)
    norm = torch.linalg.vector_norm(X.detach() / largest, dim=(-2, -1), keepdim=True)
    scale = largest * torch.where(norm > 0, norm, 1)
    return X / scale, scale


def _gram_power(X: Tensor, power: float, solver: RootSolver, dtype: torch.dtype) -> Tensor:
    """(X X^T)^power (*B, C, C), symmetric to rounding, through X^T X: a 7 x 7 map of 256 channels decomposes 49 x 49.

    From the SVD of X, (X X^T)^power = X (X^T X)^(power - 1) X^T. What the negative power does to the null space of the
    Gram matrix is free, since X maps it to zero. One null direction is always there, 1 = (1, ..., 1), for X is centred:
    a multiple of 1 1^T moves it away from zero. Others are cut at rounding size. |X|_F = 1.
    """
    n = X.shape[-1]
    K = matmul(X.mT, X)  # (*B, n, n), of trace 1
    if not knows_no_eigenvalues(solver):
        K = power_by_pairs(K + 1 / n**2, power - 1, _ZERO * float(torch.finfo(K.dtype).eps), None, solver)
    elif solver.steps is None:
        K = _shifted_inverse_root(K, solver, dtype, ones=1 / n**2)
    else:  # polynomials p in M and K with p(M) M = X p(K) X^T: the same iterates
        K = inv_sqrtm(K, solver=solver)
    return matmul(matmul(X, K), X.mT)


def _shifted_inverse_root(A: Tensor, solver: NewtonSchulz, dtype: torch.dtype, ones: float = 0.0) -> Tensor:
    """(A + ones 1 1^T + shift I)^(-1/2) of A (*B, n, n) of trace about 1 in float64, to the accuracy of ``dtype``."""
    A = A + (ones + _NEWTON_SHIFT * _identity(A))
    eps = float(torch.finfo(dtype).eps)
    return newton_root("covariance_pool", A, True, solver, asymmetry_tolerance(A), lower=_NEWTON_SHIFT, eps=eps)


def power_of(
    M: Tensor, power: float, eps: float, gradient: Gradient | None, solver: RootSolver, looked: bool = False
) -> Tensor:
    """M^power of covariances (*B, C, C) that were shifted by eps, symmetric to rounding; eigenvalues below it count as it,
    as in PAMI Alg. 3.

    The products of Newton-Schulz cannot tell a zero eigenvalue from rounding. Its root is therefore taken as
    A (A + shift I)^(-1/2), which is off by shift / 2 l where A^(1/2) of a shifted A is off by shift^(1/2).
    """
    if not knows_no_eigenvalues(solver):
        return power_by_pairs(M, power, eps or None, gradient, solver, looked)
    if solver.steps is not None:
        scale = nonzero_max(M)
        return sqrtm(M / scale, solver=solver) * scale.sqrt()
    scale = _nonzero_trace(M)
    A = M / scale
    # To full accuracy, whatever the map's is: in the gradient two terms of size shift^(-1/2) cancel in the null space.
    return matmul(A, _shifted_inverse_root(A, solver, M.dtype)) * scale.sqrt()


def _nonzero_trace(M: Tensor) -> Tensor:
    """tr M (*B, 1, 1), a constant for autograd; 1 where it is zero."""
    largest = nonzero_max(M)
    trace = (M.detach() / largest).diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    return largest * torch.where(trace > 0, trace, 1)
