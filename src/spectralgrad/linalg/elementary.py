"""The square root, its inverse, powers, logarithm and exponential, each with divided differences without cancellation."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from spectralgrad.context import tracing
from spectralgrad.errors import NonFiniteError
from spectralgrad.kernels.spectral import ScalarFunction
from spectralgrad.validation import overflow_advice

from .precision import matmul
from .scalars import (
    FLOOR_ADVICE,
    NonNegative,
    Positive,
    Root,
    Scalar,
    ScalarAtScale1,
    less_one,
    require_not_negative,
    require_positive,
)


def reciprocal_root(x: Tensor) -> Tensor:
    """x^(-1/2). Autograd of rsqrt would cube it, and that is 0 in float32 for x from 1e31 on."""
    return x.sqrt().reciprocal()


def _expm1(x: Tensor) -> Tensor:
    """e^x - 1 for x <= 0. The code that torch.compile makes for a CPU subtracts 1 and loses all digits of a small one."""
    if not tracing():
        return torch.expm1(x)
    t = (x / 2).tanh()
    return 2 * t / (1 - t)


def _two_clamped(quotient: Tensor, clamped: Tensor, X: Tensor, Y: Tensor) -> Tensor:
    """The part of `Scalar.contract` of triples with two eigenvalues clamped to one c, and a third, l.

    The first difference of the two is 0, so that theirs with l is F(l, c) / (l - c), in whatever order: ``quotient``.
    """
    row, column = clamped.unsqueeze(-1), clamped.unsqueeze(-2)
    D = quotient.masked_fill(row == column, 0)
    Q = matmul(D * X, torch.where(column, Y, 0)) + matmul(torch.where(row & column, X, 0), D * Y)
    return Q + Q.mH


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
class Sqrt(NonNegative):
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
        # F(l, 0) / l is the cube of F(l, 0).
        return _two_clamped(F * F * F, zero, X, Y) - F * (P + P.mH)


@dataclass(frozen=True)
class InverseSqrt(Positive):
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
        c, clamped = self.clamp(w)
        inverse = c.rsqrt()  # 1/a
        row, column = inverse.unsqueeze(-1), inverse.unsqueeze(-2)
        T = row * column / (row + column)  # 1/(a + b) in terms of the inverses
        if clamped is not None:  # without triples of which two or three are: each pair of a triple is a factor below
            both = clamped.unsqueeze(-1) & clamped.unsqueeze(-2)
            T = T.masked_fill(both, 0)
        # (a + b + c)/(abc) = 1/(bc) + 1/(ac) + 1/(ab), with c the index summed over
        TX, TY = T * X, T * Y
        P = (row + column) * matmul(TX * column, TY) + row * column * matmul(TX, TY)
        result = T * (P + P.mH)
        if clamped is None:
            return result
        gap = (c.unsqueeze(-1) - c.unsqueeze(-2)).abs()
        quotient = self.loewner(w) / torch.where(gap > 0, gap, 1)
        return result.masked_fill(both, 0) + _two_clamped(quotient, clamped, X, Y)  # 0 times infinity, where all are zero


@dataclass(frozen=True)
class Power(Scalar):
    """x^alpha. For a >= b and t = log(a/b), f[a, b] is, each written so that no factor overflows before the product,

    a^(alpha - 1) (1 - e^(-alpha t)) / ((a - b)/a)              for alpha >= 0
    b^(alpha / 2) ((e^(alpha t) - 1) / (a - b)) b^(alpha / 2)   for alpha < 0, where (a - b)/b may be no number.
    """

    alpha: float = 1.0

    lowest_floor = 0.0
    can_overflow = True

    def require(self, who: str, w: Tensor, eps: float) -> None:
        if self.floor is None:
            if self.alpha < 0:
                require_positive(who, w, FLOOR_ADVICE)
            else:
                advice = "For a whole alpha use torch.linalg.matrix_power; else pass floor= to clamp its eigenvalues."
                require_not_negative(who, w, advice, eps=eps)
        if w.numel() and not bool(torch.isfinite(self.f(self.clamp(w)[0])).all()):
            raise NonFiniteError(
                f"`{who}`: the power {self.alpha:g} of an eigenvalue overflows {w.dtype}: they reach from "
                f"{float(w.min()):.4g} to {float(w.max()):.4g}. "
                f"{overflow_advice('Scale M first', w.dtype)}"
            )

    def border(self, w: Tensor) -> tuple[Tensor, Tensor] | None:
        if self.alpha < 0:
            return Positive.border(self, w)  # type: ignore[arg-type]
        return NonNegative.border(self, w)  # type: ignore[arg-type]

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
        slope, lost = less_one(self.alpha)
        return torch.where(positive, base.pow(slope) * (1 + lost * base.log()) * ratio, at_zero)

    def curvature(self, x: Tensor) -> Tensor:
        return self.alpha * (self.alpha - 1) * x.pow(self.alpha - 2)


@dataclass(frozen=True)
class InverseFourthRoot(Power):
    """x^(-1/4): the power that matrix products can compute too."""

    alpha: float = -0.25

    root = "inverse fourth root"


@dataclass(frozen=True)
class Log(Positive):
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

    def require(self, who: str, w: Tensor, eps: float) -> None:
        largest = torch.finfo(w.dtype).max
        limit = math.log(largest)
        if w.numel() and bool((w[..., -1] > limit).any()):
            raise NonFiniteError(
                f"`{who}`: the exponential of the largest eigenvalue, {float(w.max()):.4g}, overflows {w.dtype} (limit "
                f"{limit:.4g}). "
                f"{overflow_advice('Scale M down', w.dtype)}"
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
