"""The Lyapunov equation Y X + X Y = E by matrix products, for the derivatives of roots and polar factors."""

import math

import torch
from torch import Tensor

from spectralgrad.kernels.ops import opaque

from ..precision import matmul
from .inverse import shifted_inverse
from .iteration import add_product, host_may_look, row_sums

_EXCESS = 2.5  # how much a norm may exceed the largest eigenvalue of what `lyapunov` solves with; n^(1/4) if that is more


def _lyapunov_fake(Y: Tensor, Z: Tensor, E: Tensor, lower: float, accuracy: float, skew: bool) -> Tensor:
    return E.new_empty(E.shape)


@opaque("lyapunov(Tensor Y, Tensor Z, Tensor E, float lower, float accuracy, bool skew) -> Tensor", _lyapunov_fake)
def lyapunov(Y: Tensor, Z: Tensor, E: Tensor, lower: float, accuracy: float, skew: bool) -> Tensor:
    """X with Y X + X Y = E for Y (*B, n, n) positive definite with inverse Z, and E Hermitian or skew-Hermitian.

    ``lower`` is the smallest eigenvalue of Y, relative to its norm, to be reached. In the eigenbasis of Y,
    X_ij = E_ij / (y_i + y_j). Three steps:

    Newton's for the sign of [[Y, E], [0, -Y]] leaves X as it is: B X + X B = C for B = (m Y + Z/m)/2 and
    C = (m E + Z E Z/m)/2. The condition number falls to its square root. All b >= 1, since the mean of t and 1/t is; then
    B is divided by its norm.

    Cayley's transform, for a number p > 0: with F = (B + p I)^-1 and U = (B - p I) F = I - 2 p F,

        X - U X U = 2 p F C F,     so     X = the sum of U^j (2 p F C F) U^j over all j.

    For p^2 = the smallest b, |u| <= (1 - p)/(1 + p).

    Doubling (Smith 1968): X <- X + U X U, U <- U U has twice as many terms, for three products.

    Where Y is singular, z is large but no inverse. The formulas stay bounded: X_ij -> E_ij / y_j if only y_i = 0, and
    E_ij z / 2 if both are. A b between 0 and the smallest still has |u| < 1. One below 0, which rounding may leave in the
    inverse root of a singular matrix, has not: then X is 0.
    """
    m = (row_sums(Z) / row_sums(Y)).sqrt()
    B = torch.addcmul(Y * (m / 2), Z, 0.5 / m)
    B2 = matmul(B, B)  # the inverse needs it, and its norm is nearer to the largest eigenvalue: n^(1/4) off, not n^(1/2)
    norm = torch.minimum(row_sums(B), torch.linalg.matrix_norm(B2, keepdim=True).sqrt())
    # Newton's step takes y >= lower to at most (lower^(1/2) + lower^(-1/2))/2, in units of the smallest.
    lower = 2 * lower**0.5 / max(_EXCESS, Y.shape[-1] ** 0.25)
    if host_may_look(B):
        largest = float(norm.nan_to_num(0, 0).max())  # a matrix that is not finite keeps its NaN, and changes no other
        lower = min(max(1 / (largest or 1.0), lower), 0.9)  # B is 0 where Y and Z are no root: X is too
    p = lower**0.5
    C = torch.addcmul(E * (m * p / (2 * norm)), matmul(matmul(Z, E), Z), 0.5 * p / (m * norm))  # p times that above
    # X changes by 1/p of the error of F, relative to F.
    F = shifted_inverse(B.div_(norm), B2.div_(norm.square()), p, lower, accuracy * p)
    X = matmul(matmul(F, C), F)  # half of it, until the last line
    U = F.mul_(-2 * p)
    U.diagonal(dim1=-2, dim2=-1).add_(1)
    doublings = _doublings((1 - p) / (1 + p), accuracy)
    for k in range(doublings):
        X = add_product(X, matmul(U, X), U)
        U = matmul(U, U) if k + 1 < doublings else U
    shrinking = torch.linalg.matrix_norm(U, keepdim=True) <= 2 * U.shape[-1] ** 0.5
    X = torch.where(shrinking, X, norm - norm)  # NaN stays
    return torch.add(X, X.mH, alpha=-1 if skew else 1)


def _doublings(u: float, accuracy: float) -> int:
    """How often the terms u^2j of a geometric series have to double until those left out are below ``accuracy`` of it."""
    terms = math.log(accuracy) / (2 * math.log(u))
    return max(math.ceil(math.log2(terms)), 1)
