"""Reduced singular value decomposition with a chosen gradient rule.

For A = U diag(s) V^H, P = U^H dA V and K_ij ~ 1/(s_j^2 - s_i^2),

    ds = Re diag(P)
    dU = U (K * (P S + S P^H) + i Im diag(P)/(2s)) + (I - U U^H) dA V S^-1
    dV = V (K * (S P + P^H S) - i Im diag(P)/(2s)) + (I - V V^H) dA^H U S^-1.

The terms in 1/s are of the same kind as K: the null space has the singular value 0, and 1/s = s/(s^2 - 0^2). So the rule
is asked once for the spectrum (s^2, 0), scaled to largest value 1, and bounds both. The phase of a pair of singular
vectors is free in the complex case; the loss must not depend on it. Backward is the adjoint. See docs/svd.md.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from spectralgrad.errors import OptionError

from .calculus import batched, call
from .checks import as_given, as_matrix, checking
from .eigh import AUTO, LORENTZIAN, require_rule
from .precision import matmul
from .rules import Rule
from .solvers import SVD, Auto, Lapack, Solver, decompose_svd

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
    require_svd_solver("svd", solver)
    rule = LORENTZIAN if gradient is None else require_rule("svd", gradient)
    function = _Svd if torch.compiler.is_compiling() else _SvdFunc
    U, S, Vh = call(function, X, rule, checking(A))
    return as_given(U, A), as_given(S, A), as_given(Vh, A)


def require_svd_solver(who: str, solver: object) -> None:
    if not isinstance(solver, Auto | Lapack | SVD):
        raise OptionError(f"`{who}`: solver must be Auto(), Lapack() or SVD() for singular values, got {solver!r}.")


def _coefficients(rule: Rule, S: Tensor) -> tuple[Tensor, Tensor]:
    """K (*B, k, k) ~ 1/(s_j^2 - s_i^2) and the inverse (*B, k) ~ 1/s, both bounded by the rule."""
    if S.shape[-1] == 0:
        return S.new_zeros(*S.shape, 0), S
    size = S.detach()[..., :1]
    size = torch.where(size > 0, size, 1)
    s = S / size
    K = rule.coefficients(torch.nn.functional.pad(s * s, (0, 1)))
    largest = torch.finfo(S.dtype).max
    inverse = s * K[..., -1, :-1] / size
    return (K[..., :-1, :-1] / size.unsqueeze(-1) / size.unsqueeze(-1)).clamp(-largest, largest), inverse


def _outside(U: Tensor, X: Tensor) -> Tensor:
    """(I - U U^H) X."""
    return X - matmul(U, matmul(U.mH, X))


def _imaginary_diagonal(X: Tensor) -> Tensor:
    """i Im diag(X), (*B, k)."""
    diagonal = X.diagonal(dim1=-2, dim2=-1)
    return torch.complex(torch.zeros_like(diagonal.real), diagonal.imag)


def _pushforward(rule: Rule, U: Tensor, S: Tensor, Vh: Tensor, dA: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    V = Vh.mH
    dAV = matmul(dA, V)  # (*B, m, k)
    dAU = matmul(dA.mH, U)  # (*B, n, k)
    P = matmul(U.mH, dAV)
    K, inverse = _coefficients(rule, S)
    row, column = S.unsqueeze(-1), S.unsqueeze(-2)
    dU = matmul(U, K * (P * column + row * P.mH))
    dV = matmul(V, K * (row * P + P.mH * column))
    if P.is_complex():
        phase = (_imaginary_diagonal(P) * inverse / 2).unsqueeze(-2)
        dU, dV = dU + U * phase, dV - V * phase
    if U.shape[-2] > U.shape[-1]:
        dU = dU + _outside(U, dAV) * inverse.unsqueeze(-2)
    if V.shape[-2] > V.shape[-1]:
        dV = dV + _outside(V, dAU) * inverse.unsqueeze(-2)
    return dU, P.diagonal(dim1=-2, dim2=-1).real, dV.mH


def _pullback(
    rule: Rule, U: Tensor, S: Tensor, Vh: Tensor, gU: Tensor | None, gS: Tensor | None, gVh: Tensor | None
) -> Tensor | None:
    if gU is None and gS is None and gVh is None:
        return None
    V = Vh.mH
    K, inverse = _coefficients(rule, S)
    row, column = S.unsqueeze(-1), S.unsqueeze(-2)
    inner = torch.zeros_like(matmul(U.mH, U))
    result = None
    if gU is not None:
        X = matmul(U.mH, gU)
        KX = K * X
        inner = inner + (KX + KX.mH) * column  # the adjoint of P -> K * (P S + S P^H)
        if X.is_complex():
            inner = inner + torch.diag_embed(_imaginary_diagonal(X) * inverse / 2)
        if U.shape[-2] > U.shape[-1]:
            result = matmul(_outside(U, gU) * inverse.unsqueeze(-2), Vh)
    if gVh is not None:
        gV = gVh.mH
        Y = matmul(V.mH, gV)
        KY = K * Y
        inner = inner + row * (KY + KY.mH)
        if Y.is_complex():
            inner = inner - torch.diag_embed(_imaginary_diagonal(Y) * inverse / 2)
        if V.shape[-2] > V.shape[-1]:
            outer = matmul(U, (_outside(V, gV) * inverse.unsqueeze(-2)).mH)
            result = outer if result is None else result + outer
    if gS is not None:
        inner = inner + torch.diag_embed(gS).to(inner.dtype)
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
        return _SvdFunc.apply(A, rule, False), (0, 0, 0)
