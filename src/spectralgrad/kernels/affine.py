"""Passes over (N, C, *) with one matrix for each group of channels: forward, and the two that a gradient needs.

Each reads its inputs once, in place, and centres them before any product. Products keep float32's accuracy whatever
TF32, autocast or matmul-precision flags say. Groups that share a tile share its NaN: one in a sample of a channel may
reach that sample's other channels. The kernels are in affine_launches.py; their twins are here.
"""

import torch
from torch import Tensor

from . import affine_launches, tiles
from .affine_launches import AffineMap, InputMap, Samples, like
from .moments import Centre
from .ops import opaque


def _transform_fake(
    x: Tensor, A: Tensor, mean: Tensor | None, correction: Tensor | None, bias: Tensor | None, transposed: bool = False
) -> Tensor:
    return like(x)


@opaque(
    "grouped_transform(Tensor x, Tensor A, Tensor? mean, Tensor? correction, Tensor? bias, bool transposed=False) -> Tensor",
    _transform_fake,
)
def transform(
    x: Tensor, A: Tensor, mean: Tensor | None, correction: Tensor | None, bias: Tensor | None, transposed: bool = False
) -> Tensor:
    """y = A (x - mean - correction) + bias for each group of channels, in the dtype and memory format of x.

    Args:
        x: (N, C, *).
        A: (groups, d, d), contiguous, in float32, or float64 for float64.
        mean, correction: (C,) as `grouped_moments` returns them, or None for 0.
        bias: (C,) or None.
        transposed: take A^T.

    >>> transform(torch.tensor([[1.0, 2.0]]), 2 * torch.ones(1, 2, 2), torch.tensor([1.0, 1.0]), None, None)
    tensor([[2., 2.]])
    """
    d = A.shape[1]
    if not tiles.fits(x, d):
        return transform_twin(x, A, mean, correction, bias, transposed)
    by = AffineMap(A=A, d=d, centre=Centre(mean, correction), bias=bias, transposed=transposed)
    y = like(x)
    affine_launches.launch_transform(tiles.readable(x), by, y)
    return y


def transform_twin(
    x: Tensor, A: Tensor, mean: Tensor | None, correction: Tensor | None, bias: Tensor | None, transposed: bool = False
) -> Tensor:
    """`transform` in plain torch."""
    X = _centred(x, A.shape[0], mean, correction)  # (groups, d, n)
    Y = torch.bmm((A.mT if transposed else A).to(X.dtype), X)
    return tiles.ungrouped(Y if bias is None else Y + _column(bias, X), x)


def _transform_sums_fake(
    g: Tensor, x: Tensor, groups: int, mean: Tensor, correction: Tensor | None
) -> tuple[Tensor, Tensor]:
    d, dtype = x.shape[1] // groups, tiles.statistics_dtype(x)
    return x.new_empty(groups, d, d, dtype=dtype), x.new_empty(x.shape[1], dtype=dtype)


@opaque(
    "grouped_transform_sums(Tensor g, Tensor x, int groups, Tensor mean, Tensor? correction) -> (Tensor, Tensor)",
    _transform_sums_fake,
)
def transform_sums(g: Tensor, x: Tensor, groups: int, mean: Tensor, correction: Tensor | None) -> tuple[Tensor, Tensor]:
    """Q = sum of g (x - mean - correction)^T for each group, and s = sum of g: what A and bias of `transform` get back.

    Args:
        g, x: (N, C, *), each with its own strides and dtype.
        groups: a divisor of C.
        mean, correction: (C,) as in `transform`.

    Returns:
        Q (groups, d, d) and s (C,), in float32, or float64 for float64; the same bits in every run.

    >>> transform_sums(torch.ones(2, 1), torch.tensor([[1.0], [3.0]]), 1, torch.zeros(1), None)
    (tensor([[[4.]]]), tensor([2.]))
    """
    d = x.shape[1] // groups
    if not (tiles.fits(x, d) and tiles.fits(g, d)):
        return transform_sums_twin(g, x, groups, mean, correction)
    product, total = _transform_sums_fake(g, x, groups, mean, correction)
    affine_launches.launch_sums(Samples.of(g, x, d, Centre(mean, correction)), product, total)
    return product, total


def transform_sums_twin(g: Tensor, x: Tensor, groups: int, mean: Tensor, correction: Tensor | None) -> tuple[Tensor, Tensor]:
    """`transform_sums` in plain torch."""
    dtype = tiles.statistics_dtype(x)
    X, G = _centred(x, groups, mean, correction), tiles.grouped(g, groups)
    return torch.bmm(G, X.mT).to(dtype), G.sum(-1).flatten().to(dtype)


def _combine_fake(
    g: Tensor, x: Tensor, A: Tensor, S: Tensor, mean: Tensor, correction: Tensor | None, shift: Tensor
) -> Tensor:
    return like(x)


@opaque(
    "grouped_combine(Tensor g, Tensor x, Tensor A, Tensor S, Tensor mean, Tensor? correction, Tensor shift) -> Tensor",
    _combine_fake,
)
def combine(g: Tensor, x: Tensor, A: Tensor, S: Tensor, mean: Tensor, correction: Tensor | None, shift: Tensor) -> Tensor:
    """A^T (g - shift) + S (x - mean - correction) for each group, in the dtype and memory format of x.

    The whole gradient of x in y = A(scatter) (x - mean) + bias, where the mean and the scatter are those of x: ``shift``
    is the mean of g, and S twice the symmetric part of the scatter's gradient.

    Args:
        g, x: (N, C, *), each with its own strides and dtype.
        A, S: (groups, d, d), contiguous, in float32, or float64 for float64.
        mean, correction, shift: (C,); correction may be None.

    >>> one = torch.ones(1, 1)
    >>> combine(one, 5 * one, 2 * torch.ones(1, 1, 1), torch.ones(1, 1, 1), torch.ones(1), None, torch.zeros(1))
    tensor([[6.]])
    """
    d = A.shape[1]
    if not (tiles.fits(x, d) and tiles.fits(g, d)):
        return combine_twin(g, x, A, S, mean, correction, shift)
    samples = Samples.of(g, x, d, Centre(mean, correction))
    y = like(x)
    affine_launches.launch_combine(samples, InputMap(A=A, S=S, shift=shift), y)
    return y


def combine_twin(
    g: Tensor, x: Tensor, A: Tensor, S: Tensor, mean: Tensor, correction: Tensor | None, shift: Tensor
) -> Tensor:
    """`combine` in plain torch."""
    X, G = _centred(x, len(A), mean, correction), _centred(g, len(A), shift, None)
    return tiles.ungrouped(torch.bmm(A.mT.to(G.dtype), G) + torch.bmm(S.to(X.dtype), X), x)


def _column(v: Tensor, X: Tensor) -> Tensor:
    """(C,) -> (groups, d, 1)"""
    return v.to(X.dtype).view(*X.shape[:2], 1)


def _centred(x: Tensor, groups: int, mean: Tensor | None, correction: Tensor | None) -> Tensor:
    X = tiles.grouped(x, groups)
    for part in (mean, correction):
        X = X if part is None else X - _column(part, X)
    return X
