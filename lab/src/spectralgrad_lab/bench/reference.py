"""Gradients of <G, f(M)>, f = sqrt or inverse sqrt, correct to all digits of float64. Two ways, neither is ours.

`by_mpmath` is the textbook: eigenpairs of the exact input matrix with 50 digits, Loewner matrix by plain difference
quotients. At 50 digits a quotient over a relative gap of 1e-12 still has 38. One matrix takes 0.15 s at d = 16 and 80 s
at d = 128, which is too long for some hundred of them.

`by_refinement` is for every size. It never divides by a gap, because it has no eigenvalues: the square root Y of M and
the gradient X are solutions of

    Y Y = M        Y X + X Y = C,      C = sym(G) for sqrt, C = -Z sym(G) Z with Z = Y^-1 for the inverse sqrt.

The residuals of these equations are evaluated with 30 digits (extended.py), the corrections with 16. Each round gains
about 16 - log10(n kappa^(1/2)) digits, and the last residual bounds what is left: the reference proves itself, ties or
not. A float64 eigendecomposition serves as the approximate inverse for the corrections and nothing else, so its error
changes the number of rounds and not the result.

`gradients.py` takes the first for single matrices up to d = 16 and requires there that the second agrees.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy import ndarray

from . import extended as ex
from .extended import Pair

DIGITS = 50
TIE = 1e-25  # relative gap below which f' at the mean is better than the quotient: both have 25 digits
ROUNDS = 20
RESIDUAL = 1e-24  # what a solution must reach; times kappa = 1e12 this is still far below float64


def by_mpmath(M: ndarray, G: ndarray, inverse: bool) -> ndarray:
    """The gradient (n, n) for one exact matrix (n, n) and its cotangent, in float64 after 50 digits."""
    import mpmath  # type: ignore[import-untyped]  # of the extra `bench`

    with mpmath.workdps(DIGITS):
        H, C = (mpmath.matrix(((x + x.T) / 2).tolist()) for x in (M.astype(np.float64), G.astype(np.float64)))
        w, V = mpmath.eigsy(H)
        n = len(w)
        f = [1 / mpmath.sqrt(x) if inverse else mpmath.sqrt(x) for x in w]
        inner = V.T * C * V
        for i in range(n):
            for j in range(n):
                inner[i, j] *= _quotient(w[i], w[j], f[i], f[j], inverse)
        return np.array((V * inner * V.T).tolist(), dtype=np.float64)


def _quotient(a: Any, b: Any, fa: Any, fb: Any, inverse: bool) -> Any:
    """(fa - fb) / (a - b) of mpmath's numbers, and f' at a tie."""
    if abs(a - b) > TIE * max(a, b):
        return (fa - fb) / (a - b)
    mean = (a + b) / 2
    return -1 / (2 * mean * mean.sqrt()) if inverse else 1 / (2 * mean.sqrt())


def by_refinement(M: Pair, G: Pair, inverse: bool) -> Pair:
    """The gradient (*B, n, n) for matrices and cotangents (*B, n, n) given as Pairs."""
    M, G = ex.symmetric_part(M), ex.symmetric_part(G)
    Y, Z, solve = _roots(M)
    C = ex.negative(ex.matmul(Z, ex.matmul(G, Z))) if inverse else G
    return _refine(lambda X: ex.add(C, ex.negative(_anticommutator(Y, X))), solve, _zero(C), C)


def inverse_root(M: Pair) -> Pair:
    """M^(-1/2), (*B, n, n)."""
    return _roots(ex.symmetric_part(M))[1]


def _roots(M: Pair) -> tuple[Pair, Pair, Callable[[ndarray], ndarray]]:
    """M^(1/2), M^(-1/2), and the float64 solver of Y X + X Y = R that refines everything here."""
    w, V = np.linalg.eigh(M[0])
    a = np.sqrt(w)
    Vt = V.swapaxes(-1, -2)
    sums = a[..., :, None] + a[..., None, :]

    def solve(R: ndarray) -> ndarray:
        X = V @ ((Vt @ R @ V) / sums) @ Vt
        half: ndarray = (X + X.swapaxes(-1, -2)) / 2
        return half

    start = ex.symmetric_part(ex.as_pair((V * a[..., None, :]) @ Vt))
    Y = _refine(lambda Y: ex.add(M, ex.negative(ex.matmul(Y, Y))), solve, start, M)
    approximate = (V / a[..., None, :]) @ Vt
    identity = ex.as_pair(np.broadcast_to(np.eye(M[0].shape[-1]), M[0].shape))
    # Not symmetrised on the way: Y Z = I does not imply Z Y = I to the same residual.
    Z = _refine(
        lambda Z: ex.add(identity, ex.negative(ex.matmul(Y, Z))),
        lambda R: approximate @ R,
        ex.as_pair(approximate),
        identity,
    )
    return Y, ex.symmetric_part(Z), solve


def _anticommutator(Y: Pair, X: Pair) -> Pair:
    YX = ex.matmul(Y, X)
    return ex.add(YX, ex.transpose(YX))  # both symmetric: X Y is the transpose of Y X


def _zero(x: Pair) -> Pair:
    return ex.as_pair(np.zeros_like(x[0]))


def _refine(residual: Callable[[Pair], Pair], correct: Callable[[ndarray], ndarray], X: Pair, right: Pair) -> Pair:
    """``X`` corrected until its residual, relative to the right-hand side, shrinks no further."""
    size = np.linalg.norm(right[0], axis=(-2, -1))
    previous = np.inf
    for _ in range(ROUNDS):
        R = residual(X)[0]
        error = float((np.linalg.norm(R, axis=(-2, -1)) / size).max())
        if not error < previous / 2:
            break
        previous = error
        X = ex.add(X, ex.as_pair(correct(R)))
    if not previous < RESIDUAL:
        raise ArithmeticError(f"the reference did not converge: relative residual {previous:.1e}, wanted {RESIDUAL:.0e}.")
    return X
