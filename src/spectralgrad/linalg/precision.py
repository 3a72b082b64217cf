"""Matrix products in full working precision, whatever the global flags say.

TF32, bf16 matmul modes and autocast all act on float32 products and leave float64 ones alone. So where one of them is
on, the product is taken in float64 and rounded once. No flag is touched, which keeps this thread-safe, differentiable
and capturable. What needs more digits than it was given is computed in `widest`.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from spectralgrad.context import constant_when_compiled, fp32_precision

WIDE = {torch.float32: torch.float64, torch.complex64: torch.complex128}
_BACKEND = {"cpu": "mkldnn", "cuda": "cuda"}
NOISE = 2  # times eps times the length of two columns: measured, the rounding of their products stays below it
_REDUCED = ("tf32", "bf16")


@constant_when_compiled
def is_reduced(device_type: str) -> bool:
    """Whether a float32 product on this kind of device would now be taken in fewer bits than float32 has."""
    if device_type == "meta":
        return False
    if torch.is_autocast_enabled(device_type):
        return True
    backend = _BACKEND.get(device_type)
    if backend is None:
        return False
    # A setting of "none" defers to the next one: for products, for the backend, for all backends.
    for level in ((backend, "matmul"), (backend, "all"), ("generic", "all")):
        precision = fp32_precision(*level)
        if precision != "none":
            return precision in _REDUCED
    return False


@constant_when_compiled
def has_float64(device_type: str, index: int | None) -> bool:
    """Whether a device has float64: not mps, nor every Intel GPU."""
    if device_type == "xpu":
        return bool(torch.xpu.get_device_properties(index).has_fp64)
    return device_type != "mps"


def widest(x: Tensor) -> torch.dtype:
    """float64, or complex128 for a complex ``x``; on a device that has neither float32, or complex64.

    >>> widest(torch.zeros(2)), widest(torch.zeros(2, dtype=torch.complex64))
    (torch.float64, torch.complex128)
    """
    if has_float64(x.device.type, x.device.index):
        return torch.complex128 if x.is_complex() else torch.float64
    return torch.complex64 if x.is_complex() else torch.float32


def in_widest(x: Tensor) -> Tensor:
    """``x`` in the `widest` dtype of its device."""
    return x.to(widest(x))


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` with the full accuracy of its dtype.

    >>> a = torch.eye(2)
    >>> with torch.autocast("cpu", dtype=torch.bfloat16):
    ...     matmul(a, a).dtype
    torch.float32
    """
    return _in_full(_product, a, b)


def sandwich(left: Tensor, middle: Tensor) -> Tensor:
    """``left @ middle @ left^H``."""
    return _in_full(_sandwich, left, middle)


def in_basis(V: Tensor, E: Tensor) -> Tensor:
    """The Hermitian part of ``V^H E V``."""
    return _in_full(_in_basis, V, E)


def _in_full(products: Callable[[Tensor, Tensor], Tensor], a: Tensor, b: Tensor) -> Tensor:
    """Products of a and b with the full accuracy of their dtype: the flags are read once for all of them."""
    if a.dtype not in WIDE or not is_reduced(a.device.type):
        return products(a, b)
    wide = widest(a)
    if wide == a.dtype:  # no float64 there: then it was autocast
        with torch.autocast(a.device.type, enabled=False):
            return products(a, b)
    return products(a.to(wide), b.to(wide)).to(a.dtype)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """torch.matmul without the 7 us it takes to find out that two batches of one shape need no broadcasting."""
    if a.ndim == b.ndim == 3 and a.shape[0] == b.shape[0]:
        return torch.bmm(a, b)
    return torch.matmul(a, b)


def _sandwich(left: Tensor, middle: Tensor) -> Tensor:
    return _product(_product(left, middle), left.mH)


def _in_basis(V: Tensor, E: Tensor) -> Tensor:
    return hermitian_part(_product(V.mH, _product(E, V)))


def hermitian_part(x: Tensor) -> Tensor:
    """``(x + x^H) / 2`` in one pass, without overflow for entries near the largest number."""
    return torch.lerp(x, x.mH, 0.5)


def exactly_hermitian(x: Tensor) -> Tensor:
    """``x`` (*B, n, n), Hermitian but for rounding, so to the last bit: `hermitian_part` rounds either side by itself."""
    half = 0.5 * x
    return half + half.mH


def rounding_of(*columns: Tensor) -> Tensor:
    """What rounding may leave in entry (i, j) of the skew part of U^H X, U unitary: eps (|x_i| + |x_j|) (*B, n, n), summed
    over the given X (*B, m, n)."""
    size = sum(torch.linalg.vector_norm(x, dim=-2) for x in columns)
    assert isinstance(size, Tensor)
    return NOISE * torch.finfo(size.dtype).eps * (size.unsqueeze(-1) + size.unsqueeze(-2))
