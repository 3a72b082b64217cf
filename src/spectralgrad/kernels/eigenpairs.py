"""The gradient of a matrix from those of its eigenpairs, in one kernel; see eigenpairs.cu.

In plain torch it is some seventy small operations: linalg/eigh.py and linalg/decomposition.py, the twins.
"""

from ctypes import c_double, c_int
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from . import nvrtc, spectral
from .buffers import contiguous
from .nvrtc import addresses
from .spectral import MANY, Shape, shape


class Cotangents(NamedTuple):
    """Of eigenvalues and eigenvectors."""

    gw: Tensor | None  # (*B, n)
    gV: Tensor  # (*B, n, n)


class Coefficients(NamedTuple):
    """A rule as eigenpairs.cu knows it: GIVEN, ANALYTIC, CLIP, EXACT, LORENTZIAN or TAYLOR, and the number that it takes."""

    kind: str
    number: float = 0.0


GIVEN = Coefficients("GIVEN")


class Rounding(NamedTuple):
    """What counts as that; the names are those of eigenpairs.cu."""

    CLOSE: float
    NOISE: float


def runs_on(V: Tensor, *others: Tensor | None) -> bool:
    """Whether the kernel takes eigenvectors (*B, n, n) like ``V``, and autograd need not see what it does to these."""
    given = [V, *(x for x in others if x is not None)]
    return spectral.runs_on(V) and all(nvrtc.takes(x) for x in given) and not torch.is_grad_enabled()


def pullback(
    pairs: tuple[Tensor, Tensor],
    of: Cotangents,
    by: Coefficients,
    given: Tensor | None,
    scale_free: bool,
    rounding: Rounding,
) -> Tensor:
    """V (sym(K * X) + diag(gw)) V^T (*B, n, n), X = V^T gV without the rounding of close pairs.

    Args:
        pairs: eigenvalues (*B, n), ascending, and eigenvectors (*B, n, n).
        given: K (*B, n, n) where ``by`` is GIVEN: of the eigenvalues, or with ``scale_free`` of those at scale 1.
        scale_free: whether K of c times the eigenvalues is K / c.
    """
    w, V, gV = map(contiguous, (*pairs, of.gV))
    gw, given = (None if x is None else contiguous(x) for x in (of.gw, given))
    out, n, device = torch.empty_like(V), V.shape[-1], V.device.index
    batch = V.numel() // (n * n)
    layout = shape(n, V.dtype.itemsize, batch < MANY)
    kernel = _compiled(by.kind, scale_free, layout, rounding, V.dtype, device)
    with nvrtc.on_device(device):
        pointers = addresses(V, w, given, gw, gV, out)
        kernel.launch(device, batch, layout.THREADS, *pointers, c_int(n), c_double(by.number))
    return out


@lru_cache(maxsize=256)
def _compiled(
    kind: str, scale_free: bool, layout: Shape, rounding: Rounding, dtype: torch.dtype, device: int
) -> nvrtc.Kernel:
    defines = {**nvrtc.numbers(dtype), **rounding._asdict(), "N": layout.N, "TILE": layout.TILE}
    defines |= {"THREADS": layout.THREADS, "KIND": kind, "SCALE_FREE": int(scale_free)}
    more = (layout.N + 1) * dtype.itemsize  # than spectral.cu: a vector and a number
    return nvrtc.Kernel("eigenpairs.cu", "pullback", defines, layout.shared + more, device)
