"""Polar factors of square matrices: their derivative in one kernel, and the step to the nearest rotation; see polar.cu.
Up to 4 x 4 there is small_svd.py.

In plain torch that is some forty small operations each: linalg/polar.py, the twin.
"""

from ctypes import c_double, c_int
from functools import lru_cache

import torch
from torch import Tensor

from . import nvrtc, spectral
from .buffers import contiguous
from .nvrtc import Argument, addresses
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
    Q, sigma, V, E = map(contiguous, (*of, E))
    out, n = torch.empty_like(Q), Q.shape[-1]
    _launch("derivative", Q, *addresses(Q, sigma, V, E, out), c_int(n), c_double(eps))
    return out


def turn(of: Polar) -> None:
    """Make the nearest orthogonal matrices the nearest rotations, in place: the last of sigma changes its sign with Q.

    All three are contiguous.
    """
    _launch("turn", of.Q, *addresses(*of), c_int(of.Q.shape[-1]))


def _launch(name: str, Q: Tensor, *arguments: Argument) -> None:
    n, device = Q.shape[-1], Q.device.index
    layout = spectral.shape(n, Q.dtype.itemsize)
    kernel = _compiled(name, layout, Q.dtype, device)
    with nvrtc.on_device(device):
        kernel.launch(device, Q.numel() // (n * n), layout.THREADS, *arguments)


@lru_cache(maxsize=256)
def _compiled(name: str, layout: Shape, dtype: torch.dtype, device: int) -> nvrtc.Kernel:
    defines = {**nvrtc.numbers(dtype), "N": layout.N, "TILE": layout.TILE, "THREADS": layout.THREADS}
    return nvrtc.Kernel("polar.cu", name, defines, _shared(layout, dtype), device)
