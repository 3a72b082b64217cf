"""Distances of positive definite matrices.

    affine      |log(A^(-1/2) B A^(-1/2))|_F
    logeuclid   |log A - log B|_F
    bures       |A^(1/2) - B^(1/2) U|_F,  U the polar factor of B^(1/2) A^(1/2)

The last is (tr A + tr B - 2 tr (A^(1/2) B A^(1/2))^(1/2))^(1/2) without its cancellation: that loses half of the digits of
a small distance. Each is the norm of a matrix N. The square |N|^2 is smooth; the distance itself has a kink at A = B, and
where N is rounding its direction is too: there it gets the derivative 0.

In the Bures square U moves <A^(1/2), B^(1/2) U> alone: |B^(1/2) U|^2 = tr B knows nothing of it. Of that, rounding would be
left, divided by A: wrong digits in the gradient for an A much smaller than B. So N has a constant U, and the rest is added.
"""

import torch
from torch import Tensor

from spectralgrad.linalg.moves import held, moved, moved_last
from spectralgrad.linalg.polar import polar
from spectralgrad.linalg.precision import matmul
from spectralgrad.linalg.scaling import exponent
from spectralgrad.validation import require_flag

from .inputs import Metric, as_pair, require_metric, returned, widened
from .spectra import (
    LOG_2,
    beyond_room,
    congruent,
    expanded,
    given_to_scale_1,
    identity_like,
    log,
    near_scale,
    sqrt,
    to_scale_1,
    whitener,
)

_OVERFLOW = 930  # an exponent with which the slopes of squares, of roots up to 2^40, keep below 2^1010
_ROUNDING = 4  # times eps times the size of what was subtracted


def distance(A: Tensor, B: Tensor, metric: Metric = "affine", squared: bool = False) -> Tensor:
    """The distance of positive definite matrices, with its exact gradient.

    "affine" is |log(A^(-1/2) B A^(-1/2))|_F, which no congruence X -> C X C^H and no inversion changes; "logeuclid" is
    |log A - log B|_F; "bures" is (tr A + tr B - 2 tr (A^(1/2) B A^(1/2))^(1/2))^(1/2), the Wasserstein distance of centred
    Gaussians. Error below about 10 eps k, k the larger condition number ("logeuclid") or the product of both ("affine",
    whose C has that); for "bures" 10 eps k^(1/2), relative to |A|^(1/2) + |B|^(1/2).

    The square has an exact gradient everywhere, 0 at A = B. The gradient of the distance is bounded by the slope of the
    metric (|A^-1|, for "bures" |A^-1|^(1/2) / 2), and 0 where what is subtracted does not differ beyond rounding: the
    eigenvalues of A^(-1/2) B A^(-1/2) from 1, the logarithms, or the roots.

    Args:
        A, B: (*B, n, n), positive definite ("bures": semi-definite), real or complex; batches broadcast.
        metric: "affine", "logeuclid" or "bures".
        squared: the square of it.

    Returns:
        (*B,), real.

    Raises:
        DefinitenessError: A or B is singular to rounding, or indefinite.
        OptionError: an unknown metric.
        ShapeError, DtypeError, DeviceError, SymmetryError, NonFiniteError, ConvergenceError.

    >>> import torch, spectralgrad as sg
    >>> A, B = torch.eye(2), torch.diag(torch.tensor([4.0, 1.0]))
    >>> sg.spd.distance(A, B), sg.spd.distance(A, B, metric="bures", squared=True)
    (tensor(1.3863), tensor(1.))
    """
    who = "spd.distance"
    require_metric(who, metric)
    require_flag(who, "squared", squared)
    X, Y = widened(*as_pair(who, A, B, semi=metric == "bures"))
    square, rounding, k = {"affine": _affine, "logeuclid": _logeuclid, "bures": _bures}[metric](X, Y)
    if squared:
        return returned(moved_last(square, 2 * k, _OVERFLOW), A)
    zero = (X == Y).all(-1).all(-1) | (square.detach() <= rounding.square())
    return returned(moved_last(torch.where(zero, 0, torch.where(zero, 1, square).sqrt()), k, _OVERFLOW), A)


def _norm(x: Tensor) -> Tensor:
    size: Tensor = torch.linalg.vector_norm(x.detach(), dim=(-2, -1))
    return size


def _square(N: Tensor) -> Tensor:
    """|N|^2 (*B,)."""
    return (N.real.square() + N.imag.square() if N.is_complex() else N.square()).sum((-2, -1))


def _affine(A: Tensor, B: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """|N|^2, the rounding of N, and its scale; all (*B,)."""
    A, a = given_to_scale_1(A)
    B, m = near_scale(expanded(B, A), a)
    P, p = whitener(A)
    N = log(congruent(P, B)) + (m + 2 * p)[..., None, None] * LOG_2 * identity_like(B)
    eps = torch.finfo(A.dtype).eps
    return _square(N), _ROUNDING * eps * _norm(P).square() * _norm(B), torch.zeros_like(m)


def _logeuclid(A: Tensor, B: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    a, b = log(A), log(B)
    N = held(a - b, 0)  # the two slopes that a second derivative multiplies may both be as large as 1 / A
    rounding = _ROUNDING * torch.finfo(A.dtype).eps * (_norm(a) + _norm(b))
    return _square(N), rounding, torch.zeros_like(rounding)


def _bures(A: Tensor, B: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    a, b, U, k = facing_roots(A, B)
    rounding = _ROUNDING * torch.finfo(A.dtype).eps * (_norm(a) + _norm(b))
    fixed = U.detach()
    turned = (matmul(b, a).conj() * (U - fixed)).real.sum((-2, -1))  # zero, and so is its first derivative
    return _square(a - matmul(b, fixed)) - 2 * turned, rounding, k


def facing_roots(A: Tensor, B: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A^(1/2), B^(1/2) and U, which makes B^(1/2) U the root of B nearest to A^(1/2).

    Both roots are divided by 2^k, so that they are near scale 1; and k (*B,).
    """
    a, b = sqrt(A), sqrt(B)
    a, b = expanded(a, b), expanded(b, a)
    U = polar(matmul(to_scale_1(b)[0], to_scale_1(a)[0]))  # each at its own scale: U has none
    k = beyond_room(torch.maximum(exponent(a.detach()), exponent(b.detach())))
    return moved(a, -k), moved(b, -k), U, k
