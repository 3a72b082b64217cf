"""Householder's A = Q R of tall matrices, R and the reflections apart; see qr.cu for the method.

The plain-torch twin is torch.linalg.qr.
"""

from ctypes import c_int
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from . import nvrtc
from .nvrtc import addresses
from .strided import Strided, Vectors

LARGEST = 128  # columns: 32 warps of four
_REGISTERS = {4: 32, 8: 16}  # numbers of a piece that a thread holds, by their size in bytes
_TALLEST = {4: 8, 8: 4}  # of them in one column


class Shape(NamedTuple):
    """How a piece is laid over threads; the names are those of qr.cu."""

    WARPS: int
    COLUMNS: int
    STEPS: int
    shared: int  # bytes: R, two reflectors, and the order of the columns

    @property
    def height(self) -> int:
        return 32 * self.STEPS


class Reflections(NamedTuple):
    """A = Q R of a batch of matrices (m, n)."""

    X: Strided
    R: Tensor  # (batch, n, n), times 2^exponents; its columns are those of A, so it is a triangle but for their order
    exponents: Tensor  # (batch,)
    reflectors: Tensor
    taus: Tensor


@lru_cache(maxsize=1024)
def shape(m: int, n: int, size: int) -> Shape:
    """The layout for matrices (m, n) of numbers of ``size`` bytes."""
    N = -(-n // 4) * 4
    columns = 1 if N <= 16 else 2 if N <= 32 else 4
    steps = 1
    while 32 * steps < min(m, 32 * _TALLEST[size]):
        steps *= 2
    shared = (N * N + 2 * (32 * steps + 1)) * size + 2 * N * 4
    return Shape(-(-n // columns) if n <= 4 else N // columns, columns, steps, shared)


def defines(layout: Shape, dtype: torch.dtype) -> dict[str, str | int | float]:
    """The compile-time constants of qr.cu."""
    sizes = {name: getattr(layout, name) for name in ("WARPS", "COLUMNS", "STEPS")}
    return {**sizes, **nvrtc.numbers(dtype)}


def fits(n: int, dtype: torch.dtype, device: int) -> bool:
    """Whether the kernels take matrices of ``n`` columns, of any height."""
    return n <= LARGEST and shape(LARGEST, n, dtype.itemsize).shared <= nvrtc.shared_memory(device)


def factor(X: Strided, like: Tensor) -> Reflections:
    """A = Q R; a matrix with NaN or Inf gives NaN. ``like`` has the dtype and device, which must be the current device."""
    layout = shape(X.m, X.n, like.dtype.itemsize)
    pieces = -(-X.m // layout.height)
    R, exponents = like.new_empty(X.batch, X.n, X.n), like.new_empty(X.batch, dtype=torch.int32)
    reflectors, taus = like.new_empty(X.batch * X.m * X.n), like.new_empty(X.batch * pieces * X.n)
    pointers = addresses(X.memory, reflectors, taus, R, exponents)
    _launch("factor", layout, like, X.batch, *pointers, c_int(X.m), c_int(X.n), *X.strides)
    return Reflections(X, R, exponents, reflectors, taus)


def apply(by: Reflections, U: Tensor, out: Vectors) -> None:
    """Q times (U; 0), U (batch, n, n), into ``out``."""
    X = by.X
    pointers = addresses(by.reflectors, by.taus, by.exponents, U, out.memory)
    _launch("apply", shape(X.m, X.n, U.dtype.itemsize), U, X.batch, *pointers, c_int(X.m), c_int(X.n), *out.strides)


def _launch(name: str, layout: Shape, like: Tensor, batch: int, *arguments: nvrtc.Argument) -> None:
    device = like.device.index
    _compiled(name, layout, like.dtype, device).launch(device, batch, 32 * layout.WARPS, *arguments)


@lru_cache(maxsize=256)
def _compiled(name: str, layout: Shape, dtype: torch.dtype, device: int) -> nvrtc.Kernel:
    return nvrtc.Kernel("qr.cu", name, defines(layout, dtype), layout.shared, device)
