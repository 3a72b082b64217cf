"""The one mechanism for autograd nodes: a `Step` says what happens at a node, and `run` makes it one.

torch asks much of an autograd Function: a backward that can be differentiated again, a jvp, a rule for vmap, no values kept
alive. Dynamo refuses one that defines jvp once a gradient is asked for, counts its arguments, and wants each by name. All of
that is here, once: steps are ordinary objects with a value, the way of cotangents back and that of tangents forward.

Inside jvp torch propagates no tangents through plain operations, so that a jvp of a jvp would be lost without a word. What
is done there, and in a `pull` that is differentiated again, is therefore done by steps; `added` is the simplest.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor
from torch.autograd import Function

from spectralgrad.context import (
    compiling,
    in_torch_func,
    is_plain_backward,
    readable,
    transforming,
    transforms_active,
    unwrapped_if_dead,
    without_hooks,
)

Some = Sequence[Tensor | None]
_SLOTS = 6  # tensors that a step may take under torch.compile


class Step(ABC):
    """What one node does, for tensors of any leading shape. A tensor that is not there is None, going in and coming back."""

    # What `pull` and `push` get as ``kept``: these inputs, then these outputs.
    kept_inputs: ClassVar[slice] = slice(None)
    kept_outputs: ClassVar[slice] = slice(0)
    constants: ClassVar[tuple[int, ...]] = ()  # which outputs carry no derivative

    @abstractmethod
    def value(self, *x: Any) -> Any:
        """The outputs y: a tensor or a tuple of them."""

    @abstractmethod
    def pull(self, kept: Any, grads: Any, needed: Sequence[bool]) -> Some:
        """The cotangents of the inputs, of which some are ``needed``; not all of ``grads`` are None."""

    @abstractmethod
    def push(self, kept: Any, tangents: Any) -> Any:
        """The tangents of the outputs, in the form of `value`."""

    def unchecked(self) -> "Step":
        """The same where no value may be looked at, as inside vmap."""
        return self


def run(step: Step, *x: Tensor | None) -> Any:
    """The value of ``step``, differentiable as it says."""
    if compiling():
        if in_torch_func():
            raise NotImplementedError(
                "torch.compile ignores the gradients of autograd Functions inside torch.func transforms. Compile the "
                "function and call backward(), or use the transform without torch.compile."
            )
        return _Compiled.apply(step, len(x), *x, *(None,) * (_SLOTS - len(x)))
    if transforms_active():
        looks = all(each is None or readable(each) is not None for each in x)
        return _Node.apply(step if looks else step.unchecked(), *x)
    if not (torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in x)) and not transforming():
        return step.value(*x)
    # All that `apply` does here is this call, after 60 us in which it inspects the signature of `forward`.
    return super(Function, _Node).apply(step, *x)


def run_again(step: Step, *x: Tensor | None) -> Any:
    """`run` for use inside `pull` and `push`: a plain value under torch.compile, which has no double backward."""
    return step.value(*x) if compiling() else run(step, *x)


class _Node(Function):
    @staticmethod
    def forward(step: Step, *x: Tensor | None) -> Any:
        return step.value(*x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.step, *x = inputs
        y = output if isinstance(output, tuple) else (output,)
        kept = (*x[ctx.step.kept_inputs], *y[ctx.step.kept_outputs])
        ctx.save_for_backward(*kept)
        ctx.save_for_forward(*kept)
        if ctx.step.constants:
            ctx.mark_non_differentiable(*(y[i] for i in ctx.step.constants))
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        if all(g is None for g in grads):
            return (None,) * len(ctx.needs_input_grad)
        return None, *ctx.step.pull(ctx.saved_tensors, grads, ctx.needs_input_grad[1:])

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Tensor | None) -> Any:
        return ctx.step.push(ctx.saved_tensors, tangents)

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], step: Step, *x: Tensor | None) -> tuple[Any, Any]:
        y = run(step, *batched(info.batch_size, dims[1:], x))
        return y, (0,) * len(y) if isinstance(y, tuple) else 0


class _Compiled(Function):
    """`_Node` for torch.compile: without jvp and vmap, and with as many arguments whatever the step."""

    @staticmethod
    def forward(step: Step, count: int, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any) -> Any:
        return step.unchecked().value(*(a, b, c, d, e, f)[:count])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        step, count, *slots = inputs
        _Node.setup_context(ctx, (step, *slots[:count]), output)
        ctx.count = count

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        pulled = ctx.step.pull(ctx.saved_tensors, grads, ctx.needs_input_grad[2 : 2 + ctx.count])
        return None, None, *pulled, *(None,) * (_SLOTS - ctx.count)


def batched(size: int, dims: Sequence[int | None], tensors: Some) -> list[Tensor | None]:
    """vmap's hidden dimension moved to the front of each tensor: all code here takes any leading shape."""
    return [
        None if x is None else x.unsqueeze(0).expand(size, *x.shape) if dim is None else x.movedim(dim, 0)
        for x, dim in zip(tensors, dims, strict=True)
    ]


# The simplest steps.


class _Add(Step):
    """a + b, of which one may be None."""

    def value(self, *x: Tensor | None) -> Tensor:
        first, *others = [each for each in x if each is not None]
        return first + others[0] if others else first.clone()

    kept_inputs = slice(0)

    def pull(self, kept: Some, grads: Any, needed: Sequence[bool]) -> Some:
        return tuple(grads[0] if need else None for need in needed)

    def push(self, kept: Some, tangents: Some) -> Tensor:
        return added(*tangents)


class _Last(_Add):
    """x, which may be differentiated no more: what carries a matrix into its second derivative.

    A node and not an error at once, since autograd asks only those nodes on its way: a derivative by the directions alone,
    as in `torch.autograd.functional.hvp`, does not come by.
    """

    def pull(self, kept: Some, grads: Any, needed: Sequence[bool]) -> Some:
        refuse_third_derivative()

    def push(self, kept: Some, tangents: Some) -> Tensor:
        refuse_third_derivative()


_ADD, _LAST = _Add(), _Last()


def added(*terms: Tensor | None) -> Tensor:
    """The sum of one or two terms, for use inside `push`; None counts as 0."""
    return run(_ADD, *(x for x in terms if x is not None))  # type: ignore[no-any-return]


def last(x: Tensor) -> Tensor:
    """x, which may be differentiated no more."""
    return run(_LAST, x)  # type: ignore[no-any-return]


def refuse_third_derivative() -> NoReturn:
    """What a second derivative does when it is differentiated by its matrix."""
    raise NotImplementedError(
        "spectralgrad gives first and second derivatives of matrix functions, not third ones; take autograd "
        "through `eigh` or `svd`, whose rules have them."
    )


# Derivatives of plain functions of what a node has kept.


def vjp(f: Callable[..., Any], at: Iterable[Tensor | None], cotangents: Any) -> tuple[Tensor, ...]:
    """`torch.func.vjp` of f at these, called at once, for tensors that a node has saved."""
    with without_hooks():
        return torch.func.vjp(f, *_alive(at))[1](cotangents)  # type: ignore[no-any-return]


def jvp_by_vjps(f: Callable[..., tuple[Tensor, ...]], at: Some, along: Some) -> tuple[Tensor, ...]:
    """The derivative of f by all its arguments, without forward mode: that of the linear map u -> vjp(u) by u."""
    given = _alive(at)
    directions = tuple(torch.zeros_like(x) if t is None else t for x, t in zip(given, along, strict=True))
    with without_hooks():
        out, pull = torch.func.vjp(f, *given)  # type: ignore[misc]
        return vjp(lambda *u: pull(u), (torch.zeros_like(o) for o in out), directions)


def _alive(saved: Iterable[Tensor | None]) -> list[Tensor]:
    return [unwrapped_if_dead(x) for x in saved]  # type: ignore[arg-type]


def composed_gradients(
    needed: Sequence[bool], composition: Callable[..., Any], inputs: Sequence[Any], grads: Sequence[Any]
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


class Shortcut(Step):
    """A shorter way to the value of a composition of torch's operations, and back: by a kernel, or in fewer passes.

    What looks into the backward pass gets that of the composition. For places where nothing transforms.
    What else the way back needs may stay with the step, which is made for one call. `kept` begins with the inputs.
    """

    @abstractmethod
    def composition(self, *x: Any) -> Any:
        """The same value as `value` in plain torch."""

    @abstractmethod
    def pull_shortly(self, kept: Any, grads: Any, needed: Sequence[bool]) -> Some:
        """`pull` where nothing looks into it."""

    def pull(self, kept: Any, grads: Any, needed: Sequence[bool]) -> Some:
        wanted = [i for i, g in enumerate(grads) if g is not None]
        given = [grads[i] for i in wanted]
        if is_plain_backward(*given):
            return self.pull_shortly(kept, grads, needed)

        def composed(*x: Tensor) -> Any:
            y = self.composition(*x)
            return [y[i] for i in wanted] if isinstance(y, tuple) else y

        return composed_gradients(needed, composed, kept[: len(needed)], given)

    def push(self, kept: Some, tangents: Some) -> NoReturn:
        raise NotImplementedError("a shortcut was taken inside a transform of torch.func or forward mode")
