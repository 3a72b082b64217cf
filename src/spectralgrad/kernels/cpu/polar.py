"""Polar factors and nearest rotations on the CPU, and their derivative; see small_svd.h and polar.h.

Twin of kernels/polar.py and kernels/small_svd.py.
"""

from ctypes import c_double, c_int, c_int64, c_void_p

import torch
from torch import Tensor

from ..buffers import contiguous
from ..small_svd import Polar
from .eigh import NO_MEMORY, work
from .inputs import laid_out, takes
from .load import functions
from .team import threads

_POLAR = functions("polar", c_int, *[c_void_p] * 4, c_int64, c_int, c_int, c_int)
_DERIVATIVE = functions("polar_derivative", c_int, *[c_void_p] * 5, c_int64, c_int, c_double, c_int)
SIZES = (2, 3)
LARGEST = 128  # of the derivative


def runs_on(A: Tensor) -> bool:
    """Whether `polar` takes matrices (*B, n, n) like ``A``."""
    return A.shape[-1] in SIZES and A.shape[-2] == A.shape[-1] and takes(A, _POLAR)


def differentiates(Q: Tensor) -> bool:
    """Whether `derivative` takes polar factors (*B, n, n) like ``Q``."""
    return Q.shape[-2] == Q.shape[-1] <= LARGEST and takes(Q, _DERIVATIVE)


def polar(A: Tensor, special: bool) -> tuple[Polar, int]:
    """The polar factor of ``A`` (*B, n, n), or with ``special`` the nearest rotation, what its derivative needs, and the
    status (see eigh.py).

    A rotation has the last singular value's sign turned where that turned the factor.
    """
    n = A.shape[-1]
    A, layout = laid_out(A, 1)
    Q, sigma, V = A.new_empty(A.shape), A.new_empty(A.shape[:-1]), A.new_empty(A.shape)
    batch = A.numel() // (n * n)
    status = _POLAR[A.dtype](
        n, A.data_ptr(), Q.data_ptr(), sigma.data_ptr(), V.data_ptr(), batch, layout, special, threads(batch * work(n))
    )
    return Polar(Q, sigma, V), status


def derivative(of: Polar, E: Tensor, eps: float) -> Tensor | None:
    """That of Q (*B, n, n) in the direction ``E``, at any scale; ``eps`` is what rounding is relative to."""
    n = E.shape[-1]
    Q, of_Q = laid_out(of.Q, 1)
    V, of_V = laid_out(of.V, 4)
    E, of_E = laid_out(E, 8)
    sigma, out = contiguous(of.sigma), torch.empty_like(Q)
    batch = out.numel() // (n * n)
    status = _DERIVATIVE[E.dtype](
        n, Q.data_ptr(), sigma.data_ptr(), V.data_ptr(), E.data_ptr(), out.data_ptr(), batch, of_Q | of_V | of_E, eps,
        threads(batch * work(n)),
    )  # fmt: skip
    return None if status & NO_MEMORY else out
