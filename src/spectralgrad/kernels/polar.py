"""The derivative of polar factors of square matrices in one kernel; see polar.cu, and small_svd.py for up to 4 x 4.

In plain torch it is some forty small operations: linalg/polar.py, the twin.
"""

from ctypes import c_double, c_int
from functools import lru_cache

import torch
from torch import Tensor

from . import nvrtc, spectral
from .nvrtc import addresses
from .small_svd import Polar
from .spectral import Shape

LARGEST = 128
_MATRICES = 4  # in shared memory


def runs_on(Q: Tensor) -> bool:
    """Whether the kernel takes polar factors (*B, n, n) like ``Q``."""
    return Q.shape[-1] == Q.shape[-2] <= LARGEST and nvrtc.takes(Q) and _fits(Q.shape[-1], Q.dtype, Q.device.index)


def _fits(n: int, dtype: torch.dtype, device: int) -> bool:
    return _shared(spectral.shape(n, dtype.itemsize), dtype) <= nvrtc.shared_memory(device)


def _shared(layout: Shape, dtype: torch.dtype) -> int:
    """Bytes: the matrices, a vector and two numbers."""
    return (_MATRICES * layout.N * (layout.N + 4) + layout.N) * dtype.itemsize + 8


def derivative(of: Polar, E: Tensor, eps: float) -> Tensor:
    """That of Q (*B, n, n) in the direction ``E``, at any scale; ``eps`` is what rounding is relative to."""
    Q, sigma, V, E = (x.contiguous() for x in (*of, E))
    out, n, device = torch.empty_like(Q), Q.shape[-1], Q.device.index
    layout = spectral.shape(n, Q.dtype.itemsize)
    kernel = _compiled(layout, Q.dtype, device)
    with nvrtc.on_device(device):
        pointers = addresses(Q, sigma, V, E, out)
        kernel.launch(device, Q.numel() // (n * n), layout.THREADS, *pointers, c_int(n), c_double(eps))
    return out


@lru_cache(maxsize=256)
def _compiled(layout: Shape, dtype: torch.dtype, device: int) -> nvrtc.Kernel:
    defines = {**nvrtc.numbers(dtype), "N": layout.N, "TILE": layout.TILE, "THREADS": layout.THREADS}
    return nvrtc.Kernel("polar.cu", "derivative", defines, _shared(layout, dtype), device)
