"""What a scalar function is, with its divided differences: all that a spectral function's derivatives are made of.

For M = V diag(l) V^H and E^ = V^H E V (Daleckii-Krein and its second-order sibling):

    f(M)         = V diag(f(l)) V^H
    Df[E]        = V (F * E^) V^H                       F_ij  = f[l_i, l_j],  the Loewner matrix
    D2f[E1, E2]  = V (sum_k f[l_i, l_k, l_j] (E1^_ik E2^_kj + E2^_ik E1^_kj)) V^H

Written without cancellation both differences are finite and accurate at every tie. See docs/loewner.md. Here are the
borders of domains, where eigenvalues may lie and what happens to those that rounding pushed across, and what all functions
share; elementary.py has the functions.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from spectralgrad.context import tracing
from spectralgrad.counters import count_on_device
from spectralgrad.errors import DefinitenessError, OptionError
from spectralgrad.kernels.spectral import GIVEN, ScalarFunction
from spectralgrad.validation import is_number

from .precision import in_widest, widest
from .quadrature import second_differences
from .scaling import bounded, exponent, shifted

_ZERO = 4  # times eps l_max: LAPACK's usual error in an eigenvalue, so less than that counts as zero
_STEPS = 2**20  # of an exponent: so many, times that of the largest number, are exact in float64
_MARGIN = 4  # powers of two between the largest eigenvalue and the end of the range
_NEGATIVE = 10  # times n eps l_max: more than rounding in the matrix and the solver can push a zero below zero
_COARSEST = 1 / 8  # of l_max: what is further below zero is no rounding, of no dtype
CLAMPED = "clamped_eigenvalue"  # the name of its count
Root = Literal["sqrt", "inverse sqrt", "inverse fourth root"]
FLOOR_ADVICE = "Add eps * identity, or pass floor= to clamp the eigenvalues."


def spectral_radius(w: Tensor) -> Tensor:
    """max |w| (*B, 1) of ascending eigenvalues (*B, n)."""
    return torch.maximum(-w[..., :1], w[..., -1:])


def zero_tolerance(w: Tensor) -> Tensor:
    """Eigenvalues up to this (*B, 1) count as zero.

    Four eps l_max whatever n is: with n eps l_max a covariance of 128 channels plus 1e-5 would count as singular in
    float32, although its gradient is good to a few per cent.
    """
    return _ZERO * float(torch.finfo(w.dtype).eps) * spectral_radius(w)


def is_negative(w: Tensor, eps: float = 0.0) -> Tensor:
    """Whether an ascending spectrum (*B, n) reaches further below zero than rounding explains, (*B, 1).

    ``eps``: of the dtype that the matrix came in, if that is coarser.
    """
    eps = max(eps, float(torch.finfo(w.dtype).eps))
    rounding = min(max(_NEGATIVE * w.shape[-1], 100) * eps, _COARSEST)
    return w[..., :1] < -rounding * spectral_radius(w)


def require_not_negative(who: str, w: Tensor, advice: str, name: str = "M", eps: float = 0.0) -> None:
    """Raise if an ascending spectrum (*B, n) `is_negative`. Reads the host once."""
    if w.numel() == 0:
        return
    negative = is_negative(w, eps)
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


def less_one(x: float) -> tuple[float, float]:
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
        name, advice: for the error that `require` raises: of the matrix, and what to do.
    """

    floor: float | None = None
    checked: bool = False
    name: str = "M"
    advice: str = FLOOR_ADVICE

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

    def require(self, who: str, w: Tensor, eps: float) -> None:  # noqa: B027  (a function on the whole line asks nothing)
        """Raise if eigenvalues (*B, n) of a matrix that came in a dtype with this eps lie outside the domain."""

    def border(self, w: Tensor) -> tuple[Tensor, Tensor] | None:
        """Eigenvalues up to the first number count as the second and get no derivative of their own; both (*B, 1)."""
        return None

    near = 0.02  # eigenvalues closer than this, relative to `width`, are handled by quadrature in second differences

    def width(self, x: Tensor) -> Tensor:
        """The distance over which f changes its character: here, of a power on positive numbers."""
        return x

    def in_kernel(self) -> ScalarFunction:
        """This function for kernels/spectral.cu; GIVEN where that does not know it and must get the numbers."""
        return GIVEN

    # What follows from it.

    def require_floor(self, who: str, dtype: torch.dtype) -> None:
        """Raise unless the floor is None or a number of the dtype that the function can be clamped to."""
        floor = self.floor
        if floor is None:
            return
        if not (is_number(floor) and floor > self.lowest_floor):
            raise OptionError(f"`{who}`: floor must be None or a finite number above {self.lowest_floor}, got {floor!r}.")
        limits = torch.finfo(dtype)
        if abs(floor) > limits.max or 0 < abs(floor) < limits.tiny * limits.eps:
            raise OptionError(f"`{who}`: floor={floor!r} is no number of {dtype}; take one within its range.")

    def require_or_count(self, who: str, w: Tensor, tolerance: float | None) -> None:
        """Raise for eigenvalues (*B, n) outside the domain; where looking is forbidden (no tolerance), count those that are
        clamped."""
        if tolerance is not None:
            self.require(who, w, tolerance**2)  # see `asymmetry_tolerance`
        elif not tracing() and w.numel() and self.floor is None:
            border = self.border(w)
            if border is not None:
                count_on_device(CLAMPED, w <= border[0])

    def evaluate(self, who: str, w: Tensor, tolerance: float | None) -> Tensor:
        """f of eigenvalues (*B, n) that `require_or_count` has seen."""
        self.require_or_count(who, w, tolerance)
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
        slope, lost = less_one(degree)
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


class NonNegative(Scalar):
    """Defined at zero, but with an infinite slope there: eigenvalues that are zero to rounding get no derivative."""

    lowest_floor = 0.0

    def require(self, who: str, w: Tensor, eps: float) -> None:
        if self.floor is None:
            require_not_negative(who, w, "Check that M is a covariance; pass floor= to clamp its eigenvalues.", eps=eps)

    def border(self, w: Tensor) -> tuple[Tensor, Tensor] | None:
        tolerance = zero_tolerance(w)
        return tolerance, torch.zeros_like(tolerance)


class Positive(Scalar):
    """Not defined at zero. Where values cannot be looked at, eigenvalues are clamped to rounding size instead."""

    lowest_floor = 0.0

    def clamp(self, w: Tensor) -> tuple[Tensor, Tensor | None]:
        return (w, None) if self.checked and self.floor is None else super().clamp(w)

    def require(self, who: str, w: Tensor, eps: float) -> None:
        if self.floor is None:
            require_positive(who, w, self.advice, self.name)

    def border(self, w: Tensor) -> tuple[Tensor, Tensor] | None:
        limits = torch.finfo(w.dtype)
        tolerance = zero_tolerance(w).clamp(min=limits.tiny * limits.eps)  # the smallest number, where all are zero
        return tolerance, tolerance
