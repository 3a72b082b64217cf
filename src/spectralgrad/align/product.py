"""A matrix product whose value and derivatives are computed at scale 1: what overflows becomes the largest number, last."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from spectralgrad.linalg.autograd import Sum, call
from spectralgrad.linalg.precision import matmul
from spectralgrad.linalg.scaling import exponent, shifted


def product(a: Tensor, b: Tensor) -> Tensor:
    """a b for real a (*B, m, k) and b (*B, k, n) of one batch, near the ends of the range too."""
    function = _Product if torch.compiler.is_compiling() else _ProductFunc
    result: Tensor = function.apply(a, b)
    return result


class _Product(Function):  # twice, for torch.compile and for the rest: see linalg/autograd.py
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
