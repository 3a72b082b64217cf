"""Passes over (N, C, *) with one matrix for each group of channels: forward, and the two that a gradient needs.

Each reads its inputs once, in place, and centres them before any product. Products keep float32's accuracy whatever
TF32, autocast or matmul-precision flags say. Groups that share a tile share its NaN: one in a sample of a channel may
reach that sample's other channels.

`transform`, `transform_sums` and `combine` are for tensors; the launches below them for parts of a buffer too. Typed
records say what goes in, their fields in the order of the kernel's parameters. A launch is prepared once for shapes,
strides and dtypes.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from . import buffers, launches, tiles
from .buffers import Memory, Part
from .launches import Launch
from .moments import Centre, merge_block
from .tiles import Config, Size

# By tile size: of `transform`, of `combine`, of the sums. On sm_90 in TF32x3 none spills registers, but `combine` at 128.
CONFIGS = {
    16: Config(block=128, warps=4, stages=3, programs=8, depth=16),
    32: Config(block=128, warps=4, stages=3, programs=4, depth=32),
    64: Config(block=64, warps=4, stages=3, programs=4, depth=64),
    128: Config(block=32, warps=8, stages=2, programs=2, depth=32),
}
COMBINE_CONFIGS = {
    16: Config(block=128, warps=4, stages=3, programs=8, depth=16),
    32: Config(block=64, warps=4, stages=3, programs=4, depth=32),
    64: Config(block=64, warps=4, stages=1, programs=2, depth=64),
    128: Config(block=32, warps=8, stages=1, programs=2, depth=16),
}
SUM_CONFIGS = {
    16: Config(block=64, warps=1, stages=3, programs=8),
    32: Config(block=32, warps=2, stages=3, programs=8),
    64: Config(block=32, warps=4, stages=3, programs=2),
    128: Config(block=32, warps=8, stages=2, programs=1),
}


class AffineMap(NamedTuple):
    """x -> A (x - centre) + bias for each group of channels."""

    A: Memory  # (groups, d, d)
    d: int
    centre: Centre
    bias: Memory | None = None  # (C,)
    transposed: bool = False  # take A^T


class Samples(NamedTuple):
    """What a backward pass reads: a gradient and an input at the same samples, strided so that kernels can read them."""

    g: Tensor  # (N, C, *)
    x: Tensor  # (N, C, *)
    d: int  # channels of a group
    centre: Centre  # of x

    @staticmethod
    def of(g: Tensor, x: Tensor, d: int, centre: Centre) -> "Samples":
        """For any strides: what kernels cannot read in place is copied."""
        return Samples(tiles.readable(g), tiles.readable(x), d, centre)


class ScaledMatrix(NamedTuple):
    """weight * A: what an input was multiplied by."""

    weight: Memory | None  # (C,); None for 1
    A: Memory  # (groups, d, d)


class ParameterGradients(NamedTuple):
    """What `launch_gradients` fills, with Q = sum of g (x - centre)^T and s = sum of g over n samples."""

    A: Memory  # (groups, d, d): weight * Q
    weight: Memory | None  # (C,): diag(Q A^T); None where there is no weight
    bias: Memory  # (C,): s
    mean: Memory  # (C,): s / n, the mean of g


class InputMap(NamedTuple):
    """g, x -> A^T (g - shift) + S (x - centre) for each group of channels: the gradient of the input."""

    A: Memory  # (groups, d, d)
    S: Memory  # (groups, d, d)
    shift: Memory  # (C,)


def like(x: Tensor) -> Tensor:
    """Memory for a result, in the dtype and memory format of x."""
    return torch.empty_like(x, memory_format=tiles.memory_format(x))


def transform(
    x: Tensor, A: Tensor, mean: Tensor | None, correction: Tensor | None, bias: Tensor | None, transposed: bool = False
) -> Tensor:
    """y = A (x - mean - correction) + bias for each group of channels, in the dtype and memory format of x.

    Args:
        x: (N, C, *) that `tiles.fits`.
        A: (groups, d, d), contiguous, in float32.
        mean, correction: (C,) as `grouped_moments` returns them, or None for 0.
        bias: (C,) or None.
        transposed: take A^T.
    """
    y = like(x)
    by = AffineMap(A=A, d=A.shape[1], centre=Centre(mean, correction), bias=bias, transposed=transposed)
    launch_transform(tiles.readable(x), by, y)
    return y


def transform_sums(g: Tensor, x: Tensor, groups: int, mean: Tensor, correction: Tensor | None) -> tuple[Tensor, Tensor]:
    """Q = sum of g (x - mean - correction)^T for each group, and s = sum of g: what A and bias of `transform` get back.

    Args:
        g, x: (N, C, *) that `tiles.fits`, each with its own strides and dtype.
        groups: a divisor of C.
        mean, correction: (C,) as in `transform`.

    Returns:
        Q (groups, d, d) and s (C,) in float32; the same bits in every run.
    """
    C = x.shape[1]
    d = C // groups
    product, total = x.new_empty(groups, d, d, dtype=torch.float32), x.new_empty(C, dtype=torch.float32)
    launch_sums(Samples.of(g, x, d, Centre(mean, correction)), product, total)
    return product, total


def combine(g: Tensor, x: Tensor, A: Tensor, S: Tensor, mean: Tensor, correction: Tensor | None, shift: Tensor) -> Tensor:
    """A^T (g - shift) + S (x - mean - correction) for each group, in the dtype and memory format of x.

    The whole gradient of x in y = A(scatter) (x - mean) + bias, where the mean and the scatter are those of x: ``shift``
    is the mean of g, and S twice the symmetric part of the scatter's gradient.

    Args:
        g, x: (N, C, *) that `tiles.fits`, each with its own strides and dtype.
        A, S: (groups, d, d), contiguous, in float32.
        mean, correction, shift: (C,); correction may be None.
    """
    y = like(x)
    launch_combine(Samples.of(g, x, A.shape[1], Centre(mean, correction)), InputMap(A=A, S=S, shift=shift), y)
    return y


def launch_transform(x: Tensor, by: AffineMap, y: Tensor) -> None:
    """``by`` of x (N, C, *), which is `tiles.readable`, into ``y``, which is `like` x."""
    device = x.device.index
    (mean, correction), bias = by.centre, by.bias
    given, kinds = (mean is not None, correction is not None), (x.dtype, None if bias is None else bias.dtype)
    launch = _transform(x.shape, x.stride(), y.stride(), by.d, device, by.transposed, given, kinds)
    launch(device, x, y, by.A, mean, correction, bias)


@launches.kept
def _transform(
    shape: Size,
    strides: Size,
    y_strides: Size,
    d: int,
    device: int | None,
    transposed: bool,
    given: tuple[bool, bool],
    kinds: tuple[torch.dtype, torch.dtype | None],
) -> Launch:
    where, to = tiles.known_layout(shape, strides), tiles.known_layout(shape, y_strides)
    C, n, config = shape[1], shape[0] * where.positions, CONFIGS[tiles.tile_of(d)]
    plan = tiles.plan(C, d, n, config, device)
    return Launch(
        launches.device_code("affine").transform, (plan.tiles, plan.splits),
        (C, where.positions, n, *where[1:], *to[1:], plan.chunk),
        D=d, G=plan.together, T=plan.tile, K=config.block, J=config.depth, PRECISION=tiles.PRECISION,
        TRANSPOSED=transposed, HAS_MEAN=given[0], HAS_CORRECTION=given[1], HAS_BIAS=kinds[1] is not None,
        num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip


def launch_sums(samples: Samples, product: Memory, total: Memory) -> None:
    """Q (groups, d, d) into ``product`` and s (C,) into ``total``; see `ParameterGradients`."""
    device, C = samples.x.device.index, samples.x.shape[1]
    splits, parts = _split_sums(samples, device, C)
    _add("add_splits", splits, device, C, samples.d)(device, *parts, product, total)


def launch_gradients(samples: Samples, matrix: ScaledMatrix, out: ParameterGradients) -> None:
    """All gradients that do not have the size of the input, into ``out``."""
    device, C = samples.x.device.index, samples.x.shape[1]
    splits, parts = _split_sums(samples, device, C)
    numbers, has_weight = (samples.x.numel() // C,), matrix.weight is not None
    _add("add_gradients", splits, device, C, samples.d, numbers, has_weight)(device, *parts, *matrix, *out)


def _split_sums(samples: Samples, device: int | None, C: int) -> tuple[int, list[Part]]:
    """The number of splits, and their products (splits, C, d) and sums (splits, C)."""
    g, x, d, centre = samples
    kinds = g.dtype, x.dtype
    splits, launch = _sums(x.shape, g.stride(), x.stride(), d, device, centre.correction is not None, kinds)
    parts = buffers.parts(x, splits * C * d, splits * C)
    launch(device, g, x, *centre, *parts)
    return splits, parts


@launches.kept
def _sums(
    shape: Size,
    g_strides: Size,
    strides: Size,
    d: int,
    device: int | None,
    has_correction: bool,
    kinds: tuple[torch.dtype, torch.dtype],
) -> tuple[int, Launch]:
    of_g, where = tiles.known_layout(shape, g_strides), tiles.known_layout(shape, strides)
    C, n, config = shape[1], shape[0] * where.positions, SUM_CONFIGS[tiles.tile_of(d)]
    plan = tiles.plan(C, d, n, config, device)
    launch = Launch(
        launches.device_code("affine").products_of_splits, (plan.tiles, plan.splits),
        (C, where.positions, n, *of_g[1:], *where[1:], plan.chunk),
        D=d, G=plan.together, T=plan.tile, K=config.block, PRECISION=tiles.PRECISION, HAS_CORRECTION=has_correction,
        num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
    return plan.splits, launch


@launches.kept
def _add(
    name: str,
    splits: int,
    device: int | None,
    C: int,
    d: int,
    numbers: tuple[int, ...] = (),
    has_weight: bool | None = None,
) -> Launch:
    width = 1 << (d - 1).bit_length()
    flags = {} if has_weight is None else {"HAS_WEIGHT": has_weight}
    block, warps = merge_block(width, splits)
    return Launch(
        getattr(launches.device_code("affine"), name), (C,), (C, splits, *numbers),
        D=d, WIDTH=width, B=block, **flags, num_warps=warps,
    )  # fmt: skip


def launch_combine(samples: Samples, by: InputMap, y: Tensor) -> None:
    """``by`` of g and x into ``y``, which is `like` x."""
    g, x, d, centre = samples
    device, kinds = x.device.index, (g.dtype, x.dtype)
    has_correction = centre.correction is not None
    launch = _combine(x.shape, g.stride(), x.stride(), y.stride(), d, device, has_correction, kinds)
    launch(device, g, x, y, by.A, by.S, *centre, by.shift)


@launches.kept
def _combine(
    shape: Size,
    g_strides: Size,
    strides: Size,
    y_strides: Size,
    d: int,
    device: int | None,
    has_correction: bool,
    kinds: tuple[torch.dtype, torch.dtype],
) -> Launch:
    of_g, where, to = (tiles.known_layout(shape, each) for each in (g_strides, strides, y_strides))
    C, n, config = shape[1], shape[0] * where.positions, COMBINE_CONFIGS[tiles.tile_of(d)]
    plan = tiles.plan(C, d, n, config, device)
    return Launch(
        launches.device_code("affine").combine, (plan.tiles, plan.splits),
        (C, where.positions, n, *of_g[1:], *where[1:], *to[1:], plan.chunk),
        D=d, G=plan.together, T=plan.tile, K=config.block, J=config.depth, PRECISION=tiles.PRECISION,
        HAS_CORRECTION=has_correction, num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
