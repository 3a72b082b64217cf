"""What torch.compile must know about a function, said without loading the compiler; whether torch traces at all; and what
torch.fx records of a layer.

`torch.compiler.assume_constant_result` imports `torch._dynamo` to set one attribute, and that import takes ten times as
long as all of this library. So the attribute is set here. It has carried this meaning since torch 2.0; a test compares it
with what torch itself sets.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.nn import Module

from spectralgrad.errors import OptionError

Marked = TypeVar("Marked", bound=Callable[..., Any])


def constant_when_compiled(function: Marked) -> Marked:
    """Let torch.compile call ``function`` while it traces and keep the result, as `torch.compiler.assume_constant_result`.

    For what depends on the process and not on a tensor: flags, the kind of device, the transforms at work. Dynamo does not
    look at it again, so somebody else must guard what it depends on.

    >>> @constant_when_compiled
    ... def answer() -> int:
    ...     return 42
    >>> answer()
    42
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


_TRACERS = tuple(getattr(torch._C._TorchDispatchModeKey, name) for name in ("FAKE", "PROXY", "FUNCTIONAL"))


def is_tracing() -> bool:
    """Whether operations are recorded for later, or tried on shapes alone: torch.compile, torch.export, `make_fx` and what
    stands on it (`torch.func.linearize`), `FakeTensorMode`. Then no value may be read, and what reads some is one operator.

    After a graph break Dynamo may compile this function alone, and then it says yes to code that nothing traces. Where
    that would be wrong ask for both halves in place, as `validation.checking` does.

    >>> is_tracing()
    False
    """
    return torch.compiler.is_compiling() or (modes() > 0 and is_recorded())


modes = torch._C._len_torch_dispatch_stack  # how many are on: nearly always none, so that busy ways ask this first, in 50 ns


def is_recorded() -> bool:
    """`is_tracing` by anything but Dynamo."""
    if torch.compiler.is_compiling():  # Dynamo may compile this frame alone, and knows nothing of what follows
        return False
    return any(torch._C._get_dispatch_mode(tracer) is not None for tracer in _TRACERS)


@constant_when_compiled
def is_exporting() -> bool:
    """`torch.compiler.is_exporting`, which torch 2.11's compiler takes for true wherever it meets it."""
    return torch.compiler.is_exporting()


def kept_whole(layer: Module, *inputs: Any) -> Any:
    """A call of the layer as `torch.fx.symbolic_trace` records it, where the first input is its Proxy: one node.

    torch.fx goes into every module that is not of torch.nn, unless its Tracer is told otherwise. Ours are to be found whole
    in a graph, as those are; and what a Proxy stands for has neither shape nor dtype to look at.
    """
    tracer: Any = inputs[0].tracer
    path = tracer.path_of_module(layer)
    called = next(kind for kind in type(layer).__mro__ if "forward" in vars(kind))
    if not path or not called.__module__.startswith(f"{__package__}."):  # the model itself; a subclass that adds to forward
        raise OptionError(
            f"`{type(layer).__name__}`: torch.fx.symbolic_trace can keep this layer whole, but not look into it. Put it "
            "into a torch.nn.Sequential, tell the Tracer that it is a leaf (is_leaf_module), or use torch.export."
        )
    return tracer.create_proxy("call_module", path, inputs, {})
