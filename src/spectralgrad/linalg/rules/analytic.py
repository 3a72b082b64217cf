from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from spectralgrad.kernels.eigenpairs import GIVEN, Coefficients

from .base import Rule, gaps, order


@dataclass(frozen=True)
class Analytic(Rule):
    """K = 1/gap with no guard at all: the papers' failing baseline «SVD», infinite at a tie. For comparison only.

    See docs/rules/analytic.md.

    >>> import torch, spectralgrad as sg
    >>> sg.Analytic().coefficients(torch.tensor([1.0, 1.0, 3.0]))
    tensor([[ 0.0000,     inf,  0.5000],
            [   -inf,  0.0000,  0.5000],
            [-0.5000, -0.5000,  0.0000]])
    """

    scale_free: ClassVar[bool] = True

    def coefficients(self, eigenvalues: Tensor) -> Tensor:
        gap = gaps(eigenvalues)
        diagonal = torch.eye(gap.shape[-1], dtype=torch.bool, device=gap.device)
        infinite = order(eigenvalues) * torch.inf  # NaN on the diagonal, which is masked
        return torch.where(diagonal, 0, torch.where(gap == 0, infinite, 1 / torch.where(diagonal, 1, gap)))

    def in_kernel(self, dtype: torch.dtype) -> Coefficients:
        return Coefficients("ANALYTIC") if type(self) is Analytic else GIVEN
