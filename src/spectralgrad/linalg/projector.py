"""The projector on the leading eigenvectors, U_k U_k^H, with a gradient that sees only the gap at the cut.

It is V f(L) V^H with f = 1 above the cut and 0 below, so its Loewner matrix is zero on either side and 1/(a - b) across,
a kept, b dropped. Ties on one side never matter. The gap across takes the chosen rule: F_ij = |K_ij|. With k the index
summed over, second divided differences are products of these:

    f[i, k, j] = -F_ik F_kj   i, j kept, k dropped          f[i, k, j] = -F_ij F_kj   i, k kept, j dropped
    f[i, k, j] = +F_ik F_kj   i, j dropped, k kept          f[i, k, j] = +F_ij F_ik   i kept, j, k dropped
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from spectralgrad.context import is_transformed
from spectralgrad.errors import OptionError
from spectralgrad.validation import as_square, is_number, is_whole, require_flag, require_one_of

from .calculus import AtScale1, Factors, Potential, evaluate
from .choices import AUTO, ByEigenpairs, EigenSolver, Gradient, for_eigenpairs
from .eigh import eigenpairs
from .precision import in_basis, matmul, sandwich
from .rules import Rule
from .rules.base import scale
from .scalars import require_not_negative
from .scaling import exponent, shifted
from .solvers import Solver, decompose

__all__ = ["projector"]

_ROUGH = 0.01  # times l_max: how far below zero power deflation may put an eigenvalue of a semi-definite matrix
_TIE = 10  # times n eps l_max: eigenvalues this close to the last one kept by energy are kept with it


@dataclass(frozen=True)
class Cut:
    """Which eigenpairs are kept: a fixed number of the largest, or as many as carry a part of the sum."""

    rank: int | None
    energy: float | None

    def kept(self, w: Tensor) -> Tensor:
        """The mask (*B, n) for ascending eigenvalues (*B, n)."""
        n = w.shape[-1]
        w = w.detach()
        if self.rank is not None:
            return (torch.arange(n, device=w.device) >= n - self.rank).expand(w.shape)
        assert self.energy is not None
        positive = shifted(w, -exponent(w, 1)).clamp(min=0)  # at scale 1 the sum does not overflow
        total = positive.sum(-1, keepdim=True)
        discarded = positive.cumsum(-1)  # what is lost if this pair and all smaller ones go
        keep = discarded > (1 - self.energy) * total
        if self.energy == 1 or n == 0:
            return torch.ones_like(keep)
        keep = keep | (torch.arange(n, device=w.device) == n - 1)  # a zero matrix still keeps one
        last = w.masked_fill(~keep, torch.inf).amin(-1, keepdim=True)
        return w >= last - _TIE * n * torch.finfo(w.dtype).eps * scale(w)[..., 0]


@dataclass(frozen=True)
class Projector(Potential):
    """Factors: eigenvalues (*B, n), and eigenvectors (*B, n, n), the handle."""

    cut: Cut
    rule: Rule
    solver: Solver

    handle, count = 1, 2

    def value(self, M: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        w, V = decompose("projector", M, self.solver, self.tolerance)
        if self.tolerance is not None:
            _require_energy(self.cut, w, self.tolerance)
        return matmul(V * self.cut.kept(w).unsqueeze(-2), V.mH), w, V

    def at_scale_1(self, factors: Factors) -> AtScale1:
        w, V = factors
        k = exponent(w, 1) if self.rule.scale_free else torch.zeros_like(exponent(w, 1))
        return AtScale1(self, (shifted(w, -k), V), -k, -2 * k)

    def size(self, factors: Factors) -> Tensor:
        return factors[0]

    def _across(self, w: Tensor) -> tuple[Tensor, Tensor]:
        kept = self.cut.kept(w)
        row, column = kept.unsqueeze(-1), kept.unsqueeze(-2)
        return torch.where(row != column, self.rule.coefficients(w).abs(), 0), kept

    def first(self, factors: Factors, E: Tensor) -> Tensor:
        w, V = factors
        return sandwich(V, self._across(w)[0] * in_basis(V, E))

    def second(self, factors: Factors, E1: Tensor, E2: Tensor) -> Tensor:
        w, V = factors
        F, kept = self._across(w)
        X, Y = (in_basis(V, E) for E in (E1, E2))
        keep = kept.to(V.dtype)
        same_side = matmul(F * X, F * Y)  # i and j on one side, k across: F is zero within a side
        same_side = same_side * torch.where(kept, -1, 1).unsqueeze(-1)
        same_side = torch.where(kept.unsqueeze(-1) == kept.unsqueeze(-2), same_side, 0)
        # i kept, j dropped; the adjoint gives i dropped, j kept
        corner = matmul(F * X, Y * (1 - keep).unsqueeze(-2)) - matmul(X * keep.unsqueeze(-2), F * Y)
        corner = corner + matmul(F * Y, X * (1 - keep).unsqueeze(-2)) - matmul(Y * keep.unsqueeze(-2), F * X)
        corner = F * corner * keep.unsqueeze(-1)
        total = same_side + same_side.mH + corner + corner.mH
        return sandwich(V, total)


def _require_energy(cut: Cut, w: Tensor, tolerance: float) -> None:
    if cut.energy is not None:
        advice = "energy= needs a covariance; use rank= for an indefinite matrix."
        require_not_negative("projector", w, advice, eps=tolerance**2)


def projector(
    M: Tensor,
    *,
    rank: int | None = None,
    energy: float | None = None,
    smallest: bool = False,
    through: Literal["projector", "vectors"] = "projector",
    gradient: Gradient | None = None,
    solver: EigenSolver = AUTO,
) -> Tensor:
    """The orthogonal projector on the eigenvectors of the largest eigenvalues, or of the smallest, U_k U_k^H.

    The one on the k smallest is I minus the one on the n - k largest: the same cut, so the same gradient but for its sign.

    Args:
        M: (*B, n, n), Hermitian; for ``energy`` positive semi-definite. Only (M + M^H)/2 counts. Half precision is
            computed in float32.
        rank: how many eigenvectors to keep, 1 to n.
        energy: instead, keep the fewest whose dropped rest sums to at most 1 - energy of the total, and with the last one
            all that tie with it. 1 keeps everything.
        smallest: keep the ``rank`` smallest instead; of an indefinite matrix the most negative ones. `PowerIteration` and
            `PowerDeflation` look for the n - k largest, and what they drop of those is kept.
        through: "projector", whose gradient sees the gap at the cut alone; or "vectors", U_k U_k^H by autograd through the
            eigenvectors, as the papers do it: the rule meets every gap, and with `Analytic` a tie of kept vectors is NaN.
        gradient: the rule for the gap at the cut; None means `Lorentzian()`.
        solver: how to decompose.

    Returns:
        (*B, n, n), Hermitian, idempotent.

    Raises:
        OptionError: rank or energy out of range, not exactly one of them, or energy with ``smallest``.
        DefinitenessError: ``energy`` of an indefinite matrix; or `PowerIteration`, which is for covariances.
        ShapeError, DtypeError, SymmetryError, NonFiniteError, ConvergenceError.

    >>> import torch, spectralgrad as sg
    >>> sg.projector(torch.diag(torch.tensor([3.0, 1.0, 2.0])), rank=2)
    tensor([[1., 0., 0.],
            [0., 0., 0.],
            [0., 0., 1.]])
    >>> sg.projector(torch.diag(torch.tensor([3.0, 1.0, 2.0])), rank=1, smallest=True).diagonal()
    tensor([0., 1., 0.])
    """
    X, tolerance = as_square("projector", M)
    n = X.shape[-1]
    if (rank is None) == (energy is None):
        raise OptionError(f"`projector`: pass either rank= or energy=, got rank={rank!r} and energy={energy!r}.")
    if rank is not None and not (is_whole(rank) and rank <= n):
        raise OptionError(f"`projector`: rank must be a whole number from 1 to {n}, the size of `M`, got {rank!r}.")
    if energy is not None and not (is_number(energy) and 0 < energy <= 1):
        raise OptionError(f"`projector`: energy must lie in (0, 1], got {energy!r}.")
    require_flag("projector", "smallest", smallest)
    require_one_of("projector", "through", through, ("projector", "vectors"))
    if smallest and energy is not None:
        raise OptionError(
            "`projector`: smallest=True needs rank=, got energy=: a part of the sum is counted from the largest eigenvalue "
            "down. For what projector(M, energy=...) drops, subtract it from the identity."
        )
    cut = Cut(n - rank if smallest and rank is not None else rank, energy)
    choice = for_eigenpairs("projector", gradient, solver)
    if choice.way == "rule" and through == "projector":
        P = evaluate(Projector(cut, choice.rule, choice.solver, tolerance=tolerance), X)
    else:
        P = _through_pairs(X, cut, choice, tolerance)
    if smallest:
        P = torch.eye(n, dtype=P.dtype, device=P.device) - P
    return P if X is M else P.to(M.dtype)


def _through_pairs(M: Tensor, cut: Cut, choice: ByEigenpairs, tolerance: float | None) -> Tensor:
    """U_k U_k^H by autograd through the eigenvectors."""
    w, V, kept = eigenpairs("projector", M, choice, tolerance)
    if choice.way == "deflation":  # its small eigenvalues are rough: slightly negative ones count as zero
        largest = w.detach().amax(-1, keepdim=True) if w.shape[-1] else w
        w = torch.where(w < -_ROUGH * largest, w, w.clamp(min=0))
    if tolerance is not None and not is_transformed(w):
        _require_energy(cut, w.detach(), tolerance)
    mask = cut.kept(w) if kept is None else cut.kept(w) & kept
    return matmul(V * mask.unsqueeze(-2), V.mH)
