"""The papers' power iterations, each way in one kernel; see power.cu and power_series.cu.

The plain-torch twins are linalg/power/iteration.py (`quotients`, `pullback`) and linalg/power/deflation.py (`iterate`,
`retrace`).
"""

from ctypes import c_int
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from . import nvrtc
from .buffers import contiguous
from .nvrtc import Argument, addresses
from .spectral import threads_of

LARGEST = {torch.float32: 128, torch.float64: 64}  # a matrix and its gradient fill the registers of a block
_TEAM, _RING, _BEHIND, _APART = 4, 8, 4, 8  # as in power.cu; numbers behind a row, and between those read by columns


class Shape(NamedTuple):
    """How a matrix is laid over threads; ``tile`` is 0 where rows belong to teams (power.cu)."""

    N: int
    tile: int
    threads: int
    shared: int  # bytes


class Kept(NamedTuple):
    """What the gradient of `iterate` needs."""

    rank: Tensor  # int32 (*B, n): the place of each vector in the ascending order
    size: Tensor  # (*B,): what the matrix was divided by
    rows: Tensor | None  # every iterate, see power.cu; None where no gradient is asked for


def _rows(n: int) -> int:
    multiple = 16 if n <= 64 else 32
    return -(-n // multiple) * multiple


@lru_cache(maxsize=1024)
def shape(name: str, n: int, size: int) -> Shape:
    """The layout of a kernel for matrices of ``n`` rows of numbers of ``size`` bytes."""
    if name == "pullback":
        tile = 4 if n <= 64 else 8
        N = -(-n // tile) * tile
        return Shape(N, tile, threads_of(N, tile), (3 * N * (N + 4) + 2 * N) * size)
    N = _rows(n)
    row, warps = N + _BEHIND, N * _TEAM // 32
    numbers = {
        "quotients": N * row + 2 * N,
        "iterate": N * N + 3 * N + warps,
        "retrace": _RING * row + 3 * N + N * (N + _APART),
    }[name]
    return Shape(N, 0, N * _TEAM, numbers * size + 4 * N)  # and places


def defines(layout: Shape, two_sided: bool, dtype: torch.dtype) -> nvrtc.Defines:
    """The compile-time constants of power.cu, or with a tile those of power_series.cu."""
    limits = torch.finfo(dtype)
    both: dict[str, str | int | float] = {"REAL": nvrtc.REAL[dtype], "N": layout.N, "TWO_SIDED": int(two_sided)}
    more = {"TILE": layout.tile, "THREADS": layout.threads, "EPS": limits.eps, "TINY": limits.tiny}
    return {**both, **more} if layout.tile else both


def runs_on(M: Tensor) -> bool:
    """Whether the kernels take matrices (*B, n, n) like ``M``."""
    return nvrtc.takes(M) and 0 < M.shape[-1] <= LARGEST[M.dtype]


def quotients(M: Tensor, V: Tensor, two_sided: bool) -> Tensor:
    """Rayleigh quotients (*B, n) of ``M``, deflated by the eigenvectors ``V`` (*B, n, n) from the last to the first."""
    M, V = contiguous(M), contiguous(V)
    out = M.new_empty(M.shape[:-1])
    _launch("quotients", M, two_sided, addresses(M, V, out), ())
    return out


def pullback(
    w: Tensor, V: Tensor, kept: Tensor, gw: Tensor | None, gV: Tensor | None, steps: int, two_sided: bool
) -> Tensor:
    """The gradient of M (*B, n, n) by NIPS19 Alg. 1; w, kept, gw (*B, n) and V, gV (*B, n, n) ascending."""
    w, V, kept = contiguous(w), contiguous(V), kept.contiguous()
    gw, gV = (None if g is None else contiguous(g) for g in (gw, gV))
    out = torch.empty_like(V)
    _launch("pullback", V, two_sided, addresses(V, w, kept, gw, gV, out), (steps,))
    return out


def iterate(H: Tensor, start: Tensor, steps: int, keep: bool) -> tuple[Tensor, Tensor, Kept]:
    """Power iterations with deflation of ``H`` (*B, n, n) from the columns of ``start`` (*B, n, n).

    Args:
        keep: whether `retrace` will be asked for the gradient.

    Returns:
        w (*B, n), ascending, V (*B, n, n), and what `retrace` needs.
    """
    H, start, n = contiguous(H), contiguous(start), H.shape[-1]
    w, V = H.new_empty(H.shape[:-1]), torch.empty_like(H)
    rank = torch.empty(H.shape[:-1], dtype=torch.int32, device=H.device)
    rows = H.new_empty(*H.shape[:-1], steps + 2, _rows(n) + _BEHIND) if keep else None
    kept = Kept(rank, H.new_empty(H.shape[:-2]), rows)
    _launch("iterate", H, False, addresses(H, start, w, V, *kept), (steps,))
    return w, V, kept


def retrace(H: Tensor, kept: Kept, gw: Tensor, gV: Tensor, steps: int) -> Tensor:
    """The gradient of ``H`` (*B, n, n) through the iterations that were kept."""
    H, gw, gV = contiguous(H), contiguous(gw), contiguous(gV)
    out = torch.empty_like(H)
    _launch("retrace", H, False, addresses(H, *kept, gw, gV, out), (steps,))
    return out


def _launch(name: str, M: Tensor, two_sided: bool, pointers: list[Argument], numbers: tuple[int, ...]) -> None:
    n, device = M.shape[-1], M.device.index
    with nvrtc.on_device(device):
        kernel, threads = _kernel(name, n, two_sided, M.dtype, device)
        kernel.launch(device, M.numel() // (n * n), threads, *pointers, *map(c_int, (n, *numbers)))


@lru_cache(maxsize=1024)
def _kernel(name: str, n: int, two_sided: bool, dtype: torch.dtype, device: int) -> tuple[nvrtc.Kernel, int]:
    """The kernel and the threads of a matrix."""
    layout = shape(name, n, dtype.itemsize)
    return _compiled(name, layout, two_sided, dtype, device), layout.threads


@lru_cache(maxsize=256)
def _compiled(name: str, layout: Shape, two_sided: bool, dtype: torch.dtype, device: int) -> nvrtc.Kernel:
    file = "power_series.cu" if layout.tile else "power.cu"
    return nvrtc.Kernel(file, name, defines(layout, two_sided, dtype), layout.shared, device)
