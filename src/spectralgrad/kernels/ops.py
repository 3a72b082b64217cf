"""Functions that torch.compile and other tracers take as a whole.

Dynamo cannot look into a retry or a stopping test that depends on values, and would unroll every iteration. So a
function with either becomes one opaque operator while compiling, and stays the plain function everywhere else. Most
operators have no gradient of their own: they are called only inside our autograd Functions. `differentiable` gives one.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch

from spectralgrad.context import tracing, with_lazy_views

P = ParamSpec("P")
R = TypeVar("R")

_library = torch.library.Library("spectralgrad", "DEF")
_EXACT_STRIDES = getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)  # the first since torch 2.7


def opaque(schema: str, fake: Callable[P, R], *, exact_strides: bool = False) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function an operator where torch traces (`tracing`).

    Args:
        schema: arguments and results in torch's schema language, with the operator's name in front.
        fake: the same with empty results; contiguous, as the operator's own must be.
        exact_strides: the results' strides follow those of the arguments, which the compiler must not change then.
    """
    name = schema.split("(")[0]

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        _library.define(schema, tags=(_EXACT_STRIDES,) if exact_strides else ())
        _library.impl(name, with_lazy_views(function), "CompositeExplicitAutograd")
        torch.library.register_fake(f"spectralgrad::{name}", fake, lib=_library)
        as_operator = operator(name)

        @wraps(function)
        def choose(*args: P.args, **kwargs: P.kwargs) -> R:
            if tracing():
                return as_operator(*args, **kwargs)  # type: ignore[no-any-return]
            return function(*args, **kwargs)

        return choose

    return decorate


def operator(name: str) -> Any:
    """The operator that `opaque` has made, for callers that want it outside torch.compile too."""
    return getattr(torch.ops.spectralgrad, name).default


def differentiable(name: str, save: Callable[..., None], backward: Callable[..., Any]) -> None:
    """Give an operator a gradient: ``save(ctx, inputs, output)`` and ``backward(ctx, *grads)`` as an autograd Function's."""
    torch.library.register_autograd(f"spectralgrad::{name}", backward, setup_context=save, lib=_library)
