"""The rotation and translation, or similarity, that brings one cloud of points onto another: Kabsch and Umeyama.

With shares p_i = w_i / sum w, means mx and my, and A = sum p_i (y_i - my)(x_i - mx)^T, least squares has the solution

    R = procrustes(A, special=True),     t = my - R mx                       (Kabsch)
    s = <R, A> / sum p_i |x_i - mx|^2,   t = my - s R mx                     (Umeyama)

All but R is plain torch; on CUDA one kernel does all of it for float32 (motions.py). <R, A> is the largest value over all
rotations, so its derivative is <R, dA>, and a subgradient where R is not unique: what comes through dR is the skew part of
R^T A, which is zero to rounding.

The singular values of A go with the square of a cloud's aspect, so float32 is computed in float64: otherwise an aspect of
1e-2 would cost four of seven digits, as it does on a device without float64. What counts as zero is still relative to
the rounding of the points as given. In float64 clouds and weights near the ends of the range come to scale 1, each by its
own power of two; my and R mx have a scale each, and meet last.
"""

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from spectralgrad.context import checking
from spectralgrad.kernels.clouds import Rounding
from spectralgrad.linalg.homogeneous import Map, Scales, homogeneous
from spectralgrad.linalg.precision import matmul

from .moments import Moments, mean, moments, moments_at_once, shares
from .motions import motion_at_once
from .passes import COINCIDE, COMPUTED
from .points import as_points, common_batch, narrowed, require_points, usable_weights, widened
from .procrustes import nearest

__all__ = ["Motion", "Similarity", "kabsch", "umeyama"]

_NOISE = 8  # times eps: coordinates carry the rounding of larger numbers than their spread. Measured: docs/alignment.md


class Motion(NamedTuple):
    """What `kabsch` returns: x -> R x + t."""

    R: Tensor
    t: Tensor


class Similarity(NamedTuple):
    """What `umeyama` returns: x -> s R x + t."""

    R: Tensor
    t: Tensor
    s: Tensor


def kabsch(x: Tensor, y: Tensor, weights: Tensor | None = None) -> Motion:
    """The rotation R and translation t with the least sum_i w_i |R x_i + t - y_i|^2, with their exact gradients.

    R is unique unless s_(d-1) = -+ s_d for the singular values of A = sum w (y - my)(x - mx)^T: not for collinear points in
    space, single points, or the mirror image of a cloud as wide as it is deep. There, to 16 d eps s_1, the pair of
    directions that is free gets gradient 0, and the cloud is counted as ``rotation_not_unique``. Planar clouds are fine.

    Args:
        x, y: (*B, N, d), real: N points, paired; their batches broadcast. Computed in float64 where the device has it.
        weights: (*B, N), >= 0, or a mask of bools; only their ratios matter. A point of weight 0 is not looked at: it may
            be NaN, and gets gradient 0, and so does its weight. None: all are 1.

    Returns:
        (R, t): (*B, d, d) with det R = +1 and (*B, d), also as .R and .t.

    Raises:
        ShapeError: no points at all, or shapes that do not fit.
        OptionError: a weight is negative, NaN or Inf, or all weights of a cloud are 0. (On CUDA and in vmap: NaN, counted.)
        NonFiniteError: a point whose weight is not 0 is NaN or Inf.
        DtypeError, DeviceError, ConvergenceError.

    >>> import torch, spectralgrad as sg
    >>> x = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]])
    >>> turned = torch.tensor([[3.0, 4.0], [3.0, 5.0], [1.0, 4.0]])
    >>> sg.kabsch(x, turned).R.round(decimals=4).abs(), sg.kabsch(x, turned).t.round(decimals=4)
    (tensor([[0., 1.],
            [1., 0.]]), tensor([3., 4.]))
    """
    return Motion(*_solved("kabsch", False, x, y, weights))


def umeyama(x: Tensor, y: Tensor, weights: Tensor | None = None) -> Similarity:
    """The rotation R, translation t and scale s >= 0 with the least sum_i w_i |s R x_i + t - y_i|^2.

    R is that of `kabsch`; the gradient of s = <R, A> / sum w |x - mx|^2 is that for this R as a constant: bounded, exact
    wherever s has a derivative, and a subgradient at kinks, which s has only where R is not unique. Where all points of x
    coincide, s is not unique: it is 1, with gradient 0. On a line (d = 1), where nothing turns, s < 0 is a reflection.

    Args:
        x, y: (*B, N, d), real: N points, paired; their batches broadcast. Computed in float64 where the device has it.
        weights: (*B, N), >= 0, or a mask of bools, as in `kabsch`. None: all are 1.

    Returns:
        (R, t, s): (*B, d, d), (*B, d) and (*B,), also as .R, .t and .s.

    Raises: as in `kabsch`.

    >>> import torch, spectralgrad as sg
    >>> x = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]])
    >>> sg.umeyama(x, 3 * x + 1).s.round(decimals=4)
    tensor(3.)
    """
    return Similarity(*_solved("umeyama", True, x, y, weights))


def _solved(who: str, scaled: bool, x: Tensor, y: Tensor, weights: Tensor | None) -> tuple[Tensor, ...]:
    X, Y = as_points(who, x, "x"), as_points(who, y, "y")
    batch, eps = common_batch(who, x, y, weights), float(torch.finfo(X.dtype).eps)

    def plain(a: Tensor, b: Tensor, w: Tensor | None) -> tuple[Tensor, ...]:
        found = moments_at_once(a, b, w, batch, eps)
        if found is None:
            result = _at_any_scale(who, scaled, (a, b, w), batch, eps)
        else:
            result = _assembled(found.mean_y, *(_similar if scaled else _rigid)(who, eps, found))
        return tuple(narrowed(z, a.dtype) for z in result)

    if not checking(x):
        rounding = Rounding(COINCIDE * eps, COINCIDE * COMPUTED, _NOISE * eps)
        at_once = motion_at_once((X, Y, weights), batch, scaled, rounding, plain)
        if at_once is not None:
            return tuple(narrowed(z, x.dtype) for z in at_once)
    return plain(x, y, weights)


def _rigid(who: str, eps: float, of: Moments) -> tuple[Tensor, ...]:
    """R (*B, d, d) and R mx (*B, d), for points that were rounded to ``eps``."""
    return _turned(who, eps, of, _cross(of))


def _similar(who: str, eps: float, of: Moments) -> tuple[Tensor, ...]:
    """R, R mx, s R mx, s and whether all points of x coincide (*B,)."""
    A = _cross(of)
    R, turned = _turned(who, eps, of, A)
    s = torch.where(of.single_x, 0, (R * A).sum((-2, -1)) / torch.where(of.single_x, 1, of.variance))
    return R, turned, s.unsqueeze(-1) * turned, s, of.single_x


def _cross(of: Moments) -> Tensor:
    """A (*B, d, d), 0 where all points of a cloud coincide. On a line R does not depend on A, and one point y is no tie."""
    if of.A.shape[-1] == 1:
        return of.A
    return torch.where((of.single_x | of.single_y)[..., None, None], 0, of.A)


def _turned(who: str, eps: float, of: Moments, A: Tensor) -> tuple[Tensor, Tensor]:
    R = nearest(who, A, checking(A), special=True, eps=_NOISE * eps)
    return R, matmul(R, of.mean_x.unsqueeze(-1)).squeeze(-1)


def _assembled(mean_y: Tensor, R: Tensor, turned: Tensor, *similar: Tensor, known: bool = True) -> tuple[Tensor, ...]:
    """R and t = my - R mx; or R, t = my - s R mx and s. ``known``: whether sizes are ordinary."""
    if similar:
        stretched, s, single = similar
        turned, s = torch.where(single.unsqueeze(-1), turned, stretched), torch.where(single, 1, s)
    # The difference may overflow last and nowhere before.
    (t,) = homogeneous(_difference, [(mean_y, 1), (turned, 1)], _common_scale, known=known, watched=False)
    return (R, t, s) if similar else (R, t)


def _difference(a: Tensor, b: Tensor) -> tuple[Tensor]:
    return (a - b,)


def _common_scale(a: Tensor, b: Tensor) -> Scales:
    k = torch.maximum(a, b).clamp(min=0)
    return Scales((k, k), (k,))


def _at_any_scale(
    who: str, scaled: bool, given: tuple[Tensor, Tensor, Tensor | None], batch: torch.Size, eps: float
) -> tuple[Tensor, ...]:
    """Where one pass over the points will not do. my has a node of its own, since its scale may be far from that of R mx."""
    x, y, weights = given
    check, weighted = checking(x), []
    X, Y = (widened(points).expand(*batch, *points.shape[-2:]) for points in (x, y))
    if weights is not None:
        w = usable_weights(who, weights, check).expand(*batch, -1)
        X, Y = (torch.where((w != 0).unsqueeze(-1), points, 0) for points in (X, Y))
        weighted = [(w, 1)]
    if check:
        require_points(who, X, Y)
    known = all(z is None or z.dtype != torch.float64 for z in given)
    at_scale_1 = partial(homogeneous, known=known, watched=False)
    (mean_y,) = at_scale_1(_mean, [(Y, 2), *weighted], _mean_scales)
    solve = partial(_of_points, _similar if scaled else _rigid, who, eps)
    found = at_scale_1(solve, [(X, 2), (Y, 2), *weighted], _similar_scales if scaled else _rigid_scales)
    return _assembled(mean_y, *found, known=known)


def _mean(x: Tensor, *w: Tensor) -> tuple[Tensor]:
    return (mean(x, shares(*w)),)


def _of_points(solve: Map, who: str, eps: float, x: Tensor, y: Tensor, *w: Tensor) -> tuple[Tensor, ...]:
    return solve(who, eps, moments(x, y, shares(*w), eps))


def _rigid_scales(x: Tensor, y: Tensor, *w: Tensor) -> Scales:
    return Scales((x, y, *w), (torch.zeros_like(x), x))


def _similar_scales(x: Tensor, y: Tensor, *w: Tensor) -> Scales:
    return Scales((x, y, *w), (torch.zeros_like(x), x, y, y - x, None))


def _mean_scales(y: Tensor, *w: Tensor) -> Scales:
    return Scales((y, *w), (y,))
