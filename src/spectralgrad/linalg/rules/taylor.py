from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from spectralgrad.errors import OptionError
from spectralgrad.kernels.eigenpairs import GIVEN, Coefficients
from spectralgrad.validation import is_whole

from ..scaling import bounded
from .base import Rule, order, scale


@dataclass(frozen=True)
class Taylor(Rule):
    """PAMI's SVD-Taylor (eq. 9): 1/(a - b) becomes (1/a) sum_{k <= degree} (b/a)^k for |a| >= |b|.

    Bounded by (degree + 1)/|a|; relative error (b/a)^(degree + 1), so it is good for well separated eigenvalues of one
    sign and underestimates close ones. For eigenvalues of opposite signs it is crude: at (1, -1) odd degrees give 0.
    Two zeros give 0. See docs/rules/taylor.md.

    Args:
        degree: of the series, a whole number >= 0.

    Raises:
        OptionError: degree is not a whole number >= 0.

    >>> import torch, spectralgrad as sg
    >>> sg.Taylor(9).coefficients(torch.tensor([0.01, 0.01, 0.02]))  # PAMI eq. 61, ascending
    tensor([[    0.0000,  1000.0000,    99.9023],
            [-1000.0000,     0.0000,    99.9023],
            [  -99.9023,   -99.9023,     0.0000]])
    """

    scale_free: ClassVar[bool] = True

    degree: int = 9

    def __post_init__(self) -> None:
        if not is_whole(self.degree, least=0):
            raise OptionError(f"`Taylor`: degree must be a whole number >= 0, got {self.degree!r}.")

    def coefficients(self, eigenvalues: Tensor) -> Tensor:
        row, column = eigenvalues.unsqueeze(-1), eigenvalues.unsqueeze(-2)
        row_leads = row.abs() >= column.abs()
        larger = torch.where(row_leads, row, column)
        smaller = torch.where(row_leads, column, row)
        # Zero, or so far below the largest that what multiplies K could overflow: the pair is dropped.
        void = larger.abs() <= (self.degree + 1) * torch.finfo(eigenvalues.dtype).max ** -0.5 * scale(eigenvalues)
        larger = torch.where(void, 1, larger)
        sum_of_powers, _ = _geometric_sum(smaller / larger, self.degree + 1)
        return bounded(torch.where(void, 0, order(eigenvalues) * sum_of_powers / larger.abs()))

    def in_kernel(self, dtype: torch.dtype) -> Coefficients:
        return Coefficients("TAYLOR", self.degree) if type(self) is Taylor else GIVEN


def _geometric_sum(ratio: Tensor, terms: int) -> tuple[Tensor, Tensor]:
    """S(m) = 1 + r + ... + r^(m - 1) and r^m, m = ``terms``, by doubling: S(2m) = S(m) (1 + r^m), S(m + 1) = 1 + r S(m)."""
    if terms == 1:
        return torch.ones_like(ratio), ratio
    total, power = _geometric_sum(ratio, terms // 2)
    total, power = total * (1 + power), power * power
    if terms % 2 == 1:
        total, power = 1 + ratio * total, power * ratio
    return total, power
