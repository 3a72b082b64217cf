"""V diag(f(w)) V^T and its derivative, each in one kernel; see spectral.cu.

The plain-torch twin is `linalg.functions.Spectral` with linalg/scalars.py.
"""

from contextlib import AbstractContextManager, nullcontext
from ctypes import c_double, c_int
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import nvrtc
from .nvrtc import address

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
    return nvrtc.takes(V) and fits(n, V.dtype, V.device.index)


def fits(n: int, dtype: torch.dtype, device: int) -> bool:
    """Whether a matrix of ``n`` rows lies in a block's shared memory three times."""
    return n <= _LARGEST and shape(n, dtype.itemsize).shared <= nvrtc.shared_memory(device)


def value(V: Tensor, w: Tensor, function: Function, given: Tensor | None, clamped: Tensor | None) -> Tensor:
    """V diag(f(w)) V^T (*B, n, n), or with diag(given (*B, n)).

    Args:
        clamped: an int64 counter that gets the number of eigenvalues that were zero to rounding; None counts none.
    """
    V, w, given = V.contiguous(), w.contiguous(), None if given is None else given.contiguous()
    out = torch.empty_like(V)
    with _device_of(V):
        launch_value(V, w, function, given, out, None, None, clamped, V.numel() // V.shape[-1] ** 2, V.shape[-1], V)
    return out


def derivative(V: Tensor, w: Tensor, function: Function, given: Tensor | None, G: Tensor) -> Tensor:
    """V (F * (V^T sym(G) V)) V^T (*B, n, n), F the Loewner matrix of the function, or given (*B, n, n)."""
    V, w, G, given = V.contiguous(), w.contiguous(), G.contiguous(), None if given is None else given.contiguous()
    out = torch.empty_like(V)
    with _device_of(V):
        launch_derivative(V, w, function, given, G, out, 1.0, V.numel() // V.shape[-1] ** 2, V.shape[-1], V)
    return out


def launch_value(
    V: Any, w: Any, function: Function, given: Any, out: Any, weight: Any, scaled: Any, clamped: Any, batch: int, n: int,
    like: Tensor,
) -> None:  # fmt: skip
    """`value` into memory that is there: contiguous, of the dtype and on the device of ``like``, which is the current one.

    ``scaled``, unless it is None, gets the rows of the result times ``weight`` (*B, n), or times 1 where that is None.
    """
    arguments = [address(x) for x in (V, w, given, out, weight, scaled, clamped)]
    _launch("value", function, batch, n, like, arguments)


def launch_derivative(
    V: Any, w: Any, function: Function, given: Any, G: Any, out: Any, scale: float, batch: int, n: int, like: Tensor
) -> None:
    """`derivative` into memory that is there; see `launch_value`."""
    arguments = [*(address(x) for x in (V, w, given, G, out)), c_double(scale)]
    _launch("derivative", function, batch, n, like, arguments)


def _launch(name: str, function: Function, batch: int, n: int, like: Tensor, arguments: list[Any]) -> None:
    device = like.device.index
    kernel, threads = _kernel(name, function.kind, function.border, function.floor is not None, n, like.dtype, device)
    kernel.launch(device, batch, threads, *arguments, c_int(n), c_double(function.alpha), c_double(function.floor or 0.0))


def _device_of(V: Tensor) -> AbstractContextManager[Any]:
    device = V.device.index
    return nullcontext() if device == torch.cuda.current_device() else torch.cuda.device(device)


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
