from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from spectralgrad.kernels.eigenpairs import GIVEN, Coefficients

from ..scaling import bounded
from .base import Rule, gaps, tied


@dataclass(frozen=True)
class Exact(Rule):
    """K = 1/gap, and 0 for pairs tied to rounding (|gap| <= max(n, 16) eps scale).

    Exact for every loss that sees tied eigenvectors only through the space they span. On spectral functions it means the
    exact gradient by Loewner matrices, finite at every tie. See docs/rules/exact.md.

    >>> import torch, spectralgrad as sg
    >>> sg.Exact().coefficients(torch.tensor([1.0, 1.0, 3.0]))
    tensor([[ 0.0000,  0.0000,  0.5000],
            [ 0.0000,  0.0000,  0.5000],
            [-0.5000, -0.5000,  0.0000]])
    """

    scale_free: ClassVar[bool] = True

    def coefficients(self, eigenvalues: Tensor) -> Tensor:
        gap = gaps(eigenvalues)
        equal = tied(eigenvalues, gap)
        return bounded(torch.where(equal, 0, 1 / torch.where(equal, 1, gap)))

    def in_kernel(self, dtype: torch.dtype) -> Coefficients:
        return Coefficients("EXACT") if type(self) is Exact else GIVEN
