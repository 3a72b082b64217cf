"""The identity, with a gradient that stays so far below the largest number that the next steps cannot overflow."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from spectralgrad.linalg.scaling import largest_number

_ROOM = 2.0**128


def held(x: Tensor) -> Tensor:
    """x; a gradient beyond 2^-128 times the largest number is cut to that, with its sign. NaN stays."""
    function = _Held if torch.compiler.is_compiling() else _HeldFunc
    result: Tensor = function.apply(x)
    return result


class _Held(Function):  # twice, for torch.compile and for the rest: see linalg/calculus.py
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        limit = largest_number(grad) / _ROOM
        return held(grad.clamp(-limit, limit))


class _HeldFunc(_Held):
    generate_vmap_rule = True

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return held(tangent)
