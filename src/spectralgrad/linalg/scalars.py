"""Scalar functions with their divided differences: all that a spectral function's derivatives are made of.

For M = V diag(l) V^H and E^ = V^H E V (Daleckii-Krein and its second-order sibling):

    f(M)         = V diag(f(l)) V^H
    Df[E]        = V (F * E^) V^H                       F_ij  = f[l_i, l_j],  the Loewner matrix
    D2f[E1, E2]  = V (sum_k f[l_i, l_k, l_j] (E1^_ik E2^_kj + E2^_ik E1^_kj)) V^H

Written without cancellation both differences are finite and accurate at every tie. See docs/loewner.md. First come the
borders of domains: where eigenvalues may lie, and what happens to those that rounding pushed across.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from spectralgrad.counters import count_on_device
from spectralgrad.errors import DefinitenessError, NonFiniteError
from spectralgrad.kernels.spectral import GIVEN, ScalarFunction

from .precision import in_widest, matmul, widest
from .quadrature import second_differences
from .scaling import bounded, exponent, reciprocal_root, shifted

_ZERO = 4  # times eps l_max: LAPACK's usual error in an eigenvalue, so less than that counts as zero
_STEPS = 2**20  # of an exponent: so many, times that of the largest number, are exact in float64
_MARGIN = 4  # powers of two between the largest eigenvalue and the end of the range
_NEGATIVE = 10  # times n eps l_max: more than rounding in the matrix and the solver can push a zero below zero
CLAMPED = "clamped_eigenvalue"  # the name of its count
Root = Literal["sqrt", "inverse sqrt", "inverse fourth root"]
_FLOOR_ADVICE = "Add eps * identity, or pass floor= to clamp the eigenvalues."


def spectral_radius(w: Tensor) -> Tensor:
    """max |w| (*B, 1) of ascending eigenvalues (*B, n)."""
    return torch.maximum(-w[..., :1], w[..., -1:])


def zero_tolerance(w: Tensor) -> Tensor:
    """Eigenvalues up to this (*B, 1) count as zero.

    Four eps l_max whatever n is: with n eps l_max a covariance of 128 channels plus 1e-5 would count as singular in
    float32, although its gradient is good to a few per cent.
    """
    return _ZERO * float(torch.finfo(w.dtype).eps) * spectral_radius(w)


def require_not_negative(who: str, w: Tensor, advice: str, name: str = "M") -> None:
    """Raise if an ascending spectrum (*B, n) reaches further below zero than rounding explains. Reads the host once."""
    if w.numel() == 0:
        return
    rounding = max(_NEGATIVE * w.shape[-1], 100) * float(torch.finfo(w.dtype).eps)
    negative = w[..., :1] < -rounding * spectral_radius(w)
    if bool(negative.any()):
        first = w[negative.squeeze(-1)][0]
        raise DefinitenessError(
            f"`{who}`: `{name}` must be positive semi-definite, but {int(negative.sum())} of {negative.numel()} matrices "
            f"have a negative eigenvalue, the first {float(first[0]):.3e} against a largest of {float(first[-1]):.3e}. "
            f"{advice}"
        )


def require_positive(who: str, w: Tensor, advice: str, name: str = "M") -> None:
    """Raise if an ascending spectrum (*B, n) is singular to rounding, or negative. Reads the host once."""
    if w.numel() == 0:
        return
    lowest, highest = w.select(-1, 0), w.select(-1, -1)
    singular = lowest <= highest * (_ZERO * float(torch.finfo(w.dtype).eps))  # a negative spectrum is so too
    if bool(singular.any()):
        first = w[singular][0]
        raise DefinitenessError(
            f"`{who}`: `{name}` must be positive definite, but {int(singular.sum())} of {singular.numel()} matrices are "
            f"singular or indefinite to rounding, the first with eigenvalues from {float(first[0]):.3e} to "
            f"{float(first[-1]):.3e}. {advice}"
        )


def _expm1(x: Tensor) -> Tensor:
    """e^x - 1 for x <= 0. The code that torch.compile makes for a CPU subtracts 1 and loses all digits of a small one."""
    if not torch.compiler.is_compiling():
        return torch.expm1(x)
    t = (x / 2).tanh()
    return 2 * t / (1 - t)


def _less_one(x: float) -> tuple[float, float]:
    """x - 1, and what its rounding lost."""
    rounded = x - 1
    taken = rounded - x  # -1, but for rounding
    return rounded, (x - (rounded - taken)) + (-1 - taken)


class ScalarAtScale1(NamedTuple):
    """A function whose differences on these eigenvalues (*B, n) are of size 1, and what they are multiplied with."""

    scalar: "Scalar"
    eigenvalues: Tensor
    # All in the widest dtype, (*B,).
    first: Tensor  # whole: first differences are 2 to this times the factor times what the scalar gives
    second: Tensor  # second ones are 2 to this times what the scalar gives
    factor: Tensor


@dataclass(frozen=True)
class Scalar(ABC):
    """f on the eigenvalues of a matrix.

    Args:
        floor: eigenvalues below it are replaced by it and have derivative 0; None for no clamping.
        checked: `require` has passed, so that there is nothing left to clamp at the border of the domain.
    """

    floor: float | None = None
    checked: bool = False

    lowest_floor = -math.inf  # a floor must lie above it
    can_overflow: ClassVar[bool] = False  # f of a finite eigenvalue
    root: ClassVar[Root | None] = None  # which root it is, where matrix products can compute it

    # What a function is: on clamped eigenvalues c (*B, n).

    @abstractmethod
    def f(self, c: Tensor) -> Tensor:
        """f(c), (*B, n)."""

    @abstractmethod
    def difference(self, a: Tensor, b: Tensor) -> Tensor:
        """f[a, b] for broadcastable a and b, without cancellation; f'(a) where they are equal."""

    @abstractmethod
    def curvature(self, x: Tensor) -> Tensor:
        """f''(x)."""

    def require(self, who: str, w: Tensor) -> None:  # noqa: B027  (a function on the whole line has nothing to ask)
        """Raise if eigenvalues (*B, n) lie outside the domain."""

    def border(self, w: Tensor) -> tuple[Tensor, Tensor] | None:
        """Eigenvalues up to the first number count as the second and get no derivative of their own; both (*B, 1)."""
        return None

    near = 0.02  # eigenvalues closer than this, relative to `width`, are handled by quadrature in second differences

    def width(self, x: Tensor) -> Tensor:
        """The distance over which f changes its character."""
        return x.abs()

    def in_kernel(self) -> ScalarFunction:
        """This function for kernels/spectral.cu; GIVEN where that does not know it and must get the numbers."""
        return GIVEN

    # What follows from it.

    def evaluate(self, who: str, w: Tensor, tolerance: float | None) -> Tensor:
        """f of eigenvalues (*B, n). Raises for those outside the domain; where looking is forbidden (no tolerance), counts
        those that are clamped."""
        if tolerance is not None:
            self.require(who, w)
        elif not torch.compiler.is_compiling() and w.numel() and self.floor is None:
            border = self.border(w)
            if border is not None:
                count_on_device(CLAMPED, w <= border[0])
        if w.numel() == 0:
            return w
        y = self.f(self.clamp(w)[0])
        return bounded(y) if self.can_overflow else y

    def clamp(self, w: Tensor) -> tuple[Tensor, Tensor | None]:
        """Clamped eigenvalues and which were clamped (*B, n); None if none can be."""
        if self.floor is not None:
            clamped = w < self.floor
            return torch.where(clamped, self.floor, w), clamped
        border = self.border(w)
        if border is None:
            return w, None
        clamped = w <= border[0]
        return torch.where(clamped, border[1], w), clamped

    def at_scale_1(self, w: Tensor) -> ScalarAtScale1:
        """What keeps differences within the range of numbers; here nothing, since nothing is known of f."""
        zero = w.new_zeros(w.shape[:-1], dtype=widest(w))
        return ScalarAtScale1(self, w, zero, zero, zero + 1)

    def _homogeneous(self, w: Tensor, degree: float) -> ScalarAtScale1:
        """For f(c x) = c^degree f(x), or log: f[c a, c b] = c^(degree - 1) f[a, b]. The steepest place comes to scale 1."""
        c = self.clamp(w)[0]
        steepest = c[..., :1] if degree < 1 else c[..., -1:]
        k = exponent(torch.where(steepest > 0, steepest, c[..., -1:]), 1)
        top = math.frexp(torch.finfo(w.dtype).max)[1] - _MARGIN
        k = torch.maximum(k, exponent(c, 1) - top)  # the largest stays a number
        k = 2 * torch.ceil(k / 2)  # even, for square roots: their exponents stay whole
        floor = None
        if self.floor is not None:
            floor = shifted(torch.full_like(w[..., :1], self.floor), -k)  # one for each matrix
        scaled = replace(self, floor=floor)  # type: ignore[arg-type]
        # 2^((degree - 1) k): in one number, whole part and rest would share the digits of the rest.
        slope, lost = _less_one(degree)
        coarse = round(slope * _STEPS) / _STEPS
        fine = (slope - coarse) + lost
        wide = in_widest(k)
        power = coarse * wide  # exact in float64
        whole = power.floor()
        rest = (power - whole) + fine * wide
        return ScalarAtScale1(scaled, shifted(w, -k), whole, (degree - 2) * wide, torch.exp2(rest))

    def loewner(self, w: Tensor) -> Tensor:
        """First divided differences (*B, n, n) of the clamped function.

        A pair of clamped eigenvalues gives 0. With one clamped to c_i,
        (f(c_i) - f(l_j)) / (l_i - l_j) = f[c_i, l_j] (c_i - l_j) / (l_i - l_j).
        """
        c, clamped = self.clamp(w)
        F = bounded(self.difference(c.unsqueeze(-1), c.unsqueeze(-2)))
        if clamped is None:
            return F
        row, column = clamped.unsqueeze(-1), clamped.unsqueeze(-2)
        if self.floor is not None:
            mixed = row != column
            ratio = (c.unsqueeze(-1) - c.unsqueeze(-2)) / torch.where(mixed, w.unsqueeze(-1) - w.unsqueeze(-2), 1)
            F = torch.where(mixed, F * ratio, F)
        return F.masked_fill(row & column, 0)

    def contract(self, w: Tensor, X: Tensor, Y: Tensor) -> Tensor:
        """sum_k f[l_i, l_k, l_j] (X_ik Y_kj + Y_ik X_kj) for Hermitian X and Y in the eigenbasis."""
        # (*B, i, k, j), summed by hand: einsum is a matrix product, and those may be in lower precision
        P = (second_differences(self, w) * X.unsqueeze(-1) * Y.unsqueeze(-3)).sum(-2)
        return P + P.mH  # f[.,.,.] is symmetric and X, Y are Hermitian: the second term is the adjoint of the first


class _NonNegative(Scalar):
    """Defined at zero, but with an infinite slope there: eigenvalues that are zero to rounding get no derivative."""

    lowest_floor = 0.0

    def require(self, who: str, w: Tensor) -> None:
        if self.floor is None:
            require_not_negative(who, w, "Check that M is a covariance; pass floor= to clamp its eigenvalues.")

    def border(self, w: Tensor) -> tuple[Tensor, Tensor] | None:
        tolerance = zero_tolerance(w)
        return tolerance, torch.zeros_like(tolerance)


class _Positive(Scalar):
    """Not defined at zero. Where values cannot be looked at, eigenvalues are clamped to rounding size instead."""

    lowest_floor = 0.0

    def clamp(self, w: Tensor) -> tuple[Tensor, Tensor | None]:
        return (w, None) if self.checked and self.floor is None else super().clamp(w)

    def require(self, who: str, w: Tensor) -> None:
        if self.floor is None:
            require_positive(who, w, _FLOOR_ADVICE)

    def border(self, w: Tensor) -> tuple[Tensor, Tensor] | None:
        limits = torch.finfo(w.dtype)
        tolerance = zero_tolerance(w).clamp(min=limits.tiny * limits.eps)  # the smallest number, where all are zero
        return tolerance, tolerance


def _reciprocal(x: Tensor) -> Tensor:
    """1/x, and 0 where x is 0."""
    zero = x == 0
    return torch.where(zero, 0, 1 / torch.where(zero, 1, x))


def _log_ratio(a: Tensor, b: Tensor) -> Tensor:
    """log(a/b) for a >= b >= 0, right relative to itself; infinite at b = 0 < a, and 0 at a = b = 0."""
    positive = a > 0
    top = torch.where(positive, a, 1)
    ratio = torch.where(positive, b, 1) / top
    near = ratio > 0.5  # there a - b is exact (Sterbenz), and the logarithm of the quotient is not
    far = ratio < torch.finfo(a.dtype).tiny  # the quotient underflows, and the difference of logarithms is large
    apart = torch.where(far, top.log() - torch.where(positive, b, 1).log(), -ratio.log())
    return torch.where(near, torch.log1p((a - b) / torch.where(near & positive, b, 1)), apart)


@dataclass(frozen=True)
class Sqrt(_NonNegative):
    """x^(1/2): f[a^2, b^2] = 1/(a + b), f[a^2, b^2, c^2] = -1/((a + b)(b + c)(a + c))."""

    root: ClassVar[Root | None] = "sqrt"

    def f(self, c: Tensor) -> Tensor:
        return c.sqrt()

    def at_scale_1(self, w: Tensor) -> ScalarAtScale1:
        return self._homogeneous(w, 0.5)

    def in_kernel(self) -> ScalarFunction:
        return ScalarFunction("SQRT", "TO_ZERO", floor=self.floor)

    def difference(self, a: Tensor, b: Tensor) -> Tensor:
        return _reciprocal(a.sqrt() + b.sqrt())

    def curvature(self, x: Tensor) -> Tensor:
        return -0.25 * x.pow(-1.5)

    def contract(self, w: Tensor, X: Tensor, Y: Tensor) -> Tensor:
        if self.floor is not None:
            return super().contract(w, X, Y)
        F, zero = self.loewner(w), self.clamp(w)[1]
        assert zero is not None
        P = matmul(F * X, F * Y)
        # Two zeros have F = 0 between them, so that f[l, 0, 0] = F(l, 0) / l, in whatever order: the cube of F(l, 0).
        row, column = zero.unsqueeze(-1), zero.unsqueeze(-2)
        cube = (F * F * F).masked_fill(row == column, 0)
        Q = matmul(cube * X, torch.where(column, Y, 0)) + matmul(torch.where(row & column, X, 0), cube * Y)
        return Q + Q.mH - F * (P + P.mH)


@dataclass(frozen=True)
class InverseSqrt(_Positive):
    """x^(-1/2): f[a^2, b^2] = -1/(ab(a + b)), f[a^2, b^2, c^2] = (a + b + c)/(abc(a + b)(b + c)(a + c))."""

    root = "inverse sqrt"

    def f(self, c: Tensor) -> Tensor:
        return reciprocal_root(c)

    def at_scale_1(self, w: Tensor) -> ScalarAtScale1:
        return self._homogeneous(w, -0.5)

    def in_kernel(self) -> ScalarFunction:
        return ScalarFunction("INVERSE_SQRT", "NOTHING" if self.checked else "TO_ROUNDING", floor=self.floor)

    def difference(self, a: Tensor, b: Tensor) -> Tensor:
        a, b = a.sqrt(), b.sqrt()
        return (a * b * (a + b)).reciprocal().neg()

    def curvature(self, x: Tensor) -> Tensor:
        return 0.75 * x.pow(-2.5)

    def contract(self, w: Tensor, X: Tensor, Y: Tensor) -> Tensor:
        if self.floor is not None:
            return super().contract(w, X, Y)
        inverse = self.clamp(w)[0].rsqrt()  # 1/a
        row, column = inverse.unsqueeze(-1), inverse.unsqueeze(-2)
        T = row * column / (row + column)  # 1/(a + b) in terms of the inverses
        # (a + b + c)/(abc) = 1/(bc) + 1/(ac) + 1/(ab), with c the index summed over
        TX, TY = T * X, T * Y
        P = (row + column) * matmul(TX * column, TY) + row * column * matmul(TX, TY)
        return T * (P + P.mH)


@dataclass(frozen=True)
class Power(Scalar):
    """x^alpha. For a >= b and t = log(a/b), f[a, b] is, each written so that no factor overflows before the product,

    a^(alpha - 1) (1 - e^(-alpha t)) / ((a - b)/a)              for alpha >= 0
    b^(alpha / 2) ((e^(alpha t) - 1) / (a - b)) b^(alpha / 2)   for alpha < 0, where (a - b)/b may be no number.
    """

    alpha: float = 1.0

    lowest_floor = 0.0
    can_overflow = True

    def require(self, who: str, w: Tensor) -> None:
        if self.floor is None:
            if self.alpha < 0:
                require_positive(who, w, _FLOOR_ADVICE)
            else:
                require_not_negative(
                    who, w, "For a whole alpha use torch.linalg.matrix_power; else pass floor= to clamp its eigenvalues."
                )
        if w.numel() and not bool(torch.isfinite(self.f(self.clamp(w)[0])).all()):
            raise NonFiniteError(
                f"`{who}`: the power {self.alpha:g} of an eigenvalue overflows {w.dtype}: they reach from "
                f"{float(w.min()):.4g} to {float(w.max()):.4g}. Scale M first, or use float64."
            )

    def border(self, w: Tensor) -> tuple[Tensor, Tensor] | None:
        if self.alpha < 0:
            return _Positive.border(self, w)  # type: ignore[arg-type]
        return _NonNegative.border(self, w)  # type: ignore[arg-type]

    def clamp(self, w: Tensor) -> tuple[Tensor, Tensor | None]:
        if self.floor is None and self.alpha >= 1:
            return w.clamp(min=0), None  # the slope at zero is finite: nothing to leave out
        if self.floor is None and self.alpha < 0 and self.checked:
            return w, None
        return super().clamp(w)

    def at_scale_1(self, w: Tensor) -> ScalarAtScale1:
        return self._homogeneous(w, self.alpha)

    def in_kernel(self) -> ScalarFunction:
        border = "NOT_NEGATIVE" if self.alpha >= 1 else "TO_ZERO" if self.alpha >= 0 else "TO_ROUNDING"
        border = "NOTHING" if self.alpha < 0 and self.checked else border
        return ScalarFunction("POWER", border, self.alpha, self.floor)

    def f(self, c: Tensor) -> Tensor:
        return c.pow(self.alpha)

    def difference(self, a: Tensor, b: Tensor) -> Tensor:
        a, b = torch.maximum(a, b), torch.minimum(a, b)
        if self.alpha == 0:
            return torch.zeros_like(a)
        t, gap, tie = _log_ratio(a, b), a - b, a == b
        base = a if self.alpha > 0 else b
        positive = base > 0
        base = torch.where(positive, base, 1)
        change = -math.copysign(1, self.alpha) * _expm1(-abs(self.alpha) * t)  # of f, relative to f at the base
        if self.alpha < 0:
            half = base.pow(self.alpha / 2)
            quotient = torch.where(tie, self.alpha / base, change / torch.where(tie, 1, gap))
            return torch.where(positive, half * quotient * half, 0)
        ratio = torch.where(tie, self.alpha, change / torch.where(tie, 1, gap / base))
        at_zero = 1.0 if self.alpha == 1 else 0.0
        # alpha - 1 is rounded, and the logarithm of 1e300 would make that 100 eps.
        slope, lost = _less_one(self.alpha)
        return torch.where(positive, base.pow(slope) * (1 + lost * base.log()) * ratio, at_zero)

    def curvature(self, x: Tensor) -> Tensor:
        return self.alpha * (self.alpha - 1) * x.pow(self.alpha - 2)


@dataclass(frozen=True)
class InverseFourthRoot(Power):
    """x^(-1/4): the power that matrix products can compute too."""

    alpha: float = -0.25

    root = "inverse fourth root"


@dataclass(frozen=True)
class Log(_Positive):
    """log x: f[a, b] = log(a/b) / (a - b)."""

    def at_scale_1(self, w: Tensor) -> ScalarAtScale1:
        return self._homogeneous(w, 0.0)

    def in_kernel(self) -> ScalarFunction:
        return ScalarFunction("LOG", "NOTHING" if self.checked else "TO_ROUNDING", floor=self.floor)

    def f(self, c: Tensor) -> Tensor:
        return c.log()

    def difference(self, a: Tensor, b: Tensor) -> Tensor:
        a, b = torch.maximum(a, b), torch.minimum(a, b)
        tie = a == b
        return torch.where(tie, 1, _log_ratio(a, b)) / torch.where(tie, b, a - b)

    def curvature(self, x: Tensor) -> Tensor:
        return -x.pow(-2)


@dataclass(frozen=True)
class Exp(Scalar):
    """exp x: f[a, b] = exp(a) (1 - exp(-(a - b))) / (a - b) for a >= b."""

    near = 0.1
    can_overflow = True

    def require(self, who: str, w: Tensor) -> None:
        largest = torch.finfo(w.dtype).max
        limit = math.log(largest)
        if w.numel() and bool((w[..., -1] > limit).any()):
            raise NonFiniteError(
                f"`{who}`: the exponential of the largest eigenvalue, {float(w.max()):.4g}, overflows {w.dtype} (limit "
                f"{limit:.4g}). Scale M down, or use float64."
            )

    def in_kernel(self) -> ScalarFunction:
        return ScalarFunction("EXP", floor=self.floor)

    def f(self, c: Tensor) -> Tensor:
        return c.exp()

    def difference(self, a: Tensor, b: Tensor) -> Tensor:
        a, gap = torch.maximum(a, b), (a - b).abs()
        tie, top = gap == 0, a.exp()
        F = top * torch.where(tie, 1, -_expm1(-gap) / torch.where(tie, 1, gap))
        return torch.where(torch.isinf(top), top, F)  # which may be infinity times zero

    def curvature(self, x: Tensor) -> Tensor:
        return x.exp()

    def width(self, x: Tensor) -> Tensor:
        return torch.ones_like(x)
