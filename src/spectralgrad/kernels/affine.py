"""Passes over (N, C, *) with one matrix for each group of channels: forward, and the two that a gradient needs.

Each reads its inputs once, in place, and centres them before any product. Products keep float32's accuracy whatever
TF32, autocast or matmul-precision flags say. Groups that share a tile share its NaN: one in a sample of a channel may
reach that sample's other channels.
"""

from typing import Any

import torch
from torch import Tensor

from . import tiles
from .moments import MERGE_WARPS, merge_block
from .ops import opaque
from .tiles import Config, Launch, Part, Size

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
    64: Config(block=64, warps=8, stages=2, programs=2, depth=64),
    128: Config(block=32, warps=8, stages=1, programs=2, depth=16),
}
SUM_CONFIGS = {
    16: Config(block=64, warps=1, stages=3, programs=16),
    32: Config(block=32, warps=2, stages=3, programs=8),
    64: Config(block=32, warps=4, stages=3, programs=2),
    128: Config(block=32, warps=8, stages=2, programs=1),
}


def _like(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=tiles.memory_format(x))


def _transform_fake(
    x: Tensor, A: Tensor, mean: Tensor | None, rest: Tensor | None, bias: Tensor | None, transposed: bool = False
) -> Tensor:
    return _like(x)


@opaque(
    "grouped_transform(Tensor x, Tensor A, Tensor? mean, Tensor? rest, Tensor? bias, bool transposed=False) -> Tensor",
    _transform_fake,
)
def transform(
    x: Tensor, A: Tensor, mean: Tensor | None, rest: Tensor | None, bias: Tensor | None, transposed: bool = False
) -> Tensor:
    """y = A (x - mean - rest) + bias for each group of channels, in the dtype and memory format of x.

    Args:
        x: (N, C, *).
        A: (groups, d, d), contiguous, in float32, or float64 for float64.
        mean, rest: (C,) as `grouped_moments` returns them, or None for 0.
        bias: (C,) or None.
        transposed: take A^T.

    >>> transform(torch.tensor([[1.0, 2.0]]), 2 * torch.ones(1, 2, 2), torch.tensor([1.0, 1.0]), None, None)
    tensor([[2., 2.]])
    """
    d = A.shape[1]
    if not tiles.fits(x, d):
        return transform_twin(x, A, mean, rest, bias, transposed)
    return transform_by(x, A, mean, rest, bias, d, transposed)


def transform_by(x: Tensor, A: Any, mean: Any, rest: Any, bias: Any, d: int, transposed: bool = False) -> Tensor:
    """`transform` by the kernel; A, mean, rest and bias may be parts of a buffer."""
    x = tiles.readable(x)
    y = _like(x)
    given, kinds = (mean is not None, rest is not None), (x.dtype, None if bias is None else bias.dtype)
    launch = _transform(x.shape, x.stride(), y.stride(), d, x.device.index, transposed, given, kinds)
    launch(x.device.index, x, y, A, mean, rest, bias)
    return y


@tiles.launches
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
        tiles.device_code("affine").transform, (plan.tiles, plan.splits),
        (C, where.positions, n, *where[1:], *to[1:], plan.chunk),
        D=d, G=plan.together, T=plan.tile, K=config.block, J=config.depth, PRECISION=tiles.PRECISION,
        TRANSPOSED=transposed, HAS_MEAN=given[0], HAS_REST=given[1], HAS_BIAS=kinds[1] is not None,
        num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip


def transform_twin(
    x: Tensor, A: Tensor, mean: Tensor | None, rest: Tensor | None, bias: Tensor | None, transposed: bool = False
) -> Tensor:
    """`transform` in plain torch."""
    X = _centred(x, A.shape[0], mean, rest)  # (groups, d, n)
    Y = torch.bmm((A.mT if transposed else A).to(X.dtype), X)
    return tiles.ungrouped(Y if bias is None else Y + _column(bias, X), x)


def _transform_sums_fake(g: Tensor, x: Tensor, groups: int, mean: Tensor, rest: Tensor | None) -> tuple[Tensor, Tensor]:
    d, dtype = x.shape[1] // groups, tiles.statistics_dtype(x)
    return x.new_empty(groups, d, d, dtype=dtype), x.new_empty(x.shape[1], dtype=dtype)


@opaque(
    "grouped_transform_sums(Tensor g, Tensor x, int groups, Tensor mean, Tensor? rest) -> (Tensor, Tensor)",
    _transform_sums_fake,
)
def transform_sums(g: Tensor, x: Tensor, groups: int, mean: Tensor, rest: Tensor | None) -> tuple[Tensor, Tensor]:
    """Q = sum of g (x - mean - rest)^T for each group, and s = sum of g: what A and bias of `transform` get back.

    Args:
        g, x: (N, C, *), each with its own strides and dtype.
        groups: a divisor of C.
        mean, rest: (C,) as in `transform`.

    Returns:
        Q (groups, d, d) and s (C,), in float32, or float64 for float64; the same bits in every run.

    >>> transform_sums(torch.ones(2, 1), torch.tensor([[1.0], [3.0]]), 1, torch.zeros(1), None)
    (tensor([[[4.]]]), tensor([2.]))
    """
    C = x.shape[1]
    d = C // groups
    if not (tiles.fits(x, d) and tiles.fits(g, d)):
        return transform_sums_twin(g, x, groups, mean, rest)
    product, total = _transform_sums_fake(g, x, groups, mean, rest)
    splits, parts = split_sums(g, x, groups, mean, rest)
    _add("add_splits", splits, x.device.index, C, groups)(x.device.index, *parts, product, total)
    return product, total


def sums_of_step(
    g: Tensor,
    x: Tensor,
    groups: int,
    mean: Any,
    rest: Any,
    weight: Any,
    A: Any,
    dA: Any,
    dweight: Any,
    dbias: Any,
    shift: Any,
) -> None:
    """`transform_sums` by the kernels, into memory that is there: tensors or parts. dA = weight * Q, dweight = diag(Q A^T),
    dbias = s, shift = s / n. Without a weight there is no dweight."""
    splits, parts = split_sums(g, x, groups, mean, rest)
    device, C = x.device.index, x.shape[1]
    add = _add("add_gradients", splits, device, C, groups, (x.numel() // C,), weight is not None)
    add(device, *parts, weight, A, dA, dweight, dbias, shift)


def split_sums(g: Tensor, x: Tensor, groups: int, mean: Any, rest: Any) -> tuple[int, list[Part]]:
    """The number of splits, and their products (splits, C, d) and sums (splits, C)."""
    g, x = tiles.readable(g), tiles.readable(x)
    device, C = x.device.index, x.shape[1]
    splits, launch = _sums(x.shape, g.stride(), x.stride(), C // groups, device, rest is not None, (g.dtype, x.dtype))
    parts = tiles.parts(x, splits * C * (C // groups), splits * C)
    launch(device, g, x, mean, rest, *parts)
    return splits, parts


@tiles.launches
def _sums(
    shape: Size,
    g_strides: Size,
    strides: Size,
    d: int,
    device: int | None,
    has_rest: bool,
    kinds: tuple[torch.dtype, torch.dtype],
) -> tuple[int, Launch]:
    of_g, where = tiles.known_layout(shape, g_strides), tiles.known_layout(shape, strides)
    C, n, config = shape[1], shape[0] * where.positions, SUM_CONFIGS[tiles.tile_of(d)]
    plan = tiles.plan(C, d, n, config, device)
    launch = Launch(
        tiles.device_code("affine").products_of_splits, (plan.tiles, plan.splits),
        (C, where.positions, n, *of_g[1:], *where[1:], plan.chunk),
        D=d, G=plan.together, T=plan.tile, K=config.block, PRECISION=tiles.PRECISION, HAS_REST=has_rest,
        num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
    return plan.splits, launch


@tiles.launches
def _add(
    name: str,
    splits: int,
    device: int | None,
    C: int,
    groups: int,
    numbers: tuple[int, ...] = (),
    has_weight: bool | None = None,
) -> Launch:
    width = 1 << (C // groups - 1).bit_length()
    flags = {} if has_weight is None else {"HAS_WEIGHT": has_weight}
    return Launch(
        getattr(tiles.device_code("affine"), name), (C,), (C, splits, *numbers),
        D=C // groups, WIDTH=width, B=merge_block(width), **flags, num_warps=MERGE_WARPS,
    )  # fmt: skip


def transform_sums_twin(g: Tensor, x: Tensor, groups: int, mean: Tensor, rest: Tensor | None) -> tuple[Tensor, Tensor]:
    """`transform_sums` in plain torch."""
    dtype = tiles.statistics_dtype(x)
    X, G = _centred(x, groups, mean, rest), tiles.grouped(g, groups)
    return torch.bmm(G, X.mT).to(dtype), G.sum(-1).flatten().to(dtype)


def _combine_fake(g: Tensor, x: Tensor, A: Tensor, S: Tensor, mean: Tensor, rest: Tensor | None, shift: Tensor) -> Tensor:
    return _like(x)


@opaque(
    "grouped_combine(Tensor g, Tensor x, Tensor A, Tensor S, Tensor mean, Tensor? rest, Tensor shift) -> Tensor",
    _combine_fake,
)
def combine(g: Tensor, x: Tensor, A: Tensor, S: Tensor, mean: Tensor, rest: Tensor | None, shift: Tensor) -> Tensor:
    """A^T (g - shift) + S (x - mean - rest) for each group, in the dtype and memory format of x.

    The whole gradient of x in y = A(scatter) (x - mean) + bias, where the mean and the scatter are those of x: ``shift``
    is the mean of g, and S twice the symmetric part of the scatter's gradient.

    Args:
        g, x: (N, C, *), each with its own strides and dtype.
        A, S: (groups, d, d), contiguous, in float32, or float64 for float64.
        mean, rest, shift: (C,); rest may be None.

    >>> one = torch.ones(1, 1)
    >>> combine(one, 5 * one, 2 * torch.ones(1, 1, 1), torch.ones(1, 1, 1), torch.ones(1), None, torch.zeros(1))
    tensor([[6.]])
    """
    d = A.shape[1]
    if not (tiles.fits(x, d) and tiles.fits(g, d)):
        return combine_twin(g, x, A, S, mean, rest, shift)
    return combine_by(g, x, A, S, mean, rest, shift, d)


def combine_by(g: Tensor, x: Tensor, A: Any, S: Any, mean: Any, rest: Any, shift: Any, d: int) -> Tensor:
    """`combine` by the kernel; all but g and x may be parts of a buffer."""
    g, x = tiles.readable(g), tiles.readable(x)
    y = _like(x)
    launch = _combine(x.shape, g.stride(), x.stride(), y.stride(), d, x.device.index, rest is not None, (g.dtype, x.dtype))
    launch(x.device.index, g, x, y, A, S, mean, rest, shift)
    return y


@tiles.launches
def _combine(
    shape: Size,
    g_strides: Size,
    strides: Size,
    y_strides: Size,
    d: int,
    device: int | None,
    has_rest: bool,
    kinds: tuple[torch.dtype, torch.dtype],
) -> Launch:
    of_g, where, to = (tiles.known_layout(shape, each) for each in (g_strides, strides, y_strides))
    C, n, config = shape[1], shape[0] * where.positions, COMBINE_CONFIGS[tiles.tile_of(d)]
    plan = tiles.plan(C, d, n, config, device)
    return Launch(
        tiles.device_code("affine").combine, (plan.tiles, plan.splits),
        (C, where.positions, n, *of_g[1:], *where[1:], *to[1:], plan.chunk),
        D=d, G=plan.together, T=plan.tile, K=config.block, J=config.depth, PRECISION=tiles.PRECISION,
        HAS_REST=has_rest, num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip


def combine_twin(g: Tensor, x: Tensor, A: Tensor, S: Tensor, mean: Tensor, rest: Tensor | None, shift: Tensor) -> Tensor:
    """`combine` in plain torch."""
    X, G = _centred(x, len(A), mean, rest), _centred(g, len(A), shift, None)
    return tiles.ungrouped(torch.bmm(A.mT.to(G.dtype), G) + torch.bmm(S.to(X.dtype), X), x)


def _column(v: Tensor, X: Tensor) -> Tensor:
    """(C,) -> (groups, d, 1)"""
    return v.to(X.dtype).view(*X.shape[:2], 1)


def _centred(x: Tensor, groups: int, mean: Tensor | None, rest: Tensor | None) -> Tensor:
    X = tiles.grouped(x, groups)
    for part in (mean, rest):
        X = X if part is None else X - _column(part, X)
    return X
