"""Gradients, second derivatives and their condition numbers with 80 digits: the textbook, in mpmath, for small matrices.

Everything is one function of one symmetric matrix, f(H) = V diag(f_i) V^T, whose gradient for the cotangent C is
V (F * V^T C V) V^T, F_ij = (f_i - f_j)/(h_i - h_j). With 80 digits the plain quotient over a relative gap of 1e-25 still
has 55, and below that gap a central difference of f is as good. Nothing here knows a closed form of F.

- `Smooth`: f of the eigenvalue. `ByIndex`: a number for each place in the ascending order, sum_i c_i v_i v_i^T, which
  is what a loss on eigenvectors sees; pairs of the same number have F = 0 whatever their gap.
- A function of singular values is the off-diagonal block of an odd f of the dilation [[0, A], [A^T, 0]], whose
  eigenvectors are (u, v)/sqrt 2 and (u, -v)/sqrt 2; U alone and V alone are its diagonal blocks.
- A second derivative along T is the central difference of the gradient at X + h T and X - h T, h = 1e-20: no second
  differences are written down, and at a tie there is nothing special.
- The condition number is the change of the result, relative to itself, for a change of X relative to its norm: the
  largest over a few random directions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mpmath  # type: ignore[import-untyped]  # of the extra `bench`
import numpy as np
from numpy import ndarray

DIGITS = 80
TIE = mpmath.mpf(10) ** -25  # relative gap below which a central difference of this width replaces the quotient
STEP = mpmath.mpf(10) ** -20  # of a derivative along a direction
ZERO = mpmath.mpf(10) ** -40  # an eigenvalue below it, relative to the largest, is a zero of the dilation
DIRECTIONS = 3  # of a condition number

Number = Any  # mpmath's
Matrix = Any
Derivative = Callable[[Matrix], Matrix]  # X -> a gradient by X, or another matrix that X determines


@dataclass(frozen=True)
class Smooth:
    """f of each eigenvalue alone."""

    f: Callable[[Number], Number]

    def values(self, w: Matrix) -> list[Number]:
        return [self.f(x) for x in w]

    def quotient(self, a: Number, b: Number, fa: Number, fb: Number) -> Number:
        size = max(abs(a), abs(b))
        if abs(a - b) > TIE * size:
            return (fa - fb) / (a - b)
        mean, step = (a + b) / 2, TIE * (size or 1)
        return (self.f(mean + step) - self.f(mean - step)) / (2 * step)


@dataclass(frozen=True)
class ByIndex:
    """sum_i c_i v_i v_i^T with the eigenvalues in ascending order."""

    c: tuple[float, ...]

    def values(self, w: Matrix) -> list[Number]:
        order = sorted(range(len(w)), key=lambda i: w[i])
        found = [mpmath.mpf(0)] * len(w)
        for place, i in enumerate(order):
            found[i] = mpmath.mpf(self.c[place])
        return found

    def quotient(self, a: Number, b: Number, fa: Number, fb: Number) -> Number:
        return mpmath.mpf(0) if fa == fb else (fa - fb) / (a - b)


Function = Smooth | ByIndex


def odd(f: Callable[[Number], Number]) -> Smooth:
    """f at positive numbers, continued as an odd function that is 0 at what is zero to rounding."""
    return Smooth(lambda x: mpmath.mpf(0) if abs(x) < ZERO else f(x) if x > 0 else -f(-x))


def sign() -> Smooth:
    """1 at positive numbers, -1 at negative ones: the polar factor, as a function of the dilation."""
    return odd(lambda _: mpmath.mpf(1))


def exactly(x: ndarray) -> Matrix:
    """The matrix as it is, no digit more or less."""
    return mpmath.matrix(np.asarray(x, dtype=np.float64).tolist())


def rounded(x: Matrix) -> ndarray:
    return np.array(x.tolist(), dtype=np.float64)


def symmetric(x: Matrix) -> Matrix:
    return (x + x.T) / 2


def value(f: Function) -> Derivative:
    """H -> f(H)."""

    def of(H: Matrix) -> Matrix:
        w, V = mpmath.eigsy(symmetric(H))
        return V * mpmath.diag(f.values(w)) * V.T

    return of


def gradient(f: Function, C: Matrix) -> Derivative:
    """H -> the gradient of <C, f(H)>."""
    C = symmetric(C)

    def of(H: Matrix) -> Matrix:
        w, V = mpmath.eigsy(symmetric(H))
        y, inner = f.values(w), V.T * C * V
        for i in range(len(w)):
            for j in range(len(w)):
                inner[i, j] *= f.quotient(w[i], w[j], y[i], y[j])
        return V * inner * V.T

    return of


def dilation(A: Matrix) -> Matrix:
    """[[0, A], [A^T, 0]]."""
    return _blocks(A.rows, A.cols, right=A)


def of_singular(derivative: Derivative) -> Derivative:
    """A -> the gradient by A, from one by the dilation, in which A stands twice."""
    return lambda A: 2 * derivative(dilation(A))[: A.rows, A.rows :]


def value_of_singular(f: Function) -> Derivative:
    """A -> U f(S) V^T."""
    return lambda A: value(f)(dilation(A))[: A.rows, A.rows :]


def cotangent(m: int, n: int, *, left: Matrix = None, right: Matrix = None, corner: Matrix = None) -> Matrix:
    """C so that <C, f> of the dilation, f 0 but at positive eigenvalues, sees U f U^T, U f V^T and V f V^T by its blocks."""
    return 2 * _blocks(m, n, left=left, right=None if right is None else right / 2, corner=corner)


def along(derivative: Derivative, T: Matrix) -> Derivative:
    """X -> the derivative at X along T."""
    return lambda X: (derivative(X + STEP * T) - derivative(X - STEP * T)) / (2 * STEP)


def condition(derivative: Derivative, X: Matrix, result: Matrix, *, keeps_symmetry: bool) -> float:
    """|d result| / |result| for |dX| = |X|, the largest over some random directions (Frobenius norms)."""
    random = np.random.default_rng(0)
    worst = mpmath.mpf(0)
    for _ in range(DIRECTIONS):
        E = exactly(random.standard_normal((X.rows, X.cols)))
        E = symmetric(E) if keeps_symmetry else E
        E *= norm(X) / norm(E)
        worst = max(worst, norm(derivative(X + STEP * E) - result) / STEP)
    return float(worst / norm(result))


def norm(x: Matrix) -> Number:
    return mpmath.sqrt(sum(abs(entry) ** 2 for entry in x))


def _blocks(m: int, n: int, *, left: Matrix = None, right: Matrix = None, corner: Matrix = None) -> Matrix:
    """[[left, right], [right^T, corner]], (m + n, m + n), 0 where nothing is given."""
    H = mpmath.matrix(m + n, m + n)
    if left is not None:
        H[:m, :m] = left
    if corner is not None:
        H[m:, m:] = corner
    if right is not None:
        H[:m, m:] = right
        H[m:, :m] = right.T
    return H
