"""The gradient of a matrix from those of its eigenpairs, in one kernel; see eigenpairs.cu.

In plain torch it is some seventy small operations: linalg/eigh.py and linalg/decomposition.py, the twins.
"""

from ctypes import c_int
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from . import nvrtc, spectral
from .nvrtc import addresses
from .spectral import Shape, shape


class Cotangents(NamedTuple):
    """Of eigenvalues and eigenvectors."""

    gw: Tensor | None  # (*B, n)
    gV: Tensor  # (*B, n, n)


class Limits(NamedTuple):
    """What counts as rounding; the names are those of eigenpairs.cu."""

    CLOSE: float
    NOISE: float


def runs_on(V: Tensor, *others: Tensor | None) -> bool:
    """Whether the kernel takes eigenvectors (*B, n, n) like ``V``, and autograd need not see what it does to these."""
    given = [V, *(x for x in others if x is not None)]
    return spectral.runs_on(V) and all(nvrtc.takes(x) for x in given) and not torch.is_grad_enabled()


def pullback(w: Tensor, V: Tensor, K: Tensor, of: Cotangents, limits: Limits, exponents: Tensor | None) -> Tensor:
    """V (sym(K * X) + diag(gw)) V^T (*B, n, n), X = V^T gV without the rounding of close pairs.

    Args:
        w: eigenvalues (*B, n), ascending, times 2^-exponents; K (*B, n, n) is theirs.
        exponents: (*B,), whole; None for 0.
    """
    gw, gV = of
    w, V, K, gV = w.contiguous(), V.contiguous(), K.contiguous(), gV.contiguous()
    gw = None if gw is None else gw.contiguous()
    out, n, device = torch.empty_like(V), V.shape[-1], V.device.index
    layout = shape(n, V.dtype.itemsize)
    with nvrtc.on_device(device):
        _compiled(layout, limits, V.dtype, device).launch(
            device, V.numel() // (n * n), layout.threads, *addresses(V, w, exponents, K, gw, gV, out), c_int(n)
        )
    return out


@lru_cache(maxsize=256)
def _compiled(layout: Shape, limits: Limits, dtype: torch.dtype, device: int) -> nvrtc.Kernel:
    defines = {**nvrtc.numbers(dtype), **limits._asdict(), "N": layout.N, "TILE": layout.TILE}
    return nvrtc.Kernel("eigenpairs.cu", "pullback", defines, layout.shared, device)
