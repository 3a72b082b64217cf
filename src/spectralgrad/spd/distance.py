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

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from spectralgrad.linalg.homogeneous import Scales, homogeneous
from spectralgrad.linalg.polar import polar
from spectralgrad.linalg.precision import matmul
from spectralgrad.validation import require_flag

from .inputs import Metric, as_pair, is_widened, require_metric, returned, widened
from .spectra import LOG_2, congruent, identity_like, log, sqrt, steps, whitener

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
    X, Y = as_pair(who, A, B, semi=metric == "bures")
    (result,) = homogeneous(
        partial(_measured, _SQUARES[metric], squared),
        [(Z, 2) for Z in widened(X, Y)],
        partial(_half_scales, squared) if metric == "bures" else _relative_scales,
        others=() if squared else ((X == Y).all(-1).all(-1),),
        known=is_widened(X),
    )
    return returned(result, A)


def _relative_scales(a: Tensor, b: Tensor) -> Scales:
    m = steps(b - a)
    return Scales((a, a + m), (torch.zeros_like(m),), (m,))


def _half_scales(squared: bool, a: Tensor, b: Tensor) -> Scales:
    a, b, k = halves(a, b)
    return Scales((2 * a, 2 * b), (2 * k if squared else k,), (a - k, b - k))


def halves(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Exponents of the roots of matrices of scale 2^a and 2^b, and the larger one."""
    a, b = torch.ceil(a / 2), torch.ceil(b / 2)
    return a, b, torch.maximum(a, b)


Squared = Callable[..., tuple[Tensor, Tensor]]  # of A, B and what scales leave to say: |N|^2 and the rounding of N, (*B,)


def _measured(square_of: Squared, squared: bool, A: Tensor, B: Tensor, *others: Tensor) -> tuple[Tensor]:
    if squared:
        return (square_of(A, B, *others)[0],)
    same, *scales = others
    square, rounding = square_of(A, B, *scales)
    zero = same | (square.detach() <= rounding.square())
    return (torch.where(zero, 0, torch.where(zero, 1, square).sqrt()),)


def _norm(x: Tensor) -> Tensor:
    size: Tensor = torch.linalg.vector_norm(x.detach(), dim=(-2, -1))
    return size


def _square(N: Tensor) -> Tensor:
    """|N|^2 (*B,)."""
    return (N.real.square() + N.imag.square() if N.is_complex() else N.square()).sum((-2, -1))


def _affine(A: Tensor, B: Tensor, m: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """For B / 2^m."""
    P, p = whitener(A)
    C = congruent(P, B)
    N = log(C)
    for k in (m, None if p is None else 2 * p):
        N = N if k is None else N + k[..., None, None] * LOG_2 * identity_like(N)
    near_one = _norm(C).clamp(min=C.shape[-1] ** 0.5) / C.shape[-1] ** 0.5  # where C is far from I nothing cancels
    return _square(N), _ROUNDING * torch.finfo(A.dtype).eps * _norm(P).square() * _norm(B) / near_one


def _logeuclid(A: Tensor, B: Tensor, m: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """For B / 2^m."""
    a, b = log(A), log(B)
    N = a - b if m is None else a - b - m[..., None, None] * LOG_2 * identity_like(a)
    return _square(N), _ROUNDING * torch.finfo(A.dtype).eps * (_norm(a) + _norm(b))


def _bures(A: Tensor, B: Tensor, a_k: Tensor | None = None, b_k: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """For roots divided by 2^a_k and 2^b_k."""
    a, b, U = facing_roots(A, B, a_k, b_k)
    rounding = _ROUNDING * torch.finfo(A.dtype).eps * (_norm(a) + _norm(b))
    fixed = U.detach()
    turned = (matmul(b, a).conj() * (U - fixed)).real.sum((-2, -1))  # zero, and so is its first derivative
    return _square(a - matmul(b, fixed)) - 2 * turned, rounding


_SQUARES: dict[str, Squared] = {"affine": _affine, "logeuclid": _logeuclid, "bures": _bures}


def facing_roots(A: Tensor, B: Tensor, a_k: Tensor | None, b_k: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """2^a_k A^(1/2), 2^b_k B^(1/2) and U, which makes B^(1/2) U the root of B nearest to A^(1/2)."""
    a, b = sqrt(A), sqrt(B)
    U = polar(matmul(b, a))  # before the powers of two: U has no scale
    if a_k is not None and b_k is not None:
        a, b = a * torch.exp2(a_k)[..., None, None], b * torch.exp2(b_k)[..., None, None]
    return a, b, U
