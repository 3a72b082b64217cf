"""Where in the range of a dtype a matrix stands."""

import math
import random

import torch
from torch import Tensor


def scale_of(dtype: torch.dtype, r: random.Random) -> tuple[str, float]:
    """A power of ten: ordinary, large, or anywhere in the range of the dtype; inf for the largest number itself."""
    info = torch.finfo(dtype)
    draw = r.random()
    if draw < 0.45:
        return "", 10 ** r.uniform(-1, 1) if r.random() < 0.5 else 1.0
    if draw < 0.7:
        return "", 10 ** r.uniform(-8, 8)
    if draw < 0.94:
        lowest = math.log10(info.tiny) + math.log10(info.eps)
        return "", 10 ** r.uniform(lowest, math.log10(info.max))
    return ", near the largest number", math.inf


def rounded(dtype: torch.dtype, A: Tensor, scale: float) -> Tensor:
    """Scaled and rounded, with what overflows at the largest number."""
    largest = float(torch.finfo(dtype).max)
    parts = torch.view_as_real(A) if A.is_complex() else A
    if math.isinf(scale):
        size = parts.abs().flatten(1).amax(1).clamp(min=1e-300)
        parts = parts / size.reshape(-1, *([1] * (parts.ndim - 1)))
        scale = largest
    half = math.sqrt(scale)
    parts = (parts * half * (scale / half)).clamp(-largest, largest)
    real = torch.float32 if dtype in (torch.float32, torch.complex64) else torch.float64
    parts = parts.to(real).contiguous()
    return torch.view_as_complex(parts) if A.is_complex() else parts
