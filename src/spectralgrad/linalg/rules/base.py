"""What a rule is, and the two matrices that every rule is made of."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from spectralgrad.context import in_batched_backward, may_read
from spectralgrad.counters import count
from spectralgrad.kernels.eigenpairs import GIVEN, Coefficients

CLOSE = 1000  # 1/gap, relative to the largest eigenvalue, from which on rounding may matter


class Rule(ABC):
    """Eigenvalues -> coefficients K, K_ij ~ 1/(l_j - l_i), for the derivative of eigenvectors.

    dM = V (sym(K * (V^H gV)) + diag(gL)) V^H. K is antisymmetric with a zero diagonal; each rule bounds the entries
    of close pairs in its own way. Two equal eigenvalues are ordered as the rest of the vector is: by index.

    >>> import torch, spectralgrad as sg
    >>> class Nothing(sg.Rule):  # as if the eigenvectors were constants
    ...     def coefficients(self, eigenvalues):
    ...         return torch.zeros(*eigenvalues.shape, eigenvalues.shape[-1])
    >>> M = torch.diag(torch.tensor([1.0, 2.0])).requires_grad_()
    >>> w, V = sg.eigh(M, gradient=Nothing())
    >>> torch.autograd.grad(V.sum(), M)[0].abs().max()
    tensor(0.)
    """

    scale_free: ClassVar[bool] = False  # whether K of c times the eigenvalues is K / c, for c > 0

    @abstractmethod
    def coefficients(self, eigenvalues: Tensor) -> Tensor:
        """K (*B, n, n) for eigenvalues (*B, n), in any order and of any sign."""

    def in_kernel(self, dtype: torch.dtype) -> Coefficients:
        """How kernels/eigenpairs.cu computes K; GIVEN where it cannot, as for every rule of a user."""
        return GIVEN


def gaps(eigenvalues: Tensor) -> Tensor:
    """gap_ij = l_j - l_i."""
    return eigenvalues.unsqueeze(-2) - eigenvalues.unsqueeze(-1)


def scale(eigenvalues: Tensor) -> Tensor:
    """The largest magnitude (*B, 1, 1), a constant to autograd: the yardstick of every tolerance."""
    if eigenvalues.shape[-1] == 0:
        return eigenvalues.detach().new_ones(*eigenvalues.shape[:-1], 1, 1)
    return eigenvalues.detach().abs().amax(-1)[..., None, None]


def tied(eigenvalues: Tensor, gap: Tensor) -> Tensor:
    """Pairs equal to rounding, the diagonal included: |gap| <= max(n, 16) eps scale.

    Measured: LAPACK splits a repeated eigenvalue by up to 12 eps at n = 8 and 25 eps at n = 128.
    """
    rounding = max(eigenvalues.shape[-1], 16) * torch.finfo(eigenvalues.dtype).eps
    return gap.abs() <= rounding * scale(eigenvalues)


def order(eigenvalues: Tensor) -> Tensor:
    """The sign of l_j - l_i; equal eigenvalues count as ordered like the ends of the vector (ascending if those tie)."""
    n = eigenvalues.shape[-1]
    index = torch.arange(n, device=eigenvalues.device, dtype=eigenvalues.dtype)
    by_index = torch.sign(index.unsqueeze(-2) - index.unsqueeze(-1))  # (n, n): +1 above the diagonal
    if n:
        descending = (eigenvalues[..., -1] < eigenvalues[..., 0])[..., None, None]
        by_index = torch.where(descending, -by_index, by_index)
    by_value = torch.sign(gaps(eigenvalues.detach()))
    return torch.where(by_value == 0, by_index, by_value)


def without_rounding(K: Tensor, X: Tensor, noise: Callable[[], Tensor], eigenvalues: Tensor) -> Tensor:
    """X (*B, n, n), which K multiplies, without what close pairs would make of its rounding.

    A loss that sees two close vectors only through the space they span leaves the skew part of X_ij at 0. Rounding leaves
    ``noise()`` (*B, n, n) there, and K_ij would make an error of any size of it. So skew parts of close pairs that are no
    larger are taken for zero. They keep their derivatives: subtracted is a constant.
    """
    if in_batched_backward(X):  # which cannot detach
        return X
    if may_read(X):
        _count_ties(X, noise, eigenvalues)
    close = K.detach().abs() * scale(eigenvalues) > CLOSE
    if may_read(close) and not bool(close.any()):
        return X
    skew = (X - X.mH) / 2
    return X - torch.where(close & (skew.abs() <= noise()), skew, 0).detach()


def _count_ties(X: Tensor, noise: Callable[[], Tensor], eigenvalues: Tensor) -> None:
    """Count that a cotangent V^H gV asks for eigenvectors of a tie: no rule has what a function of the matrix would."""
    pairs = tied(eigenvalues.detach(), gaps(eigenvalues.detach())).triu(1)
    if bool(pairs.any()) and bool((pairs & (torch.maximum(X.abs(), X.mT.abs()) > noise())).any()):
        count("tied_eigenvectors")
