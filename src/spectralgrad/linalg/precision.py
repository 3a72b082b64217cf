"""Matrix products in full working precision, whatever the global flags say.

TF32, bf16 matmul modes and autocast all act on float32 products and leave float64 ones alone. So where one of them is
on, the product is taken in float64 and rounded once. No flag is touched, which keeps this thread-safe, differentiable
and capturable.
"""

import torch
from torch import Tensor

_WIDE = {torch.float32: torch.float64, torch.complex64: torch.complex128}
_FLAGS = {"cpu": torch.backends.mkldnn, "cuda": torch.backends.cuda}
_REDUCED = ("tf32", "bf16")


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def is_reduced(device_type: str) -> bool:
    """Whether a float32 product on this kind of device would now be taken in fewer bits than float32 has."""
    if torch.is_autocast_enabled(device_type):
        return True
    backend = _FLAGS.get(device_type)
    if backend is None:
        return False
    precision = backend.matmul.fp32_precision
    if precision == "none":  # not set for products: the backend's own setting rules, then the global one
        precision = getattr(backend, "fp32_precision", "none")
    if precision == "none":
        precision = getattr(torch.backends, "fp32_precision", "none")
    return precision in _REDUCED


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` with the full accuracy of its dtype.

    >>> a = torch.eye(2)
    >>> with torch.autocast("cpu", dtype=torch.bfloat16):
    ...     matmul(a, a).dtype
    torch.float32
    """
    wide = _WIDE.get(a.dtype)
    if wide is not None and is_reduced(a.device.type):
        return torch.matmul(a.to(wide), b.to(wide)).to(a.dtype)
    return torch.matmul(a, b)


def sandwich(left: Tensor, middle: Tensor) -> Tensor:
    """``left @ middle @ left^H``."""
    return matmul(matmul(left, middle), left.mH)


def hermitian_part(x: Tensor) -> Tensor:
    """``(x + x^H) / 2`` in one pass, without overflow for entries near the largest number."""
    return torch.lerp(x, x.mH, 0.5)
