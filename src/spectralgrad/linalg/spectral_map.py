"""V f(L) V^H for any smooth elementwise f, with exact gradients for M and for the tensors that f closes over.

The divided differences of f are derived in elementwise.py, the gradients are joined in mapped.py. Here is what is special
to Hermitian matrices: the Loewner matrix F_ij = f[l_i, l_j] weighs V^H E V.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from spectralgrad.errors import OptionError
from spectralgrad.validation import as_square

from .calculus import AtScale1, Factors
from .choices import AUTO, ByEigenpairs, EigenSolver, Gradient, RootSolver, for_function
from .eigh import eigenpairs
from .elementwise import Elementwise
from .functions import Spectral
from .mapped import Frame, applied, mapped
from .precision import exactly_hermitian, in_basis, matmul, sandwich
from .solvers import Solver, decompose

__all__ = ["spectral_map"]


def spectral_map(
    M: Tensor,
    f: Callable[[Tensor], Tensor],
    *,
    gradient: Gradient | None = None,
    solver: EigenSolver = AUTO,
    floor: float | None = None,
) -> Tensor:
    """V diag(f(w)) V^H for a smooth elementwise function f of torch operations, with its exact gradient.

    f is called with eigenvalues in float32 or float64 and in several shapes, also between the eigenvalues; it must act on
    each number alone. Tensors that it closes over get gradients, second ones included: what the eigenvalues share, such as
    their sum, is computed outside of f.

    Args:
        M: (*B, n, n), Hermitian; only (M + M^H)/2 counts. Half precision is computed in float32.
        f: the function.
        gradient: None or `Exact()` for the exact gradient; any other rule goes through eigenvectors as the papers do.
        solver: an eigensolver.
        floor: a number above 0. Eigenvalues below it are replaced by it, with derivative 0. None: no floor.

    Returns:
        (*B, n, n), Hermitian, in the dtype of M.

    Raises:
        NonFiniteError: M is not finite, or f gives NaN or Inf for an eigenvalue.
        ShapeError: f changes the shape, or M is no square matrix.
        OptionError: f does not act on each number alone, as far as two of them show it.
        SymmetryError, DtypeError, ConvergenceError.

    >>> import torch, spectralgrad as sg
    >>> p = torch.tensor(2.0, requires_grad=True)
    >>> sg.spectral_map(3 * torch.eye(2), lambda x: x**p).trace().backward()
    >>> p.grad  # 2 * 9 * log(3)
    tensor(19.7750)
    """
    if not callable(f):
        raise OptionError(f"`spectral_map`: f must be a function of a tensor, got {f!r}.")
    return through_map("spectral_map", M, Elementwise(floor, function=f), gradient, solver)


def through_map(who: str, M: Tensor, function: Elementwise, gradient: Gradient | None, solver: RootSolver) -> Tensor:
    """V f(L) V^H of ``M`` for a function with tensors of its own, the way the options ask for."""
    X, tolerance = as_square(who, M)
    choice = for_function(who, X, gradient, solver, function)
    assert choice.way != "products"  # refused: f is no root
    if choice.way == "exact":
        Y, _ = mapped(_Eigenbasis(who, function, choice.solver, tolerance=tolerance), X)
    else:
        Y = _through_pairs(who, X, function, choice, tolerance)
    return Y if X is M else Y.to(M.dtype)


def _through_pairs(who: str, M: Tensor, function: Elementwise, choice: ByEigenpairs, tolerance: float | None) -> Tensor:
    w, V, kept = eigenpairs(who, M, choice, tolerance)
    y = applied(who, function, w, tolerance)
    y = y if kept is None else torch.where(kept, y, 0)
    return exactly_hermitian(matmul(V * y.unsqueeze(-2), V.mH))


@dataclass(frozen=True)
class _Eigenbasis(Frame):
    """Factors: eigenvalues (*B, n), and eigenvectors (*B, n, n), the handle."""

    solver: Solver

    count = 2

    def factor(self, M: Tensor) -> Factors:
        return decompose(self.who, M, self.solver, self.tolerance)

    def matrix(self, factors: Factors, y: Tensor) -> Tensor:
        V = factors[1]
        return exactly_hermitian(matmul(V * y.unsqueeze(-2), V.mH))

    def diagonal(self, factors: Factors, G: Tensor) -> Tensor:
        return in_basis(factors[1], G).diagonal(dim1=-2, dim2=-1).real.clone()

    def differences(self, spectrum: Tensor) -> Tensor:
        return self.function.loewner(spectrum)

    def weigh(self, factors: Factors, L: Tensor, E: Tensor) -> Tensor:
        V = factors[1]
        return sandwich(V, L * in_basis(V, E))

    def products(self, factors: Factors, E: Tensor, G: Tensor) -> Tensor:
        V = factors[1]
        return (in_basis(V, E).conj() * in_basis(V, G)).real

    takes_any_scale = False

    def second(self, factors: Factors, E1: Tensor, E2: Tensor) -> Tensor:
        return self._spectral().second(factors, E1, E2)

    def at_scale_1(self, factors: Factors) -> AtScale1:
        return self._spectral().at_scale_1(factors)

    def size(self, factors: Factors) -> Tensor:
        return self._spectral().size(factors)

    def first_in_kernel(self, factors: Factors, E: Tensor) -> Tensor | None:
        return self._spectral().first_in_kernel(factors, E)

    def _spectral(self) -> Spectral:
        return Spectral(self.who, self.function, self.solver)
