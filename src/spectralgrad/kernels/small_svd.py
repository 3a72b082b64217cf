"""Singular triplets and polar factors of matrices of at most four rows and columns, one thread a matrix; see small_svd.cu.

The plain-torch twins are torch.linalg.svd and linalg/polar.py.
"""

from ctypes import c_double, c_int, c_longlong
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from . import nvrtc
from .buffers import contiguous
from .nvrtc import addresses
from .strided import Strided, Triplets, current, strided

LARGEST = 4
_THREADS = 128  # of a block


class Polar(NamedTuple):
    """X = Q H, H = V diag(sigma) V^T; `BySVD` in linalg/polar.py says what for."""

    Q: Tensor  # (*B, m, n)
    sigma: Tensor  # (*B, n)
    V: Tensor  # (*B, n, n)


def defines(m: int, n: int, dtype: torch.dtype) -> dict[str, str | int | float]:
    """The compile-time constants of small_svd.cu."""
    limits = torch.finfo(dtype)
    # Squares are taken in double precision: for float32 a column must only keep its digits, for float64 its square.
    nothing = (limits.tiny if dtype == torch.float32 else limits.tiny**0.5) / limits.eps
    return {
        "REAL": nvrtc.REAL[dtype],
        "LARGEST": limits.max,
        "M": m,
        "N": n,
        "THREADS": _THREADS,
        "NOTHING": nothing,
        "NEGLIGIBLE": 0.5 * limits.eps * m**0.5,  # the rounding of a dot product of unit columns
    }


def fits(A: Tensor) -> bool:
    """Whether matrices (*B, m, n) are small enough."""
    return max(A.shape[-2:]) <= LARGEST


def runs_on(A: Tensor) -> bool:
    """Whether the kernels take matrices (*B, m, n) like ``A``."""
    return fits(A) and nvrtc.takes(A)


def launch_svd(X: Strided, like: Tensor, out: Triplets, nonfinite: Tensor | None, exponents: Tensor | None = None) -> None:
    """Triplets into existing memory; arguments as in `svd.launch`."""
    pointers = addresses(X.memory, exponents, out.left.memory, out.S, out.right.memory, nonfinite)
    _launch("svd", X, like, *pointers, c_longlong(X.batch), *X.strides, *out.left.strides, *out.right.strides)


def polar(A: Tensor, special: bool, eps: float, nonfinite: Tensor, not_unique: Tensor | None) -> Polar:
    """The polar factor of ``A`` (*B, m, n), m >= n, or with ``special`` the nearest rotation, and what its derivative needs.

    Args:
        eps: what rounding is relative to.
        nonfinite: an int64 counter; a matrix with NaN or Inf gives NaN and is added to it.
        not_unique: another one, for matrices with s_n, with ``special`` (s_n + s_(n-1))/2, zero to rounding.
    """
    if not current(A.device):
        with torch.cuda.device(A.device):
            return polar(A, special, eps, nonfinite, not_unique)
    *batch, m, n = A.shape
    out, X = Polar(A.new_empty(*batch, m, n), A.new_empty(*batch, n), A.new_empty(*batch, n, n)), strided(A)
    pointers = addresses(X.memory, *out, nonfinite, not_unique)
    _launch("polar", X, A, *pointers, c_longlong(X.batch), *X.strides, c_int(special), c_double(eps))
    return out


def derivative(of: Polar, E: Tensor, eps: float) -> Tensor:
    """That of Q (*B, m, n) in the direction ``E``, at any scale."""
    if not current(E.device):
        with torch.cuda.device(E.device):
            return derivative(of, E, eps)
    Q, sigma, V = map(contiguous, of)  # vmap may have repeated them
    out, X = torch.empty_like(Q), strided(E)
    pointers = addresses(Q, sigma, V, X.memory, out)
    _launch("derivative", X, E, *pointers, c_longlong(X.batch), *X.strides, c_double(eps))
    return out


def _launch(name: str, X: Strided, like: Tensor, *arguments: nvrtc.Argument) -> None:
    device = like.device.index
    kernel = _compiled(name, X.m, X.n, like.dtype, device)
    kernel.launch(device, -(-X.batch // _THREADS), _THREADS, *arguments)


@lru_cache(maxsize=256)
def _compiled(name: str, m: int, n: int, dtype: torch.dtype, device: int) -> nvrtc.Kernel:
    return nvrtc.Kernel("small_svd.cu", name, defines(m, n, dtype), 0, device)
