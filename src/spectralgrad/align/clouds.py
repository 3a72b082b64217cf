"""The rotation and translation, or similarity, that brings one cloud of points onto another: Kabsch and Umeyama.

With shares p_i = w_i / sum w, means mx and my, and A = sum p_i (y_i - my)(x_i - mx)^T, least squares has the solution

    R = procrustes(A, special=True),     t = my - R mx                       (Kabsch)
    s = <R, A> / sum p_i |x_i - mx|^2,   t = my - s R mx                     (Umeyama)

All but R is plain torch; on CUDA one kernel does all of it for float32 (motions.py). <R, A> is the largest value over all
rotations, so its derivative is <R, dA>, and a subgradient where R is not unique: what comes through dR is the skew part of
R^T A, which is zero to rounding.

The singular values of A go with the square of a cloud's aspect, so float32 is computed in float64: otherwise an aspect of
1e-2 would cost four of seven digits, as it does on a device without float64. What counts as zero is still relative to
the rounding of the points as given. In float64 clouds near the ends of the range are brought to ordinary
sizes, each by its own power of two; t is computed in the units of the world, so that its gradients, which have no scale,
need not go there and back.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from spectralgrad.context import checking, may_read, readable
from spectralgrad.kernels.clouds import Rounding
from spectralgrad.linalg.moves import cast, held, moved, product
from spectralgrad.linalg.precision import matmul, widest
from spectralgrad.linalg.scaling import are_ordinary, exponent
from spectralgrad.validation import require_finite

from .moments import Moments, moments, moments_at_once
from .motions import motion_at_once
from .passes import COINCIDE, COMPUTED
from .points import as_points, common_batch, require_weights
from .procrustes import nearest

__all__ = ["Motion", "Similarity", "kabsch", "umeyama"]

_NOISE = 8  # times eps: coordinates carry the rounding of larger numbers than their spread. Measured: docs/alignment.md
_SIZES = (10, 64)  # log2 of the sizes that small and large clouds of float64 get, so that slopes have room on both sides
_POINTS, _WEIGHTS = 40, 200  # bits that the slopes of far points and of their weights stay below the largest number


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
    return Motion(*_solved("kabsch", _rigid, x, y, weights))


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
    return Similarity(*_solved("umeyama", _similar, x, y, weights))


def _rigid(pair: "_Pair") -> tuple[Tensor, ...]:
    R = pair.rotation()
    return R, pair.translation(R)


def _similar(pair: "_Pair") -> tuple[Tensor, ...]:
    R = pair.rotation()
    variance = torch.where(pair.single, 1, pair.variance)
    if pair.far is None:
        s = torch.where(pair.single, 1, (R * pair.A).sum((-2, -1)) / variance)  # (*B,)
        t = pair.mean_y - s.unsqueeze(-1) * _apply(R, pair.mean_x)
        return R, t, s
    turned = held(R, _POINTS)  # each product of two slopes may overflow by itself, so each is cut by itself
    k = exponent(variance.detach().unsqueeze(-1), 1)
    reached, variance = moved((turned * pair.A).sum((-2, -1)), -k), moved(variance, -k)
    s = product(reached[..., None, None], 1 / variance[..., None, None])  # (*B, 1, 1), in the units of y over those of x
    along = product(s, held(_apply(turned, pair.mean_x), _POINTS).unsqueeze(-2)).squeeze(-2)  # in the units of y
    t = _difference(pair.far.mean_y, moved(held(along), pair.far.ky))
    s = moved(held(s[..., 0, 0]), pair.far.ky - pair.far.kx)
    s, t = torch.where(pair.single, 1, s), torch.where(pair.single.unsqueeze(-1), pair.translation(R), t)
    return R, t, s


def _apply(R: Tensor, x: Tensor) -> Tensor:
    """R x for one vector (*B, d) each."""
    return matmul(R, x.unsqueeze(-1)).squeeze(-1)


def _difference(y: Tensor, x: Tensor) -> Tensor:
    """y - x (*B, d), which may overflow last and nowhere before."""
    k = exponent(y.detach(), 1).clamp(0, 1)
    return moved(moved(y, -k) - moved(x, -k), k)


class _Far(NamedTuple):
    """Of clouds near the ends of the range: means (*B, d) as they are, and the scales (*B,) by which the rest is divided."""

    mean_x: Tensor
    mean_y: Tensor
    kx: Tensor
    ky: Tensor


class _Pair(NamedTuple):
    """Two centred clouds, in float64, in units of 2 to their scales (of ordinary ones: 1)."""

    who: str
    A: Tensor  # (*B, d, d)
    mean_x: Tensor  # (*B, d)
    mean_y: Tensor
    variance: Tensor  # (*B,), of x
    single: Tensor  # (*B,): whether all points of x coincide
    far: _Far | None  # unless both are of ordinary sizes
    eps: float  # of the points as given
    check: bool

    def rotation(self) -> Tensor:
        return nearest(self.who, self.A, self.check, special=True, eps=_NOISE * self.eps)

    def translation(self, R: Tensor) -> Tensor:
        """my - R mx (*B, d)."""
        if self.far is None:
            return self.mean_y - _apply(R, self.mean_x)
        return _difference(self.far.mean_y, product(R, self.far.mean_x.unsqueeze(-1)).squeeze(-1))


def _solved(
    who: str, solve: Callable[[_Pair], tuple[Tensor, ...]], x: Tensor, y: Tensor, weights: Tensor | None
) -> tuple[Tensor, ...]:
    X, Y = as_points(who, x, "x"), as_points(who, y, "y")
    batch, check, eps = common_batch(who, x, y, weights), checking(x), float(torch.finfo(X.dtype).eps)

    def plain(a: Tensor, b: Tensor, w: Tensor | None) -> tuple[Tensor, ...]:
        return tuple(cast(z, a.dtype) for z in solve(_centred(who, a, b, w, batch, eps, check)))

    if not check:
        rounding = Rounding(COINCIDE * eps, COINCIDE * COMPUTED, _NOISE * eps)
        found = motion_at_once((X, Y, weights), batch, solve is _similar, rounding, plain)
        if found is not None:
            return tuple(cast(z, x.dtype) for z in found)
    return plain(x, y, weights)


def _centred(who: str, x: Tensor, y: Tensor, weights: Tensor | None, batch: torch.Size, eps: float, check: bool) -> _Pair:
    far, found = None, moments_at_once(x, y, weights, batch, eps)
    if found is None:
        found, far = _moments(who, x, y, weights, batch, eps, check)
    A = torch.where((found.single_x | found.single_y)[..., None, None], 0, found.A)
    return _Pair(who, A, found.mean_x, found.mean_y, found.variance, found.single_x, far, eps, check)


def _moments(
    who: str, x: Tensor, y: Tensor, weights: Tensor | None, batch: torch.Size, eps: float, check: bool
) -> tuple[Moments, _Far | None]:
    """Where one pass over the points will not do; with what is left of sizes near the ends of the range."""
    X, Y = (cast(given, widest(given)).expand(*batch, *given.shape[-2:]) for given in (x, y))
    share: Tensor | None = None
    if weights is not None:
        share = _shares(who, weights, check).expand(*batch, -1).unsqueeze(-1)  # (*B, N, 1)
        X, Y = (torch.where(share != 0, points, 0) for points in (X, Y))
    if check:
        for points, name in ((X, "x"), (Y, "y")):
            if (seen := readable(points)) is not None:
                require_finite(who, seen, name)
    if x.dtype != torch.float64:
        return moments(X, Y, share, eps), None
    kx, ky = exponent(X.detach()), exponent(Y.detach())
    if may_read(X) and may_read(Y) and are_ordinary(X, kx, ky):
        return moments(X, Y, share, eps), None
    kx, ky = (k - k.clamp(*_SIZES) for k in (kx, ky))
    every = torch.full_like(X[..., :1], 1 / X.shape[-2]) if share is None else share
    far_x, far_y = (product(held(every, _WEIGHTS).mT, points).squeeze(-2) for points in (X, Y))
    X, Y = held(moved(X, -kx), _POINTS), held(moved(Y, -ky), _POINTS)
    found = moments(X, Y, None if share is None else held(share, _WEIGHTS), eps)
    found = found._replace(A=held(found.A), variance=held(found.variance))
    return found, _Far(far_x, far_y, kx, ky)


def _shares(who: str, weights: Tensor, check: bool) -> Tensor:
    """w / sum w (*B, N) in float64; NaN for a cloud whose weights cannot be used."""
    wide = widest(weights)
    w = cast(weights, wide) if weights.is_floating_point() else weights.to(wide)
    if check and (seen := readable(w)) is not None:
        require_weights(who, seen.detach())
    w = torch.where(
        w > 0, w, torch.where(w == 0, 0, torch.nan)
    )  # the weight of a point that is not looked at has gradient 0
    if weights.dtype == torch.float64:
        k = exponent(w.detach(), 1)
        k = k - k.clamp(*_SIZES)
        if not (may_read(w) and are_ordinary(w, k)):
            w = held(moved(w, -k))
            return product(w.unsqueeze(-1), 1 / held(w.sum(-1))[..., None, None]).squeeze(-1)
    return w / w.sum(-1, keepdim=True)
