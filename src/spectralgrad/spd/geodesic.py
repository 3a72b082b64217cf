"""Geodesics of positive definite matrices.

    affine      A^(1/2) (A^(-1/2) B A^(-1/2))^t A^(1/2)
    logeuclid   exp((1 - t) log A + t log B)
    bures       (1 - t)^2 A + t^2 B + t (1 - t) (C + C^H),  C = B^(1/2) U A^(1/2),  U the polar factor of B^(1/2) A^(1/2)

C^t is exp(t log C), so that t may be a tensor with a gradient. With A / 2^a and B / 2^(a + m) of scale 1 the first two are
2^(a + t m) times theirs; the whole part of t m goes into the exponent, the rest into exp.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from spectralgrad.context import may_look
from spectralgrad.errors import NonFiniteError
from spectralgrad.linalg.homogeneous import Scales, homogeneous
from spectralgrad.linalg.precision import hermitian_part, matmul
from spectralgrad.validation import largest_part

from .distance import facing_roots, halves
from .inputs import Metric, as_pair, as_position, is_widened, require_metric, returned, widened
from .spectra import LOG_2, congruent, exp, identity_like, log, near_1, near_scale_of, sqrt, steps, times_power, whitener

_NEAR = 8  # bits of a scale: log 2^8 is 5.5


def geodesic(A: Tensor, B: Tensor, t: float | Tensor, metric: Metric = "affine") -> Tensor:
    """The point at t of the geodesic from A (t = 0) to B (t = 1), with exact gradients for A, B and t.

    "affine" is A^(1/2) (A^(-1/2) B A^(-1/2))^t A^(1/2), "logeuclid" exp((1 - t) log A + t log B), and "bures"
    ((1 - t) I + t T) A ((1 - t) I + t T) with T A T = B. Its distance from A is |t| distance(A, B). t may lie outside of
    [0, 1], where a curve of "bures" goes on as a geodesic until it meets a singular matrix.

    Args:
        A, B: as in `distance`.
        t: a number, or a real tensor that broadcasts with the batch.
        metric: "affine", "logeuclid" or "bures".

    Returns:
        (*B, n, n), Hermitian.

    Raises: as in `distance`; OptionError for a t that is no finite number; NonFiniteError where
        the point at t is beyond the range of the dtype.

    >>> import torch, spectralgrad as sg
    >>> sg.spd.geodesic(torch.eye(2), torch.diag(torch.tensor([4.0, 1.0])), 0.5).round(decimals=4)
    tensor([[2., 0.],
            [0., 1.]])
    """
    who = "spd.geodesic"
    require_metric(who, metric)
    X, Y = as_pair(who, A, B, semi=metric == "bures")
    wide = widened(X, Y)
    place = as_position(who, t, wide[0], torch.broadcast_shapes(X.shape[:-2], Y.shape[:-2]))
    along: Callable[..., tuple[Tensor]] = {"affine": _affine, "logeuclid": _logeuclid, "bures": _bures}[metric]
    scales: Callable[..., Scales] = _half_scales if metric == "bures" else partial(_scales, place)
    (result,) = homogeneous(along, [(Z, 2) for Z in wide], scales, others=(place,), out=2, known=is_widened(X))
    require_in_range(who, result)
    return returned(result, A)


def require_in_range(who: str, x: Tensor) -> None:
    """Raise where numbers, on the way or at its end, are none: t is too far from [0, 1], or T too long."""
    if may_look(x) and not math.isfinite(size := largest_part(x.detach())):
        raise NonFiniteError(
            f"`{who}`: the point is beyond the range of {x.dtype}: what it is made of came to {size}. Take "
            f"{'t nearer to [0, 1]' if who == 'spd.geodesic' else 'a shorter T'}."
        )


def _scales(t: Tensor, a: Tensor, b: Tensor) -> Scales:
    m = steps(b - a)
    whole = (t.detach() * m).round()
    return Scales((a, a + m), (a + whole,), (m, whole))


def _half_scales(a: Tensor, b: Tensor) -> Scales:
    a, b, k = halves(a, b)
    return Scales((2 * a, 2 * b), (2 * k,), (a - k, b - k))


def _affine(A: Tensor, B: Tensor, t: Tensor, m: Tensor | None = None, whole: Tensor | None = None) -> tuple[Tensor]:
    """For B / 2^m; the result divided by 2^whole."""
    B, near = near_scale_of(A, B)
    P, p = whitener(A)
    far = t * (near if p is None else near + 2 * p) + _rest(t, m, whole)
    inner, k = exp_apart(t[..., None, None] * log(congruent(P, B)), far)
    return (times_power(congruent(sqrt(A), inner), k),)


def _logeuclid(A: Tensor, B: Tensor, t: Tensor, m: Tensor | None = None, whole: Tensor | None = None) -> tuple[Tensor]:
    """As `_affine`."""
    A, a = near_1(A, keep=_NEAR)  # what is near keeps its bits, whatever else is in the batch
    B, near = near_scale_of(A, B)
    far = t * (near - a) + _rest(t, m, whole)
    inner, k = exp_apart((1 - t)[..., None, None] * log(A) + t[..., None, None] * log(B), far)
    return (times_power(hermitian_part(inner), k + a),)


def _rest(t: Tensor, m: Tensor | None, whole: Tensor | None) -> Tensor | int:
    return 0 if m is None or whole is None else t * m - whole


def exp_apart(L: Tensor, far: Tensor, who: str = "spd.geodesic") -> tuple[Tensor, Tensor]:
    """exp(L) 2^far as a matrix and the exponent of a power of two, whole and constant (*B,)."""
    whole = far.detach().round()
    limit = math.log(torch.finfo(L.dtype).max)
    size = L.detach().abs()  # no entry is larger than the largest eigenvalue
    require_in_range(who, torch.where((size <= limit) & torch.isfinite(far)[..., None, None], size, torch.inf))
    return exp(L + (far - whole)[..., None, None] * LOG_2 * identity_like(L)), whole


def _bures(A: Tensor, B: Tensor, t: Tensor, a_k: Tensor | None = None, b_k: Tensor | None = None) -> tuple[Tensor]:
    # Not as N N^H, N = (1 - t) A^(1/2) + t B^(1/2) U: in N N^H the U of t^2 B cancels but for rounding, see distance.py.
    a, b, U = facing_roots(A, B, a_k, b_k)
    if a_k is not None and b_k is not None:
        A, B = A * torch.exp2(2 * a_k)[..., None, None], B * torch.exp2(2 * b_k)[..., None, None]
    t = t[..., None, None]
    C = matmul(b, matmul(U, a))
    return ((1 - t).square() * A + t.square() * B + t * (1 - t) * (C + C.mH),)
