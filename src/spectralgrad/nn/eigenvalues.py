"""SPDNet's layers on eigenvalues: a rectifier and the logarithm, with their exact gradients."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.fx import Proxy
from torch.nn import Module

from spectralgrad.context import kept_whole
from spectralgrad.kernels.spectral import GIVEN, ScalarFunction
from spectralgrad.linalg.choices import AUTO
from spectralgrad.linalg.elementary import Log
from spectralgrad.linalg.functions import apply_scalar
from spectralgrad.linalg.scalars import Scalar
from spectralgrad.validation import require_number

from .inputs import require_symmetric

__all__ = ["LogEig", "ReEig"]


@dataclass(frozen=True)
class _Rectified(Scalar):
    """max(x, floor): f[a, b] = 1 above the floor; what lies at it or below counts as clamped."""

    def f(self, c: Tensor) -> Tensor:
        return c

    def clamp(self, w: Tensor) -> tuple[Tensor, Tensor | None]:
        clamped = w <= self.floor  # type: ignore[operator]
        return torch.where(clamped, self.floor, w), clamped  # type: ignore[arg-type]

    def difference(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.ones_like(a + b)

    def curvature(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)

    def in_kernel(self) -> ScalarFunction:
        return GIVEN


class ReEig(Module):
    """V max(L, floor) V^T: a rectifier of eigenvalues, which makes matrices positive definite.

    The gradient is exact: with divided differences 1 for two eigenvalues above the floor, 0 for two at it or below, and
    (l_i - floor) / (l_i - l_j) in (0, 1] for one of each. No factor exceeds 1, at ties neither.

    Args:
        floor: the smallest eigenvalue of the output, above 0.

    Shape: (*B, n, n) -> the same; any Hermitian matrices.

    Raises:
        OptionError: a floor that is no number above 0.
        ShapeError, DtypeError, SymmetryError, NonFiniteError: an input that is no Hermitian matrix.

    >>> import torch, spectralgrad as sg
    >>> sg.nn.ReEig(0.5)(torch.diag(torch.tensor([2.0, 0.1])))
    tensor([[2.0000, 0.0000],
            [0.0000, 0.5000]])
    """

    def __init__(self, floor: float = 1e-4) -> None:
        require_number("ReEig", "floor", floor, above=0)
        super().__init__()
        self.floor = floor

    def forward(self, input: Tensor) -> Tensor:
        if isinstance(input, Proxy):
            return kept_whole(self, input)
        require_symmetric("ReEig", input)
        return apply_scalar("ReEig", input, _Rectified(self.floor), None, AUTO)

    def extra_repr(self) -> str:
        return f"floor={self.floor}"


_LOG = Log(name="input", advice="Put ReEig before it, which lifts the eigenvalues.")


class LogEig(Module):
    """log X, the last layer of an SPD network: from there on matrices are vectors. Its gradient is exact at ties.

    Shape: (*B, n, n) -> the same; positive definite matrices.

    Raises:
        DefinitenessError: an input that is singular to rounding, or indefinite.
        ShapeError, DtypeError, SymmetryError, NonFiniteError: an input that is no Hermitian matrix.

    >>> import torch, spectralgrad as sg
    >>> sg.nn.LogEig()(torch.eye(2))
    tensor([[0., 0.],
            [0., 0.]])
    """

    def __init__(self) -> None:
        super().__init__()

    def forward(self, input: Tensor) -> Tensor:
        if isinstance(input, Proxy):
            return kept_whole(self, input)
        require_symmetric("LogEig", input)
        return apply_scalar("LogEig", input, _LOG, None, AUTO)
