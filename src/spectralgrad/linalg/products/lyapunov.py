"""The Lyapunov equation Y X + X Y = E by matrix products, for the derivatives of roots and polar factors."""

import math

import torch
from torch import Tensor

from spectralgrad.kernels.ops import opaque

from ..precision import matmul
from .iteration import even_part, host_may_look, multiply_add, row_sums
from .minimax import sign_schedule

_EXCESS = 2.5  # how much a norm may exceed the largest eigenvalue of what `lyapunov` solves with
_NEUMANN = 0.05  # distance from 1 at which `lyapunov` changes from sign steps to a series


def _lyapunov_fake(Y: Tensor, Z: Tensor, E: Tensor, lower: float, accuracy: float, skew: bool) -> Tensor:
    return E.new_empty(E.shape)


@opaque("lyapunov(Tensor Y, Tensor Z, Tensor E, float lower, float accuracy, bool skew) -> Tensor", _lyapunov_fake)
def lyapunov(Y: Tensor, Z: Tensor, E: Tensor, lower: float, accuracy: float, skew: bool) -> Tensor:
    """X with Y X + X Y = E for Y (*B, n, n) positive definite with inverse Z, and E Hermitian or skew-Hermitian.

    ``lower`` is the smallest eigenvalue of Y, relative to its norm, to be reached. In the eigenbasis of Y,
    X_ij = E_ij / (y_i + y_j). A sign step keeps this form: B' = p(B), C'_ij = C_ij (p(b_i) + p(b_j)) / (b_i + b_j).

    The first step is Newton's, B = (m Y + Z/m)/2 and C = (m E + Z E Z/m)/2: two products, and the condition number falls
    to its square root. All b >= 1, since the mean of t and 1/t is. The other steps are quintic, seven products each:
    with S = [[B, C], [0, -B]], S^2 = [[B^2, D], [0, B^2]], D = B C - C B, T(S^2) = [[T, dT], [0, T]] and S T(S^2). C is
    its own adjoint up to the sign s, D up to -s, so each commutator is one product. Once B = I + d with |d| small,
    X = (C - d X - X d)/2 converges by itself, a product for each factor |d|.

    Where Y is singular, z is large but no inverse. The formulas stay bounded: X_ij -> E_ij / y_j if only y_i = 0, and
    E_ij z / 2 if both are.
    """
    s = -1 if skew else 1
    m = (row_sums(Z) / row_sums(Y)).sqrt()
    B = torch.addcmul(Y * (m / 2), Z, 0.5 / m)
    B2 = matmul(B, B)  # the first step needs it, and its norm is nearer to the largest eigenvalue: n^(1/4) off, not n^(1/2)
    norm = torch.minimum(row_sums(B), torch.linalg.matrix_norm(B2, keepdim=True).sqrt())
    B.div_(norm)
    B2.div_(norm.square())
    C = torch.addcmul(E * (m / (2 * norm)), matmul(matmul(Z, E), Z), 0.5 / (m * norm))
    # Newton's step takes y >= lower to at most (lower^(1/2) + lower^(-1/2))/2, in units of the smallest.
    lower = 2 * lower**0.5 / _EXCESS
    if host_may_look(B):
        lower = min(max(1 / float(norm.max()), lower), 0.9)
    steps = sign_schedule(lower, _NEUMANN)
    for k, step in enumerate(steps):
        _, b, c = step.coefficients
        B2 = matmul(B, B) if k else B2
        T = even_part(B2, step.coefficients)
        D = matmul(B, C)
        D = torch.sub(D, D.mH, alpha=s)
        dT = multiply_add(D, B2, D, b / 2, c)  # half of b D + c (B^2 D + D B^2)
        dT = torch.sub(dT, dT.mH, alpha=s)
        C = multiply_add(matmul(C, T), B, dT, 1, 1)
        B = matmul(B, T)
    d = B
    d.diagonal(dim1=-2, dim2=-1).sub_(1)
    left = C / 4
    X = torch.add(left, left.mH, alpha=s)
    for _ in range(_terms(steps[-1].after, accuracy)):
        X = multiply_add(left, d, X, 1, -0.5)
        X = torch.add(X, X.mH, alpha=s)
    return X.contiguous()


def _terms(away: float, accuracy: float) -> int:
    """Products after which a series in powers of ``away`` is good to ``accuracy``."""
    return max(math.ceil(math.log(accuracy) / math.log(away)) - 1, 1)
