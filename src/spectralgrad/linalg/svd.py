"""Reduced singular value decomposition with a chosen gradient rule.

For A = U diag(s) V^H and P = U^H dA V, with H = (P + P^H)/2 and W = (P - P^H)/2,

    ds = Re diag(P)
    dU = U (D * H + F * W) + (I - U U^H) dA V S^-1
    dV = V (D * H - F * W) + (I - V V^H) dA^H U S^-1,      D_ij ~ 1/(s_j - s_i),  F_ij ~ 1/(s_i + s_j).

Only D knows gaps. The rule is asked for the spectrum (s^2, 0), scaled to largest value 1: D = K (s_i + s_j), and
1/s = s/(s^2 - 0), since the null space has the singular value 0; F follows from 1/s. So one rule bounds all three. In the
complex case the diagonal of W turns the phases of a pair of singular vectors against each other; their common phase is
free, and the loss must not depend on it. Backward is the adjoint. See docs/svd.md.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from spectralgrad.validation import as_matrix, checking, is_forced

from .calculus import batched, call
from .choices import AUTO, for_svd
from .precision import matmul
from .rules import Rule
from .rules.base import bounded
from .solvers import Solver, decompose_svd

__all__ = ["svd"]


def svd(A: Tensor, *, gradient: Rule | None = None, solver: Solver = AUTO) -> tuple[Tensor, Tensor, Tensor]:
    """U, S, Vh of A = U diag(S) Vh, as `torch.linalg.svd(A, full_matrices=False)`, with a gradient that is bounded.

    Args:
        A: (*B, m, n), real or complex, any shape.
        gradient: a rule for the gaps of the squared singular values and for 1/S; None means `Lorentzian()`.
        solver: `Auto()`, `Lapack()` or `SVD()`; all are LAPACK's divide and conquer (on CUDA: torch's choice).

    Returns:
        (U, S, Vh): (*B, m, k), (*B, k) descending, (*B, k, n), k = min(m, n).

    Raises:
        ShapeError, DtypeError, NonFiniteError, OptionError, ConvergenceError.

    >>> A = torch.eye(3, 2, requires_grad=True)
    >>> U, S, Vh = svd(A)
    >>> (U[0] @ Vh[:, 0]).backward()
    >>> A.grad.isfinite().all()
    tensor(True)
    """
    X = as_matrix("svd", A, square=False, name="A")
    check = checking(A)
    choice = for_svd("svd", gradient, solver)
    U, S, Vh = singular_triplets(X, choice.rule, check)
    return (U, S, Vh) if X is A else (U.to(A.dtype), S.to(A.dtype), Vh.to(A.dtype))


def singular_triplets(A: Tensor, rule: Rule, check: bool) -> tuple[Tensor, Tensor, Tensor]:
    """U, S, Vh with the rule's gradient, of an ``A`` (*B, m, n) that can be decomposed."""
    function = _Svd if torch.compiler.is_compiling() else _SvdFunc
    return call(function, A, rule, check)  # type: ignore[no-any-return]


def _coefficients(rule: Rule, S: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """D (*B, k, k) ~ 1/(s_j - s_i), F (*B, k, k) ~ 1/(s_i + s_j) and (*B, k) ~ 1/s, all bounded by the rule."""
    if S.shape[-1] == 0:
        empty = S.new_zeros(*S.shape, 0)
        return empty, empty, S
    size = S.detach()[..., :1]
    size = torch.where(size > 0, size, 1)
    s = S / size
    K = rule.coefficients(torch.nn.functional.pad(s * s, (0, 1)))
    inverse = s * K[..., -1, :-1] / size
    row, column = s.unsqueeze(-1), s.unsqueeze(-2)
    D = K[..., :-1, :-1] * (row + column) / size.unsqueeze(-1)
    # 1/(a + b) = (1/a) / (1 + b/a) for a >= b, so that 1/a is the bounded one
    row_leads = row >= column
    larger = torch.where(row_leads, row, column)
    ratio = torch.where(row_leads, column, row) / torch.where(larger > 0, larger, 1)
    F = torch.where(row_leads, inverse.unsqueeze(-1), inverse.unsqueeze(-2)) / (1 + ratio)
    return bounded(D), bounded(F), bounded(inverse)


def _outside(U: Tensor, X: Tensor) -> Tensor:
    """(I - U U^H) X."""
    return X - matmul(U, matmul(U.mH, X))


def _parts(D: Tensor, F: Tensor, X: Tensor) -> tuple[Tensor, Tensor]:
    """The Hermitian part of D * X and the skew part of F * X: the adjoints of P -> D * H and P -> F * W."""
    DX, FX = D * X, F * X
    return (DX + DX.mH) / 2, (FX - FX.mH) / 2


def _pushforward(rule: Rule, U: Tensor, S: Tensor, Vh: Tensor, dA: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    V = Vh.mH
    dAV = matmul(dA, V)  # (*B, m, k)
    P = matmul(U.mH, dAV)
    D, F, inverse = _coefficients(rule, S)
    hermitian, skew = D * (P + P.mH) / 2, F * (P - P.mH) / 2
    dU, dV = matmul(U, hermitian + skew), matmul(V, hermitian - skew)
    if U.shape[-2] > U.shape[-1]:
        dU = dU + _outside(U, dAV) * inverse.unsqueeze(-2)
    if V.shape[-2] > V.shape[-1]:
        dV = dV + _outside(V, matmul(dA.mH, U)) * inverse.unsqueeze(-2)
    return dU, P.diagonal(dim1=-2, dim2=-1).real, dV.mH


def _pullback(
    rule: Rule, U: Tensor, S: Tensor, Vh: Tensor, gU: Tensor | None, gS: Tensor | None, gVh: Tensor | None
) -> Tensor | None:
    if gU is None and gS is None and gVh is None:
        return None
    V = Vh.mH
    D, F, inverse = _coefficients(rule, S)
    inner = torch.diag_embed(torch.zeros_like(S) if gS is None else gS).to(U.dtype)  # (*B, k, k)
    result = None
    if gU is not None:
        hermitian, skew = _parts(D, F, matmul(U.mH, gU))
        inner = inner + hermitian + skew
        if U.shape[-2] > U.shape[-1]:
            result = matmul(_outside(U, gU) * inverse.unsqueeze(-2), Vh)
    if gVh is not None:
        gV = gVh.mH
        hermitian, skew = _parts(D, F, matmul(V.mH, gV))
        inner = inner + hermitian - skew
        if V.shape[-2] > V.shape[-1]:
            outer = matmul(U, (_outside(V, gV) * inverse.unsqueeze(-2)).mH)
            result = outer if result is None else result + outer
    core = matmul(matmul(U, inner), Vh)
    return core if result is None else core + result


class _Svd(Function):  # twice, for torch.compile and for the rest: see calculus.py
    @staticmethod
    def forward(A: Tensor, rule: Rule, check: bool) -> tuple[Tensor, Tensor, Tensor]:
        return decompose_svd("svd", A, check)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.rule = inputs[1]
        ctx.save_for_backward(*output)
        ctx.save_for_forward(*output)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, None, None]:
        U, S, Vh = ctx.saved_tensors
        return _pullback(ctx.rule, U, S, Vh, *grads), None, None


class _SvdFunc(_Svd):
    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> tuple[Tensor, Tensor, Tensor]:
        U, S, Vh = ctx.saved_tensors
        return _pushforward(ctx.rule, U, S, Vh, tangent)

    @staticmethod
    def vmap(info: Any, dims: Any, A: Tensor, rule: Rule, check: bool) -> tuple[Any, Any]:
        (A,) = batched(info, dims[:1], (A,))
        return _SvdFunc.apply(A, rule, check and is_forced()), (0, 0, 0)
