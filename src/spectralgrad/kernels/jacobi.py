"""Eigenpairs of real symmetric matrices in one kernel; see jacobi.cu for the method, jacobi_cluster.cu for few matrices.

The plain-torch twin is the solver in linalg/solvers/jacobi.py.
"""

from ctypes import c_int, c_longlong
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from . import nvrtc
from .buffers import Eigenpairs, Matrices, Memory, contiguous
from .nvrtc import Argument, addresses

_CHUNK = 16  # bytes that a thread moves at a time
_BANKS = 128  # bytes that shared memory gives at a time
LARGEST = 512  # beyond shared memory rows come from the cache of the second level


class Problem(NamedTuple):
    """Matrices to decompose."""

    M: Memory  # (*B, n, n); its symmetric part counts
    start: Memory | None = None  # (*B, n, n), a guess of the eigenvectors; see `eigh`


class Division(NamedTuple):
    """How the rows of a matrix are shared out; the names are those of jacobi.cu."""

    PLAYER: int  # rows that take part in the tournament together
    LANES: int  # threads that hold the rows of two players; a power of two
    CLUSTER: int = 1  # blocks of a matrix
    threads: int = 0  # of a block, at least: more than the tournament takes share the rest of the work


class Shape(NamedTuple):
    """How a matrix is laid over threads and memory; the names are those of jacobi.cu and jacobi_cluster.cu."""

    N: int
    PLAYER: int
    LANES: int
    TEAM: int
    MATRICES: int
    PAD: int
    WARM: int
    IN_GLOBAL: int
    CLUSTER: int
    matrix: int  # numbers that a matrix takes, with its starting basis
    shared: int  # bytes for a block


# The fastest on an H200 of all divisions that fit into registers, for n up to the number in front. Where a GPU has threads
# to spare, lanes shorten a round; where many matrices take all of them, few instructions and little traffic count.
_FEW = {
    4: ((4, Division(1, 1)), (8, Division(1, 2)), (16, Division(1, 4)), (32, Division(1, 8)), (112, Division(2, 8)),
        (128, Division(4, 8)), (160, Division(2, 8)), (208, Division(4, 16))),
    8: ((4, Division(1, 2)), (8, Division(1, 4)), (48, Division(1, 8)), (112, Division(2, 8))),
}  # fmt: skip
_MANY = {
    4: ((4, Division(1, 1)), (28, Division(2, 2)), (64, Division(4, 4))),
    8: ((16, Division(2, 2)), (64, Division(2, 4))),
}
_MANY_MATRICES = 2048
_LARGE = Division(2, 32)
# Clusters of blocks, for n from the first to the second number, where the batch leaves so many multiprocessors idle. Up to
# n = 64 one block is as fast.
_CLUSTERS = {4: (65, 128, Division(2, 16, 4, 256)), 8: (65, 128, Division(2, 32, 4, 256))}


def division(n: int, size: int, batch: int, idle: int = 0) -> Division:
    """For a batch of matrices of ``n`` rows of numbers of ``size`` bytes.

    Args:
        idle: multiprocessors that clusters of blocks may take.
    """
    least, largest, cluster = _CLUSTERS[size]
    if least <= n <= largest and batch * cluster.CLUSTER <= idle:
        return cluster
    tables = (_MANY, _FEW) if batch >= _MANY_MATRICES else (_FEW,)
    return next((found for table in tables for largest, found in table[size] if n <= largest), _LARGE)


def team_of(lanes: int, tables: int, most: int = 1024) -> int:
    """Threads of a matrix: enough for all tables of a round, but not more than ``most``."""
    threads = lanes * tables
    return power_of_two(threads) if threads <= 32 else min(most, -(-threads // 32) * 32)


@lru_cache(maxsize=1024)
def shape(n: int, size: int, shared_memory: int, division: Division, warm: bool = False) -> Shape:
    """The layout for matrices of ``n`` rows of numbers of ``size`` bytes, with a starting basis or without."""
    player, lanes, cluster, threads = division
    N = _rows(n, player * cluster)
    team = max(threads, team_of(lanes, N // (2 * player * cluster)))
    matrices = max(1, 64 // team) if team <= 32 and cluster == 1 else 1
    pad = _pad(N, size, division)
    matrix = (1 + warm) * N * (N + pad)
    vectors = 2 if cluster == 1 else 3  # lengths and values, what other blocks found
    small = matrices * N * (vectors * size + 2 * 4)  # and order and source
    shared = matrices * matrix * size + small
    in_global = int(shared > shared_memory)
    inside = small if in_global else shared
    return Shape(N, player, lanes, team, matrices, pad, int(warm), in_global, cluster, matrix, inside)


def _rows(n: int, players: int) -> int:
    """``n`` rounded up, to a whole number of 16 bytes and an even number of players in every block."""
    multiple = max(4, 2 * players)
    return max(multiple, -(-n // multiple) * multiple)


def _pad(N: int, size: int, division: Division) -> int:
    """Numbers between two rows. Eight threads read at once: where fewer lanes than that hold a row, the rows of neighbouring
    players should lie in different banks."""
    player, lanes = division[:2]
    vector, at_once = _CHUNK // size, lanes * _CHUNK
    pads = range(vector, N // 4 + 1, vector) if at_once < _BANKS else ()
    return next((pad for pad in pads if player * (N + pad) * size % _BANKS == at_once), vector)


def defines(layout: Shape, dtype: torch.dtype) -> dict[str, str | int | float]:
    """The compile-time constants of jacobi.cu and jacobi_cluster.cu."""
    return {
        **{name: getattr(layout, name) for name in layout._fields[: layout._fields.index("matrix")]},
        **nvrtc.numbers(dtype),
        "NEGLIGIBLE": 0.5 * torch.finfo(dtype).eps * layout.N**0.5,  # the rounding of a dot product of unit rows
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
    M, start = contiguous(M), None if start is None else contiguous(start)
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
    size, memory = dtype.itemsize, nvrtc.shared_memory(device)
    layout = shape(n, size, memory, division(n, size, batch, 0 if warm else nvrtc.for_clusters(device)), warm)
    if layout.IN_GLOBAL and layout.CLUSTER > 1:  # too little shared memory for what the table was made for
        layout = shape(n, size, memory, division(n, size, batch), warm)
    blocks = -(-batch // layout.MATRICES) * layout.CLUSTER
    workspace = blocks * layout.MATRICES * layout.matrix if layout.IN_GLOBAL else 0
    numbers = c_longlong(batch), c_int(n)
    return _compiled(layout, dtype, device), Grid(blocks, layout.TEAM * layout.MATRICES, workspace, numbers)


@lru_cache(maxsize=256)
def _compiled(layout: Shape, dtype: torch.dtype, device: int) -> nvrtc.Kernel:
    file = "jacobi.cu" if layout.CLUSTER == 1 else "jacobi_cluster.cu"
    return nvrtc.Kernel(file, "eigh", defines(layout, dtype), layout.shared, device)


def power_of_two(x: int) -> int:
    """The smallest that is not below ``x``."""
    return 1 << max(x - 1, 0).bit_length()
