"""Singular triplets of real matrices in kernels that never make the host wait.

Three ways, by size: up to 4 x 4 one thread a matrix (small_svd.cu); up to 32 x 32, and where there are more columns than the
next way takes, one-sided Jacobi on the matrix (svd.cu); else Householder's A = Q R (qr.cu), Jacobi on R^T, whose columns are
closer to orthogonal than those of A, and Q times the vectors of R.

The plain-torch twin is torch.linalg.svd.
"""

from ctypes import c_int, c_longlong
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from . import nvrtc, qr, small_svd
from .jacobi import power_of_two, team_of
from .nvrtc import addresses
from .strided import Strided, Triplets, Vectors, current, is_indexable, strided, triplets

LARGEST = 512  # rows and columns without a triangle: all of it comes from the cache of the second level
_THREADS = 512  # of a block: with more of them registers would not do for four rows
_DIRECT = 32  # rows and columns up to which a triangle first saves nothing
_REGISTERS = {4: 16, 8: 8}  # numbers of a row that a thread holds, by their size in bytes
_MANY, _FEW = 2048, 512  # matrices: all threads of a GPU are taken, or few of them


class Shape(NamedTuple):
    """How a matrix is laid over threads; the names are those of svd.cu."""

    M: int
    N: int
    LANES: int
    TEAM: int
    MATRICES: int
    IN_GLOBAL: int
    outside: int  # numbers of a matrix in global memory
    shared: int  # bytes for a block


def lanes_for(m: int, size: int, batch: int) -> int:
    """Threads that turn a pair of rows of ``m`` numbers of ``size`` bytes; a power of two.

    Lanes shorten a round. Where there are so many matrices that all threads are taken, rounds need not be short but should
    cost few instructions, and short rows are better off with one lane.
    """
    vector = 16 // size
    chunks = -(-m // 4) * 4 // vector
    if size == 4 and 12 < m <= 32 and batch >= _MANY:
        return 1
    if size == 4 and 12 < m <= 16 and batch <= _FEW:
        return 8
    lanes = min(8, power_of_two(chunks))
    while lanes < 32 and -(-chunks // lanes) * vector > _REGISTERS[size]:
        lanes *= 2
    return lanes


@lru_cache(maxsize=1024)
def shape(m: int, n: int, size: int, shared_memory: int, lanes: int) -> Shape:
    """The layout for matrices (m, n), m >= n, of numbers of ``size`` bytes."""
    vector = 16 // size
    M, N = (-(-x // 4) * 4 for x in (m, n))
    team = team_of(lanes, N // 2, _THREADS)
    matrices = max(1, 64 // team) if team <= 32 else 1
    rows, turns = N * (M + vector), N * (N + vector)
    small = (4 * N + M) * size + 4 * N  # lengths, units, a vector, the order
    places = enumerate(((0, rows + turns), (turns, rows), (rows + turns, 0)))  # numbers outside and in shared memory
    bytes_of = [(place, outside, matrices * (inside * size + small)) for place, (outside, inside) in places]
    in_global, outside, shared = next((each for each in bytes_of if each[2] <= shared_memory), bytes_of[-1])
    return Shape(M, N, lanes, team, matrices, in_global, outside, shared)


def defines(layout: Shape, dtype: torch.dtype) -> dict[str, str | int | float]:
    """The compile-time constants of svd.cu."""
    return {
        **{name: getattr(layout, name) for name in ("M", "N", "LANES", "TEAM", "MATRICES", "IN_GLOBAL")},
        **nvrtc.numbers(dtype),
        "NEGLIGIBLE": 0.5 * torch.finfo(dtype).eps * layout.M**0.5,  # the rounding of a dot product of unit rows
    }


def runs_on(A: Tensor) -> bool:
    """Whether the kernels take matrices (*B, m, n) like ``A``."""
    return nvrtc.takes(A) and is_indexable(A) and (_is_direct(A) or _by_triangle(A))


def _is_direct(A: Tensor) -> bool:
    return max(A.shape[-2:]) <= LARGEST


def _by_triangle(A: Tensor) -> bool:
    return max(A.shape[-2:]) > _DIRECT and qr.fits(min(A.shape[-2:]), A.dtype, A.device.index)


def svd(A: Tensor, nonfinite: Tensor, sweeps: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """U (*B, m, k), S (*B, k), descending, and Vh (*B, k, n) of ``A`` (*B, m, n), k = min(m, n), all contiguous.

    The host never waits for the device, and the same input gives the same bits.

    Args:
        nonfinite: an int64 counter; a matrix with NaN or Inf gives NaN and is added to it.
        sweeps: int32 (*B,), gets how many sweeps each matrix took; not from 4 x 4 and smaller ones.
    """
    if not current(A.device):
        with torch.cuda.device(A.device):
            return svd(A, nonfinite, sweeps)
    X = strided(A)
    factors, out = triplets(A)
    if not _by_triangle(A):
        launch(X, A, out, nonfinite, sweeps=sweeps)
        return factors
    by = qr.factor(X, A)
    # R^T = L diag(S) J^T: J are the left vectors of R, and L its right ones, which are those of A.
    U = torch.empty_like(by.R)
    transposed = Strided(by.R, X.batch, X.n, X.n, X.n * X.n, 1, X.n)
    launch(transposed, A, Triplets(out.right, out.S, Vectors(U, X.n, 1)), nonfinite, by.exponents, sweeps)
    qr.apply(by, U, out.left)
    return factors


def launch(
    X: Strided,
    like: Tensor,
    out: Triplets,
    nonfinite: Tensor | None,
    exponents: Tensor | None = None,
    sweeps: Tensor | None = None,
) -> None:
    """Jacobi into existing memory.

    Args:
        like: has the dtype and device, which must be the current device.
        exponents: int32 (batch,), powers of two that each matrix has been divided by.
    """
    if X.m <= small_svd.LARGEST:
        small_svd.launch_svd(X, like, out, nonfinite, exponents)
        return
    device = like.device.index
    kernel, layout = _kernel(X.m, X.n, like.dtype, device, X.batch)
    blocks = -(-X.batch // layout.MATRICES)
    workspace = like.new_empty(blocks * layout.MATRICES * layout.outside) if layout.outside else None
    pointers = addresses(X.memory, exponents, out.left.memory, out.S, out.right.memory, workspace, nonfinite, sweeps)
    sizes = c_longlong(X.batch), c_int(X.m), c_int(X.n)
    strides = *X.strides, *out.left.strides, *out.right.strides
    kernel.launch(device, blocks, layout.TEAM * layout.MATRICES, *pointers, *sizes, *strides)


@lru_cache(maxsize=1024)
def _kernel(m: int, n: int, dtype: torch.dtype, device: int, batch: int) -> tuple[nvrtc.Kernel, Shape]:
    lanes = lanes_for(m, dtype.itemsize, batch)
    layout = shape(m, n, dtype.itemsize, nvrtc.shared_memory(device), lanes)
    return _compiled(layout, dtype, device), layout


@lru_cache(maxsize=256)
def _compiled(layout: Shape, dtype: torch.dtype, device: int) -> nvrtc.Kernel:
    return nvrtc.Kernel("svd.cu", "svd", defines(layout, dtype), layout.shared, device)
