"""Real powers of positive matrices, with an exponent that may be learned.

A number goes the way of all fixed functions, by closed differences. A tensor alpha is a tensor that f(x) = x^alpha closes
over: it goes the way of `spectral_map`, whose differences autograd follows to alpha.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from spectralgrad.context import readable, tracing
from spectralgrad.errors import OptionError
from spectralgrad.validation import is_number, require_exponent

from .choices import AUTO, Gradient, RootSolver
from .elementary import Power
from .elementwise import Elementwise
from .functions import apply_scalar, power_of
from .scalars import Positive
from .spectral_map import through_map

__all__ = ["powm"]


def powm(
    M: Tensor,
    alpha: float | Tensor,
    *,
    gradient: Gradient | None = None,
    solver: RootSolver = AUTO,
    floor: float | None = None,
) -> Tensor:
    """A real power of positive semi-definite matrices (alpha < 0: positive definite), with its exact gradient.

    M^alpha = V diag(w^alpha) V^H, with F_ij = (w_i^alpha - w_j^alpha)/(w_i - w_j) by log1p and expm1.

    Args:
        M: (*B, n, n), positive semi-definite, for alpha < 0 definite; only (M + M^H)/2 counts. Half precision is computed
            in float32.
        alpha: the exponent: a number, or a tensor of one, which gets gradients.
        gradient: None or `Exact()` for the exact gradient; any other rule goes through eigenvectors as the papers do.
        solver: an eigensolver, or for the numbers 1/2, -1/2 and -1/4 `NewtonSchulz`.
        floor: a number above 0. Eigenvalues below it are replaced by it, with derivative 0. None: no floor.

    Returns:
        (*B, n, n), Hermitian, in the dtype of M.

    Raises:
        DefinitenessError: an eigenvalue is negative beyond rounding, for alpha < 0 also zero to it, and no floor is given.
        NonFiniteError: M is not finite, or a power overflows.
        SymmetryError, ShapeError, DtypeError, OptionError, ConvergenceError.

    >>> import torch, spectralgrad as sg
    >>> sg.powm(4 * torch.eye(2), 1.5)
    tensor([[8., 0.],
            [0., 8.]])
    >>> alpha = torch.tensor(1.5, requires_grad=True)
    >>> sg.powm(4 * torch.eye(2), alpha).trace().backward()
    >>> alpha.grad  # 2 * 8 * log(4)
    tensor(22.1807)
    """
    if isinstance(alpha, Tensor):
        p = _exponent(alpha)
        return through_map("powm", M, _LearnedPower(floor, function=lambda x: _power(x, p), alpha=p), gradient, solver)
    if not is_number(alpha):
        raise OptionError(f"`powm`: alpha must be a finite number, or a real tensor of one, got {alpha!r}.")
    require_exponent("powm", "alpha", alpha)
    return apply_scalar("powm", M, power_of(float(alpha), floor), gradient, solver)


def _exponent(alpha: Tensor) -> Tensor:
    one = alpha.numel() == 1 and alpha.is_floating_point()
    found = _value(alpha) if one else None
    if one and (found is None or is_number(found)):
        return alpha.reshape(())
    raise OptionError(
        f"`powm`: alpha must be a finite number, or a real tensor of one, got {alpha!r}. For an exponent a matrix use "
        "torch.func.vmap."
    )


def _value(alpha: Tensor) -> float | None:
    """What a check may read of the exponent; nothing where the host would have to wait."""
    values = None if tracing() or alpha.device.type != "cpu" else readable(alpha)
    return None if values is None else float(values.detach())


@dataclass(frozen=True)
class _LearnedPower(Elementwise):
    """x^alpha with the domain of `Power`, decided on the device, since alpha may be there."""

    alpha: Tensor = field(default_factory=lambda: torch.tensor(1.0))

    lowest_floor = 0.0

    def require(self, who: str, w: Tensor, eps: float) -> None:
        alpha = _value(self.alpha)
        if alpha is not None:
            Power(self.floor, alpha=alpha).require(who, w, eps)

    def border(self, w: Tensor) -> tuple[Tensor, Tensor] | None:
        tolerance, least = Positive.border(self, w)  # type: ignore[arg-type, misc]
        alpha = self.alpha.detach().to(w)
        none = torch.full_like(tolerance, -torch.inf)  # from 1 on the slope at zero is finite: nothing to leave out
        return torch.where(alpha < 1, tolerance, none), torch.where(alpha < 0, least, 0)


def _power(x: Tensor, alpha: Tensor) -> Tensor:
    """x^alpha for x >= 0, with the slope 0 at zero that infinite ones count as."""
    alpha, positive = alpha.to(x), x > 0
    at_zero = torch.where(alpha == 1, x, (alpha == 0).to(x))
    # Not x**alpha: torch takes the slope of that for 0 at alpha = 0, and alpha would lose its gradient of it.
    return torch.where(positive, (alpha * torch.where(positive, x, 1).log()).exp(), at_zero)
