"""V diag(f(w)) V^T and its derivative, each in one kernel; see spectral.cu.

The plain-torch twin is `linalg.functions.Spectral` with linalg/elementary.py.
"""

from ctypes import c_double, c_int
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from . import nvrtc
from .buffers import Eigenpairs, Matrices, Memory, contiguous
from .nvrtc import Argument, addresses

LARGEST = 128
MANY = 128  # matrices: about as many as a GPU has multiprocessors
_SOME_THREADS, _ALL_THREADS = 128, 1024  # of a block; as many as there are leave 64 registers for each
_ONCE = c_double(1.0)
_NOT_SCALED = (None, None)


class ScalarFunction(NamedTuple):
    """A function of eigenvalues as spectral.cu knows it.

    kind: GIVEN, SQRT, INVERSE_SQRT, POWER, LOG or EXP. border: NOTHING, TO_ZERO, TO_ROUNDING or NOT_NEGATIVE, what becomes
    of eigenvalues that are zero to rounding; a floor comes before it.
    """

    kind: str
    border: str = "NOTHING"
    alpha: float = 1.0
    floor: float | None = None


GIVEN = ScalarFunction("GIVEN")


class MatrixFunction(NamedTuple):
    """f(M) for M = V diag(w) V^T, as the kernels take it."""

    f: ScalarFunction
    pairs: Eigenpairs  # of M
    given: Memory | None = None  # where f is GIVEN: f(w) (*B, n), or for a derivative the Loewner matrix (*B, n, n)


class Scaled(NamedTuple):
    """Where the rows of a result go once more, times a weight."""

    weight: Memory | None  # (*B, n); None for 1
    out: Memory  # (*B, n, n), filled


class Shape(NamedTuple):
    """How a matrix is laid over threads; the names are those of spectral.cu."""

    N: int
    TILE: int
    THREADS: int
    shared: int  # bytes: three matrices, a vector and a number


@lru_cache(maxsize=1024)
def shape(n: int, size: int, few: bool = False) -> Shape:
    """The layout for matrices of ``n`` rows of numbers of ``size`` bytes; ``few``: they leave multiprocessors idle."""
    tile = 4 if n <= 64 else 8
    N = -(-n // tile) * tile
    most = _ALL_THREADS if few and tile == 4 and size == 4 else _SOME_THREADS
    return Shape(N, tile, threads_of(N, tile, most), (3 * N * (N + 4) + N) * size + 4)


def threads_of(N: int, tile: int, most: int = _SOME_THREADS) -> int:
    """Of a block: those that own a tile each, and up to ``most``, so that each loads a few numbers only. Whole warps."""
    owners = -(-((N // tile) ** 2) // 32) * 32
    return max(owners, min(most, -(-N * N // 64) * 32))


def defines(kind: str, border: str, floored: bool, layout: Shape, dtype: torch.dtype) -> dict[str, str | int | float]:
    """The compile-time constants of spectral.cu."""
    limits = torch.finfo(dtype)
    return {
        "REAL": nvrtc.REAL[dtype],
        "EPS": limits.eps,
        "TINY": limits.tiny * limits.eps,
        "LARGEST": limits.max,
        "N": layout.N,
        "TILE": layout.TILE,
        "THREADS": layout.THREADS,
        "KIND": kind,
        "BORDER": border,
        "FLOOR": int(floored),
    }


def runs_on(V: Tensor) -> bool:
    """Whether the kernels take eigenvectors (*B, n, n) like ``V``."""
    n = V.shape[-1]
    return nvrtc.takes(V) and fits(n, V.dtype, V.device.index)


def fits(n: int, dtype: torch.dtype, device: int) -> bool:
    """Whether three matrices of ``n`` rows fit into a block's shared memory."""
    return n <= LARGEST and shape(n, dtype.itemsize).shared <= nvrtc.shared_memory(device)


def largest(dtype: torch.dtype, device: int) -> int:
    """The largest n that `fits`."""
    return max(n for n in range(1, LARGEST + 1) if fits(n, dtype, device))


def value(
    V: Tensor, w: Tensor, function: ScalarFunction, given: Tensor | None, clamped: Tensor | None
) -> tuple[Tensor, bool]:
    """V diag(f(w)) V^T (*B, n, n), or with diag(given (*B, n)); and True: eigenvalues may lie outside the domain of f.

    Args:
        clamped: an int64 counter that gets the number of eigenvalues that were zero to rounding; None counts none.
    """
    V, w, given = contiguous(V), contiguous(w), None if given is None else contiguous(given)
    out = torch.empty_like(V)
    with nvrtc.on_device(V.device.index):
        _launch("value", function, _matrices(V), addresses(V, w, given, out, None, None, clamped))
    return out, True


def derivative(V: Tensor, w: Tensor, function: ScalarFunction, given: Tensor | None, G: Tensor) -> Tensor:
    """V (F * (V^T sym(G) V)) V^T (*B, n, n), F the Loewner matrix of the function, or given (*B, n, n)."""
    V, w, G, given = contiguous(V), contiguous(w), contiguous(G), None if given is None else contiguous(given)
    out = torch.empty_like(V)
    with nvrtc.on_device(V.device.index):
        _launch("derivative", function, _matrices(V), [*addresses(V, w, given, G, out), _ONCE])
    return out


def launch_value(
    matrices: Matrices, of: MatrixFunction, out: Memory, scaled: Scaled | None = None, clamped: Tensor | None = None
) -> None:
    """`value` into existing memory (*B, n, n); ``scaled``, unless it is None, gets it times a weight."""
    (w, V), (weight, times_weight) = of.pairs, scaled or _NOT_SCALED
    _launch("value", of.f, matrices, addresses(V, w, of.given, out, weight, times_weight, clamped))


def launch_derivative(matrices: Matrices, of: MatrixFunction, G: Memory, out: Memory, scale: float = 1.0) -> None:
    """``scale`` times `derivative` into existing memory; G and out are (*B, n, n)."""
    w, V = of.pairs
    _launch("derivative", of.f, matrices, [*addresses(V, w, of.given, G, out), c_double(scale)])


def _launch(name: str, function: ScalarFunction, matrices: Matrices, arguments: list[Argument]) -> None:
    batch, n, like = matrices
    device = like.device.index
    kernel, threads, numbers = _kernel(name, function, n, like.dtype, device, batch < MANY)
    kernel.launch(device, batch, threads, *arguments, *numbers)


def _matrices(V: Tensor) -> Matrices:
    n = V.shape[-1]
    return Matrices(V.numel() // (n * n), n, V)


@lru_cache(maxsize=1024)
def _kernel(
    name: str, function: ScalarFunction, n: int, dtype: torch.dtype, device: int, few: bool
) -> tuple[nvrtc.Kernel, int, tuple[Argument, ...]]:
    """The kernel, the threads of a matrix, and the numbers after the pointers."""
    layout = shape(n, dtype.itemsize, few)
    kernel = _compiled(name, function.kind, function.border, function.floor is not None, layout, dtype, device)
    return kernel, layout.THREADS, (c_int(n), c_double(function.alpha), c_double(function.floor or 0.0))


@lru_cache(maxsize=256)
def _compiled(
    name: str, kind: str, border: str, floored: bool, layout: Shape, dtype: torch.dtype, device: int
) -> nvrtc.Kernel:
    return nvrtc.Kernel("spectral.cu", name, defines(kind, border, floored, layout, dtype), layout.shared, device)
