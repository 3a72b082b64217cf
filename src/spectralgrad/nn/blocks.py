"""The passes of kernels/moments.py and kernels/affine.py on a CPU: block by block, each small enough for a core's cache.

A block is some images, or a part of one. Its samples are gathered as columns (groups, d, n) and centred, before any
product. So a pass reads the map once from memory, where a composition of torch operations reads and writes it several
times. Products keep the accuracy of their dtype whatever autocast or matmul-precision flags say: where one of those is on,
they are taken in float64. Sums over blocks are taken in float64, in a fixed order.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from spectralgrad.kernels.affine_launches import like
from spectralgrad.kernels.tiles import statistics_dtype
from spectralgrad.linalg.precision import is_reduced

BLOCK = 2**18  # numbers of a block at most: 1 MiB in float32
SAMPLES_OF_D = 2  # times d, samples of a block at least: the results of a block, d x d, are small beside it


class Block(NamedTuple):
    """Whole images, or positions of one."""

    images: slice
    positions: slice


class Maps:
    """x (N, C, *) as images (N, C, P) or, where the channels lie last in memory, as one image of N P positions."""

    def __init__(self, x: Tensor) -> None:
        self.count, self.channels = x.shape[0], x.shape[1]
        self.positions = x[0, 0].numel()
        rows = x.movedim(1, -1)
        self.is_last = rows.is_contiguous()
        self.view = rows.reshape(1, -1, self.channels).mT if self.is_last else x.reshape(*x.shape[:2], self.positions)

    def blocks(self, d: int) -> Iterator[Block]:
        """All samples, in groups of d channels; they depend on sizes alone, so that two maps have the same ones."""
        samples = max(BLOCK // self.channels, SAMPLES_OF_D * d)
        images, positions = max(1, samples // self.positions), min(samples, self.positions)
        for i in range(0, self.count, images):
            for p in range(0, self.positions, positions):
                yield Block(slice(i, min(i + images, self.count)), slice(p, min(p + positions, self.positions)))

    def part(self, block: Block) -> Tensor:
        """A view (C, images, positions); where the channels lie last it is one image."""
        images, positions = block
        if not self.is_last:
            return self.view[images, :, positions].transpose(0, 1)
        start = images.start * self.positions + positions.start
        stop = (images.stop - 1) * self.positions + positions.stop
        return self.view[:, :, start:stop].transpose(0, 1)


def gathered(part: Tensor, groups: int, dtype: torch.dtype, mean: Tensor | None = None) -> Tensor:
    """The samples of a part as columns (groups, d, n), minus the mean (C,), in the order that they have in memory."""
    keeps = torch.preserve_format if part.shape[1] == 1 else torch.contiguous_format
    X = torch.empty_like(part, dtype=dtype, memory_format=keeps)
    if mean is None:
        X.copy_(part)
    else:
        torch.sub(part, mean.to(dtype).view(-1, 1, 1), out=X)
    return X.view(groups, part.shape[0] // groups, -1)


def grouped_moments(x: Tensor, groups: int) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, its correction, and scatter, as kernels/moments.py has them.

    A block's samples are centred by c, their mean before rounding being c + r. Over blocks of n samples, with m the mean,

        scatter = sum [ sum (x - c)(x - c)^T  -  n r r^T  +  n (c + r - m)(c + r - m)^T ]   (Chan et al.)
    """
    maps, d, dtype = Maps(x), x.shape[1] // groups, _dtype_of(x)
    scatter = torch.zeros(groups, d, d, dtype=torch.float64)
    counts, means, rests = [], [], []
    for block in maps.blocks(d):
        X = gathered(maps.part(block), groups, dtype)  # (groups, d, n)
        centre = X.mean(-1, keepdim=True)
        X -= centre
        scatter += torch.bmm(X, X.mT)
        rests.append(X.mean(-1, keepdim=True).double())
        means.append(centre + rests[-1])
        counts.append(X.shape[-1])
    n = torch.tensor(counts, dtype=torch.float64)
    M, R = torch.cat(means, -1), torch.cat(rests, -1)  # (groups, d, blocks)
    exact = (M @ n / n.sum()).unsqueeze(-1)  # (groups, d, 1)
    M -= exact
    scatter += torch.bmm(M * n, M.mT) - torch.bmm(R * n, R.mT)
    own = statistics_dtype(x)
    mean = exact.to(own)
    return mean.flatten(), (exact - mean).to(own).flatten(), torch.lerp(scatter, scatter.mT, 0.5).to(own)


def transform(
    x: Tensor, A: Tensor, mean: Tensor | None, correction: Tensor | None, bias: Tensor | None, transposed: bool = False
) -> Tensor:
    """A (x - mean - correction) + bias, as kernels/affine.py has it."""
    dtype = _dtype_of(x)
    A = (A.mT if transposed else A).to(dtype)
    constant = x.new_zeros(*A.shape[:2], 1, dtype=dtype)  # (groups, d, 1)
    if bias is not None:
        constant += _column(bias, A)
    if correction is not None:
        constant -= torch.bmm(A, _column(correction, A))
    y = like(x)
    source, target = Maps(x), Maps(y)
    for block in source.blocks(A.shape[-1]):
        X = gathered(source.part(block), len(A), dtype, mean)
        Y = torch.baddbmm(constant, A, X, out=torch.empty_like(X))
        _put(Y, target.part(block))
    return y


def transform_sums(g: Tensor, x: Tensor, groups: int, mean: Tensor, correction: Tensor | None) -> tuple[Tensor, Tensor]:
    """sum of g (x - mean - correction)^T, and sum of g, as kernels/affine.py has them."""
    maps, gradients, d, dtype = Maps(x), Maps(g), x.shape[1] // groups, _dtype_of(x)
    Q = torch.zeros(groups, d, d, dtype=torch.float64)
    s = torch.zeros(groups, d, dtype=torch.float64)
    for block in maps.blocks(d):
        X, G = gathered(maps.part(block), groups, dtype, mean), gathered(gradients.part(block), groups, dtype)
        Q += torch.bmm(G, X.mT)
        s += G.sum(-1)
    if correction is not None:
        Q -= s.unsqueeze(-1) * _column(correction, Q).mT
    own = statistics_dtype(x)
    return Q.to(own), s.flatten().to(own)


def combine(g: Tensor, x: Tensor, A: Tensor, S: Tensor, mean: Tensor, correction: Tensor | None, shift: Tensor) -> Tensor:
    """A^T (g - shift) + S (x - mean - correction), as kernels/affine.py has it."""
    dtype = _dtype_of(x)
    A, S = A.mT.to(dtype), S.to(dtype)
    constant = x.new_zeros(*A.shape[:2], 1, dtype=dtype)
    if correction is not None:
        constant -= torch.bmm(S, _column(correction, S))
    dx = like(x)
    maps, gradients, target = Maps(x), Maps(g), Maps(dx)
    for block in maps.blocks(A.shape[-1]):
        X = gathered(maps.part(block), len(A), dtype, mean)
        G = gathered(gradients.part(block), len(A), dtype, shift)
        Y = torch.baddbmm(constant, S, X, out=torch.empty_like(X))
        _put(Y.baddbmm_(A, G), target.part(block))
    return dx


def _dtype_of(x: Tensor) -> torch.dtype:
    """What a pass over ``x`` computes in."""
    return torch.float64 if is_reduced(x.device.type) else statistics_dtype(x)


def _column(v: Tensor, A: Tensor) -> Tensor:
    """(C,) -> (groups, d, 1) for A (groups, d, d)."""
    return v.to(A.dtype).view(*A.shape[:2], 1)


def _put(Y: Tensor, part: Tensor) -> None:
    """Columns (groups, d, n) into a view (C, images, positions)."""
    part.copy_(Y.view(part.shape))
