"""Mean and scatter of (N, C, *) in groups of channels, in one pass over the input.

Programs share the samples out. Each leaves the mean and the centred scatter of its own; a second, small kernel merges
them by Chan's formula, in a fixed order and without atomics: the same bits in every run. Accurate for a mean of 1e4
standard deviations too, and whatever TF32, autocast or matmul-precision flags say.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import tiles
from .ops import opaque
from .tiles import Config, Launch, Part, Size

# By tile size. Each warp holds its part of two operands of `block` samples, in registers and twice, high and low bits.
CONFIGS = {
    16: Config(block=64, warps=1, stages=3, programs=16),
    32: Config(block=32, warps=2, stages=3, programs=8),
    64: Config(block=32, warps=4, stages=3, programs=2),
    128: Config(block=32, warps=8, stages=2, programs=1),
}
MERGE_WARPS = 4
_MERGE_ENTRIES = 2048  # of partial results that one program reads at a time
_FEW = 16  # samples whose mean is the shift


def _fake(x: Tensor, groups: int) -> tuple[Tensor, Tensor, Tensor]:
    C, dtype = x.shape[1], tiles.statistics_dtype(x)
    d = C // groups
    return x.new_empty(C, dtype=dtype), x.new_empty(C, dtype=dtype), x.new_empty(groups, d, d, dtype=dtype)


@opaque("grouped_moments(Tensor x, int groups) -> (Tensor, Tensor, Tensor)", _fake)
def grouped_moments(x: Tensor, groups: int) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, what rounding left in it, and scatter of the samples of (N, C, *), in groups of C / groups channels.

    mean + rest = (1/n) sum x,   scatter = sum (x - mean - rest)(x - mean - rest)^T

    Args:
        x: (N, C, *), with at least one sample; float32, bfloat16 or float16 for the kernel, any for the twin.
        groups: a divisor of C.

    Returns:
        mean (C,), rest (C,) and scatter (groups, d, d), symmetric to the last bit, in float32, or float64 for float64.

    >>> mean, rest, scatter = grouped_moments(torch.tensor([[1.0, 2.0], [3.0, 2.0]]), 1)
    >>> mean, scatter
    (tensor([2., 2.]), tensor([[[2., 0.],
             [0., 0.]]]))
    """
    if not tiles.fits(x, x.shape[1] // groups):
        return grouped_moments_twin(x, groups)
    mean, rest, scatter = _fake(x, groups)
    splits = split_moments(x, groups)
    device = x.device.index
    _merge("merge_moments", splits.plan, device, x.shape[1], groups, x.numel() // x.shape[1])(
        device, *splits.parts, mean, rest, scatter
    )
    return mean, rest, scatter


def grouped_covariances(
    x: Tensor, groups: int, mean: Any, rest: Any, covariance: Any, shifted: Any, eps: float, running: Any, momentum: float
) -> None:
    """Mean, rest and scatter / n of `grouped_moments` by the kernels, into memory that is there: tensors or parts.

    Args:
        shifted: (groups, d, d), gets covariance + eps I.
        running: a mean (C,), a covariance (groups, d, d) and an int64 number of batches, updated by ``momentum``; or None.
    """
    splits = split_moments(x, groups)
    device, C, numbers = x.device.index, x.shape[1], (eps, momentum)
    merge = _merge("merge_covariances", splits.plan, device, C, groups, x.numel() // C, numbers, running is not None)
    merge(device, *splits.parts, mean, rest, covariance, shifted, *(running or (None, None, None)))


class Splits(NamedTuple):
    plan: tiles.Plan
    parts: list[Part]  # scatters (splits, C, d), shifts and means (splits, C) of the samples of each program


def split_moments(x: Tensor, groups: int) -> Splits:
    """The first kernel."""
    x = tiles.readable(x)
    device, C = x.device.index, x.shape[1]
    plan, launch = _split(x.shape, x.stride(), x.dtype, groups, device)
    parts = tiles.parts(x, plan.splits * C * (C // groups), plan.splits * C, plan.splits * C)
    launch(device, x, *parts)
    return Splits(plan, parts)


@tiles.launches
def _split(shape: Size, strides: Size, dtype: torch.dtype, groups: int, device: int | None) -> tuple[tiles.Plan, Launch]:
    where = tiles.known_layout(shape, strides)
    C = shape[1]
    d, n = C // groups, shape[0] * where.positions
    config = CONFIGS[tiles.tile_of(d)]
    plan = tiles.plan(C, d, n, config, device)
    launch = Launch(
        tiles.device_code("moments").moments_of_splits, (plan.tiles, plan.splits),
        (C, where.positions, n, where.by_image, where.by_channel, where.by_position, plan.chunk),
        D=d, G=plan.together, T=plan.tile, K=config.block, FEW=_FEW, PRECISION=tiles.PRECISION,
        num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
    return plan, launch


@tiles.launches
def _merge(
    name: str,
    plan: tiles.Plan,
    device: int | None,
    C: int,
    groups: int,
    samples: int,
    numbers: tuple[float, ...] = (),
    has_running: bool | None = None,
) -> Launch:
    """The second kernel."""
    width = 1 << (C // groups - 1).bit_length()
    flags = {} if has_running is None else {"HAS_RUNNING": has_running}
    return Launch(
        getattr(tiles.device_code("moments"), name), (C,), (C, samples, plan.chunk, plan.splits, *numbers),
        D=C // groups, WIDTH=width, B=merge_block(width), **flags, num_warps=MERGE_WARPS,
    )  # fmt: skip


def merge_block(width: int) -> int:
    """How many splits the merging kernels read at a time."""
    return min(_MERGE_ENTRIES // width, 256)


def grouped_moments_twin(x: Tensor, groups: int) -> tuple[Tensor, Tensor, Tensor]:
    """`grouped_moments` in plain torch."""
    dtype = tiles.statistics_dtype(x)
    X = tiles.grouped(x, groups)  # (groups, d, n)
    exact = X.mean(-1)
    centred = X - exact.unsqueeze(-1)
    scatter = torch.bmm(centred, centred.mT)
    mean = exact.to(dtype)
    return mean.flatten(), (exact - mean).to(dtype).flatten(), torch.lerp(scatter, scatter.mT, 0.5).to(dtype)
