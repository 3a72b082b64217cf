"""Scalar functions with their first divided differences in float64, written without cancellation and without the library."""

import math
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor


@dataclass(frozen=True)
class Scalar:
    """f on numbers in float64."""

    domain: str = "all"  # or "not negative", "positive"

    def f(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def above(self, a: Tensor, b: Tensor) -> Tensor:
        """f[a, b] for a >= b."""
        raise NotImplementedError

    def difference(self, a: Tensor, b: Tensor) -> Tensor:
        """f[a, b], f'(a) where they are equal."""
        return self.above(torch.maximum(a, b), torch.minimum(a, b))

    def attainable(self, F: Tensor, w: Tensor) -> Tensor:
        """To what size (B, n, n) the rounding of the differences F at w (B, n) is relative: here each to its own."""
        return F.abs()


def _quotient(x: Tensor, y: Tensor, at_zero: float | Tensor) -> Tensor:
    """x / y, and ``at_zero`` where y is 0."""
    return torch.where(y == 0, at_zero, x / torch.where(y == 0, 1, y))


@dataclass(frozen=True)
class Power(Scalar):
    """x^alpha. Far apart the quotient itself; close, with t = log(a/b), a^(alpha - 1) expm1(-alpha t) / expm1(-t)."""

    alpha: float = 1.0

    def f(self, x: Tensor) -> Tensor:
        return x.pow(self.alpha)

    def above(self, a: Tensor, b: Tensor) -> Tensor:
        alpha = self.alpha
        if alpha == 0.5:
            return 1 / (a.sqrt() + b.sqrt())
        if alpha == 0:
            return torch.zeros_like(a - b)
        t = -torch.log1p(-(a - b) / a)  # infinite at b = 0
        slope = alpha - 1
        lost = float(Fraction(alpha) - 1 - Fraction(slope))  # by rounding, times log(1e300): 100 eps
        close = a.pow(slope) * (1 + lost * a.log()) * _quotient(torch.expm1(-alpha * t), torch.expm1(-t), alpha)
        far = a.pow(alpha) / (a - b) - b.pow(alpha) / (a - b)
        slope_at_zero = 0.0 if alpha > 1 else 1.0 if alpha == 1 else math.inf
        return torch.where(a == 0, slope_at_zero, torch.where((alpha * t).abs().minimum(t) > 0.7, far, close))


@dataclass(frozen=True)
class Log(Scalar):
    def f(self, x: Tensor) -> Tensor:
        return x.log()

    def above(self, a: Tensor, b: Tensor) -> Tensor:
        r = (a - b) / b
        far = (a.log() - b.log()) / (a - b)
        return torch.where(r > 1e3, far, _quotient(torch.log1p(r), r, 1.0) / b)


@dataclass(frozen=True)
class Exp(Scalar):
    def f(self, x: Tensor) -> Tensor:
        return x.exp()

    def above(self, a: Tensor, b: Tensor) -> Tensor:
        return a.exp() * _quotient(-torch.expm1(b - a), a - b, 1.0)


@dataclass(frozen=True)
class Sine(Scalar):
    """sin(x / size), which is odd: (sin p - sin q)/(p - q) = cos((p + q)/2) sin((p - q)/2) / ((p - q)/2)."""

    size: float = 1.0

    def f(self, x: Tensor) -> Tensor:
        return (x / self.size).sin()

    def above(self, a: Tensor, b: Tensor) -> Tensor:
        p, q = a / self.size, b / self.size
        half = (p - q) / 2
        return ((p + q) / 2).cos() * _quotient(half.sin(), half, 1.0) / self.size

    def attainable(self, F: Tensor, w: Tensor) -> Tensor:
        """Of a user's function only values and slopes are known: where it turns, differences are small by cancellation."""
        gap = (w.unsqueeze(-1) - w.unsqueeze(-2)).abs() / self.size
        return (2 / gap).clamp(max=1) / self.size


def loewner(scalar: Scalar, w: Tensor, floor: float | None, null: Tensor | None) -> Tensor:
    """First differences (B, n, n) for eigenvalues (B, n); two below the floor, or two in the ``null`` space (B, n), give 0.

    One below it, clamped to c: (f(c) - f(l_j)) / (l_i - l_j) = f[c, l_j] (c - l_j) / (l_i - l_j).
    """
    c = w if floor is None else w.clamp(min=floor)
    out = null if null is not None else (w < floor if floor is not None else torch.zeros_like(w, dtype=torch.bool))
    c = torch.where(null, 0, c) if null is not None else c
    row, column = c.unsqueeze(-1), c.unsqueeze(-2)
    F = scalar.difference(row, column)
    if floor is not None:
        gap = w.unsqueeze(-1) - w.unsqueeze(-2)
        F = torch.where(out.unsqueeze(-1) != out.unsqueeze(-2), F * (row - column) / torch.where(gap == 0, 1, gap), F)
    return F.masked_fill(out.unsqueeze(-1) & out.unsqueeze(-2), 0)
