"""Matrices with orthonormal columns: the exponential of a skew matrix, and a rotation to start from.

Exponential. For A (m, k), m >= k, filled up with zero columns, S = A - A^T is the skew matrix

    S = [[T, -B^T], [B, 0]],     T = A_1 - A_1^T (k, k),   B = A_2 (m - k, k),

and exp(S) [I; 0], its first k columns, are orthonormal. The part of an m x m skew matrix that A leaves out only turns the
columns that are dropped. Where m > 2k there is no need for an m x m exponential: write exp(tS) [I; 0] = [X; B Y]. Then
X' = T X - B^T B Y and Y' = X, so that with any c > 0

    [X; c Y] = exp([[T, -B^T B / c], [c I, 0]]) [I; 0],

2k x 2k, and smooth in B^T B: no QR or SVD of B, whose derivatives would fail at B = 0. c only balances the two blocks.

Series and doublings. `torch.matrix_exp` reads norms on the host to choose how often to square, which makes it wait for a
GPU and cannot be captured in a CUDA graph. Here nothing is chosen by values: E(S) = exp(S) - I of S / 2^8 by its series to
degree 16, in six products, and then eight times

    E(2S) = 2 E(S) + E(S)^2.

Written for E and not for I + E a small S loses no digits to the I: with E_j near 2^j S/2^8 up to a norm of 2, doubling j
rounds by eps |E_j|, which the doublings after it, orthogonal maps, carry on 2^(8-j)-fold: eps |S| each, in all
|error| <= 10 eps |S|. What the series leaves out is r^16/17! of E for |S| <= 2^8 r, below eps / 2 at r = 0.8. So |S| up to
205 is reached, some thirty turns; beyond it S is scaled back to there by a factor that counts as constant, and the
columns stay orthonormal. As |S|_2 <= |S|_F / 2^(1/2) <= 2^(1/2) |A|_F the norm of A decides. `linalg.expm` is for Hermitian
matrices and real exponents: of i S it would give exp(i S). No derivative of all this knows a gap either.

Rotation to start from. For any V (m, k) without zero columns, with the upper triangular M = striu(V^T V) + diag(V^T V)/2,

    H = I - V M^-1 V^T is orthogonal, since M + M^T = V^T V,

the product of the k reflections at the columns of V. So H stays orthogonal when V is rounded, to bfloat16 even.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from spectralgrad.context import compiling, transforming
from spectralgrad.linalg.node import Shortcut, Some, run
from spectralgrad.linalg.precision import matmul

_DOUBLINGS = 8
_RADIUS = 0.8  # the norm up to which the series is exact to rounding
REACH = _RADIUS * 2**_DOUBLINGS  # the norm of S up to which exp(S) is
_POWERS = 4  # of S, which the series is made of: to degree 4 * 4
_TINY = 1e-30  # for c where B is 0


def skew_exponential(A: Tensor) -> Tensor:
    """exp([A 0] - [A 0]^T) [I; 0], (m, k), for A (m, k), m >= k, in float64; never makes a host wait."""
    m, k = A.shape
    A = A / _excess(A)
    top, below = A.split((k, m - k))
    skew = top - top.mT
    if m == k:
        return _exponential(skew)
    if m <= 2 * k:
        S = torch.cat([torch.cat([skew, -below.mT], 1), torch.cat([below, A.new_zeros(m - k, m - k)], 1)])
        return _exponential(S)[:, :k]
    c = (torch.linalg.vector_norm(below.detach()) / k**0.5).clamp(min=_TINY)  # root mean square of the singular values
    gram = matmul(below.mT, below)
    identity = torch.eye(k, dtype=A.dtype, device=A.device)
    S = torch.cat([torch.cat([skew, -gram / c], 1), torch.cat([identity * c, torch.zeros_like(gram)], 1)])
    X, cY = _exponential(S)[:, :k].split(k)
    return torch.cat([X, matmul(below / c, cY)])


def _excess(A: Tensor) -> Tensor:
    """2^8, or more where the skew matrix of A is out of reach: what A is divided by for the series."""
    share = torch.linalg.vector_norm(A.detach()) * (2**0.5 / REACH)
    excess: Tensor = share.clamp(min=1) * 2**_DOUBLINGS
    return excess


def _exponential(S: Tensor) -> Tensor:
    """exp(2^8 S), (n, n)."""
    E = _series(S)
    for _ in range(_DOUBLINGS):
        E = _doubled(E)
    return E + torch.eye(len(E), dtype=E.dtype, device=E.device)


def _series(S: Tensor) -> Tensor:
    """S + S^2/2! + ... + S^16/16! as B_0 + S^4 (B_1 + S^4 (B_2 + S^4 B_3)), all B_i in one product with the coefficients."""
    n, S2 = len(S), matmul(S, S)
    S3, S4 = matmul(S2, S), matmul(S2, S2)
    coefficients = _coefficients(S)  # (4, 4)
    powers = torch.stack([S, S2, S3, S4]).flatten(1)  # (4, n^2)
    *rest, last = matmul(coefficients, powers).view(_POWERS, n, n).unbind()
    E: Tensor = last
    for B in reversed(rest):
        E = torch.addmm(B, S4, E)
    return E


def _coefficients(like: Tensor) -> Tensor:
    """1 / (4 i + j)! for j = 1 to 4 in row i; made on the device, as a copy from the host would wait. 16! is exact."""
    return torch.arange(1, _POWERS**2 + 1, dtype=like.dtype, device=like.device).cumprod(0).reciprocal().view(_POWERS, -1)


class _Doubled(Shortcut):
    """2 E + E^2, which is exp(2S) - I for E = exp(S) - I. Autograd's own way back takes two launches more, eight times."""

    def composition(self, E: Tensor) -> Tensor:
        return torch.addmm(E, E, E, beta=2)

    value = composition

    def pull_shortly(self, kept: Any, grads: Any, needed: Sequence[bool]) -> Some:
        (E,), (g,) = kept, grads
        return (torch.addmm(g, g, E.mT, beta=2).addmm_(E.mT, g),)


def _doubled(E: Tensor) -> Tensor:
    if compiling() or transforming():
        return _Doubled().composition(E)
    return run(_Doubled(), E)  # type: ignore[no-any-return]


def _rotate(V: Tensor, X: Tensor) -> Tensor:
    """H X for V (m, k), X (m, p)."""
    gram = matmul(V.mT, V)
    M = torch.lerp(gram.triu(1), gram, 0.5)  # half of the diagonal; what lies below it is not read
    return X - matmul(V, torch.linalg.solve_triangular(M, matmul(V.mT, X), upper=True))


def reflectors(Q: Tensor) -> Tensor:
    """V (m, k) such that `reflect` maps [I; 0] to ``Q`` (m, k), whose columns are orthonormal.

    Householder's QR of Q gives H [I; 0] = Q up to the signs of the columns. H does not depend on the signs of the columns
    of V, so those carry them: on the diagonal, which is 1 otherwise.
    """
    start = torch.eye(*Q.shape, dtype=Q.dtype, device=Q.device)
    V = torch.geqrf(Q)[0].tril(-1) + start
    return V * (Q * _rotate(V, start)).sum(0).sign()


def reflect(V: Tensor, X: Tensor) -> Tensor:
    """H X times the signs on the diagonal of V: orthonormal columns stay so."""
    return _rotate(V, X) * V.diagonal().sign()
