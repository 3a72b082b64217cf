from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from spectralgrad.context import constant_when_compiled
from spectralgrad.errors import OptionError
from spectralgrad.kernels.eigenpairs import GIVEN, Coefficients
from spectralgrad.validation import is_number

from ..scaling import bounded
from .base import Rule, gaps, scale

_WIDEST = 1e15  # whose square is a number in float32


@dataclass(frozen=True)
class Lorentzian(Rule):
    """K = gap/(gap^2 + w^2) with w = rtol * scale: the default of `eigh`, `svd` and `projector`.

    Smooth, bounded by 1/(2 w), with relative error w^2/gap^2. The default rtol, 1e-6 in float32 and 1e-8 in float64,
    makes relative gaps of 1e-3 exact to 1e-6 and 1e-10. V f(w) V^H by hand is wrong at a tie: see docs/rules/lorentzian.md.

    Args:
        rtol: width relative to the largest eigenvalue's magnitude; None takes the dtype's default.

    Raises:
        OptionError: rtol is not a number above 0 and at most 1e15, nor None.

    >>> import torch, spectralgrad as sg
    >>> sg.Lorentzian(rtol=1e-3).coefficients(torch.tensor([1.0, 1.0, 3.0]))
    tensor([[ 0.0000,  0.0000,  0.5000],
            [ 0.0000,  0.0000,  0.5000],
            [-0.5000, -0.5000,  0.0000]])
    """

    scale_free: ClassVar[bool] = True

    rtol: float | None = None

    def __post_init__(self) -> None:
        if self.rtol is not None and not (is_number(self.rtol) and 0 < self.rtol <= _WIDEST):
            raise OptionError(
                f"`Lorentzian`: rtol must be a positive number <= {_WIDEST:g} or None, got {self.rtol!r}. It is relative to "
                "the largest eigenvalue: 1e-3 is wide."
            )

    def coefficients(self, eigenvalues: Tensor) -> Tensor:
        rtol = self._width(eigenvalues.dtype)
        # Half of each, or the gap of two numbers near the largest one, of opposite signs, would overflow.
        size = (0.5 * scale(eigenvalues)).clamp(min=torch.finfo(eigenvalues.dtype).tiny)
        gap = gaps(0.5 * eigenvalues) / size  # relative: its square is safe
        # A zero gap is replaced before the division, or second derivatives at it are those of 0/0.
        zero = gap == 0
        gap = torch.where(zero, 1, gap)
        return bounded(torch.where(zero, 0, gap / (gap * gap + rtol**2) / (2 * size)))

    def in_kernel(self, dtype: torch.dtype) -> Coefficients:
        return Coefficients("LORENTZIAN", self._width(dtype)) if type(self) is Lorentzian else GIVEN

    def _width(self, dtype: torch.dtype) -> float:
        return _default_rtol(dtype) if self.rtol is None else self.rtol


@constant_when_compiled
def _default_rtol(dtype: torch.dtype) -> float:
    return 1e-6 if dtype == torch.float32 else 1e-8
