"""The log-determinant of positive definite matrices.

log det M = sum log w has the gradient M^-1 = V diag(1/w) V^H, with Loewner matrix -1/(w_i w_j). A clamped eigenvalue adds a
constant: it counts as 0 in M^-1. All is computed for M / 2^k and scaled back last. k brings the smallest eigenvalue that
counts to 1: with a floor it may be further below the largest than numbers reach.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from spectralgrad.context import may_read
from spectralgrad.validation import as_square

from .calculus import Factors
from .choices import AUTO, for_exact
from .elementary import Log
from .node import Step
from .number import NumberOfMatrix, evaluate_number
from .precision import in_basis, matmul, sandwich
from .scaling import are_finite, exponent, is_ordinary, shifted
from .solvers import Solver, decompose, eigenvalues_alone

__all__ = ["logdet"]

_CLOSE = 4  # times eps, relative: how close a clamped eigenvalue may come to one that is not, across the floor


def logdet(M: Tensor, *, solver: Solver = AUTO, floor: float | None = None) -> Tensor:
    """The logarithm of the determinant of positive definite matrices, with its exact gradient M^-1.

    Args:
        M: (*B, n, n), positive definite; only (M + M^H)/2 counts. Half precision is computed in float32.
        solver: an eigensolver.
        floor: a number above 0. Eigenvalues below it are replaced by it, with derivative 0. None: no floor.

    Returns:
        (*B,), real.

    Raises:
        DefinitenessError: M is singular to rounding or indefinite, and no floor is given.
        SymmetryError, NonFiniteError, ShapeError, DtypeError, OptionError, ConvergenceError.

    >>> import torch, spectralgrad as sg
    >>> M = torch.diag(torch.tensor([4.0, 0.25])).requires_grad_()
    >>> value = sg.logdet(M)
    >>> value.backward()
    >>> value.detach(), M.grad
    (tensor(0.), tensor([[0.2500, 0.0000],
            [0.0000, 4.0000]]))
    """
    log = Log(floor)
    X, tolerance = as_square("logdet", M)
    log.require_floor("logdet", X.dtype)
    choice = for_exact("logdet", solver)
    value = evaluate_number(_LogDet(replace(log, checked=tolerance is not None), choice.solver, tolerance=tolerance), X)
    return value if X is M else value.to(M.dtype)


@dataclass(frozen=True)
class _LogDet(NumberOfMatrix):
    """Factors: eigenvalues (*B, n), and eigenvectors (*B, n, n), the handle."""

    log: Log
    solver: Solver

    count = 2

    def factor(self, M: Tensor) -> Factors:
        w, V = decompose("logdet", M, self.solver, self.tolerance)
        self.log.evaluate("logdet", w, self.tolerance)
        return w, V

    def unchecked(self) -> Step:
        return replace(self, tolerance=None, log=replace(self.log, checked=False))

    def constant(self, M: Tensor) -> Tensor:
        w = eigenvalues_alone(M, self.solver, self.tolerance)
        if w is None:
            return super().constant(M)
        self.log.evaluate("logdet", w, self.tolerance)
        return self.number((w,))

    def number(self, factors: Factors) -> Tensor:
        w = factors[0]
        return self.log.f(self.log.clamp(w)[0]).sum(-1)

    def gradient(self, factors: Factors) -> Tensor:
        w, V = factors
        if w.numel() == 0:
            return torch.zeros_like(V)
        if may_read(w) and is_ordinary(w, 1):
            c, clamped = self.log.clamp(w)
            x = 1 / c if clamped is None else torch.where(clamped, 0, 1 / c)
            inverse = matmul(V * x.unsqueeze(-2), V.mH)
            if are_finite(inverse):
                return inverse
        x, _, scale = self._unit(w)
        return shifted(matmul(V * x.unsqueeze(-2), V.mH), -scale)

    def first(self, factors: Factors, E: Tensor) -> Tensor:
        w, V = factors
        if w.numel() == 0:
            return torch.zeros_like(V)
        inverse, unit, scale = self._unit(w)
        size = exponent(E)
        row, column = inverse.unsqueeze(-1), inverse.unsqueeze(-2)
        # One of two clamped: (1/w_i - 0) / (w_i - w_j).
        gap = (unit.unsqueeze(-1) - unit.unsqueeze(-2)).abs()
        gap = torch.maximum(gap, _CLOSE * torch.finfo(w.dtype).eps * torch.maximum(unit.unsqueeze(-1), unit.unsqueeze(-2)))
        mixed = (row == 0) != (column == 0)
        F = torch.where(mixed, (row + column) / torch.where(mixed, gap, 1), -row * column)
        return shifted(sandwich(V, F * in_basis(V, shifted(E, -size))), size - 2 * scale)

    def _unit(self, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """2^k/w, 0 for those clamped, and w/2^k (*B, n), with the k (*B,) that brings the steepest place to scale 1."""
        _, clamped = self.log.clamp(w)
        steepest = w if clamped is None else w.masked_fill(clamped, torch.inf)
        scale = exponent(steepest.amin(-1, keepdim=True), 1)
        own = exponent(w.unsqueeze(-1), 1)  # (*B, n)
        inverse = shifted(1 / shifted(w, -own), scale.unsqueeze(-1) - own)
        if clamped is not None:
            inverse = torch.where(clamped, 0, inverse)
        return inverse, shifted(w, -scale), scale
