"""Eigenpairs of real symmetric matrices on the CPU, one matrix a lane of a vector; see eigh.h and small_eigh.h.

The plain-torch twin is torch.linalg.eigh.
"""

from ctypes import c_int, c_int64, c_void_p
from typing import NamedTuple

from torch import Tensor

from ..buffers import contiguous
from .inputs import takes
from .load import functions
from .team import WORTHWHILE, threads

_EIGH = functions("eigh", c_int, c_void_p, c_void_p, c_void_p, c_int64, c_int)
LARGEST = 128

# Bits of a status: what a kernel says of the matrices that it has seen. The names are those of table.h.
NOT_FINITE, NOT_SYMMETRIC, NOT_CONVERGED, NO_MEMORY, FAR, OUTSIDE, TIED = 1, 2, 4, 8, 16, 32, 64


class Found(NamedTuple):
    """Eigenpairs, and what was seen on the way."""

    w: Tensor  # (*B, n), ascending
    V: Tensor  # (*B, n, n), in columns in memory too, as torch.linalg.eigh leaves them
    status: int


def runs_on(M: Tensor) -> bool:
    """Whether the kernels take matrices (*B, n, n) like ``M``."""
    return M.shape[-1] <= LARGEST and takes(M, _EIGH)


def eigh(M: Tensor) -> Found:
    """Eigenvalues and eigenvectors of the symmetric part of ``M`` (*B, n, n); autograd sees nothing of it.

    A matrix with NaN or Inf gives NaN, and so does one that has not converged. The others get what they get alone.
    """
    if not M.is_contiguous() or M.is_neg():
        M = contiguous(M)
    shape, n = M.shape, M.shape[-1]
    w = M.new_empty(shape[:-1])
    V = M.new_empty_strided(shape, (*M.stride()[:-2], 1, n))  # no view: forward mode refuses those
    batch = M.numel() // (n * n)
    load = batch * work(n)
    status = _EIGH[M.dtype](n, M.data_ptr(), w.data_ptr(), V.data_ptr(), batch, 1 if load < WORTHWHILE else threads(load))
    return Found(w, V, status)


def eigvalsh(M: Tensor) -> tuple[Tensor, int]:
    """Eigenvalues alone, (*B, n), and the status."""
    if not M.is_contiguous() or M.is_neg():
        M = contiguous(M)
    n, w = M.shape[-1], M.new_empty(M.shape[:-1])
    batch = M.numel() // (n * n)
    return w, _EIGH[M.dtype](n, M.data_ptr(), w.data_ptr(), None, batch, threads(batch * work(n)))


def work(n: int) -> int:
    """Products of numbers, about."""
    return n * n * (n + 8)
