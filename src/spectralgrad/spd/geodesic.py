"""Geodesics of positive definite matrices.

    affine      A^(1/2) (A^(-1/2) B A^(-1/2))^t A^(1/2)
    logeuclid   exp((1 - t) log A + t log B)
    bures       (1 - t)^2 A + t^2 B + t (1 - t) (C + C^H),  C = B^(1/2) U A^(1/2),  U the polar factor of B^(1/2) A^(1/2)

C^t is exp(t log C), so that t may be a tensor with a gradient. With A / 2^a and B / 2^(a + m) of scale 1 the first two are
2^(a + t m) times theirs; the whole part of t m goes into the exponent, the rest into exp.
"""

import torch
from torch import Tensor

from spectralgrad.context import may_read
from spectralgrad.linalg.moves import moved, moved_last
from spectralgrad.linalg.precision import hermitian_part, matmul
from spectralgrad.linalg.scaling import exponent

from .distance import facing_roots
from .inputs import Metric, as_pair, as_position, require_metric, returned, widened
from .spectra import (
    END,
    LOG_2,
    congruent,
    exp,
    expanded,
    given_to_scale_1,
    identity_like,
    log,
    near_scale,
    sqrt,
    whitener,
)

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

    Raises: as in `distance`; OptionError for a t that is no finite number.

    >>> import torch, spectralgrad as sg
    >>> sg.spd.geodesic(torch.eye(2), torch.diag(torch.tensor([4.0, 1.0])), 0.5).round(decimals=4)
    tensor([[2., 0.],
            [0., 1.]])
    """
    who = "spd.geodesic"
    require_metric(who, metric)
    X, Y = widened(*as_pair(who, A, B, semi=metric == "bures"))
    place = as_position(who, t, X, torch.broadcast_shapes(X.shape[:-2], Y.shape[:-2]))
    along = {"affine": _affine, "logeuclid": _logeuclid, "bures": _bures}[metric]
    return returned(along(X, Y, place), A)


def _affine(A: Tensor, B: Tensor, t: Tensor) -> Tensor:
    A, a = given_to_scale_1(A)
    B, m = near_scale(expanded(B, A), a)
    P, p = whitener(A)
    inner, whole = _exp_apart(t[..., None, None] * log(congruent(P, B)), t * (m + 2 * p))
    result = congruent(sqrt(A), inner)
    return moved_last(result, (a + whole).expand(result.shape[:-2]), END)


def _logeuclid(A: Tensor, B: Tensor, t: Tensor) -> Tensor:
    if may_read(A) and may_read(B) and _are_near_1(A, B):
        t = t[..., None, None]
        return hermitian_part(exp((1 - t) * log(A) + t * log(B)))
    a = exponent(A.detach())
    a = a - a.clamp(-_NEAR, _NEAR)  # what is near keeps its bits, whatever else is in the batch
    A = moved(A, -a)
    B, m = near_scale(expanded(B, A), a)
    inner, whole = _exp_apart((1 - t)[..., None, None] * log(A) + t[..., None, None] * log(B), t * m)
    return moved_last(hermitian_part(inner), (a + whole).expand(inner.shape[:-2]), END)


def _are_near_1(*matrices: Tensor) -> bool:
    """Whether logarithms of values at hand are so small that their rounding is none."""
    return all(X.numel() == 0 or float(exponent(X.detach()).abs().amax()) <= _NEAR for X in matrices)


def _exp_apart(L: Tensor, far: Tensor) -> tuple[Tensor, Tensor]:
    """exp(L) 2^far as a matrix and the exponent of a power of two, whole and constant (*B,)."""
    whole = far.detach().round()
    return exp(L + (far - whole)[..., None, None] * LOG_2 * identity_like(L)), whole


def _bures(A: Tensor, B: Tensor, t: Tensor) -> Tensor:
    # Not as N N^H, N = (1 - t) A^(1/2) + t B^(1/2) U: in N N^H the U of t^2 B cancels but for rounding, see distance.py.
    a, b, U, k = facing_roots(A, B)
    A, B = (moved(expanded(X, a), -2 * k) for X in (A, B))
    t = t[..., None, None]
    C = matmul(b, matmul(U, a))
    result = (1 - t).square() * A + t.square() * B + t * (1 - t) * (C + C.mH)
    return moved(result, (2 * k).expand(result.shape[:-2]))
