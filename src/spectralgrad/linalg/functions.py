"""Spectral functions V f(L) V^H with exact gradients."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from spectralgrad.context import is_transformed
from spectralgrad.errors import OptionError
from spectralgrad.kernels import doors
from spectralgrad.kernels.spectral import GIVEN
from spectralgrad.validation import as_square, is_whole

from .calculus import AtScale1, Factors, Potential, first_derivative
from .choices import AUTO, ByEigenpairs, EigenSolver, Gradient, RootSolver, for_function
from .eigh import eigenpairs
from .elementary import Exp, InverseFourthRoot, InverseSqrt, Log, Power, Sqrt
from .node import Step, run
from .precision import exactly_hermitian, in_basis, matmul, sandwich
from .products.roots import newton_inverse_fourth_root, newton_root
from .scalars import CLAMPED, Scalar
from .scaling import bounded, exponent, shifted
from .solvers import Solver, decompose

__all__ = ["expm", "inv_root", "inv_sqrtm", "logm", "sqrtm"]


@dataclass(frozen=True)
class Spectral(Potential):
    """V f(L) V^H. Factors: eigenvalues (*B, n), and eigenvectors (*B, n, n), the handle."""

    who: str
    scalar: Scalar
    solver: Solver
    start: Tensor | None = None  # a guess of V
    loewner: Tensor | None = None  # first differences, where they are known already

    handle, count = 1, 2

    def value(self, M: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        w, V = decompose(self.who, M, self.solver, self.tolerance, self.start)
        function = self.scalar.in_kernel()
        given = (lambda: self.scalar.f(self.scalar.clamp(w)[0])) if function is GIVEN else None
        counted = self.tolerance is None and self.scalar.floor is None and function.border != "NOTHING"
        if (found := doors.function_value(V, w, function, given, CLAMPED if counted else None)) is None:
            y = self.scalar.evaluate(self.who, w, self.tolerance)
            Y = exactly_hermitian(matmul(V * y.unsqueeze(-2), V.mH))
            return bounded(Y) if self.scalar.can_overflow else Y, w, V
        if found[1] and self.tolerance is not None:
            self.scalar.require(self.who, w, self.tolerance**2)
        return found[0], w, V

    def unchecked(self) -> Step:
        return replace(self, tolerance=None, scalar=replace(self.scalar, checked=False))

    def at_scale_1(self, factors: Factors) -> AtScale1:
        w, V = factors
        unit = self.scalar.at_scale_1(w)
        F = unit.scalar.loewner(unit.eigenvalues) * unit.factor[..., None, None].to(w.dtype)
        m = exponent(F)
        potential = replace(self, scalar=unit.scalar, loewner=shifted(F, -m))
        return AtScale1(potential, (unit.eigenvalues, V), unit.first + m, unit.second)

    def size(self, factors: Factors) -> Tensor:
        return factors[0]

    def first_in_kernel(self, factors: Factors, E: Tensor) -> Tensor | None:
        w, V = factors
        function = self.scalar.in_kernel()
        given = partial(self.scalar.loewner, w) if function is GIVEN else None
        return doors.function_derivative(V, w, function, given, E)

    def first(self, factors: Factors, E: Tensor) -> Tensor:
        w, V = factors
        if w.numel() == 0:
            return torch.zeros_like(V)
        F = self.scalar.loewner(w) if self.loewner is None else self.loewner
        return sandwich(V, F * in_basis(V, E))

    def second(self, factors: Factors, E1: Tensor, E2: Tensor) -> Tensor:
        w, V = factors
        if w.numel() == 0:
            return torch.zeros_like(V)
        X, Y = (in_basis(V, E) for E in (E1, E2))
        return sandwich(V, self.scalar.contract(w, X, Y))


class Evaluated(NamedTuple):
    """f(M), the map from its gradient to that of M, and the eigenvectors of M."""

    value: Tensor
    pullback: Callable[[Tensor], Tensor]
    basis: Tensor


def with_pullback(
    who: str, M: Tensor, scalar: Scalar, solver: Solver, tolerance: float | None, start: Tensor | None = None
) -> Evaluated:
    """f(M) and what its gradient needs, without an autograd graph: for use inside a Function. ``start``: a guess of V."""
    scalar = scalar if tolerance is None else replace(scalar, checked=True)
    potential = Spectral(who, scalar, solver, start, tolerance=tolerance)
    value, w, V = potential.value(M)
    return Evaluated(value, partial(first_derivative, replace(potential, start=None), (w, V)), V)


def through_eigenpairs(who: str, M: Tensor, scalar: Scalar, choice: ByEigenpairs, tolerance: float | None) -> Tensor:
    """V f(w) V^H by autograd through `eigh`: the papers' way, with the rule's gradient. (*B, n, n)"""
    w, V, kept = eigenpairs(who, M, choice, tolerance)
    if w.numel() == 0:
        return matmul(V * w.unsqueeze(-2), V.mH)
    if tolerance is not None and not is_transformed(w):
        scalar.require(who, w.detach(), tolerance**2)
    c, clamped = scalar.clamp(w)
    y = scalar.f(c)
    if clamped is not None:  # f'(c) may be infinite there, and infinity times zero is NaN: evaluate elsewhere, then select
        y = torch.where(clamped, y.detach(), scalar.f(torch.where(clamped, 1, c)))
    if kept is not None:
        y = torch.where(kept, y, 0)
    return exactly_hermitian(matmul(V * y.unsqueeze(-2), V.mH))


def apply_scalar(who: str, M: Tensor, scalar: Scalar, gradient: Gradient | None, solver: RootSolver) -> Tensor:
    """V f(L) V^H of ``M`` the way its options ask for: the body of the public functions below, and of others."""
    X, tolerance = as_square(who, M)
    choice = for_function(who, X, gradient, solver, scalar)
    if choice.way == "exact":
        scalar = scalar if tolerance is None else replace(scalar, checked=True)
        Y: Tensor = run(Spectral(who, scalar, choice.solver, tolerance=tolerance), X)[0]
    elif choice.way == "products":
        if scalar.root == "inverse fourth root":
            Y = newton_inverse_fourth_root(who, X, choice.newton, tolerance)
        else:
            Y = newton_root(who, X, scalar.root == "inverse sqrt", choice.newton, tolerance)
    else:
        Y = through_eigenpairs(who, X, scalar, choice, tolerance)
    return Y if X is M else Y.to(M.dtype)


def sqrtm(M: Tensor, *, gradient: Gradient | None = None, solver: RootSolver = AUTO, floor: float | None = None) -> Tensor:
    """The square root of positive semi-definite matrices, with its exact gradient.

    M^(1/2) = V diag(w^(1/2)) V^H, with Loewner matrix F_ij = 1/(w_i^(1/2) + w_j^(1/2)): finite at every tie. Eigenvalues
    that are zero to rounding count as zero, and pairs of them get no gradient, so that what reaches X through
    X X^T / n is exact for rank-deficient covariances too.

    Args:
        M: (*B, n, n), positive semi-definite; only (M + M^H)/2 counts. Half precision is computed in float32.
        gradient: None or `Exact()` for the exact gradient; any other rule goes through eigenvectors as the papers do.
        solver: an eigensolver, or `NewtonSchulz` for matrix products only.
        floor: a number above 0. Eigenvalues below it are replaced by it, with derivative 0. None: no floor.

    Returns:
        (*B, n, n), Hermitian, in the dtype of M.

    Raises:
        DefinitenessError: an eigenvalue is negative beyond rounding, and no floor is given.
        SymmetryError, NonFiniteError, ShapeError, DtypeError, OptionError, ConvergenceError.

    >>> import torch, spectralgrad as sg
    >>> M = (4 * torch.eye(2)).requires_grad_()
    >>> sg.sqrtm(M).trace().backward()
    >>> M.grad
    tensor([[0.2500, 0.0000],
            [0.0000, 0.2500]])
    """
    return apply_scalar("sqrtm", M, Sqrt(floor), gradient, solver)


def inv_sqrtm(
    M: Tensor, *, gradient: Gradient | None = None, solver: RootSolver = AUTO, floor: float | None = None
) -> Tensor:
    """The inverse square root of positive definite matrices, ZCA's whitening matrix, with its exact gradient.

    M^(-1/2) = V diag(w^(-1/2)) V^H, with Loewner matrix F_ij = -1/(ab(a + b)), a = w_i^(1/2), b = w_j^(1/2).

    Args:
        M: (*B, n, n), positive definite; only (M + M^H)/2 counts. Half precision is computed in float32.
        gradient: None or `Exact()` for the exact gradient; any other rule goes through eigenvectors as the papers do.
        solver: an eigensolver, or `NewtonSchulz` for matrix products only.
        floor: a number above 0. Eigenvalues below it are replaced by it, with derivative 0. None: no floor.

    Returns:
        (*B, n, n), Hermitian, in the dtype of M.

    Raises:
        DefinitenessError: M is singular to rounding or indefinite, and no floor is given.
        SymmetryError, NonFiniteError, ShapeError, DtypeError, OptionError, ConvergenceError.

    >>> import torch, spectralgrad as sg
    >>> sg.inv_sqrtm(4 * torch.eye(2))
    tensor([[0.5000, 0.0000],
            [0.0000, 0.5000]])
    """
    return apply_scalar("inv_sqrtm", M, InverseSqrt(floor), gradient, solver)


def power_of(alpha: float, floor: float | None) -> Scalar:
    """x^alpha, by its closed form or with its name where it has one."""
    known: dict[float, Scalar] = {0.5: Sqrt(floor), -0.5: InverseSqrt(floor), -0.25: InverseFourthRoot(floor)}
    return known.get(alpha) or Power(floor, alpha=alpha)


def inv_root(
    M: Tensor,
    p: int,
    *,
    gradient: Gradient | None = None,
    solver: RootSolver = AUTO,
    floor: float | None = None,
) -> Tensor:
    """The inverse p-th root of positive definite matrices, Shampoo's preconditioner, with its exact gradient.

    M^(-1/p) = V diag(w^(-1/p)) V^H, which is `powm` at -1/p. On CUDA, real matrices of n > 128 go by matrix products alone
    for p = 2 and p = 4, as they do with ``solver=NewtonSchulz()`` everywhere.

    Relative error |X - M^(-1/p)|_F / |M^(-1/p)|_F at condition number k: by products below eps in float32 up to k = 1e6,
    since products are in float64 where that is as fast (CPU, compute capability 8.0, 9.0, 10.0), and below eps k in
    float64; by eigenpairs below 4 eps k with LAPACK, 16 eps k with cuSOLVER in float32. docs/newton.md has the tables.

    Args:
        M: (*B, n, n), positive definite; only (M + M^H)/2 counts. Half precision is computed in float32.
        p: a whole number >= 1.
        gradient: None or `Exact()` for the exact gradient; any other rule goes through eigenvectors as the papers do.
        solver: an eigensolver, or for p = 2 and 4 `NewtonSchulz`; with ``steps`` each of the two roots of p = 4 takes so
            many.
        floor: a number above 0. Eigenvalues below it are replaced by it, with derivative 0. None: no floor.

    Returns:
        (*B, n, n), Hermitian, in the dtype of M.

    Raises:
        DefinitenessError: M is singular to rounding or indefinite, and no floor is given.
        SymmetryError, NonFiniteError, ShapeError, DtypeError, OptionError, ConvergenceError.

    >>> import torch, spectralgrad as sg
    >>> sg.inv_root(16 * torch.eye(2), 4)
    tensor([[0.5000, 0.0000],
            [0.0000, 0.5000]])
    """
    if not is_whole(p):
        raise OptionError(f"`inv_root`: p must be a whole number >= 1, got {p!r}. For another exponent use powm(M, alpha).")
    return apply_scalar("inv_root", M, power_of(-1 / p, floor), gradient, solver)


def logm(M: Tensor, *, gradient: Gradient | None = None, solver: EigenSolver = AUTO, floor: float | None = None) -> Tensor:
    """The logarithm of positive definite matrices, with its exact gradient: F_ij = log(w_i/w_j)/(w_i - w_j).

    Args:
        M: (*B, n, n), positive definite; only (M + M^H)/2 counts. Half precision is computed in float32.
        gradient: None or `Exact()` for the exact gradient; any other rule goes through eigenvectors as the papers do.
        solver: an eigensolver.
        floor: a number above 0. Eigenvalues below it are replaced by it, with derivative 0. None: no floor.

    Returns:
        (*B, n, n), Hermitian, in the dtype of M.

    Raises:
        DefinitenessError: M is singular to rounding or indefinite, and no floor is given.
        SymmetryError, NonFiniteError, ShapeError, DtypeError, OptionError, ConvergenceError.

    >>> import torch, spectralgrad as sg
    >>> sg.logm(torch.eye(2))
    tensor([[0., 0.],
            [0., 0.]])
    """
    return apply_scalar("logm", M, Log(floor), gradient, solver)


def expm(M: Tensor, *, gradient: Gradient | None = None, solver: EigenSolver = AUTO, floor: float | None = None) -> Tensor:
    """The exponential of Hermitian matrices, with its exact gradient: F_ij = (e^w_i - e^w_j)/(w_i - w_j).

    Args:
        M: (*B, n, n), Hermitian; only (M + M^H)/2 counts. Half precision is computed in float32.
        gradient: None or `Exact()` for the exact gradient; any other rule goes through eigenvectors as the papers do.
        solver: an eigensolver.
        floor: a number above 0. Eigenvalues below it are replaced by it, with derivative 0. None: no floor.

    Returns:
        (*B, n, n), Hermitian, in the dtype of M.

    Raises:
        NonFiniteError: M is not finite, or the exponential of its largest eigenvalue overflows.
        SymmetryError, ShapeError, DtypeError, OptionError, ConvergenceError.

    >>> import torch, spectralgrad as sg
    >>> sg.expm(torch.zeros(2, 2))
    tensor([[1., 0.],
            [0., 1.]])
    """
    return apply_scalar("expm", M, Exp(floor), gradient, solver)
