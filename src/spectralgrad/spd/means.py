"""What the affine and the Bures mean have in common, and what not.

A mean M of X_k with weights w_k (sum 1) solves an equation. With M = R R^H, R = U diag(m)^(1/2), W = R^-H and a Hermitian S,
the point R exp(S) R^H is the mean where F(S) = 0:

    affine   F(S) = sum_k w_k log(e^(-S/2) Y_k e^(-S/2)),                                     Y_k = W^H X_k W
    bures    F(S) = sum_k w_k e^(-S/2) (e^(S/2) Y_k^H Y_k e^(S/2))^(1/2) e^(-S/2) - diag(m),  Y_k = X_k^(1/2) R.

At S = 0 both have a derivative -H that is self-adjoint and positive: with Y_k = V_k diag(l_k) V_k^H, or U_k diag(s_k) V_k^H,

    H[E] = sum_k w_k V_k (c_k * (V_k^H E V_k)) V_k^H,

    affine   c_ij = x coth x,  x = log(l_i / l_j) / 2                (>= 1)
    bures    c_ij = s_i s_j / (s_i + s_j)

which conjugate gradients invert in a few steps. They are preconditioned by what c would be if all X_k were M: 1, and
m_i m_j / (m_i + m_j).
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from spectralgrad.linalg.choices import AUTO
from spectralgrad.linalg.polar import polar
from spectralgrad.linalg.precision import hermitian_part, matmul
from spectralgrad.linalg.solvers import decompose, decompose_svd

from .spectra import congruent, exp, log


def positive_pairs(H: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenpairs of matrices that are positive but for rounding; eigenvalues below rounding are lifted to it."""
    w, V = decompose("spd.mean", H, AUTO, None)
    return _lifted(w), V


def _lifted(w: Tensor) -> Tensor:
    limits = torch.finfo(w.dtype)
    return torch.maximum(w, (limits.eps * w.amax(-1, keepdim=True)).clamp(min=limits.tiny))  # of zeros, where nobody looks


class Equation(ABC):
    """F, H and the function that the mean minimises. ``given`` (*B, K, n, n) is X, and for Bures X^(1/2)."""

    @abstractmethod
    def seen(self, R: Tensor, W: Tensor, given: Tensor) -> Tensor:
        """Y (*B, K, n, n), differentiable by what is given."""

    @abstractmethod
    def pairs(self, Y: Tensor) -> tuple[Tensor, Tensor]:
        """What c is a function of (*B, K, n), and V (*B, K, n, n)."""

    @abstractmethod
    def f(self, spectrum: Tensor) -> Tensor:
        """The function of these whose mean is F(0), less what is subtracted."""

    @abstractmethod
    def inverse_f(self, x: Tensor) -> Tensor:
        """From f of what is given back to eigenvalues of X."""

    @abstractmethod
    def subtracted(self, m: Tensor) -> Tensor:
        """The diagonal (*B, n) that is subtracted."""

    @abstractmethod
    def cost(self, m: Tensor, spectra: Tensor, weights: Tensor) -> Tensor:
        """What the mean minimises, up to a constant (*B,)."""

    @abstractmethod
    def noise(self, m: Tensor, given: Tensor, spectra: Tensor) -> Tensor:
        """The residual (*B, K) that a relative rounding of 1 in Y would leave."""

    @abstractmethod
    def coefficients(self, spectrum: Tensor) -> Tensor:
        """c (*B, n, n)."""

    @abstractmethod
    def preconditioner(self, m: Tensor) -> Tensor:
        """1 / c (*B, n, n) if all matrices were the mean, with eigenvalues m (*B, n)."""

    has_safe_step = False

    def safe_step(self, W: Tensor, m: Tensor, F: Tensor) -> Tensor:
        """A point (*B, n, n) of lower cost, however far away the mean is."""
        raise NotImplementedError

    @abstractmethod
    def terms(self, S: Tensor | None, Y: Tensor) -> Tensor:
        """The terms (*B, K, n, n) of F(S), differentiable; None: S = 0."""


class Affine(Equation):
    def seen(self, R: Tensor, W: Tensor, given: Tensor) -> Tensor:
        return congruent(W.unsqueeze(-3), given)

    def pairs(self, Y: Tensor) -> tuple[Tensor, Tensor]:
        return positive_pairs(Y)

    def f(self, spectrum: Tensor) -> Tensor:
        return spectrum.log()

    def inverse_f(self, x: Tensor) -> Tensor:
        return x.exp()

    def subtracted(self, m: Tensor) -> Tensor:
        return torch.zeros_like(m)

    def cost(self, m: Tensor, spectra: Tensor, weights: Tensor) -> Tensor:
        return (weights * spectra.log().square().sum(-1)).sum(-1)

    def noise(self, m: Tensor, given: Tensor, spectra: Tensor) -> Tensor:
        size: Tensor = torch.linalg.matrix_norm(given)
        return size / (m[..., :1] * spectra[..., 0])

    def coefficients(self, spectrum: Tensor) -> Tensor:
        x = spectrum.log()
        x = (x.unsqueeze(-1) - x.unsqueeze(-2)).abs() / 2
        small = x < torch.finfo(x.dtype).eps ** 0.25  # where the next term of the series, x^4 / 45, is rounding
        return torch.where(small, 1 + x * x / 3, x / torch.where(small, 1, x).tanh())

    def preconditioner(self, m: Tensor) -> Tensor:
        return torch.ones_like(m).unsqueeze(-1) * torch.ones_like(m).unsqueeze(-2)

    def terms(self, S: Tensor | None, Y: Tensor) -> Tensor:
        return log(Y if S is None else congruent(exp(-S / 2).unsqueeze(-3), Y))


class Bures(Equation):
    """(Z^H Z)^(1/2) is Q^H Z with Q the polar factor of Z: neither it nor its singular values lose digits to a square."""

    def seen(self, R: Tensor, W: Tensor, given: Tensor) -> Tensor:
        return matmul(given, R.unsqueeze(-3))

    def pairs(self, Y: Tensor) -> tuple[Tensor, Tensor]:
        _, s, Vh = decompose_svd("spd.mean", Y, AUTO, False)
        return _lifted(s), Vh.mH

    def f(self, spectrum: Tensor) -> Tensor:
        return spectrum

    def inverse_f(self, x: Tensor) -> Tensor:
        return x.square()

    def subtracted(self, m: Tensor) -> Tensor:
        return m

    def cost(self, m: Tensor, spectra: Tensor, weights: Tensor) -> Tensor:
        return m.sum(-1) - 2 * (weights * spectra.sum(-1)).sum(-1)

    def noise(self, m: Tensor, given: Tensor, spectra: Tensor) -> Tensor:
        size: Tensor = torch.linalg.matrix_norm(given)
        return size * m[..., -1:].sqrt() / m[..., :1]

    def coefficients(self, spectrum: Tensor) -> Tensor:
        return 1 / (1 / spectrum.unsqueeze(-1) + 1 / spectrum.unsqueeze(-2))

    def preconditioner(self, m: Tensor) -> Tensor:
        return 1 / m.unsqueeze(-1) + 1 / m.unsqueeze(-2)

    has_safe_step = True

    def safe_step(self, W: Tensor, m: Tensor, F: Tensor) -> Tensor:
        """The fixed-point iteration M <- M^(-1/2) (sum_k w_k (M^(1/2) X_k M^(1/2))^(1/2))^2 M^(-1/2)."""
        half = matmul(W, F + torch.diag_embed(m).to(F.dtype))
        return hermitian_part(matmul(half, half.mH))

    def terms(self, S: Tensor | None, Y: Tensor) -> Tensor:
        if S is None:
            return _stretch(Y)
        forth, back = exp(S / 2).unsqueeze(-3), exp(-S / 2).unsqueeze(-3)
        return congruent(back, _stretch(matmul(Y, forth)))


def _stretch(Z: Tensor) -> Tensor:
    """(Z^H Z)^(1/2)."""
    return hermitian_part(matmul(polar(Z).mH, Z))


EQUATIONS: dict[str, Equation] = {"affine": Affine(), "bures": Bures()}


def apply_hessian(V: Tensor, c: Tensor, weights: Tensor, E: Tensor) -> Tensor:
    """H[E] (*B, n, n) for V and c (*B, K, n, n), weights (*B, K)."""
    inner = matmul(V.mH, matmul(E.unsqueeze(-3), V)) * (c * weights[..., None, None])
    return matmul(V, matmul(inner, V.mH)).sum(-3)
