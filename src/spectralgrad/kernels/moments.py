"""Mean and scatter of (N, C, *) in groups of channels, in one pass over the input.

The programs of a first kernel divide the samples. Each leaves the mean and the centred scatter of its own. A second, small
kernel merges them by Chan's formula, in a fixed order and without atomics: the same bits in every run. The result is
accurate even for a mean of 1e4 standard deviations, and whatever TF32, autocast or matmul-precision flags say.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from . import buffers, launches, tiles
from .buffers import Memory, Part
from .launches import Launch
from .tiles import Config, Plan, Size

# By tile size. Each warp holds its part of two operands of `block` samples, in registers and twice, high and low bits.
CONFIGS = {
    16: Config(block=64, warps=1, stages=3, programs=8),
    32: Config(block=32, warps=2, stages=3, programs=8),
    64: Config(block=32, warps=4, stages=3, programs=2),
    128: Config(block=32, warps=8, stages=2, programs=1),
}
_MERGE_ENTRIES = 8192  # of partial results that one program reads at a time, at most
_ENTRIES_OF_A_WARP = 1024
_FEW = 16  # samples whose mean is the shift
_NO_AVERAGES = (None, None, None)


class Centre(NamedTuple):
    """What samples are centred by: their mean is mean + correction. None counts as 0."""

    mean: Memory | None = None  # (C,)
    correction: Memory | None = None  # (C,): what rounding to float32 took from the mean


class Running(NamedTuple):
    """Averages that a training step updates in place."""

    mean: Tensor  # (C,)
    covariance: Tensor  # (groups, d, d)
    batches: Tensor  # how many there were, int64
    momentum: float


class Covariances(NamedTuple):
    """What `launch_covariances` fills, in the order of the kernel's parameters."""

    mean: Memory  # (C,)
    correction: Memory  # (C,), as in `Centre`
    covariance: Memory  # (groups, d, d): scatter / n
    shifted: Memory  # (groups, d, d): covariance + eps I


def grouped_moments(x: Tensor, groups: int) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, its correction, and scatter of the samples of (N, C, *), in groups of C / groups channels.

    mean + correction = (1/n) sum x,   scatter = sum (x - mean - correction)(x - mean - correction)^T

    The correction is what rounding to float32 took from the mean.

    Args:
        x: (N, C, *) that `tiles.fits`.
        groups: a divisor of C.

    Returns:
        mean (C,), correction (C,) and scatter (groups, d, d), symmetric to the last bit, in float32.
    """
    device, C = x.device.index, x.shape[1]
    mean, correction = (x.new_empty(C, dtype=torch.float32) for _ in range(2))
    scatter = x.new_empty(groups, C // groups, C // groups, dtype=torch.float32)
    plan, parts = _split_moments(tiles.readable(x), groups, device, C)
    merge = _merge("merge_moments", plan, device, C, groups, x.numel() // C)
    merge(device, *parts, mean, correction, scatter)
    return mean, correction, scatter


def launch_covariances(x: Tensor, groups: int, eps: float, out: Covariances, running: Running | None) -> None:
    """`grouped_moments` of a training step, into memory that exists already.

    Args:
        x: (N, C, *), as the kernel of `grouped_moments` takes it, and `tiles.readable`.
        groups: a divisor of C.
        eps: what is added to the diagonal of ``out.shifted``.
        out: filled.
        running: updated, unless None.
    """
    device, C = x.device.index, x.shape[1]
    plan, parts = _split_moments(x, groups, device, C)
    averages, momentum = (_NO_AVERAGES, 0.0) if running is None else (running[:3], running.momentum)
    numbers = (eps, momentum)
    merge = _merge("merge_covariances", plan, device, C, groups, x.numel() // C, numbers, running is not None)
    merge(device, *parts, *out, *averages)


def _split_moments(x: Tensor, groups: int, device: int | None, C: int) -> tuple[Plan, list[Part]]:
    """The first kernel: how it shared out the samples, and scatters (splits, C, d), shifts and means (splits, C)."""
    plan, launch = _split(x.shape, x.stride(), x.dtype, groups, device)
    vectors = plan.splits * C
    parts = buffers.parts(x, vectors * (C // groups), vectors, vectors)
    launch(device, x, *parts)
    return plan, parts


@launches.kept
def _split(shape: Size, strides: Size, dtype: torch.dtype, groups: int, device: int | None) -> tuple[Plan, Launch]:
    where = tiles.known_layout(shape, strides)
    C = shape[1]
    d, n = C // groups, shape[0] * where.positions
    config = CONFIGS[tiles.tile_of(d)]
    plan = tiles.plan(C, d, n, config, device)
    launch = Launch(
        launches.device_code("moments").moments_of_splits, (plan.tiles, plan.splits),
        (C, where.positions, n, where.by_image, where.by_channel, where.by_position, plan.chunk),
        D=d, G=plan.together, T=plan.tile, K=config.block, FEW=_FEW, PRECISION=tiles.PRECISION,
        num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
    return plan, launch


@launches.kept
def _merge(
    name: str,
    plan: Plan,
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
    block, warps = merge_block(width, plan.splits)
    return Launch(
        getattr(launches.device_code("moments"), name), (C,), (C, samples, plan.chunk, plan.splits, *numbers),
        D=C // groups, WIDTH=width, B=block, **flags, num_warps=warps,
    )  # fmt: skip


def merge_block(width: int, splits: int) -> tuple[int, int]:
    """How many splits the merging kernels read at a time, a power of two, and the warps for it."""
    block = min(_MERGE_ENTRIES // width, max(16, 1 << (splits.bit_length() - 1)))
    return block, max(4, block * width // _ENTRIES_OF_A_WARP)
