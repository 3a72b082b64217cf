"""For the autograd Functions that are not steps yet (node.py): goes with the last of them."""

from typing import Any

from torch import Tensor
from torch.autograd import Function

from spectralgrad.context import compiling, in_torch_func

from .node import batched as _batched
from .node import composed_gradients

__all__ = ["batched", "call", "composed_gradients"]


def call(function: type[Function], *args: Any) -> Any:
    """``function.apply(*args)``, and an error where torch.compile would ignore the gradient."""
    if compiling() and in_torch_func():
        raise NotImplementedError("torch.compile ignores the gradients of autograd Functions inside torch.func transforms.")
    if compiling() or in_torch_func():
        return function.apply(*args)
    return super(Function, function).apply(*args)  # type: ignore[misc]


def batched(info: Any, dims: tuple[int | None, ...], tensors: tuple[Tensor, ...]) -> list[Tensor]:
    """`node.batched` of tensors that are all there."""
    return _batched(info.batch_size, dims, tensors)  # type: ignore[return-value]
