"""Norms of the singular values: nuclear and Schatten.

N = (sum s^p)^(1/p) has the gradient T = U diag((s/N)^q) V^H, q = p - 1, an odd function of the singular values except for
the N in it. So with D1_q the derivative of U s^q V^H (singular_map.py), which is finite at ties,

    dT[E] = N^-q D1_q[E] - (q / N) <T, E> T.

All is computed for s / s_1. Singular values that are zero to rounding count as zero: they add nothing to T, and pairs of
them nothing to dT where the slope of x^q at zero is infinite.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from spectralgrad.context import checking
from spectralgrad.validation import adjoint, as_matrix, require_number

from .calculus import Factors
from .choices import AUTO
from .elementary import Power
from .number import NumberOfMatrix, evaluate_number
from .precision import matmul
from .scaling import bounded, exponent, is_ordinary, shifted
from .singular_map import join, split
from .solvers import decompose_svd, singular_values_alone

__all__ = ["nuclear_norm", "schatten_norm"]


def nuclear_norm(A: Tensor) -> Tensor:
    """The sum of the singular values, with its exact gradient.

    The gradient is the polar factor U V^H, with 0 on the null space of a rank-deficient A.

    Args:
        A: (*B, m, n), real or complex, any shape. Half precision is computed in float32.

    Returns:
        (*B,), real.

    Raises:
        ShapeError, DtypeError, NonFiniteError, ConvergenceError.

    >>> import torch, spectralgrad as sg
    >>> A = torch.diag(torch.tensor([3.0, 2.0, 0.0])).requires_grad_()
    >>> sg.nuclear_norm(A).backward()
    >>> A.grad
    tensor([[1., 0., 0.],
            [0., 1., 0.],
            [0., 0., 0.]])
    """
    return norm_of("nuclear_norm", A, 1.0)


def schatten_norm(A: Tensor, p: float) -> Tensor:
    """(sum s^p)^(1/p) of the singular values, with its exact gradient U diag((s/norm)^(p-1)) V^H.

    p = 1 is the nuclear norm, p = 2 Frobenius's. The gradient at A = 0 is 0. Neither s^p nor its sum overflows.

    Args:
        A: (*B, m, n), real or complex, any shape. Half precision is computed in float32.
        p: a finite number >= 1. For the largest singular value use `torch.linalg.matrix_norm(A, 2)`.

    Returns:
        (*B,), real.

    Raises:
        OptionError: p is not such a number.
        ShapeError, DtypeError, NonFiniteError, ConvergenceError.

    >>> import torch, spectralgrad as sg
    >>> sg.schatten_norm(torch.diag(torch.tensor([3.0, 4.0])), 2)
    tensor(5.)
    """
    require_number("schatten_norm", "p", p, least=1)
    return norm_of("schatten_norm", A, float(p))


def norm_of(who: str, A: Tensor, p: float) -> Tensor:
    """The Schatten norm (*B,) of ``A``, asked for by the public function ``who``."""
    X = as_matrix(who, A, square=False, name="A")
    tall = X if X.shape[-2] >= X.shape[-1] else adjoint(who, X)
    norm = evaluate_number(_Schatten(who, p, tolerance=0.0 if checking(A) else None), tall)
    return norm if X is A else norm.to(A.dtype)


@dataclass(frozen=True)
class _Schatten(NumberOfMatrix):
    """Of a tall matrix. Factors: S (*B, n), U (*B, m, n), the handle, Vh (*B, n, n)."""

    who: str
    p: float

    count = 3

    def factor(self, M: Tensor) -> Factors:
        U, S, Vh = decompose_svd(self.who, M, AUTO, self.tolerance is not None)
        return S, U, Vh

    def constant(self, M: Tensor) -> Tensor:
        S = singular_values_alone(M, self.tolerance is not None)
        if S is not None and self.p == 1 and is_ordinary(S, 1):
            return S.sum(-1)
        return super().constant(M) if S is None else self.number((S, M))

    def number(self, factors: Factors) -> Tensor:
        S, U, *_ = factors  # of U the rows alone
        if S.shape[-1] == 0:
            return S.sum(-1)
        _, norm, size = self._unit(S, U.shape[-2])
        return bounded((norm * size).squeeze(-1))

    def gradient(self, factors: Factors) -> Tensor:
        S, U, Vh = factors
        if S.shape[-1] == 0:
            return torch.zeros_like(U)
        x, norm, _ = self._unit(S, U.shape[-2])
        return matmul(U * self._power(x / torch.where(norm > 0, norm, 1)).unsqueeze(-2), Vh)

    def first(self, factors: Factors, E: Tensor) -> Tensor:
        if E.numel() == 0:
            return torch.zeros_like(E)
        S, U, Vh = factors
        x, norm, size = (y.unsqueeze(-1) for y in self._unit(S, U.shape[-2]))
        norm, size = torch.where(norm > 0, norm, 1), torch.where(size > 0, size, 1)
        scale = exponent(E)
        E = shifted(E, -scale)
        X = split(U, Vh, E)
        less, total, single = self._differences(x, x.mT)
        inner = norm.pow(1 - self.p) * (less * X.hermitian + total * X.skew)
        outside = None if X.outside is None else norm.pow(1 - self.p) * X.outside * single.mT
        T = self.gradient(factors)
        along = (T.conj() * E).real.sum((-2, -1), keepdim=True)
        turned = join(U, Vh, inner, outside) - (self.p - 1) / norm * along * T
        # A tiny size has no inverse: its power of two is taken last.
        last = exponent(size)
        result = shifted(turned / shifted(size, -last), scale - last)
        return torch.where(x[..., :1, :] > 0, result, 0) if not result.is_complex() else result * (x[..., :1, :] > 0)

    def _unit(self, S: Tensor, m: int) -> tuple[Tensor, Tensor, Tensor]:
        """s/s_1 with zeros for what is zero to rounding (*B, n), the norm of that (*B, 1), and s_1 (*B, 1)."""
        size = S[..., :1]
        x = S / torch.where(size > 0, size, 1)
        x = torch.where(x <= m * torch.finfo(S.dtype).eps, 0, x)  # NaN stays
        return x, x.pow(self.p).sum(-1, keepdim=True).pow(1 / self.p), size

    def _power(self, x: Tensor) -> Tensor:
        """x^q, and 0 at 0."""
        return torch.where(x > 0, x.pow(self.p - 1), 0)

    def _differences(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """f[a, b] and f[a, -b] for b of a row, and f[a, 0], of f = sign(x) |x|^q: a jump at zero for q = 0."""
        at_zero = 1.0 if self.p == 2 else 0.0
        fa, fb = self._power(a), self._power(b)
        top = torch.maximum(a, b)
        if self.p == 1:
            less = torch.where(fa != fb, 1 / torch.where(top > 0, top, 1), 0)
        else:
            less = Power(alpha=self.p - 1).difference(a, b)
        total = torch.where(top > 0, (fa + fb) / torch.where(top > 0, a + b, 1), at_zero)
        single = torch.where(a > 0, fa / torch.where(a > 0, a, 1), at_zero)
        return less, total, single
