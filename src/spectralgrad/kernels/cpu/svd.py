"""Singular triplets of real matrices on the CPU, one matrix a lane of a vector; see svd.h and small_svd.h.

The plain-torch twin is torch.linalg.svd.
"""

from ctypes import c_int, c_int64, c_void_p
from typing import NamedTuple

from torch import Tensor

from .inputs import laid_out, takes
from .load import functions
from .team import threads

_SVD = functions("svd", c_int, c_int, *[c_void_p] * 4, c_int64, c_int, c_int)
LARGEST, LONGEST = 128, 512  # of the smaller and the larger of both dimensions


class Found(NamedTuple):
    """Singular triplets, and what was seen on the way: the bits of eigh.py."""

    U: Tensor  # (*B, m, k), k = min(m, n)
    S: Tensor  # (*B, k), descending
    Vh: Tensor  # (*B, k, n)
    status: int


def runs_on(A: Tensor) -> bool:
    """Whether the kernels take matrices (*B, m, n) like ``A``."""
    m, n = A.shape[-2:]
    return min(m, n) <= LARGEST and max(m, n) <= LONGEST and takes(A, _SVD)


def svd(A: Tensor) -> Found:
    """U, S, Vh of A = U diag(S) Vh, reduced; autograd sees nothing of it.

    A matrix with NaN or Inf gives NaN, and so does one that has not converged. The others get what they get alone.
    """
    *batch, m, n = A.shape
    wide = m < n
    if wide:
        A, m, n = A.mT, n, m
    A, layout = laid_out(A, 1)
    Ut, S, Vt = A.new_empty(*batch, n, m), A.new_empty(*batch, n), A.new_empty(*batch, n, n)
    count = A.numel() // (m * n)
    status = _SVD[A.dtype](
        m, n, A.data_ptr(), Ut.data_ptr(), S.data_ptr(), Vt.data_ptr(), count, layout, threads(count * m * n * (n + 8))
    )
    return Found(Vt.mT, S, Ut, status) if wide else Found(Ut.mT, S, Vt, status)
