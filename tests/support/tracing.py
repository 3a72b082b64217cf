"""Functions under torch's tracers, which record operations or try them on shapes alone, beside the functions themselves."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

Map = Callable[[Tensor], Tensor]
# torch's own, of what `linearize` folds
IGNORED = "ignore:Attempted to insert a get_attr Node:UserWarning"


def with_gradient(f: Map) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """x -> f(x) and the gradient of a number that it makes."""

    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = f(x)
            (g,) = torch.autograd.grad(y.pow(3).sum(), x)
        return y.detach(), g

    return both


def assert_shapes_alone(f: Map, x: Tensor) -> None:
    """Under `FakeTensorMode`, where no number is known, f and its gradient have their shapes and dtypes."""
    both = with_gradient(f)
    with FakeTensorMode() as mode:
        found = both(mode.from_tensor(x))
    described = [[(y.shape, y.dtype, y.device) for y in out] for out in (found, both(x))]
    assert described[0] == described[1]


def assert_recorded(f: Callable[..., Any], *given: Any, other: tuple[Any, ...], mode: str = "symbolic") -> None:
    """What `make_fx` records of f at ``given`` is f at ``other`` too: no number of ``given`` is in it."""
    recorded = make_fx(lambda *inputs: f(*inputs), tracing_mode=mode)(*given)
    torch.testing.assert_close(recorded(*other), f(*other), rtol=1e-7, atol=1e-9)


def assert_linear(f: Map, x: Tensor, t: Tensor) -> None:
    """`torch.func.linearize` is `jvp`."""
    y, push = torch.func.linearize(f, x)
    expected, tangent = torch.func.jvp(f, (x,), (t,))
    torch.testing.assert_close(y, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(push(t), tangent, rtol=1e-8, atol=1e-10)
