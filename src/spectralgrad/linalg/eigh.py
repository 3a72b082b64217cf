"""Eigenvalues and eigenvectors of Hermitian matrices, with a chosen gradient rule."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from spectralgrad.validation import as_square, checking, is_transformed, require_hermitian, under_vmap

from .calculus import batched, call, is_constant
from .choices import AUTO, ByEigenpairs, EigenSolver, Gradient, for_eigenpairs
from .power.iteration import power_eigh
from .precision import hermitian_part, matmul, sandwich
from .rules import Rule
from .solvers import Solver, decompose

__all__ = ["eigh"]


def eigh(M: Tensor, *, gradient: Gradient | None = None, solver: EigenSolver = AUTO) -> tuple[Tensor, Tensor]:
    """Eigenvalues, ascending, and eigenvectors of Hermitian matrices: `torch.linalg.eigh` with a gradient that is bounded.

    M = V diag(w) V^H, and for cotangents gw, gV

        dM = V (sym(K * (V^H gV)) + diag(gw)) V^H,   K_ij ~ 1/(w_j - w_i) from the rule.

    Args:
        M: (*B, n, n), real symmetric or complex Hermitian; only (M + M^H)/2 counts.
        gradient: a rule; None means `Lorentzian()`.
        solver: how to decompose. `PowerDeflation` brings its own gradient.

    Returns:
        (w, V): (*B, n) and (*B, n, n). A plain tuple, so that vmap can take it.

    Raises:
        ShapeError, DtypeError, SymmetryError, NonFiniteError, OptionError, ConvergenceError.

    >>> M = torch.eye(2, requires_grad=True)
    >>> w, V = eigh(M)
    >>> (V[0] * w).sum().backward()
    >>> M.grad.isfinite().all()
    tensor(True)
    """
    X, tolerance = as_square("eigh", M)
    w, V, _ = eigenpairs("eigh", X, for_eigenpairs("eigh", gradient, solver), tolerance)
    return (w, V) if X is M else (w.to(M.dtype), V.to(M.dtype))


def eigenpairs(who: str, M: Tensor, choice: ByEigenpairs, tolerance: float | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """w, V and, from `PowerIteration` alone, which pairs (*B, n) it kept."""
    if choice.way == "deflation":
        H = hermitian_part(M)
        if tolerance is not None and checking(M) and not is_transformed(M) and M.numel():
            require_hermitian(who, M.detach(), H.detach(), tolerance)
        return *choice.power.iterate(H), None
    if choice.way == "power iteration":
        return power_eigh(who, M, choice.power, choice.solver, tolerance)
    if is_constant(M):
        return *decompose(who, M, choice.solver, tolerance), None
    function = _Eigh if torch.compiler.is_compiling() else _EighFunc
    w, V = call(function, M, choice.rule, choice.solver, who, tolerance)
    return w, V, None


# Plain torch operations below: autograd differentiates them again for double backward, through w and V, which are
# outputs of the node and so lead back to M.


def _pullback(rule: Rule, w: Tensor, V: Tensor, gw: Tensor | None, gV: Tensor | None) -> Tensor | None:
    if gV is None:
        return None if gw is None else matmul(V * gw.unsqueeze(-2), V.mH)
    inner = hermitian_part(rule.coefficients(w) * matmul(V.mH, gV))
    if gw is not None:
        inner = inner + torch.diag_embed(gw).to(inner.dtype)
    return sandwich(V, inner)


def _pushforward(rule: Rule, w: Tensor, V: Tensor, E: Tensor) -> tuple[Tensor, Tensor]:
    inner = matmul(V.mH, matmul(hermitian_part(E), V))  # (*B, n, n)
    return inner.diagonal(dim1=-2, dim2=-1).real, matmul(V, rule.coefficients(w) * inner)


class _Eigh(Function):  # twice, for torch.compile and for the rest: see calculus.py
    @staticmethod
    def forward(M: Tensor, rule: Rule, solver: Solver, who: str, tolerance: float | None) -> tuple[Tensor, Tensor]:
        return decompose(who, M, solver, tolerance)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.rule = inputs[1]
        ctx.save_for_backward(*output)
        ctx.save_for_forward(*output)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, gw: Tensor | None, gV: Tensor | None) -> tuple[Tensor | None, None, None, None, None]:
        w, V = ctx.saved_tensors
        return _pullback(ctx.rule, w, V, gw, gV), None, None, None, None


class _EighFunc(_Eigh):
    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> tuple[Tensor, Tensor]:
        w, V = ctx.saved_tensors
        return _pushforward(ctx.rule, w, V, tangent)

    @staticmethod
    def vmap(info: Any, dims: Any, M: Tensor, rule: Rule, solver: Solver, who: str, tolerance: Any) -> tuple[Any, Any]:
        (M,) = batched(info, dims[:1], (M,))
        return _EighFunc.apply(M, rule, solver, who, under_vmap(tolerance)), (0, 0)
