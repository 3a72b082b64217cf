"""Powers of two: what is solved at scale 1 and scaled back last can neither overflow nor underflow on the way.

A scale is the exponent k of a power of two, one for each matrix (*B,). Multiplying by 2^k changes no digit, and a product
that would overflow becomes the largest number with its sign.
"""

import cmath
import math

import torch
from torch import Tensor

from spectralgrad.validation import is_transformed


def largest_number(x: Tensor) -> float:
    """The largest finite number of the dtype of ``x``."""
    return float(torch.finfo(x.dtype).max)


def exponent(x: Tensor, dims: int = 2) -> Tensor:
    """k (*B,) with |x| < 2^k for all entries in the last ``dims`` dimensions, and near it; 0 for zeros, NaN and Inf."""
    if x.is_complex():
        x, dims = torch.view_as_real(x.resolve_conj()), dims + 1
    if x.numel() == 0:
        return x.new_zeros(x.shape[: x.ndim - dims], dtype=torch.int32)
    return torch.frexp(x.abs().amax(tuple(range(-dims, 0)))).exponent


def shifted(x: Tensor, k: Tensor) -> Tensor:
    """x 2^k, cut to the largest number; ``k`` (*B,) is whole and a constant to autograd."""
    if x.is_complex():
        return torch.view_as_complex(shifted(torch.view_as_real(x.resolve_conj()), k))
    limit = math.frexp(largest_number(x))[1] - 1  # the largest k for which 2^k is a number; log2 would round up to one more
    k = k.reshape(*k.shape, *(1,) * (x.ndim - k.ndim)).clamp(-2 * limit, 2 * limit)
    half = torch.div(k, 2, rounding_mode="floor")  # in two steps: 2^k itself may be out of range
    return bounded(x * torch.exp2(half.to(x.dtype)) * torch.exp2((k - half).to(x.dtype)))


def bounded(x: Tensor) -> Tensor:
    """x with overflow cut to the largest number; NaN stays."""
    largest = largest_number(x)
    return x.clamp(-largest, largest)


def at_hand(x: Tensor) -> bool:
    """Whether a value of ``x`` can be read here without waiting: a plain tensor on the CPU."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling() and not is_transformed(x)


def are_finite(*tensors: Tensor) -> bool:
    """Whether no entry is NaN or Inf, for tensors at hand. A sum that overflows says no too: then look closer."""
    return all(cmath.isfinite(x.sum().item()) for x in tensors)
