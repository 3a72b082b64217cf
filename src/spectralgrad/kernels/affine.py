"""Passes over (N, C, *) with one matrix for each group of channels: forward, and the two that a gradient needs.

Each reads its inputs once, in place, and centres them before any product. Products keep float32's accuracy whatever
TF32, autocast or matmul-precision flags say. Groups that share a tile share its NaN: one in a sample of a channel may
reach that sample's other channels.
"""

import torch
from torch import Tensor

from . import tiles
from .moments import MERGE_WARPS, merge_block
from .ops import opaque
from .tiles import Config, Layout

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


def _transform_fake(
    x: Tensor, A: Tensor, mean: Tensor | None, rest: Tensor | None, bias: Tensor | None, transposed: bool = False
) -> Tensor:
    return torch.empty_like(x, memory_format=tiles.memory_format(x))


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
    x, where = tiles.readable(x)
    y = _transform_fake(x, A, mean, rest, bias)
    C, n = x.shape[1], x.shape[0] * where.positions
    config = CONFIGS[tiles.tile_of(d)]
    plan = tiles.plan(C, d, n, config, x.device.index)
    tiles.launch(
        tiles.device_code("affine").transform, (plan.tiles, plan.splits), x,
        x, y, A, mean, rest, bias, C, where.positions, n, *_strides(where), *_strides(_written(y)), plan.chunk,
        D=d, G=plan.together, T=plan.tile, K=config.block, J=config.depth, PRECISION=tiles.PRECISION,
        TRANSPOSED=transposed, HAS_MEAN=mean is not None, HAS_REST=rest is not None, HAS_BIAS=bias is not None,
        num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
    return y


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
    code = tiles.device_code("affine")
    (g, g_where), (x, where) = tiles.readable(g), tiles.readable(x)
    n = x.shape[0] * where.positions
    config = SUM_CONFIGS[tiles.tile_of(d)]
    plan = tiles.plan(C, d, n, config, x.device.index)
    products = torch.empty((plan.splits, C, d), dtype=torch.float32, device=x.device)
    sums = torch.empty((plan.splits, C), dtype=torch.float32, device=x.device)
    tiles.launch(
        code.products_of_splits, (plan.tiles, plan.splits), x,
        g, x, mean, rest, products, sums, C, where.positions, n, *_strides(g_where), *_strides(where), plan.chunk,
        D=d, G=plan.together, T=plan.tile, K=config.block, PRECISION=tiles.PRECISION, HAS_REST=rest is not None,
        num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
    product, total = _transform_sums_fake(g, x, groups, mean, rest)
    width = 1 << (d - 1).bit_length()
    tiles.launch(
        code.add_splits, (C,), x,
        products, sums, product, total, C, plan.splits,
        D=d, WIDTH=width, B=merge_block(width), num_warps=MERGE_WARPS,
    )  # fmt: skip
    return product, total


def transform_sums_twin(g: Tensor, x: Tensor, groups: int, mean: Tensor, rest: Tensor | None) -> tuple[Tensor, Tensor]:
    """`transform_sums` in plain torch."""
    dtype = tiles.statistics_dtype(x)
    X, G = _centred(x, groups, mean, rest), tiles.grouped(g, groups)
    return torch.bmm(G, X.mT).to(dtype), G.sum(-1).flatten().to(dtype)


def _combine_fake(g: Tensor, x: Tensor, A: Tensor, S: Tensor, mean: Tensor, rest: Tensor | None, shift: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=tiles.memory_format(x))


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
    (g, g_where), (x, where) = tiles.readable(g), tiles.readable(x)
    y = _combine_fake(g, x, A, S, mean, rest, shift)
    C, n = x.shape[1], x.shape[0] * where.positions
    config = COMBINE_CONFIGS[tiles.tile_of(d)]
    plan = tiles.plan(C, d, n, config, x.device.index)
    tiles.launch(
        tiles.device_code("affine").combine, (plan.tiles, plan.splits), x,
        g, x, y, A, S, mean, rest, shift, C, where.positions, n,
        *_strides(g_where), *_strides(where), *_strides(_written(y)), plan.chunk,
        D=d, G=plan.together, T=plan.tile, K=config.block, J=config.depth, PRECISION=tiles.PRECISION,
        HAS_REST=rest is not None, num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
    return y


def combine_twin(g: Tensor, x: Tensor, A: Tensor, S: Tensor, mean: Tensor, rest: Tensor | None, shift: Tensor) -> Tensor:
    """`combine` in plain torch."""
    X, G = _centred(x, len(A), mean, rest), _centred(g, len(A), shift, None)
    return tiles.ungrouped(torch.bmm(A.mT.to(G.dtype), G) + torch.bmm(S.to(X.dtype), X), x)


def _strides(where: Layout) -> tuple[int, int, int]:
    return where.by_image, where.by_channel, where.by_position


def _written(y: Tensor) -> Layout:
    where = tiles.layout(y)
    assert where is not None
    return where


def _column(v: Tensor, X: Tensor) -> Tensor:
    """(C,) -> (groups, d, 1)"""
    return v.to(X.dtype).view(*X.shape[:2], 1)


def _centred(x: Tensor, groups: int, mean: Tensor | None, rest: Tensor | None) -> Tensor:
    X = tiles.grouped(x, groups)
    for part in (mean, rest):
        X = X if part is None else X - _column(part, X)
    return X
