"""Powers of two: what is solved at scale 1 and scaled back last can neither overflow nor underflow on the way.

A scale is the exponent k of a power of two, one for each matrix (*B,). Multiplying by 2^k changes no digit, and a product
that would overflow becomes the largest number with its sign.
"""

import cmath
import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

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
    """x 2^k, cut to the largest number; ``k`` (*B,) is whole and a constant to autograd.

    Nothing is repaired: where x itself is NaN or Inf, so that x - x is not 0, the result is NaN.
    """
    if x.is_complex():
        return torch.view_as_complex(shifted(torch.view_as_real(x.resolve_conj()), k))
    limit = math.frexp(largest_number(x))[1] - 1  # the largest k for which 2^k is a number; log2 rounds up to one more
    k = k.reshape(*k.shape, *(1,) * (x.ndim - k.ndim)).clamp(-2 * limit, 2 * limit)
    half = torch.div(k, 2, rounding_mode="floor")  # in two steps: 2^k itself may be out of range
    return bounded(x * torch.exp2(half.to(x.dtype)) * torch.exp2((k - half).to(x.dtype))) + (x - x)


def scaled_back(x: Tensor, q: Tensor) -> Tensor:
    """x 2^q, cut to the largest number, for real exponents ``q`` (*B,): not whole ones cost rounding."""
    whole = q.floor()
    rest = torch.exp2(q - whole).to(x.real.dtype)
    return shifted(x * rest.reshape(*q.shape, *(1,) * (x.ndim - q.ndim)), whole)


def bounded(x: Tensor) -> Tensor:
    """x with overflow cut to the largest number; NaN stays."""
    if x.is_complex():
        return torch.view_as_complex(bounded(torch.view_as_real(x.resolve_conj())))
    largest = largest_number(x)
    return x.clamp(-largest, largest)


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x in another precision; here and in every derivative, what overflows becomes the largest number."""
    if x.dtype == dtype:
        return x
    function = _Cast if torch.compiler.is_compiling() else _CastFunc
    result: Tensor = function.apply(x, dtype)
    return result


class _Cast(Function):  # twice, for torch.compile and for the rest: see calculus.py
    @staticmethod
    def forward(x: Tensor, dtype: torch.dtype) -> Tensor:
        if x.is_complex():
            return torch.view_as_complex(_Cast.forward(torch.view_as_real(x.resolve_conj()), dtype.to_real()))
        largest = torch.finfo(dtype).max
        if largest >= largest_number(x):
            return x.to(dtype)
        return (x.clamp(-largest, largest) + (x - x)).to(dtype)  # NaN and Inf become NaN, as in `shifted`

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.given, ctx.dtype = inputs[0].dtype, inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return cast(grad, ctx.given), None


class _CastFunc(_Cast):
    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:
        return cast(tangent, ctx.dtype)

    @staticmethod
    def vmap(info: Any, dims: Any, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, int | None]:
        return _CastFunc.apply(x, dtype), dims[0]


def at_hand(x: Tensor) -> bool:
    """Whether a value of ``x`` can be read here without waiting: a plain tensor on the CPU.

    Not one that stands for others, inside torch.func or a batched backward pass, whose tensors have no CPU memory.
    """
    if torch.compiler.is_compiling() or is_transformed(x):
        return False
    return bool(torch._C._dispatch_keys(x).has(torch._C.DispatchKey.CPU))


def in_batched_backward(x: Tensor) -> bool:
    """Whether ``x`` is a cotangent of torch.autograd.grad(is_grads_batched=True), which knows few operations."""
    return not torch.compiler.is_compiling() and str(torch._C._dispatch_keys(x)).rstrip(")").endswith(" Batched")


def are_finite(*tensors: Tensor) -> bool:
    """Whether no entry is NaN or Inf, for tensors at hand. A sum that overflows says no too: then look closer."""
    return all(cmath.isfinite(x.sum().item()) for x in tensors)
