"""Powers of two: what is solved at scale 1 and scaled back last can neither overflow nor underflow on the way.

A scale is the exponent k of a power of two, one for each matrix (*B,). Multiplying by 2^k changes no digit, and a product
that would overflow becomes the largest number with its sign.
"""

import cmath
import math
from collections.abc import Callable

import torch
from torch import Tensor

from spectralgrad.context import compiling, tracing
from spectralgrad.kernels import scale

_ORDINARY = {torch.float32: 20, torch.float64: 160}  # |log2| of scales whose squared inverse, times 1e12, is no overflow


def largest_number(x: Tensor) -> float:
    """The largest finite number of the dtype of ``x``."""
    return float(torch.finfo(x.dtype).max)


def exponent(x: Tensor, dims: int = 2) -> Tensor:
    """k (*B,) with |x| < 2^k for all entries in the last ``dims`` dimensions, and near it; 0 for zeros, NaN and Inf."""
    if x.numel() == 0:
        return x.new_zeros(x.shape[: x.ndim - dims], dtype=x.real.dtype)
    if not tracing() and scale.runs_on(x):
        return scale.exponent(x, dims)
    x = _resolved(x) if x.is_complex() else x
    parts = (x.real, x.imag) if x.is_complex() else (x,)
    first, *others = (part.abs().amax(tuple(range(-dims, 0))) for part in parts)
    largest = torch.maximum(first, others[0]) if others else first
    if not tracing():
        return torch.frexp(largest).exponent.to(largest.dtype)
    known = (largest > 0) & torch.isfinite(largest)  # inductor's C++ for frexp does not compile
    return torch.where(known, torch.log2(torch.where(known, largest, 1)).floor() + 1, 0)


def _resolved(x: Tensor) -> Tensor:
    """A complex ``x`` whose parts can be viewed, which those of a lazy conjugate cannot inside vmap. A compiled backward
    pass may get one that it did not expect."""
    return torch.conj_physical(torch.conj_physical(x)) if compiling() else torch.resolve_conj(x)


def on_parts(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """f of the real and of the imaginary part of a complex ``x``."""
    x = _resolved(x)
    if compiling():
        return torch.complex(f(x.real), f(x.imag))
    return torch.view_as_complex(f(torch.view_as_real(x)))  # the gradient of torch.complex views parts too


def shifted(x: Tensor, k: Tensor) -> Tensor:
    """x 2^k, cut to the largest number; ``k`` (*B,) is whole and a constant to autograd.

    Nothing is repaired: where x itself is NaN or Inf, so that x - x is not 0, the result is NaN.
    """
    if x.is_complex():
        return on_parts(lambda part: shifted(part, k), x)
    if not compiling() and scale.runs_on(x) and scale.takes_powers(x, k):
        return scale.shifted(x, k)
    limit = math.frexp(largest_number(x))[1] - 1  # the largest k for which 2^k is a number; log2 rounds up to one more
    k = k.reshape((*k.shape, *(1,) * (x.ndim - k.ndim))).clamp(-2 * limit, 2 * limit).to(x.dtype)
    half = torch.floor(k / 2)  # in two steps: 2^k itself may be out of range
    return bounded(x * torch.exp2(half) * torch.exp2(k - half)) + (x - x)


def scaled_back(x: Tensor, q: Tensor) -> Tensor:
    """x 2^q, cut to the largest number, for real exponents ``q`` (*B,): not whole ones cost rounding."""
    whole = q.floor()
    rest = torch.exp2(q - whole).to(x.real.dtype)
    return shifted(x * rest.reshape(*q.shape, *(1,) * (x.ndim - q.ndim)), whole)


def bounded(x: Tensor, limit: float | None = None) -> Tensor:
    """x cut to a limit, or to the largest number; NaN stays."""
    if x.is_complex():
        return on_parts(lambda part: bounded(part, limit), x)
    limit = largest_number(x) if limit is None else limit
    return x.clamp(-limit, limit)


def are_ordinary(like: Tensor, *exponents: Tensor) -> bool:
    """Whether scales that can be read are so far from the ends of the range that first and second derivatives are too."""
    limit = _ORDINARY[like.real.dtype]
    return all(k.numel() == 0 or (-limit <= int(k.min()) and int(k.max()) <= limit) for k in exponents)


def is_ordinary(x: Tensor, dims: int = 2, bits: int | None = None) -> bool:
    """`are_ordinary` for the scales of ``x`` (*B, ...) at hand, in its last ``dims`` dimensions; zeros count as 1. With
    ``bits`` |log2| of them is at most that."""
    if x.numel() == 0:
        return True
    limit = 2.0 ** (_ORDINARY[x.real.dtype] if bits is None else bits)
    if x.ndim == dims or x.shape[:-dims].numel() == 1:  # one matrix: half the time
        size = torch.linalg.vector_norm(x, math.inf).item()
        return bool(1 / limit <= size <= limit or size == 0)
    largest = x.abs().amax(tuple(range(-dims, 0)))  # (*B,); torch's own norm takes 40 times as long for many 3 x 3
    low, high = largest.min().item(), largest.max().item()  # aminmax has no forward mode in torch 2.10
    if low == 0:
        low = torch.where(largest > 0, largest, 1).min().item()
    return bool(1 / limit <= low and high <= limit)


def are_finite(*tensors: Tensor) -> bool:
    """Whether no entry is NaN or Inf, for tensors at hand. A sum that overflows says no too: then look closer."""
    return all(cmath.isfinite(x.sum().item()) for x in tensors)
