"""Eigenvalues and eigenvectors of Hermitian matrices, with a chosen gradient rule."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from spectralgrad.context import is_constant, is_plain_backward, is_transformed, may_look
from spectralgrad.errors import DtypeError, ShapeError
from spectralgrad.kernels import doors
from spectralgrad.kernels.eigenpairs import GIVEN, Cotangents, Rounding
from spectralgrad.validation import (
    as_given,
    as_square,
    asymmetry_tolerance,
    require_dense,
    require_hermitian,
    require_one_of,
)

from .choices import AUTO, ByEigenpairs, EigenSolver, Gradient, for_eigenpairs
from .decomposition import Decomposition, Scales
from .node import Some, Step, added, run
from .power.iteration import power_eigh
from .precision import NOISE, hermitian_part, matmul, rounding_of, sandwich
from .rules import Rule
from .rules.base import CLOSE, without_rounding
from .scaling import exponent, shifted
from .solvers import Solver, decompose, eigenvalues_alone

__all__ = ["Eigenpairs", "eigh", "eigvalsh"]

Triangle = Literal["L", "U"]
_ROUNDING = Rounding(CLOSE, NOISE)


class Eigenpairs(NamedTuple):
    """What `eigh` returns: a tuple, with the names of `torch.linalg.eigh`."""

    eigenvalues: Tensor
    eigenvectors: Tensor


def eigh(
    M: Tensor,
    UPLO: Triangle | None = None,
    *,
    gradient: Gradient | None = None,
    solver: EigenSolver = AUTO,
    start: Tensor | None = None,
) -> Eigenpairs:
    """Eigenvalues, ascending, and eigenvectors of Hermitian matrices: `torch.linalg.eigh` with a gradient that is bounded.

    For V f(w) V^H by hand at a tie no rule can be right: there the eigenvectors carry nothing of it. Take `sqrtm`,
    `inv_sqrtm`, `logm` or `spectral_map`, which are exact; `counts` tells by ``tied_eigenvectors`` that a tie was met.

    M = V diag(w) V^H, and for cotangents gw, gV

        dM = V (sym(K * (V^H gV)) + diag(gw)) V^H,   K_ij ~ 1/(w_j - w_i) from the rule.

    Args:
        M: (*B, n, n), real symmetric or complex Hermitian; only (M + M^H)/2 counts. Half precision is computed in float32.
        UPLO: "L" or "U": only this triangle is read, whatever the other holds. The gradient is the full Hermitian one, as
            in torch. None: all of M is read.
        gradient: a rule; None means `Lorentzian()`.
        solver: how to decompose. `PowerDeflation` brings its own gradient.
        start: (*B, n, n), a guess of the eigenvectors in ascending order, such as those of a matrix nearby. `Jacobi` needs
            fewer sweeps with a good one; a bad one costs time, never accuracy. Other solvers, and `Auto` where it takes
            another, do not use it, nor is one used that vmap maps. It gets no gradient.

    Returns:
        (w, V): (*B, n) and (*B, n, n), also as .eigenvalues and .eigenvectors. With torch.func.vmap give ``out_dims`` as
        one number, not as a tuple.

    Raises:
        DefinitenessError: a negative eigenvalue, with `PowerIteration` alone, which is for covariances.
        ShapeError, DtypeError, SymmetryError, NonFiniteError, OptionError, ConvergenceError.

    >>> import torch, spectralgrad as sg
    >>> M = torch.eye(2, requires_grad=True)
    >>> w, V = sg.eigh(M)
    >>> (V[0] * w).sum().backward()
    >>> M.grad.isfinite().all()
    tensor(True)
    """
    X, tolerance = _read("eigh", M, UPLO)
    choice = for_eigenpairs("eigh", gradient, solver)
    w, V, _ = eigenpairs("eigh", X, choice, tolerance, _as_start(start, X))
    return Eigenpairs(as_given(w, M), as_given(V, M))


def eigvalsh(M: Tensor, UPLO: Triangle | None = None, *, solver: EigenSolver = AUTO) -> Tensor:
    """Eigenvalues, ascending, of Hermitian matrices, as `torch.linalg.eigvalsh`; dM = V diag(gw) V^H.

    No gap appears in this gradient, so no rule is needed. Inside a tie only symmetric functions of the eigenvalues have a
    derivative. Second derivatives take `Lorentzian()`.

    Args:
        M: (*B, n, n), real symmetric or complex Hermitian; only (M + M^H)/2 counts. Half precision is computed in float32.
        UPLO: "L" or "U": only this triangle is read. None: all of M is.
        solver: how to decompose.

    Returns:
        (*B, n), real.

    Raises:
        ShapeError, DtypeError, SymmetryError, NonFiniteError, OptionError, ConvergenceError.

    >>> import torch, spectralgrad as sg
    >>> sg.eigvalsh(torch.diag(torch.tensor([3.0, 1.0])))
    tensor([1., 3.])
    """
    X, tolerance = _read("eigvalsh", M, UPLO)
    choice = for_eigenpairs("eigvalsh", None, solver)
    w = eigenvalues_alone(X, choice.solver, tolerance) if choice.way == "rule" and is_constant(X) else None
    return as_given(eigenpairs("eigvalsh", X, choice, tolerance)[0] if w is None else w, M)


def eigenpairs(
    who: str, M: Tensor, choice: ByEigenpairs, tolerance: float | None, start: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """w, V and, from `PowerIteration` alone, which pairs (*B, n) it kept."""
    if choice.way == "deflation":
        H = hermitian_part(M)
        if tolerance is not None and may_look(M) and M.numel():
            require_hermitian(who, M.detach(), H.detach(), tolerance)
        return *choice.power.iterate(H), None
    if choice.way == "power iteration":
        return power_eigh(who, M, choice.power, choice.solver, tolerance)
    return *run(_Eigh(who, choice.rule, choice.solver, start, tolerance=tolerance), M), None


@dataclass(frozen=True, eq=False)
class _Eigh(Decomposition):
    """Factors: eigenvalues (*B, n) and eigenvectors (*B, n, n)."""

    who: str
    rule: Rule
    solver: Solver
    start: Tensor | None = None

    def value(self, M: Tensor) -> tuple[Tensor, Tensor]:
        return decompose(self.who, M, self.solver, self.tolerance, self.start)

    def scales(self, factors: Sequence[Tensor]) -> Scales:
        if not self.rule.scale_free:
            return Scales((None, None), (None,))
        k = exponent(factors[0], 1)
        return Scales((k, None), (k,))

    def sizes(self, factors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return (factors[0],) if self.rule.scale_free else ()

    def pullback_in_kernel(self, factors: Sequence[Tensor], cotangents: Some) -> tuple[Tensor] | None:
        (w, V), (gw, gV) = factors, cotangents
        if gV is None or not is_plain_backward(gV):
            return None
        rule = self.rule.in_kernel(w.dtype)
        given = partial(self._coefficients, w, V) if rule is GIVEN else None
        M = doors.eigenpairs_pullback((w, V), Cotangents(gw, gV), rule, given, self.rule.scale_free, _ROUNDING)
        return None if M is None else (M,)

    def _coefficients(self, w: Tensor, V: Tensor) -> Tensor:
        unit = shifted(w, -exponent(w, 1)) if self.rule.scale_free else w
        return self.rule.coefficients(unit).to(V.dtype).expand_as(V)

    def pullback(self, factors: Sequence[Tensor], cotangents: Some) -> tuple[Tensor]:
        (w, V), (gw, gV) = factors, cotangents
        if gV is None:
            assert gw is not None
            return (matmul(V * gw.unsqueeze(-2), V.mH),)
        K = self.rule.coefficients(w)
        inner = hermitian_part(K * without_rounding(K, matmul(V.mH, gV), lambda: rounding_of(gV), w))
        if gw is not None:
            inner = inner + torch.diag_embed(gw)
        return (sandwich(V, inner),)

    def pushforward(self, factors: Sequence[Tensor], directions: Some) -> tuple[Tensor, Tensor]:
        (w, V), (E,) = factors, directions
        assert E is not None
        inner = matmul(V.mH, matmul(hermitian_part(E), V))  # (*B, n, n)
        return inner.diagonal(dim1=-2, dim2=-1).real, matmul(V, self.rule.coefficients(w) * inner)


# What is read of the input.


def _read(who: str, M: Tensor, UPLO: Triangle | None) -> tuple[Tensor, float | None]:
    X, tolerance = as_square(who, M)
    if UPLO is None:
        return X, tolerance
    require_one_of(who, "UPLO", UPLO, (None, "L", "U"))
    return run(_FromTriangle(UPLO == "U"), X), asymmetry_tolerance(M)


@dataclass(frozen=True)
class _FromTriangle(Step):
    """The Hermitian matrix with a given triangle; its derivative is the identity, as if all of M had been read."""

    upper: bool

    def value(self, M: Tensor) -> Tensor:
        strict = M.triu(1) if self.upper else M.tril(-1)
        return strict + strict.mH + torch.diag_embed(M.diagonal(dim1=-2, dim2=-1).real).to(M.dtype)

    kept_inputs = slice(0)

    def pull(self, kept: Some, grads: Some, needed: Sequence[bool]) -> Some:
        return grads

    def push(self, kept: Some, tangents: Some) -> Tensor:
        return added(*tangents)


def _broadcasts(shape: torch.Size, to: torch.Size) -> bool:
    return len(shape) <= len(to) and all(a in (1, b) for a, b in zip(reversed(shape), reversed(to), strict=False))


def _as_start(start: Tensor | None, M: Tensor) -> Tensor | None:
    """A guess of the eigenvectors in the dtype and place of ``M``; None for one that vmap maps, which cannot be used."""
    if start is None:
        return None
    if not isinstance(start, Tensor):
        raise DtypeError(f"`eigh`: start must be a torch.Tensor or None, got {type(start).__name__}.")
    require_dense("eigh", start, "start")
    if start.is_meta and not M.is_meta:
        raise DtypeError("`eigh`: start must hold numbers, got a meta tensor. Leave it out.")
    if start.shape[-2:] != M.shape[-2:] or not _broadcasts(start.shape, M.shape):
        raise ShapeError(
            f"`eigh`: start must have the shape of `M`, {tuple(M.shape)}, or broadcast to it, got {tuple(start.shape)}."
        )
    if is_transformed(start):
        return None
    return (start.detach() if M.is_complex() else start.detach().real).to(M.device, M.dtype)
