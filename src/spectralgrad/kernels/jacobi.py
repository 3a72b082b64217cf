"""Eigenpairs of real symmetric matrices in one kernel; see jacobi.cu for the method.

The plain-torch twin is the solver in linalg/solvers/jacobi.py.
"""

from ctypes import c_int, c_longlong
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from . import nvrtc
from .buffers import Eigenpairs, Matrices, Memory
from .nvrtc import Argument, addresses

_REGISTERS = {4: 16, 8: 8}  # numbers of a row that a thread holds, by their size in bytes
_MANY, _FEW = 2048, 512  # matrices: all threads of a GPU are taken, or few of them
LARGEST = 512  # beyond shared memory rows come from the cache of the second level


class Problem(NamedTuple):
    """Matrices to decompose."""

    M: Memory  # (*B, n, n); its symmetric part counts
    start: Memory | None = None  # (*B, n, n), a guess of the eigenvectors; see `eigh`


class Shape(NamedTuple):
    """How a matrix is laid over threads; the names are those of jacobi.cu."""

    N: int
    LANES: int
    TEAM: int
    MATRICES: int
    WARM: int
    IN_GLOBAL: int
    matrix: int  # numbers that a matrix takes, with its starting basis
    shared: int  # bytes for a block


def lanes_for(n: int, size: int, batch: int) -> int:
    """Threads that turn a pair of rows of ``n`` numbers of ``size`` bytes; a power of two.

    Lanes shorten a round. Where there are so many matrices that all threads are taken, rounds need not be short but should
    cost few instructions, and short rows are better off with one lane. Measured on an H200, in float32, ms: n = 32, one lane
    and eight, 4096 matrices 0.41 and 0.59, 1024 0.19 and 0.18, 256 0.18 and 0.09; n = 16, one, four and eight lanes, 4096
    matrices 0.084, 0.099 and 0.154, 256 0.062, 0.048 and 0.042.
    """
    vector = 16 // size
    chunks = -(-n // 4) * 4 // vector
    if size == 4 and 12 < n <= 32 and batch >= _MANY:
        return 1
    if size == 4 and 12 < n <= 16 and batch <= _FEW:
        return 8
    lanes = min(8, _power_of_two(chunks))
    while lanes < 32 and -(-chunks // lanes) * vector > _REGISTERS[size]:
        lanes *= 2
    return lanes


def team_of(lanes: int, N: int, most: int = 1024) -> int:
    """Threads of a matrix of ``N`` rows: enough for all pairs of a round, but not more than ``most``."""
    threads = lanes * N // 2
    return _power_of_two(threads) if threads <= 32 else min(most, -(-threads // 32) * 32)


@lru_cache(maxsize=1024)
def shape(n: int, size: int, shared_memory: int, lanes: int, warm: bool = False) -> Shape:
    """The layout for matrices of ``n`` rows of numbers of ``size`` bytes, with a starting basis or without."""
    vector = 16 // size
    N = max(4, -(-n // 4) * 4)
    team = team_of(lanes, N)
    matrices = max(1, 64 // team) if team <= 32 else 1
    matrix = (1 + warm) * N * (N + vector)
    small = matrices * (2 * N * size + 2 * N * 4)  # lengths and values, order and source
    shared = matrices * matrix * size + small
    in_global = shared > shared_memory
    return Shape(N, lanes, team, matrices, int(warm), int(in_global), matrix, small if in_global else shared)


def defines(layout: Shape, dtype: torch.dtype) -> dict[str, str | int | float]:
    """The compile-time constants of jacobi.cu."""
    limits = torch.finfo(dtype)
    return {
        **{name: getattr(layout, name) for name in ("N", "LANES", "TEAM", "MATRICES", "WARM", "IN_GLOBAL")},
        "REAL": nvrtc.REAL[dtype],
        "EPS": limits.eps,
        "LARGEST": limits.max,
        "TINY": limits.tiny,
        "NEGLIGIBLE": 0.5 * limits.eps * layout.N**0.5,  # the rounding of a dot product of unit rows
    }


def runs_on(H: Tensor) -> bool:
    """Whether the kernel takes matrices (*B, n, n) like ``H``."""
    return nvrtc.takes(H) and 0 < H.shape[-1] <= LARGEST


def eigh(M: Tensor, nonfinite: Tensor, start: Tensor | None = None, sweeps: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Eigenvalues (*B, n), ascending, and eigenvectors (*B, n, n) of the symmetric part of ``M`` (*B, n, n).

    The host never waits for the device.

    Args:
        nonfinite: an int64 counter; a matrix with NaN or Inf gives NaN and is added to it.
        start: (*B, n, n), a guess of the eigenvectors in ascending order. Where its columns are not orthonormal to half the
            digits it is not used.
        sweeps: int32 (*B,), gets how many sweeps each matrix took.
    """
    n, device = M.shape[-1], M.device.index
    if device != torch.cuda.current_device():
        with torch.cuda.device(device):
            return eigh(M, nonfinite, start, sweeps)
    M = M.contiguous()
    start = None if start is None else start.contiguous()
    w, V = M.new_empty(M.shape[:-1]), torch.empty_like(M)
    launch(Matrices(M.numel() // (n * n), n, M), Problem(M, start), Eigenpairs(w, V), nonfinite, sweeps)
    return w, V


def launch(matrices: Matrices, problem: Problem, out: Eigenpairs, nonfinite: Tensor, sweeps: Tensor | None = None) -> None:
    """`eigh` into memory that exists already."""
    batch, n, like = matrices
    (M, start), (w, V), device = problem, out, like.device.index
    kernel, grid = _kernel(n, like.dtype, device, batch, start is not None)
    workspace = like.new_empty(grid.workspace) if grid.workspace else None
    pointers = addresses(M, start, w, V, workspace, nonfinite, sweeps)
    kernel.launch(device, grid.blocks, grid.threads, *pointers, *grid.numbers)


class Grid(NamedTuple):
    """What a batch takes."""

    blocks: int
    threads: int  # of a block
    workspace: int  # numbers in global memory
    numbers: tuple[Argument, ...]  # what the kernel gets after the pointers


@lru_cache(maxsize=1024)
def _kernel(n: int, dtype: torch.dtype, device: int, batch: int, warm: bool) -> tuple[nvrtc.Kernel, Grid]:
    layout = shape(n, dtype.itemsize, nvrtc.shared_memory(device), lanes_for(n, dtype.itemsize, batch), warm)
    blocks = -(-batch // layout.MATRICES)
    workspace = blocks * layout.MATRICES * layout.matrix if layout.IN_GLOBAL else 0
    numbers = c_longlong(batch), c_int(n)
    return _compiled(layout, dtype, device), Grid(blocks, layout.TEAM * layout.MATRICES, workspace, numbers)


@lru_cache(maxsize=256)
def _compiled(layout: Shape, dtype: torch.dtype, device: int) -> nvrtc.Kernel:
    return nvrtc.Kernel("jacobi.cu", "eigh", defines(layout, dtype), layout.shared, device)


def _power_of_two(x: int) -> int:
    return 1 << max(x - 1, 0).bit_length()
