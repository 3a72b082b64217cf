"""Inverses of positive definite matrices by products alone.

If F is a polynomial in N, 1 - x f(x) says how far N F is from I. On an interval that is smallest for Chebyshev's polynomial,
scaled to be 1 at x = 0:

    1 - x f(x) = T_3(t - x/h) / T_3(t)    on [low, high],   h = (high - low)/2,   t = (high + low)/(high - low).

It gives the first F, quadratic in N. From then on residuals e = 1 - x f(x) lie in [-r, r], and the same polynomial is
T_3(e/r) / T_3(1/r), that is

    F <- F (I + a R + a R^2),   R = I - N F,   a = 4/(4 - 3 r^2),   r <- r^3/(4 - 3 r^2):

the third order of the Neumann series once r is small. A step takes three products; the first ones divide a condition number
by nine.
"""

import torch
from torch import Tensor

from ..precision import matmul
from .iteration import even_part


def shifted_inverse(B: Tensor, B2: Tensor, shift: float, lower: float, accuracy: float) -> Tensor:
    """(B + shift I)^-1 (*B, n, n) of Hermitian B with eigenvalues in [lower, 1], lower < 1; ``B2`` is B^2. Both are used up.

    ``accuracy`` is that of the result, relative to it; it ends at the rounding of the dtype. Eigenvalues between -shift and
    ``lower`` get something between 0 and the inverse.
    """
    h, middle = (1 - lower) / 2, (1 + lower) / 2 + shift
    t, q = middle / h, shift / h
    T = (4 * t * t - 3) * t
    F = B2.mul_(4 / (h**3 * T)).add_(B, alpha=(8 * q - 12 * t) / (h * h * T))
    F.diagonal(dim1=-2, dim2=-1).add_((12 * t * t - 3 - 12 * t * q + 4 * q * q) / (h * T))
    N = B
    N.diagonal(dim1=-2, dim2=-1).add_(shift)
    away, accuracy = 1 / T, max(accuracy, float(torch.finfo(B.dtype).eps))
    while away > accuracy:
        a = 4 / (4 - 3 * away * away)
        F = matmul(F, even_part(matmul(N, F), (1 + 2 * a, -3 * a, a)))
        away = a * away**3 / 4
    return F
