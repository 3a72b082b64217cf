"""The Moore-Penrose inverse.

T = pinv(A)^H = U diag(1/s) V^H over the singular values that count is an odd function of them, so its derivative is its own
adjoint (calculus.py). With the projections M = I - U U^H and N = I - V V^H on what does not count,

    D1[E] = M E T^H T + T T^H E N - T E^H T.

The second derivative is that of this formula, with d(U U^H) = M X T^H + (M X T^H)^H and d(V V^H) = N X^H T + (N X^H T)^H.
A direction X that changes the rank gives what does not count singular values of its own, M X N. For them the factor 1/s^2
becomes f[s, e] = 1/s^2 + e/s^3 + ..., which adds M X N Y^H T T^H T + T T^H T Y^H M X N, and the same with X and Y
exchanged. No gap and no tie is in it. All is computed for A / 2^k of size 1 and scaled back last.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from spectralgrad.context import checking, is_constant, may_read
from spectralgrad.errors import OptionError
from spectralgrad.validation import adjoint, as_matrix, asymmetry_tolerance, require_number, returned_adjoint

from .calculus import AnyScale, Factors, evaluate
from .choices import AUTO
from .precision import exactly_hermitian, matmul
from .scaling import exponent, is_ordinary, shifted
from .solvers import decompose, decompose_svd

__all__ = ["pinv"]

_SMALLEST = 0.25  # the smallest normal number to this power: T and its two derivatives, of order 3, stay finite


def pinv(A: Tensor, *, atol: float = 0.0, rtol: float | None = None, hermitian: bool = False) -> Tensor:
    """The Moore-Penrose inverse, as `torch.linalg.pinv`, with a gradient that is exact while the rank stays the same.

    V diag(1/s) U^H over the singular values s > max(atol, rtol s_1); the others count as zero, in the gradient too, which is
    finite for every finite A.

    Args:
        A: (*B, m, n), real or complex, any shape. Half precision is computed in float32.
        atol: singular values up to this count as zero.
        rtol: None for max(m, n) eps, or with ``atol`` above 0 for 0. Less than 1e-9 (float32) or 1e-77 (float64) is taken as
            that.
        hermitian: A is square and Hermitian: by eigenpairs, which cost less. Only (A + A^H)/2 counts, so that result and
            gradient are Hermitian too.

    Returns:
        (*B, n, m). Numbers that would overflow are cut to the largest one.

    Raises:
        OptionError: atol or rtol is not a number >= 0, or hermitian not True or False.
        SymmetryError: hermitian=True, and A is not.
        ShapeError, DtypeError, NonFiniteError, ConvergenceError.

    >>> import torch, spectralgrad as sg
    >>> sg.pinv(torch.tensor([[2.0, 0.0], [0.0, 4.0], [0.0, 0.0]]))
    tensor([[0.5000, 0.0000, 0.0000],
            [0.0000, 0.2500, 0.0000]])
    """
    require_number("pinv", "atol", atol, least=0)
    if rtol is not None:
        require_number("pinv", "rtol", rtol, least=0)
    if not isinstance(hermitian, bool):
        raise OptionError(f"`pinv`: hermitian must be True or False, got {hermitian!r}.")
    X = as_matrix("pinv", A, square=hermitian, name="A")
    if X.shape[-2] < X.shape[-1]:
        return returned_adjoint(pinv(adjoint("pinv", A), atol=atol, rtol=rtol))
    real = torch.finfo(X.dtype)
    default = X.shape[-2] * real.eps if atol == 0 else 0.0
    relative = max(default if rtol is None else rtol, real.tiny**_SMALLEST)
    tolerance = asymmetry_tolerance(A) if hermitian else 0.0 if checking(A) else None
    step = _Pinv(atol, relative, hermitian, tolerance=tolerance)
    if tolerance is not None and is_constant(X) and may_read(X) and (found := step.of_ordinary(X)) is not None:
        return found if X is A else found.to(A.dtype)
    P = returned_adjoint(evaluate(step, X))
    return P if X is A else P.to(A.dtype)


@dataclass(frozen=True)
class _Pinv(AnyScale):
    """A -> pinv(A)^H of a tall matrix. Factors: T of size 1 (*B, m, n), the handle, and U (*B, m, n), S (*B, n),
    Vh (*B, n, n), with zeros in U and Vh for what does not count."""

    atol: float
    rtol: float
    hermitian: bool  # a function of (A + A^H)/2, whose derivatives are Hermitian

    handle, count = 0, 4

    def value(self, A: Tensor) -> tuple[Tensor, ...]:
        U, S, Vh = self._triplets(A)
        if S.shape[-1] == 0:
            return A.clone(), A.clone(), U, S, Vh
        scale = exponent(S, 1)
        kept = (self.rtol * S[..., :1]).clamp(min=self.atol) < S
        s = shifted(S, -scale)
        inverse = torch.where(kept, 1 / torch.where(kept, s, 1), torch.where(S.isnan(), S, 0))
        T = self._part(matmul(U * inverse.unsqueeze(-2), Vh))
        U, Vh = U * kept.unsqueeze(-2), Vh * kept.unsqueeze(-1)
        return shifted(T, -scale), T, U, S, Vh

    def of_ordinary(self, A: Tensor) -> Tensor | None:
        """pinv(A) of values at hand where no derivative can be asked for; None for sizes that need help with scales."""
        U, S, Vh = self._triplets(A)
        if S.numel() == 0 or not is_ordinary(S, 1):
            return None
        inverse = torch.where((self.rtol * S[..., :1]).clamp(min=self.atol) < S, 1 / S, 0)
        P = matmul(Vh.mH * inverse.unsqueeze(-2), U.mH)
        return exactly_hermitian(P) if self.hermitian else P

    def _triplets(self, A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if not self.hermitian:
            return decompose_svd("pinv", A, AUTO, self.tolerance is not None)
        w, V = decompose("pinv", A, AUTO, self.tolerance)
        S, order = w.abs().sort(-1, descending=True)
        V, sign = V.gather(-1, order.unsqueeze(-2).expand_as(V)), torch.where(w < 0, -1, 1).gather(-1, order)
        return V * sign.unsqueeze(-2), S, V.mH

    def _part(self, E: Tensor) -> Tensor:
        """What of E (*B, m, n) counts."""
        return exactly_hermitian(E) if self.hermitian else E

    def first(self, factors: Factors, E: Tensor) -> Tensor:
        if E.numel() == 0:
            return E.clone()
        T, U, S, Vh = factors
        size = exponent(E)
        X = self._part(shifted(E, -size))
        return shifted(self._part(_derivative(T, U, Vh, X)), size - 2 * exponent(S, 1))

    def second(self, factors: Factors, E1: Tensor, E2: Tensor) -> Tensor:
        if E1.numel() == 0:
            return E1.clone()
        T, U, S, Vh = factors
        sizes = exponent(E1), exponent(E2)
        X, Y = (self._part(shifted(E, -size)) for E, size in zip((E1, E2), sizes, strict=True))
        dT = _derivative(T, U, Vh, X)
        gram, TY, YT = matmul(T.mH, T), matmul(T.mH, Y), matmul(Y.mH, T)
        MX, MY = _left(U, X), _left(U, Y)
        half = matmul(dT.mH, T)
        result = matmul(MY, half + half.mH)  # M Y d(T^H T)
        result = result - matmul(matmul(MX, TY) + matmul(T, matmul(MX.mH, MY)), gram)  # dM Y T^H T
        result = result + _right(Vh, matmul(dT, TY) + matmul(T, matmul(dT.mH, Y)))  # d(T T^H) Y N
        turned = _right(Vh, matmul(T.mH, X))
        result = result - matmul(T, matmul(TY, turned + turned.mH))  # T T^H Y dN
        result = result - matmul(dT, YT) - matmul(T, matmul(Y.mH, dT))
        cube, nullX, nullY = matmul(T, gram), _right(Vh, MX), _right(Vh, MY)
        result = result + matmul(nullX, matmul(Y.mH, cube)) + matmul(nullY, matmul(X.mH, cube))
        result = result + matmul(cube, matmul(Y.mH, nullX) + matmul(X.mH, nullY))
        return shifted(self._part(result), sizes[0] + sizes[1] - 3 * exponent(S, 1))


def _left(U: Tensor, E: Tensor) -> Tensor:
    """(I - U U^H) E."""
    return E - matmul(U, matmul(U.mH, E))


def _right(Vh: Tensor, E: Tensor) -> Tensor:
    """E (I - V V^H)."""
    return E - matmul(matmul(E, Vh.mH), Vh)


def _derivative(T: Tensor, U: Tensor, Vh: Tensor, E: Tensor) -> Tensor:
    """D1[E]; E^H T is n x n, the small side."""
    ET = matmul(E.mH, T)
    return matmul(_left(U, E), matmul(T.mH, T)) + matmul(T, _right(Vh, ET.mH) - ET)
