"""V diag(f(w)) V^T and its derivative, each in one kernel; see spectral.cu.

The plain-torch twin is `linalg.functions.Spectral` with linalg/scalars.py.
"""

from ctypes import c_double, c_int, c_void_p
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from . import nvrtc

_LARGEST = 128


class Function(NamedTuple):
    """A function of eigenvalues as spectral.cu knows it.

    kind: GIVEN, SQRT, INVERSE_SQRT, POWER, LOG or EXP. border: NOTHING, TO_ZERO, TO_ROUNDING or NOT_NEGATIVE, what becomes
    of eigenvalues that are zero to rounding; a floor comes before it.
    """

    kind: str
    border: str = "NOTHING"
    alpha: float = 1.0
    floor: float | None = None


GIVEN = Function("GIVEN")


class Shape(NamedTuple):
    """How a matrix is laid over threads; the names are those of spectral.cu."""

    N: int
    TILE: int
    threads: int
    shared: int  # bytes: three matrices and a vector


@lru_cache(maxsize=1024)
def shape(n: int, size: int) -> Shape:
    """The layout for matrices of ``n`` rows of numbers of ``size`` bytes."""
    tile = 4 if n <= 64 else 8
    N = -(-n // tile) * tile
    return Shape(N, tile, (N // tile) ** 2, (3 * N * (N + 4) + N) * size)


def defines(kind: str, border: str, floored: bool, layout: Shape, dtype: torch.dtype) -> dict[str, str | int | float]:
    """The compile-time constants of spectral.cu."""
    limits = torch.finfo(dtype)
    return {
        "REAL": nvrtc.REAL[dtype],
        "EPS": limits.eps,
        "TINY": limits.tiny,
        "N": layout.N,
        "TILE": layout.TILE,
        "KIND": kind,
        "BORDER": border,
        "FLOOR": int(floored),
    }


def runs_on(V: Tensor) -> bool:
    """Whether the kernels take eigenvectors (*B, n, n) like ``V``."""
    n = V.shape[-1]
    return nvrtc.takes(V) and n <= _LARGEST and shape(n, V.dtype.itemsize).shared <= nvrtc.shared_memory(V.device.index)


def value(V: Tensor, w: Tensor, function: Function, given: Tensor | None, clamped: Tensor | None) -> Tensor:
    """V diag(f(w)) V^T (*B, n, n), or with diag(given (*B, n)).

    Args:
        clamped: an int64 counter that gets the number of eigenvalues that were zero to rounding; None counts none.
    """
    V, w = V.contiguous(), w.contiguous()
    out = torch.empty_like(V)
    counter = None if clamped is None else clamped.data_ptr()
    _launch("value", V, w, function, given, [c_void_p(out.data_ptr()), c_void_p(counter)])
    return out


def derivative(V: Tensor, w: Tensor, function: Function, given: Tensor | None, G: Tensor) -> Tensor:
    """V (F * (V^T sym(G) V)) V^T (*B, n, n), F the Loewner matrix of the function, or given (*B, n, n)."""
    V, w, G = V.contiguous(), w.contiguous(), G.contiguous()
    out = torch.empty_like(V)
    _launch("derivative", V, w, function, given, [c_void_p(G.data_ptr()), c_void_p(out.data_ptr())])
    return out


def _launch(name: str, V: Tensor, w: Tensor, function: Function, given: Tensor | None, pointers: list[c_void_p]) -> None:
    n, device = V.shape[-1], V.device.index
    if device != torch.cuda.current_device():
        with torch.cuda.device(device):
            return _launch(name, V, w, function, given, pointers)
    given = None if given is None else given.contiguous()
    kernel, threads = _kernel(name, function.kind, function.border, function.floor is not None, n, V.dtype, device)
    return kernel.launch(
        device,
        V.numel() // (n * n),
        threads,
        c_void_p(V.data_ptr()),
        c_void_p(w.data_ptr()),
        c_void_p(None if given is None else given.data_ptr()),
        *pointers,
        c_int(n),
        c_double(function.alpha),
        c_double(function.floor or 0.0),
    )


@lru_cache(maxsize=1024)
def _kernel(
    name: str, kind: str, border: str, floored: bool, n: int, dtype: torch.dtype, device: int
) -> tuple[nvrtc.Kernel, int]:
    layout = shape(n, dtype.itemsize)
    return _compiled(name, kind, border, floored, layout, dtype, device), layout.threads


@lru_cache(maxsize=256)
def _compiled(
    name: str, kind: str, border: str, floored: bool, layout: Shape, dtype: torch.dtype, device: int
) -> nvrtc.Kernel:
    return nvrtc.Kernel("spectral.cu", name, defines(kind, border, floored, layout, dtype), layout.shared, device)
