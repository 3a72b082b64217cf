"""The generalized eigenproblem of Hermitian matrices, with a chosen gradient rule.

A V = B V diag(w), V^H B V = I. With P = V^H dA V and Q = V^H dB V, both Hermitian,

    dw = diag(P - Q W),      V^-1 dV = K * (P - Q (w_i + w_j)/2) - Q/2,      K_ij ~ 1/(w_j - w_i) from the rule.

Only K knows gaps. Backward is the adjoint: with G = V^H gV and S = sym(K * G),

    gA = V (S + diag(gw)) V^H,      gB = -V (S (w_i + w_j)/2 + diag(w gw) + sym(G)/2) V^H.

The pairs come from two ordinary ones: B = U diag(b) U^H gives X = U b^(-1/2) with X^H B X = I; those of X^H A X are w and
X^-1 V.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spectralgrad.counters import count_on_device
from spectralgrad.errors import DtypeError, ShapeError
from spectralgrad.validation import as_given, as_matrix, asymmetry_tolerance, require_hermitian, require_one_device

from .choices import AUTO, for_generalized
from .decomposition import Decomposition, Scales
from .eigh import Eigenpairs
from .node import Some, run
from .precision import hermitian_part, matmul, rounding_of, sandwich
from .rules import Rule
from .rules.base import without_rounding
from .scalars import CLAMPED, require_positive, zero_tolerance
from .scaling import exponent, shifted
from .solvers import Solver, decompose

__all__ = ["generalized_eigh"]

_ADVICE = "Add eps * identity to `B`."


def generalized_eigh(A: Tensor, B: Tensor, *, gradient: Rule | None = None, solver: Solver = AUTO) -> Eigenpairs:
    """Eigenvalues, ascending, and eigenvectors of A V = B V diag(w), with V^H B V = I.

    Accurate to the condition number of B times rounding, as LAPACK's sygv is.

    Args:
        A: (*B, n, n), Hermitian; only (A + A^H)/2 counts. Half precision is computed in float32.
        B: (*B, n, n), Hermitian and positive definite; broadcasts with A.
        gradient: a rule for the gaps of the eigenvalues; None means `Lorentzian()`.
        solver: an eigensolver.

    Returns:
        (w, V): (*B, n) and (*B, n, n), also as .eigenvalues and .eigenvectors.

    Raises:
        DefinitenessError: B is singular to rounding, or indefinite. (On CUDA its eigenvalues are clamped and counted.)
        ShapeError, DtypeError, DeviceError, SymmetryError, NonFiniteError, OptionError, ConvergenceError.

    >>> import torch, spectralgrad as sg
    >>> A, B = torch.diag(torch.tensor([6.0, 1.0])), torch.diag(torch.tensor([2.0, 1.0]))
    >>> sg.generalized_eigh(A, B).eigenvalues
    tensor([1.0000, 3.0000])
    """
    who = "generalized_eigh"
    X, Y = as_matrix(who, A, square=True, name="A"), as_matrix(who, B, square=True, name="B")
    require_one_device(who, (X, Y), ("A", "B"))
    if X.dtype != Y.dtype:
        raise DtypeError(f"`{who}`: `A` and `B` must have one dtype, got {A.dtype} and {B.dtype}. Convert one of them.")
    if X.shape[-1] != Y.shape[-1]:
        raise ShapeError(f"`{who}`: `A` and `B` must have one size, got {tuple(A.shape)} and {tuple(B.shape)}.")
    choice = for_generalized(who, gradient, solver)
    try:
        X, Y = torch.broadcast_tensors(X, Y)
    except RuntimeError:
        raise ShapeError(
            f"`{who}`: the batches of `A` and `B` must broadcast, got {tuple(A.shape)} and {tuple(B.shape)}."
        ) from None
    w, V = run(_Generalized(who, choice.rule, choice.solver, tolerance=asymmetry_tolerance(A)), X, Y)
    return Eigenpairs(as_given(w, A), as_given(V, A))


@dataclass(frozen=True)
class _Generalized(Decomposition):
    """Of A and B. Factors: eigenvalues (*B, n) and eigenvectors (*B, n, n)."""

    who: str
    rule: Rule
    solver: Solver

    def value(self, A: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
        tolerance = self.tolerance
        if tolerance is not None and A.numel():  # here: the solvers would see neither as it was given
            for M, name in ((A, "A"), (B, "B")):
                require_hermitian(self.who, M, hermitian_part(M), tolerance, name)
        a, b = exponent(A), exponent(B)
        b = 2 * torch.ceil(b / 2)  # even: V scales with 2^(-b/2)
        beta, U = decompose(self.who, shifted(B, -b), self.solver, tolerance)
        if tolerance is not None:
            require_positive(self.who, shifted(beta, b), _ADVICE, name="B")
        elif beta.numel():
            border = zero_tolerance(beta).clamp(min=torch.finfo(beta.dtype).tiny)
            count_on_device(CLAMPED, beta <= border)
            beta = torch.maximum(beta, border)
        X = U * beta.rsqrt().unsqueeze(-2)
        inner = hermitian_part(matmul(X.mH, matmul(hermitian_part(shifted(A, -a)), X)))
        w, W = decompose(self.who, inner, self.solver, tolerance)
        return shifted(w, a - b), shifted(matmul(X, W), -b / 2).contiguous()

    def scales(self, factors: Sequence[Tensor]) -> Scales:
        w, V = factors
        v = exponent(V)
        if not self.rule.scale_free:  # the eigenvalues stay as they are, so A scales with B
            return Scales((None, v), (-2 * v, -2 * v))
        k = exponent(w, 1)
        return Scales((k, v), (k - 2 * v, -2 * v))

    def sizes(self, factors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(factors) if self.rule.scale_free else (factors[1],)

    def pullback(self, factors: Sequence[Tensor], cotangents: Some) -> tuple[Tensor, Tensor]:
        (w, V), (gw, gV) = factors, cotangents
        by_w = torch.zeros_like(w) if gw is None else gw
        diagonal, weighted = (torch.diag_embed(x).to(V.dtype) for x in (by_w, w * by_w))
        if gV is None:
            return sandwich(V, diagonal), -sandwich(V, weighted)
        G = matmul(V.mH, gV)
        K = self.rule.coefficients(w)

        def noise() -> Tensor:
            longest: Tensor = torch.linalg.vector_norm(V, dim=-2).amax(-1)
            return longest[..., None, None] * rounding_of(gV)

        S = hermitian_part(K * without_rounding(K, G, noise, w))
        gB = -sandwich(V, S * _means(w) + weighted + hermitian_part(G) / 2)
        return sandwich(V, S + diagonal), gB

    def pushforward(self, factors: Sequence[Tensor], directions: Some) -> tuple[Tensor, Tensor]:
        (w, V), (dA, dB) = factors, directions
        P, Q = (torch.zeros_like(V) if d is None else matmul(V.mH, matmul(hermitian_part(d), V)) for d in (dA, dB))
        dw = (P - Q * w.unsqueeze(-2)).diagonal(dim1=-2, dim2=-1).real
        return dw, matmul(V, self.rule.coefficients(w) * (P - Q * _means(w)) - Q / 2)


def _means(w: Tensor) -> Tensor:
    """(w_i + w_j)/2 (*B, n, n)."""
    return (w.unsqueeze(-1) + w.unsqueeze(-2)) / 2
