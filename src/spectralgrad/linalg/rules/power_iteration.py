from dataclasses import dataclass
from typing import Literal

from spectralgrad.errors import OptionError
from spectralgrad.validation import is_whole


@dataclass(frozen=True)
class PowerIteration:
    """NIPS19's SVD-PI (Alg. 1): decomposition forward, power iterations and deflation backward.

    Not a coefficient matrix but an algorithm. From the largest eigenvalue down: the gradient of ``steps`` power
    iterations started at the eigenvector, the eigenvalue as a differentiable Rayleigh quotient, deflation. The loop
    breaks, and drops this eigenvector and all smaller ones, at three conditions; each is off with None. At least the
    first eigenvector is kept. What is dropped gets no gradient from `eigh` and no part in a spectral function.
    See docs/rules/power_iteration.md.

    Args:
        steps: power iterations; K + 1 of them equal `Taylor(K)` with two-sided deflation and the breaks off.
        min_eigenvalue: break where an eigenvalue is not above this: the eps that was added to the covariance.
        max_rayleigh_error: break where the Rayleigh quotient of the deflated matrix differs from the solver's
            eigenvalue by this relative amount or more.
        max_energy: break after the eigenvector that brings the sum of eigenvalues to this part of the total.
        deflation: "two-sided", (I - vv^T) M (I - vv^T), or "printed", M - M v v^T, as in the paper.

    >>> PowerIteration(steps=19).max_energy
    0.9999
    """

    steps: int = 19
    min_eigenvalue: float | None = 0.0
    max_rayleigh_error: float | None = 0.1
    max_energy: float | None = 1 - 1e-4
    deflation: Literal["two-sided", "printed"] = "two-sided"

    def __post_init__(self) -> None:
        who = "`PowerIteration`"
        for name in ("min_eigenvalue", "max_rayleigh_error", "max_energy"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise OptionError(f"{who}: {name} must be a number or None, got {value!r}.")
        if not is_whole(self.steps):
            raise OptionError(f"{who}: steps must be a whole number >= 1, got {self.steps!r}.")
        if self.min_eigenvalue is not None and not self.min_eigenvalue >= 0:
            raise OptionError(f"{who}: min_eigenvalue must be >= 0 or None, got {self.min_eigenvalue!r}.")
        if self.max_rayleigh_error is not None and not self.max_rayleigh_error > 0:
            raise OptionError(f"{who}: max_rayleigh_error must be > 0 or None, got {self.max_rayleigh_error!r}.")
        if self.max_energy is not None and not 0 < self.max_energy <= 1:
            raise OptionError(f"{who}: max_energy must lie in (0, 1] or be None, got {self.max_energy!r}.")
        if self.deflation not in ("two-sided", "printed"):
            raise OptionError(f'{who}: deflation must be "two-sided" or "printed", got {self.deflation!r}.')
