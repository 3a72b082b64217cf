"""The motion between two clouds of points in one kernel, and its gradient in another; see clouds.cu.

The plain-torch twin is align/clouds.py, which passes some thirty times over the points.
"""

from ctypes import c_double, c_longlong
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from . import nvrtc, small_svd
from .buffers import contiguous
from .nvrtc import Argument, addresses

_LANES = ((64, 8), (1024, 32))  # threads of a pair of clouds with up to so many points
_MANY_LANES = 256
_THREADS = 128  # of a block, at least
_SUMS = 18  # numbers that lanes of several warps add up at a time, at most
_REAL = 8  # bytes


class Clouds(NamedTuple):
    """Paired points, and weights, of float32; anywhere in memory."""

    x: Tensor  # (*B, N, d)
    y: Tensor
    w: Tensor | None  # (*B, N)


class Rounding(NamedTuple):
    """What counts as zero, each relative: points that coincide, their variance, singular values."""

    coordinates: float
    variance: float
    values: float


class Aligned(NamedTuple):
    """x -> s R x + t, and what `spread` needs."""

    R: Tensor  # (*B, d, d)
    t: Tensor  # (*B, d)
    s: Tensor | None  # (*B,)
    kept: Tensor | None


class Slopes(NamedTuple):
    """Of R, t and s; None is 0."""

    R: Tensor | None
    t: Tensor | None
    s: Tensor | None


def runs_on(x: Tensor, *others: Tensor | None) -> bool:
    """Whether the kernels take points (*B, N, d) like ``x`` and what comes with them; from two devices torch refuses it."""
    given = [x, *(z for z in others if z is not None)]
    fits = x.shape[-1] <= small_svd.LARGEST and all(z.device == x.device for z in given)
    return fits and all(z.dtype == torch.float32 and nvrtc.takes(z) for z in given)


def align(clouds: Clouds, scaled: bool, keep: bool, rounding: Rounding, nonfinite: Tensor, not_unique: Tensor) -> Aligned:
    """The motion of each pair; its gradient needs ``keep``.

    Args:
        scaled: whether s is free, or 1.
        nonfinite: an int64 counter; a pair with NaN or Inf, or weights that cannot be used, gives NaN and is added to it.
        not_unique: another one, for pairs whose rotation is not unique.
    """
    x, (batch, d) = clouds.x, (clouds.x.shape[:-2], clouds.x.shape[-1])
    out = Aligned(
        x.new_empty(*batch, d, d),
        x.new_empty(*batch, d),
        x.new_empty(batch) if scaled else None,
        x.new_empty(batch.numel(), _kept(d), dtype=torch.float64) if keep else None,
    )
    places, numbers = _described(clouds)
    pointers = addresses(*places, *out, nonfinite, not_unique)
    _launch("align", clouds, scaled, *pointers, *numbers, *(c_double(each) for each in rounding))
    return out


def spread(
    clouds: Clouds, kept: Tensor, slopes: Slopes, needs: tuple[bool, ...], scaled: bool, eps: float
) -> tuple[Tensor | None, ...]:
    """The gradients of x, y and w, where they are needed, for those of what `align` found."""
    out = [
        None if z is None or not need else torch.empty_like(z, memory_format=torch.contiguous_format)
        for z, need in zip(clouds, needs, strict=True)
    ]
    places, numbers = _described(clouds)
    given = [None if g is None else contiguous(g) for g in slopes]
    pointers = addresses(*places, kept, *given, *out)
    _launch("spread", clouds, scaled, *pointers, *numbers, c_double(eps))
    return tuple(out)


def defines(d: int, lanes: int, scaled: bool, weighted: bool) -> dict[str, str | int | float]:
    """The compile-time constants of clouds.cu."""
    named = {"D": d, "LANES": lanes, "SCALED": int(scaled), "WEIGHTED": int(weighted)}
    limits = {"GIVEN_LARGEST": torch.finfo(torch.float32).max, "THREADS": max(_THREADS, lanes)}
    return {**small_svd.defines(d, d, torch.float64), **named, **limits}


def lanes_of(points: int) -> int:
    """Threads that share the points of a pair."""
    return next((lanes for most, lanes in _LANES if points <= most), _MANY_LANES)


def _kept(d: int) -> int:
    """Numbers of `Kept` in clouds.cu."""
    return 2 * d * d + 3 * d + 5


def _described(clouds: Clouds) -> tuple[list[Tensor | None], list[Argument]]:
    """Memory with one batch dimension, and the numbers that say where what lies."""
    x, y, w = clouds.x.resolve_neg(), clouds.y.resolve_neg(), None if clouds.w is None else clouds.w.resolve_neg()
    if x.ndim != 3:
        x, y = (z.reshape(-1, *z.shape[-2:]) for z in (x, y))
        w = None if w is None else w.reshape(-1, w.shape[-1])
    strides = (*x.stride(), *y.stride(), *((0, 0) if w is None else w.stride()))
    return [x, y, w], [c_longlong(each) for each in (*x.shape[:2], *strides)]


def _launch(name: str, clouds: Clouds, scaled: bool, *arguments: Argument) -> None:
    *_, N, d = clouds.x.shape
    lanes, device = lanes_of(N), clouds.x.device.index
    threads = max(_THREADS, lanes)
    pairs = clouds.x.numel() // (N * d)
    with nvrtc.on_device(device):
        kernel = _compiled(name, d, lanes, scaled, clouds.w is not None, device)
        kernel.launch(device, -(-pairs * lanes // threads), threads, *arguments)


@lru_cache(maxsize=256)
def _compiled(name: str, d: int, lanes: int, scaled: bool, weighted: bool, device: int) -> nvrtc.Kernel:
    cells, sums = max(_THREADS, lanes) // lanes * _kept(d), lanes // 32 * _SUMS
    return nvrtc.Kernel("clouds.cu", name, defines(d, lanes, scaled, weighted), (cells + sums) * _REAL, device)
