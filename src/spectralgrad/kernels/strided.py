"""Batches of matrices as they lie in memory; wide ones are taken transposed, by their strides: kernels meet tall ones."""

from ctypes import c_int, c_longlong
from typing import NamedTuple

import torch
from torch import Tensor

from .buffers import Memory
from .nvrtc import Argument

_INDEX = 2**31 - 2**10  # rows, columns and strides inside a matrix are 32-bit numbers in the kernels, a step beyond them too


class Strided(NamedTuple):
    """Matrices X (batch, m, n), m >= n, anywhere in memory."""

    memory: Memory
    batch: int
    m: int
    n: int
    matrix: int  # strides, in numbers
    row: int
    column: int

    @property
    def strides(self) -> tuple[Argument, ...]:
        return c_longlong(self.matrix), c_longlong(self.row), c_longlong(self.column)


class Vectors(NamedTuple):
    """Where singular vectors go: vector k has its entry i at i row + k column of each matrix."""

    memory: Memory
    row: int
    column: int

    @property
    def strides(self) -> tuple[Argument, ...]:
        return c_int(self.row), c_int(self.column)


class Triplets(NamedTuple):
    """Where X = L diag(S) J^T goes."""

    left: Vectors  # L (m, n)
    S: Memory  # (batch, n)
    right: Vectors  # J (n, n)


def is_indexable(A: Tensor) -> bool:
    """Whether the numbers of one matrix (m, n) of ``A`` can be counted in 32 bits."""
    return A.shape[-2] * A.shape[-1] <= _INDEX


def strided(A: Tensor) -> Strided:
    """``A`` (*B, m, n), transposed if it is wide; copied only where no strides describe its batch, or its sign."""
    A = A.resolve_neg()
    X = A if A.ndim == 3 else A.reshape(-1, *A.shape[-2:])
    if X.shape[1] < X.shape[2]:
        X = X.mT
    return Strided(X, *X.shape, *X.stride())


def triplets(A: Tensor) -> tuple[tuple[Tensor, Tensor, Tensor], Triplets]:
    """New U (*B, m, k), S (*B, k) and Vh (*B, k, n), contiguous, and where the vectors of `strided` (A) lie in them."""
    *batch, m, n = A.shape
    k = min(m, n)
    U, S, Vh = A.new_empty(*batch, m, k), A.new_empty(*batch, k), A.new_empty(*batch, k, n)
    of_U, of_V = Vectors(U, k, 1), Vectors(Vh, 1, n)
    return (U, S, Vh), Triplets(of_U, S, of_V) if m >= n else Triplets(of_V, S, of_U)


def current(device: torch.device) -> bool:
    """Whether launches go to this device."""
    return device.index == torch.cuda.current_device()
