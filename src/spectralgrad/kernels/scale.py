"""The exponent of each matrix, and each times its power of two, in one launch; see scale.cu.

In plain torch that is five and ten small operations, and a derivative needs some of both: linalg/scaling.py, the twins.
"""

import math
from ctypes import c_longlong
from functools import lru_cache

import torch
from torch import Tensor

from . import nvrtc
from .buffers import contiguous
from .nvrtc import addresses

_THREADS = 256


def runs_on(x: Tensor) -> bool:
    """Whether the kernels take ``x``, and autograd need not see what they do."""
    return nvrtc.takes(x) and not (x.requires_grad and torch.is_grad_enabled()) and _is_current(x)


def takes_powers(x: Tensor, k: Tensor) -> bool:
    """Whether ``k`` has a power for each matrix of ``x``, as `shifted` reads them."""
    return k.dtype == x.dtype and k.device == x.device and x.shape[: k.ndim] == k.shape


def exponent(x: Tensor, dims: int) -> Tensor:
    """k (*B,) with |x| < 2^k for all entries in the last ``dims`` dimensions, and near it; 0 for zeros, NaN and Inf."""
    x, batch = contiguous(x), x.shape[: x.ndim - dims]
    out = x.new_empty(batch)
    _compiled("exponent", x.dtype, x.device.index).launch(
        x.device.index, out.numel(), _THREADS, *addresses(x, out), c_longlong(x.numel() // out.numel())
    )
    return out


def shifted(x: Tensor, k: Tensor) -> Tensor:
    """x 2^k, cut to the largest number; NaN where x is NaN or Inf. ``k`` (*B,) is whole."""
    x, k = contiguous(x), contiguous(k)
    out, count = torch.empty_like(x), x.numel()
    sizes = c_longlong(count // k.numel()), c_longlong(count)
    _compiled("shift", x.dtype, x.device.index).launch(
        x.device.index, -(-count // _THREADS), _THREADS, *addresses(x, k, out), *sizes
    )
    return out


def _is_current(x: Tensor) -> bool:
    return x.device.index == torch.cuda.current_device()


def defines(dtype: torch.dtype) -> dict[str, str | int | float]:
    """The compile-time constants of scale.cu."""
    limit = 2 * (math.frexp(torch.finfo(dtype).max)[1] - 1)
    return {**nvrtc.numbers(dtype), "LIMIT": limit, "THREADS": _THREADS}


@lru_cache(maxsize=64)
def _compiled(name: str, dtype: torch.dtype, device: int) -> nvrtc.Kernel:
    return nvrtc.Kernel("scale.cu", name, defines(dtype), 4, device)  # bytes: a whole number
