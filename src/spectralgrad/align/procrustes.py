"""The nearest orthogonal matrix, and the nearest rotation.

With A = U diag(s) V^T, square and real, and d = sign det(U V^T), the nearest rotation is R = U diag(1, ..., 1, d) V^T. It
is the gradient of the largest <R, A> over all rotations, s_1 + ... + s_(n-1) + d s_n. Let sigma be s with d s_n in the
last place. Then A = R H with H = V diag(sigma) V^T symmetric, and both derivatives are those of the polar factor
(linalg/polar.py) with this H:

    dR = R W,     H W + W H = R^T dA - dA^T R,     in the basis V: divided by sigma_i + sigma_j.

No sum is negative. The smallest, s_(n-1) + d s_n, is zero where the nearest rotation is not unique; such a pair gives 0.
"""

from dataclasses import dataclass

from torch import Tensor

from spectralgrad.context import checking
from spectralgrad.errors import DtypeError, ShapeError
from spectralgrad.kernels.ops import opaque
from spectralgrad.kernels.small_svd import Polar
from spectralgrad.linalg.choices import AUTO
from spectralgrad.linalg.polar import BySVD, evaluate_polar, polar_factors, rounding_unit
from spectralgrad.validation import adjoint, as_matrix, require_flag, returned_adjoint

__all__ = ["nearest", "procrustes"]

NOT_UNIQUE = "rotation_not_unique"  # the name of its count


def procrustes(A: Tensor, special: bool = False) -> Tensor:
    """The nearest orthogonal matrix, R = U V^H of the SVD; with ``special`` the nearest rotation, det R = +1.

    R = U diag(1, ..., 1, d) V^T, d = sign det(U V^T), maximises <R, A>: over clouds, sum |R x - y|^2 is least for
    A = sum y x^T (`kabsch`). The gradient divides by s_i + s_j, the last s times d, and never by a gap. So it is exact
    wherever R is unique, and |dR| <= 2 |dA| / (s_(n-1) + d s_n). A pair whose sum is at most 2 n eps s_1 gives 0; the
    matrix is counted as ``rotation_not_unique``.

    Args:
        A: (*B, m, n), real or complex; square and real if ``special``. Half precision is computed in float32.
        special: whether det R must be +1.

    Returns:
        (*B, m, n), with orthonormal columns (rows, if wide).

    Raises:
        ShapeError, DtypeError, NonFiniteError, OptionError, ConvergenceError.

    >>> import torch, spectralgrad as sg
    >>> mirror = torch.diag(torch.tensor([3.0, 2.0, -1.0]))
    >>> sg.procrustes(mirror)
    tensor([[ 1.,  0.,  0.],
            [ 0.,  1.,  0.],
            [ 0.,  0., -1.]])
    >>> sg.procrustes(mirror, special=True)
    tensor([[1., 0., 0.],
            [0., 1., 0.],
            [0., 0., 1.]])
    """
    who = "procrustes"
    require_flag(who, "special", special)
    X = as_matrix(who, A, square=False, name="A")
    if special and X.shape[-2] != X.shape[-1]:
        raise ShapeError(
            f"`{who}`: with special=True `A` must be square in its last two dimensions, got {tuple(A.shape)}. Only a square "
            "matrix has a determinant; for the nearest matrix with orthonormal columns leave special=False."
        )
    if special and X.is_complex():
        raise DtypeError(
            f"`{who}`: with special=True `A` must be real, got {A.dtype}. For the nearest unitary matrix "
            "leave special=False."
        )
    if X.shape[-2] < X.shape[-1]:
        return returned_adjoint(procrustes(adjoint("procrustes", A)))
    R = nearest(who, X, checking(A), special=special)
    return R if X is A else R.to(A.dtype)


def nearest(who: str, A: Tensor, check: bool, *, special: bool, eps: float | None = None) -> Tensor:
    """`procrustes` of a matrix (*B, m, n), m >= n, that needs no checks but of its values; ``eps`` as in `BySVD`."""
    return evaluate_polar(_Nearest(who, AUTO, rounding_unit(A, eps), special, tolerance=0.0 if check else None), A)


@dataclass(frozen=True)
class _Nearest(BySVD):
    """Factors: R, sigma (*B, n), V (*B, n, n)."""

    special: bool = False

    def factors(self, A: Tensor, check: bool) -> Polar:
        assert self.eps is not None
        return Polar(*_factors(self.who, A, check, self.special, self.eps))


def _factors_fake(who: str, A: Tensor, check: bool, special: bool, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    *batch, m, n = A.shape
    return A.new_empty(*batch, m, n), A.new_empty(*batch, n, dtype=A.real.dtype), A.new_empty(*batch, n, n)


@opaque("nearest(str who, Tensor A, bool check, bool special, float eps) -> (Tensor, Tensor, Tensor)", _factors_fake)
def _factors(who: str, A: Tensor, check: bool, special: bool, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    return polar_factors(who, A, AUTO, check, eps, special=special, event=NOT_UNIQUE)
