"""Matrices with orthonormal columns: the exponential of a skew matrix, and a rotation to start from.

Exponential. For A (m, k), m >= k, filled up with zero columns, S = A - A^T is the skew matrix

    S = [[T, -B^T], [B, 0]],     T = A_1 - A_1^T (k, k),   B = A_2 (m - k, k),

and exp(S) [I; 0], its first k columns, are orthonormal. The part of an m x m skew matrix that A leaves out only turns the
columns that are dropped. Where m > 2k there is no need for an m x m exponential: write exp(tS) [I; 0] = [X; B Y]. Then
X' = T X - B^T B Y and Y' = X, so that with any c > 0

    [X; c Y] = exp([[T, -B^T B / c], [c I, 0]]) [I; 0],

2k x 2k, and smooth in B^T B: no QR or SVD of B, whose derivatives would fail at B = 0. c only balances the two blocks.

`torch.matrix_exp` takes them. `linalg.expm` is for Hermitian matrices and real exponents: of i S it would give exp(i S).
The derivative of matrix_exp is a block-triangular exponential, which knows no gaps either.

Rotation to start from. For any V (m, k) without zero columns, with the upper triangular M = striu(V^T V) + diag(V^T V)/2,

    H = I - V M^-1 V^T is orthogonal, since M + M^T = V^T V,

the product of the k reflections at the columns of V. So H stays orthogonal when V is rounded, to bfloat16 even.
"""

import torch
from torch import Tensor

from spectralgrad.linalg.precision import matmul


def skew_exponential(A: Tensor) -> Tensor:
    """exp([A 0] - [A 0]^T) [I; 0], (m, k), for A (m, k), m >= k."""
    m, k = A.shape
    top, below = A[:k], A[k:]
    skew = top - top.mT
    if m == k:
        return torch.matrix_exp(skew)
    if m <= 2 * k:
        S = torch.cat([torch.cat([skew, -below.mT], 1), torch.cat([below, A.new_zeros(m - k, m - k)], 1)])
        return torch.matrix_exp(S)[:, :k]
    size = below.detach().square().mean().sqrt() * (m - k) ** 0.5  # root mean square of the singular values
    c = torch.where(size > 0, size, 1)
    gram = matmul(below.mT, below)
    identity = torch.eye(k, dtype=A.dtype, device=A.device)
    S = torch.cat([torch.cat([skew, -gram / c], 1), torch.cat([identity * c, torch.zeros_like(gram)], 1)])
    X, cY = torch.matrix_exp(S)[:, :k].split(k)
    return torch.cat([X, matmul(below / c, cY)])


def _rotate(V: Tensor, X: Tensor) -> Tensor:
    """H X for V (m, k), X (m, p)."""
    gram = matmul(V.mT, V)
    M = gram.triu(1) + torch.diag(gram.diagonal() / 2)
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
