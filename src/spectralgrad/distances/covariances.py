"""Matrix functions of covariances, with the errors that name them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from spectralgrad.context import checking
from spectralgrad.errors import DefinitenessError
from spectralgrad.kernels.spectral import GIVEN, ScalarFunction
from spectralgrad.linalg.choices import AUTO, for_svd
from spectralgrad.linalg.elementary import InverseSqrt, Sqrt
from spectralgrad.linalg.functions import apply_scalar
from spectralgrad.linalg.scalars import is_negative, require_positive, spectral_radius, zero_tolerance
from spectralgrad.linalg.svd import singular_triplets

_ABOVE = 2  # times the lowest eigenvalue below zero: what rounding pushed so far down, it pushed others as far up


def root(who: str, C: Tensor, name: str, eps: float) -> Tensor:
    """C^(1/2) of a covariance that was rounded to ``eps``."""
    return apply_scalar(who, C, _Root(name=name, eps=eps), None, AUTO)


def inverse_root(who: str, C: Tensor, name: str) -> Tensor:
    """C^(-1/2) of the shifted covariance of a view."""
    return apply_scalar(who, C, _Whitening(name=name), None, AUTO)


def singular_values(who: str, T: Tensor) -> Tensor:
    return singular_triplets(who, T, for_svd(who, None, AUTO), checking(T))[1]


@dataclass(frozen=True)
class _Root(Sqrt):
    """x^(1/2) of a covariance that came in a dtype with this eps, and so with eigenvalues that rounding put below zero.

    The lowest of those says how far rounding goes: up to twice that above zero counts as zero too. A definite matrix keeps
    all of its eigenvalues.
    """

    name: str = "M"
    eps: float = float(torch.finfo(torch.float64).eps)

    root = None  # matrix products would need a regular matrix

    def border(self, w: Tensor) -> tuple[Tensor, Tensor] | None:
        tolerance = torch.maximum(zero_tolerance(w), -_ABOVE * w[..., :1])
        return tolerance, torch.zeros_like(tolerance)

    def in_kernel(self) -> ScalarFunction:
        return GIVEN  # which knows no eps but its own

    def require(self, who: str, w: Tensor, eps: float) -> None:
        if w.numel() == 0:
            return
        negative = is_negative(w, self.eps)
        if bool(negative.any()):
            lowest = float((w / spectral_radius(w).clamp(min=torch.finfo(w.dtype).tiny)).min())
            raise DefinitenessError(
                f"`{who}`: `{self.name}` must be positive semi-definite, but {int(negative.sum())} of {negative.numel()} "
                f"matrices have a negative eigenvalue, the lowest {lowest:.3e} of the largest. Is it a covariance? If it "
                f"was rounded, pass it in the dtype it was rounded to, or add eps * identity to `{self.name}`."
            )


@dataclass(frozen=True)
class _Whitening(InverseSqrt):
    """x^(-1/2) of a shifted covariance."""

    name: str = "x"

    def require(self, who: str, w: Tensor, eps: float) -> None:
        require_positive(who, w, "Raise eps.", name=f"covariance of {self.name}")
