"""A large picture in tiles that overlap, such that a network computes in the core of each what it would in the whole."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

__all__ = ["Tile", "divided", "filled", "padded", "strips"]


class Tile(NamedTuple):
    """A part of a picture: its core, and the core with the halo that convolutions look at, as (top, bottom, left, right).

    All are multiples of the stride, so that pooling finds the same cells as in the whole picture.
    """

    core: tuple[int, int, int, int]
    around: tuple[int, int, int, int]

    def cut(self, picture: Tensor) -> Tensor:
        """The core and its halo of a picture (..., H, W)."""
        top, bottom, left, right = self.around
        return picture[..., top:bottom, left:right]

    def inner(self, tile: Tensor, stride: int = 1) -> Tensor:
        """The core of what was computed from `cut`, whose cells are ``stride`` pixels wide."""
        top, bottom, left, right = self.core
        above, _, before, _ = self.around
        return tile[
            ...,
            (top - above) // stride : (bottom - above) // stride,
            (left - before) // stride : (right - before) // stride,
        ]

    def put(self, whole: Tensor, tile: Tensor) -> None:
        """Write the core of a result of `cut` to its place."""
        top, bottom, left, right = self.core
        whole[..., top:bottom, left:right] = self.inner(tile)


def divided(shape: Sequence[int], size: int, halo: int, stride: int) -> list[Tile]:
    """Tiles whose cores cover a picture once.

    Args:
        shape: height and width of the picture, multiples of ``stride``.
        size: of a core, at most; rounded down to a multiple of ``stride``.
        halo: how far the network looks beyond the core; rounded up to a multiple of ``stride``. At the edge of the picture
            there is none: there the network pads as it does for the whole.

    >>> [tile.core for tile in divided((8, 24), size=16, halo=3, stride=4)]
    [(0, 8, 0, 12), (0, 8, 12, 24)]
    >>> divided((8, 24), size=16, halo=3, stride=4)[1].around
    (0, 8, 8, 24)
    """
    (height, width), halo = shape, -(-halo // stride) * stride
    return [
        Tile((top, bottom, left, right), (*_widened(top, bottom, halo, height), *_widened(left, right, halo, width)))
        for top, bottom in _spans(height, size, stride)
        for left, right in _spans(width, size, stride)
    ]


def _spans(length: int, size: int, stride: int) -> list[tuple[int, int]]:
    """Spans of about equal length: a sliver at the end would be nothing but halo."""
    cells, most = length // stride, max(1, size // stride)
    parts = -(-cells // most)
    ends = [cells * i // parts * stride for i in range(parts + 1)]
    return list(pairwise(ends))


def _widened(start: int, end: int, halo: int, length: int) -> tuple[int, int]:
    return max(0, start - halo), min(length, end + halo)


def strips(x: Tensor, pixels: int) -> Iterator[tuple[slice, Tensor]]:
    """Rows of x (..., H, W) in strips of about ``pixels`` pixels, and where they are.

    >>> [strip.shape for _, strip in strips(torch.zeros(3, 5, 4), 8)]
    [torch.Size([3, 2, 4]), torch.Size([3, 2, 4]), torch.Size([3, 1, 4])]
    """
    rows = max(1, pixels // max(1, x.shape[-1]))
    for top in range(0, x.shape[-2], rows):
        where = slice(top, top + rows)
        yield where, x[..., where, :]


def padded(picture: Tensor, stride: int, least: int) -> Tensor:
    """A picture (3, H, W) continued to the right and below by its mirror image, to multiples of ``stride`` and to ``least``.

    Unlike torch's reflection it goes on for any length: one pixel becomes many of its colour.

    >>> padded(torch.tensor([[[1, 2, 3]]]), 4, 4)[0, 0]
    tensor([1, 2, 3, 2])
    """
    height, width = (_mirror(length, max(least, -(-length // stride) * stride)) for length in picture.shape[-2:])
    for dim, index in ((-2, height), (-1, width)):
        if len(index) > picture.shape[dim]:
            picture = picture.index_select(dim, index.to(picture.device))
    return picture


def filled(picture: Tensor, visible: Tensor) -> Tensor:
    """A picture (3, H, W) whose invisible pixels have the colours of what is near: a network that looks across the edge of
    what is transparent then sees neither what is hidden there nor an edge.

    Means of what is visible in 2 x 2 pixels, again and again; each level fills what is still empty in the one below it.

    >>> filled(torch.tensor([[[0.2, 0.9]]] * 3), torch.tensor([[True, False]]))[0]
    tensor([[0.2000, 0.2000]])
    """
    if bool(visible.all()):
        return picture
    height, width = picture.shape[-2:]
    weight = visible[None].to(picture)
    if height == width == 1:
        return picture * weight
    sums, weights = (avg_pool2d(x, 2, ceil_mode=True) for x in (picture * weight, weight))
    coarse = filled(sums / torch.where(weights > 0, weights, 1), weights[0] > 0)
    near = coarse.repeat_interleave(2, 1).repeat_interleave(2, 2)[:, :height, :width]
    return torch.where(visible, picture, near)


def _mirror(length: int, wanted: int) -> Tensor:
    """Indices 0, 1, ..., length - 1, length - 2, ..., 1, 0, 1, ...: (wanted,)."""
    period = max(1, 2 * (length - 1))
    index = torch.arange(wanted) % period
    return torch.where(index < length, index, period - index)
