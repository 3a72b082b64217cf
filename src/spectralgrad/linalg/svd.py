"""Singular value decomposition with a chosen gradient rule.

For A = U diag(s) V^H, reduced, and P = U^H dA V, with H = (P + P^H)/2 and W = (P - P^H)/2,

    ds = Re diag(P)
    dU = U (D * H + F * W) + (I - U U^H) dA V S^-1
    dV = V (D * H - F * W) + (I - V V^H) dA^H U S^-1,      D_ij ~ 1/(s_j - s_i),  F_ij = 1/(s_i + s_j).

Only D knows gaps: it is the rule's K of the singular values, relative to the largest. F and S^-1 are exact, and 0 where
they would divide by what is zero to rounding. In the complex case the diagonal of W turns the phases of a pair of singular
vectors against each other; their common phase is free, and the loss must not depend on it. Backward is the adjoint. See
docs/svd.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from spectralgrad.context import checking, is_constant
from spectralgrad.validation import as_given, as_matrix, require_flag

from .choices import AUTO, ByRule, for_svd
from .decomposition import Decomposition, Scales
from .node import Some, run
from .precision import hermitian_part, matmul, rounding_of
from .rules import Rule
from .rules.base import without_rounding
from .scaling import exponent
from .solvers import Solver, decompose_svd, singular_values_alone

__all__ = ["SingularTriplets", "svd", "svdvals"]


class SingularTriplets(NamedTuple):
    """What `svd` returns: a tuple, with the names of `torch.linalg.svd`."""

    U: Tensor
    S: Tensor
    Vh: Tensor


def svd(A: Tensor, full_matrices: bool = False, *, gradient: Rule | None = None, solver: Solver = AUTO) -> SingularTriplets:
    """U, S, Vh of A = U diag(S) Vh, as `torch.linalg.svd(A, full_matrices=False)`, with a gradient that is bounded.

    Args:
        A: (*B, m, n), real or complex, any shape. Half precision is computed in float32.
        full_matrices: complete U to (*B, m, m) and Vh to (*B, n, n). Any basis of the complement would do for the added
            columns and rows; their gradient is that of the space they span, N^H dN = 0, which is exact for a loss that sees
            that space alone, such as a null vector up to its sign. (torch gives 0 there.)
        gradient: a rule for the gaps of the singular values; None means `Lorentzian()`. Sums of singular values and 1/S
            take no rule: they are exact, and 0 where they would divide by rounding.
        solver: `Lapack()` and `SVD()` are LAPACK's divide and conquer (on CUDA: torch's choice). `Auto()` is that on the CPU
            and one-sided Jacobi in our kernels on CUDA, for real matrices: see `Auto`.

    Returns:
        (U, S, Vh): (*B, m, k), (*B, k) descending, (*B, k, n), k = min(m, n); also as .U, .S and .Vh. With torch.func.vmap
        give ``out_dims`` as one number, not as a tuple.

    Raises:
        ShapeError, DtypeError, NonFiniteError, OptionError, ConvergenceError.

    >>> import torch, spectralgrad as sg
    >>> A = torch.eye(3, 2, requires_grad=True)
    >>> U, S, Vh = sg.svd(A)
    >>> (U[0] @ Vh[:, 0]).backward()
    >>> A.grad.isfinite().all()
    tensor(True)
    """
    X = as_matrix("svd", A, square=False, name="A")
    require_flag("svd", "full_matrices", full_matrices)
    check = checking(A)
    U, S, Vh = singular_triplets("svd", X, for_svd("svd", gradient, solver), check)
    if full_matrices:
        U, Vh = _completed(U), _completed(Vh.mH).mH.resolve_conj()
    return SingularTriplets(as_given(U, A), as_given(S, A), as_given(Vh, A))


def svdvals(A: Tensor, *, solver: Solver = AUTO) -> Tensor:
    """Singular values, descending, as `torch.linalg.svdvals`; dA = U diag(gS) V^H.

    No gap appears in this gradient, so no rule is needed. Inside a tie, and at zero, only symmetric functions of them have a
    derivative. Second derivatives take `Lorentzian()`.

    Args:
        A: (*B, m, n), real or complex, any shape. Half precision is computed in float32.
        solver: as in `svd`.

    Returns:
        (*B, min(m, n)), real.

    Raises:
        ShapeError, DtypeError, NonFiniteError, OptionError, ConvergenceError.

    >>> import torch, spectralgrad as sg
    >>> sg.svdvals(torch.tensor([[0.0, 2.0], [1.0, 0.0], [0.0, 0.0]]))
    tensor([2., 1.])
    """
    X = as_matrix("svdvals", A, square=False, name="A")
    choice = for_svd("svdvals", None, solver)
    check = checking(A)
    S = singular_values_alone(X, check) if is_constant(X) else None
    return as_given(singular_triplets("svdvals", X, choice, check)[1] if S is None else S, A)


def singular_triplets(who: str, A: Tensor, choice: ByRule, check: bool) -> tuple[Tensor, Tensor, Tensor]:
    """U, S, Vh with the rule's gradient, of an ``A`` (*B, m, n) that can be decomposed."""
    return run(_Svd(who, choice.rule, choice.solver, tolerance=0.0 if check else None), A)  # type: ignore[no-any-return]


def reciprocal_sums(S: Tensor, eps: float | None = None) -> Tensor:
    """1/(s_i + s_j) (*B, k, k) of descending singular values, and 0 where the sum is zero to rounding."""
    return _reciprocal(S.unsqueeze(-1) + S.unsqueeze(-2), 2 * rounding(S, eps).unsqueeze(-1))


def reciprocal_values(S: Tensor, eps: float | None = None) -> Tensor:
    """1/s (*B, k), and 0 where s is zero to rounding."""
    return _reciprocal(S, rounding(S, eps))


def rounding(S: Tensor, eps: float | None = None) -> Tensor:
    """The size (*B, 1) that rounding gives to a singular value that is zero; ``eps`` of the dtype, if None."""
    return S.shape[-1] * (torch.finfo(S.dtype).eps if eps is None else eps) * S[..., :1].detach()


def _reciprocal(x: Tensor, rounding: Tensor) -> Tensor:
    null = x <= rounding
    return torch.where(null, 0, 1 / torch.where(null, 1, x))


def _outside(U: Tensor, X: Tensor) -> Tensor:
    """(I - U U^H) X."""
    return X - matmul(U, matmul(U.mH, X))


def _sum_and_difference(a: Tensor | None, b: Tensor | None) -> tuple[Tensor, Tensor]:
    """a + b and a - b, where one of them may be None, which is 0."""
    if a is None or b is None:
        given = b if a is None else a
        assert given is not None
        return given, -given if a is None else given
    return a + b, a - b


@dataclass(frozen=True)
class _Svd(Decomposition):
    """Factors: U (*B, m, k), S (*B, k), Vh (*B, k, n)."""

    who: str
    rule: Rule
    solver: Solver

    def value(self, A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return decompose_svd(self.who, A, self.solver, self.tolerance is not None)

    def scales(self, factors: Sequence[Tensor]) -> Scales:
        k = exponent(factors[1], 1)
        return Scales((None, k, None), (k,))

    def sizes(self, factors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return (factors[1],)

    def _gaps(self, S: Tensor) -> Tensor:
        """D (*B, k, k) ~ 1/(s_j - s_i), from the rule; one that is not scale-free is asked for s / s_1."""
        if self.rule.scale_free:
            return self.rule.coefficients(S)
        size = torch.where(S > 0, S, 1)[..., :1].detach()
        return self.rule.coefficients(S / size) / size.unsqueeze(-1)

    def pullback(self, factors: Sequence[Tensor], cotangents: Some) -> tuple[Tensor]:
        (U, S, Vh), (gU, gS, gVh) = factors, cotangents
        V = Vh.mH
        if gU is None and gVh is None:
            assert gS is not None
            return (matmul(U * gS.unsqueeze(-2), Vh),)
        left, right, outer, columns = None, None, [], []
        if gU is not None:
            left, columns = matmul(U.mH, gU), [gU]
            if U.shape[-2] > U.shape[-1]:
                outer.append(matmul(_outside(U, gU) * reciprocal_values(S).unsqueeze(-2), Vh))
        if gVh is not None:
            gV = gVh.mH
            right, columns = matmul(V.mH, gV), [*columns, gV]
            if V.shape[-2] > V.shape[-1]:
                outer.append(matmul(U, (_outside(V, gV) * reciprocal_values(S).unsqueeze(-2)).mH))
        together, apart = _sum_and_difference(left, right)
        # The adjoints of P -> D * H and P -> F * W.
        D, F = self._gaps(S), reciprocal_sums(S)
        inner = (
            hermitian_part(D * without_rounding(D, together, lambda: rounding_of(*columns), S)) + F * (apart - apart.mH) / 2
        )
        if gS is not None:
            inner = inner + torch.diag_embed(gS)
        return (sum(outer, matmul(matmul(U, inner), Vh)),)

    def pushforward(self, factors: Sequence[Tensor], directions: Some) -> tuple[Tensor, Tensor, Tensor]:
        (U, S, Vh), (dA,) = factors, directions
        assert dA is not None
        V = Vh.mH
        dAV = matmul(dA, V)  # (*B, m, k)
        P = matmul(U.mH, dAV)
        hermitian = self._gaps(S) * (P + P.mH) / 2
        skew = reciprocal_sums(S) * (P - P.mH) / 2
        dU, dV = matmul(U, hermitian + skew), matmul(V, hermitian - skew)
        if U.shape[-2] > U.shape[-1]:
            dU = dU + _outside(U, dAV) * reciprocal_values(S).unsqueeze(-2)
        if V.shape[-2] > V.shape[-1]:
            dV = dV + _outside(V, matmul(dA.mH, U)) * reciprocal_values(S).unsqueeze(-2)
        return dU, P.diagonal(dim1=-2, dim2=-1).real, dV.mH


# full_matrices


def _completed(U: Tensor) -> Tensor:
    """U (*B, m, k) with m - k more orthonormal columns N, which turn with U: dN = -U dU^H N, N^H dN = 0.

    N is any basis of the complement, so a loss may see the space that it spans, and nothing else of it. As a function of U
    it is (I - U U^H) N_0, orthonormal to first order, with one step of Newton's for the second.
    """
    if U.shape[-2] == U.shape[-1]:
        return U
    k = U.shape[-1]
    N = torch.linalg.qr(U.detach(), mode="complete")[0][..., k:].clone(memory_format=torch.contiguous_format)
    X = N - matmul(U, matmul(U.mH, N))
    return torch.cat([U, 1.5 * X - 0.5 * matmul(X, matmul(X.mH, X))], -1)
