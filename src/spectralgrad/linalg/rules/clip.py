from dataclasses import dataclass

import torch
from torch import Tensor

from spectralgrad.errors import OptionError
from spectralgrad.kernels.eigenpairs import GIVEN, Coefficients
from spectralgrad.validation import is_number

from .base import Rule, gaps, order

_ROOM = 2.0**-32  # of the largest number


@dataclass(frozen=True)
class Clip(Rule):
    """K = 1/gap truncated to [-threshold, threshold]: gradient clipping as PAMI compares with (threshold 100).

    The threshold is absolute, as in the paper, so it does not follow the scale of the matrix. It bounds the size of
    the gradient but turns its direction, by up to 45 degrees in PAMI 7.2. See docs/rules/clip.md.

    Args:
        threshold: the largest coefficient, above 0; at most 2^-32 of the largest number counts.

    Raises:
        OptionError: threshold is not a finite number above 0.

    >>> import torch, spectralgrad as sg
    >>> sg.Clip(100.0).coefficients(torch.tensor([1.0, 1.0, 3.0]))
    tensor([[   0.0000,  100.0000,    0.5000],
            [-100.0000,    0.0000,    0.5000],
            [  -0.5000,   -0.5000,    0.0000]])
    """

    threshold: float = 100.0

    def __post_init__(self) -> None:
        if not (is_number(self.threshold) and self.threshold > 0):
            raise OptionError(f"`Clip`: threshold must be a positive finite number, got {self.threshold!r}.")

    def coefficients(self, eigenvalues: Tensor) -> Tensor:
        gap = gaps(eigenvalues)
        close = gap.abs() <= 1 / self.threshold
        clipped = order(eigenvalues) * self._limit(eigenvalues.dtype)
        return torch.where(close, clipped, 1 / torch.where(close, 1, gap))

    def in_kernel(self, dtype: torch.dtype) -> Coefficients:
        return Coefficients("CLIP", self._limit(dtype)) if type(self) is Clip else GIVEN

    def _limit(self, dtype: torch.dtype) -> float:
        """The threshold, or what leaves room for products and sums of it."""
        return min(self.threshold, torch.finfo(dtype).max * _ROOM)
