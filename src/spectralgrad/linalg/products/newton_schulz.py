"""The options of Newton-Schulz."""

from dataclasses import dataclass

import torch
from torch import Tensor

from spectralgrad.errors import OptionError
from spectralgrad.validation import is_number, is_whole


@dataclass(frozen=True)
class NewtonSchulz:
    """Matmul-only roots and polar factor; a ``solver=`` of `sqrtm`, `inv_sqrtm`, `inv_root` for p = 2 and 4, and `polar`.

    `powm` takes it for the same exponents, and the layers for ZCA whitening, colouring, and pooling with power 1/2.

    With ``tol`` (the default) it converges to working accuracy and its gradient is solved from a Lyapunov equation.
    A square root Y has |Y Y - M|_F / |M|_F below 1e-13 in float64 for condition numbers to 1e14, and 1e-12 beyond.
    With ``steps`` it is the papers' baseline: that many steps after scaling by the trace, differentiated through.

    Args:
        tol: residual |I - Z Y|_F / sqrt(n) at which a matrix is done, where the host may look; None is rounding. It
            stops earlier where rounding lets the residual shrink no further.
        steps: a fixed number of unrolled steps instead.

    Raises:
        OptionError: an option out of its range, or both of them.

    >>> import torch, spectralgrad as sg
    >>> M = torch.diag(torch.tensor([4.0, 9.0]))
    >>> sg.sqrtm(M, solver=sg.NewtonSchulz()).diagonal()
    tensor([2., 3.])
    """

    tol: float | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        if self.tol is not None and self.steps is not None:
            raise OptionError("`NewtonSchulz`: pass tol= or steps=, not both.")
        if self.tol is not None and not (is_number(self.tol) and 0 < self.tol < 1):
            raise OptionError(f"`NewtonSchulz`: tol must lie in (0, 1), got {self.tol!r}.")
        if self.steps is not None and not is_whole(self.steps):
            raise OptionError(f"`NewtonSchulz`: steps must be a whole number >= 1, got {self.steps!r}.")

    def tolerance(self, x: Tensor, eps: float) -> float:
        """The residual at which to stop for ``x`` (*B, m, n), whose given dtype has ``eps``."""
        return max(x.shape[-1] * float(torch.finfo(x.dtype).eps), eps / 4) if self.tol is None else self.tol
