"""What kernels read and fill: tensors, or parts of one buffer, which cost less to make; and batches of matrices in them."""

from functools import lru_cache
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from .launcher import ALIGNED, note_scratch

_SIZE = 4  # bytes of a float32


class Part(NamedTuple):
    """Some numbers of a float32 buffer: a tensor for kernels alone, without the cost of making one."""

    buffer: Tensor
    first: int
    size: int
    address: int

    @property
    def dtype(self) -> torch.dtype:
        return self.buffer.dtype

    def data_ptr(self) -> int:
        return self.address

    def tensor(self) -> Tensor:
        return self.buffer[self.first : self.first + self.size]


Memory: TypeAlias = Tensor | Part  # contiguous, unless a kernel also takes its strides


class Matrices(NamedTuple):
    """A batch of n x n matrices, one after the other in memory."""

    batch: int  # how many
    n: int
    like: Tensor  # has their dtype and device, which must be the current device


class Eigenpairs(NamedTuple):
    """Of a batch of symmetric matrices."""

    w: Memory  # (*B, n), ascending
    V: Memory  # (*B, n, n), in columns


def contiguous(x: Tensor) -> Tensor:
    """``x`` as kernels read it: contiguous, and with the minus that torch leaves for later in views like z.conj().imag."""
    return x.resolve_neg().contiguous() if x.is_neg() else x.contiguous()


def parts(x: Tensor, *sizes: int) -> list[Part]:
    """Parts of a new buffer on the device of ``x``, each aligned; for what is not needed after a step."""
    buffer = torch.empty(_places(sizes)[1], dtype=torch.float32, device=x.device)
    note_scratch(buffer)
    return parts_of(buffer, *sizes)


def parts_of(buffer: Tensor, *sizes: int) -> list[Part]:
    """The same parts of a buffer that `parts` has made."""
    start = buffer.data_ptr()
    return [Part(buffer, first, size, start + offset) for first, size, offset in _places(sizes)[0]]


def places(*sizes: int) -> tuple[list[int], int]:
    """The first number of each part in its buffer, and how many numbers all of them take."""
    found, total = _places(sizes)
    return [first for first, _, _ in found], total


@lru_cache
def _places(sizes: tuple[int, ...]) -> tuple[tuple[tuple[int, int, int], ...], int]:
    """The first number, the size and the offset in bytes of each part, and how many numbers all of them take."""
    places, total = [], 0
    for size in sizes:
        places.append((total, size, total * _SIZE))
        total += -(-size * _SIZE // ALIGNED) * ALIGNED // _SIZE
    return tuple(places), total
