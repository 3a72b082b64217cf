"""What scaling.py does as a step of a graph: in every derivative too, what overflows becomes the largest number."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from spectralgrad.context import compiling, differentiated_again, in_batched_backward

from .autograd import Sum, apply, call
from .precision import matmul
from .scaling import bounded, exponent, largest_number, on_parts, shifted

REAL_DTYPE = {torch.complex64: torch.float32, torch.complex128: torch.float64}  # Dynamo does not know dtype.to_real()
_SHARE = {torch.float32: 1 / 8, torch.float64: 1}  # of float64's exponents: as much of its bits is held
_BITS = 1023  # of the largest number of float64
_TWICE = 200  # bits between the slopes of second derivatives that are held and the largest number


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x in another precision; here and in every derivative, what overflows becomes the largest number."""
    if x.dtype == dtype:
        return x
    result: Tensor = apply(_Cast if compiling() else _CastFunc, x, dtype)
    return result


def moved(x: Tensor, k: Tensor) -> Tensor:
    """`shifted`; in every derivative too, what overflows becomes the largest number."""
    result: Tensor = apply(_Moved if compiling() else _MovedFunc, x, k)
    return result


def moved_first(x: Tensor, k: Tensor, most: int) -> Tensor:
    """`moved` for what is given, whose gradient is a result: `moved_last`, where it is differentiated again."""
    result: Tensor = apply(_Given if compiling() else _GivenFunc, x, k, most)
    return result


def moved_last(x: Tensor, k: Tensor, most: int) -> Tensor:
    """`moved` for a result; in derivatives k counts as less where slopes would be more than 2^most, so that sums of them
    have room.

    They are shorter than they should be there, and of the right direction: of each matrix all entries are.
    """
    function = _Near if compiling() else _NearFunc
    near: Tensor = apply(function, held(x, _BITS - most), k, most)
    return (near - near.detach()) + moved(x.detach(), k)


def held(x: Tensor, bits: int = 128) -> Tensor:
    """x, with a gradient cut to 2^-bits times the largest number, so that the next steps cannot overflow. NaN stays.

    Second derivatives multiply two such slopes: theirs are cut to 2^-200 times the largest number. In float32 an eighth of
    the bits, as it has an eighth of the exponents.
    """
    result: Tensor = apply(_Held if compiling() else _HeldFunc, x, bits)
    return result


def product(a: Tensor, b: Tensor) -> Tensor:
    """a b for real a (*B, m, k), b (*B, k, n) of one batch; here and in every derivative what overflows is cut, last."""
    result: Tensor = apply(_Product if compiling() else _ProductFunc, a, b)
    return result


class _Moved(Function):  # twice, for torch.compile and for the rest: see autograd.py
    @staticmethod
    def forward(x: Tensor, k: Tensor) -> Tensor:
        return shifted(x, k)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])
        ctx.save_for_forward(inputs[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return moved(grad, *ctx.saved_tensors), None


class _MovedFunc(_Moved):
    generate_vmap_rule = True

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:
        return moved(tangent, *ctx.saved_tensors)


class _Limited(Function):
    """x 2^k, whose derivatives keep slopes to 2^most."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])
        ctx.save_for_forward(inputs[1])
        ctx.most = inputs[2]


class _Given(_Limited):  # twice, for torch.compile and for the rest: see autograd.py
    @staticmethod
    def forward(x: Tensor, k: Tensor, most: int) -> Tensor:
        return shifted(x, k)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (k,) = ctx.saved_tensors
        again = differentiated_again() and not compiling()
        return moved_last(grad, k, ctx.most) if again else moved(grad, k), None, None


class _GivenFunc(_Given):
    generate_vmap_rule = True

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:
        return moved(tangent, *ctx.saved_tensors)


class _Near(_Limited):  # twice, for torch.compile and for the rest: see autograd.py
    """x 2^k with k of at most ``most``, whose gradients g 2^k are at most 2^most too."""

    @staticmethod
    def forward(x: Tensor, k: Tensor, most: int) -> Tensor:
        return shifted(x, k.clamp(max=most))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (k,) = ctx.saved_tensors
        if not in_batched_backward(grad):  # where nothing can be scaled
            size = grad.detach()
            k = torch.minimum(k, ctx.most - exponent(size.unsqueeze(-1), size.ndim - k.ndim + 1).clamp(min=0))
        return moved(grad, k.clamp(max=ctx.most)), None, None


class _NearFunc(_Near):
    generate_vmap_rule = True

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:
        result: Tensor = apply(_NearFunc, tangent, *ctx.saved_tensors, ctx.most)
        return result


class _Held(Function):  # twice, for torch.compile and for the rest: see autograd.py
    @staticmethod
    def forward(x: Tensor, bits: int) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.bits = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return held(bounded(grad, largest_number(grad) / 2 ** (ctx.bits * _SHARE[grad.real.dtype])), _TWICE), None


class _HeldFunc(_Held):
    generate_vmap_rule = True

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:
        return held(tangent, ctx.bits)


class _Cast(Function):  # twice, for torch.compile and for the rest: see autograd.py
    @staticmethod
    def forward(x: Tensor, dtype: torch.dtype) -> Tensor:
        if x.is_complex():
            return on_parts(lambda part: _Cast.forward(part, REAL_DTYPE[dtype]), x)
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


class _Product(Function):  # twice, for torch.compile and for the rest: see autograd.py
    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:
        p, q = exponent(a), exponent(b)
        return shifted(matmul(shifted(a, -p), shifted(b, -q)), p + q)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        return product(grad, b.mT), product(a.mT, grad)


class _ProductFunc(_Product):
    generate_vmap_rule = True

    @staticmethod
    def jvp(ctx: Any, da: Tensor, db: Tensor) -> Tensor:
        a, b = ctx.saved_tensors
        return call(Sum, product(da, b), product(a, db))  # type: ignore[no-any-return]
