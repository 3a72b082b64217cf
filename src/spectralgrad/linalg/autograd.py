"""What torch asks of an autograd Function: under torch.compile, torch.func, forward mode, vmap and double backward.

Dynamo refuses a Function that defines jvp once a gradient is asked for. So ours come twice: `_Name` plain, for
torch.compile, and below it `_NameFunc` with jvp and vmap, for everything else; who uses them chooses by
`compiling()`.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.autograd import Function

from spectralgrad.context import compiling, in_torch_func, unwrapped_if_dead, without_hooks


def apply(function: type[Function], *args: Any) -> Any:
    """``function.apply(*args)``, less the 60 us for which it inspects the signature of ``forward``.

    Outside torch.compile and torch.func's transforms all that `apply` does is that inspection and the call below.
    """
    if compiling() or in_torch_func():
        return function.apply(*args)
    return super(Function, function).apply(*args)  # type: ignore[misc]


def call(function: type[Function], *args: Any) -> Any:
    """`apply`, and an error where torch.compile would ignore the gradient."""
    if compiling() and in_torch_func():
        raise NotImplementedError(
            "torch.compile ignores the gradients of autograd Functions inside torch.func transforms. Compile the "
            "function and call backward(), or use the transform without torch.compile."
        )
    return apply(function, *args)


def vjp(f: Callable[..., Any], at: Iterable[Tensor | None], cotangents: Any) -> tuple[Tensor, ...]:
    """`torch.func.vjp` of f at these, called at once, for tensors that a node has saved."""
    with without_hooks():
        return torch.func.vjp(f, *_alive(at))[1](cotangents)  # type: ignore[no-any-return]


def jvp_by_vjps(
    f: Callable[..., tuple[Tensor, ...]], at: Sequence[Tensor | None], along: Sequence[Tensor | None]
) -> tuple[Tensor, ...]:
    """The derivative of f by all its arguments, without forward mode: that of the linear map u -> vjp(u) by u."""
    given = _alive(at)
    directions = tuple(torch.zeros_like(x) if t is None else t for x, t in zip(given, along, strict=True))
    with without_hooks():
        out, pull = torch.func.vjp(f, *given)  # type: ignore[misc]
        return vjp(lambda *u: pull(u), (torch.zeros_like(o) for o in out), directions)


def _alive(saved: Iterable[Tensor | None]) -> list[Tensor]:
    """Tensors of which some may be wrapped for a transform that has ended, as where another one goes over what
    `torch.func.vjp` returned. torch's operations unwrap them by themselves; its transforms end in an internal error."""
    return [unwrapped_if_dead(x) for x in saved]  # type: ignore[arg-type]


def batched(info: Any, dims: tuple[int | None, ...], tensors: tuple[Tensor, ...]) -> list[Tensor]:
    """vmap's hidden dimension moved to the front of each tensor: all code here takes any leading shape."""
    return [
        x.unsqueeze(0).expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
        for x, dim in zip(tensors, dims, strict=True)
    ]


def composed_gradients(
    needed: Sequence[bool], composition: Callable[..., Any], inputs: tuple[Any, ...], grads: tuple[Any, ...]
) -> list[Any]:
    """The gradients of those inputs that are needed through autograd's own composition, differentiable again.

    Taken at aliases of the inputs: at the inputs themselves they would include paths from one to another.
    """
    with torch.enable_grad():
        aliases = [x.view_as(x) if need else x for x, need in zip(inputs, needed, strict=True)]
        out = composition(*aliases)
    wanted = [x for x, need in zip(aliases, needed, strict=True) if need]
    found = iter(torch.autograd.grad(out, wanted, grads, create_graph=torch.is_grad_enabled()))
    return [next(found) if need else None for need in needed]


def refuse_third_derivative() -> NoReturn:
    """What backward and jvp of a second derivative do."""
    raise NotImplementedError(
        "spectralgrad gives first and second derivatives of matrix functions, not third ones; take autograd "
        "through `eigh` or `svd`, whose rules have them."
    )


# Inside jvp torch propagates no tangents through plain operations, so that a jvp of a jvp would be lost without a word. What
# is done there is done by Functions; these two are for the simplest steps.


class Copy(Function):
    """x, for use inside jvp."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return tangent.clone()


class Sum(Function):
    """a + b, for use inside jvp."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:
        return a + b

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return grad, grad

    @staticmethod
    def jvp(ctx: Any, ta: Tensor, tb: Tensor) -> Tensor:
        return ta + tb


class Last(Copy):
    """x, which may be differentiated no more: what carries a matrix into its second derivative.

    A node and not an error at once, since autograd asks only those nodes on its way: a derivative by the directions alone,
    as in `torch.autograd.functional.hvp`, does not come by.
    """

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return refuse_third_derivative()

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Any:
        return refuse_third_derivative()


def last(x: Tensor) -> Tensor:
    return apply(Last, x)  # type: ignore[no-any-return]
