"""What torch is doing now, and what may be done in it: the one room that asks, and that knows private names of torch.

What each question answers where a function of ours is called (-: as without it; x is an argument there):

                             plain   torch.compile,  make_fx, Fake-   vmap   grad, jvp of   forward   batched    CUDA, also
                             call    torch.export    TensorMode              torch.func     mode      backward   in a graph
    compiling()              no      yes             no               no     no             no        no         -
    tracing()                no      yes             yes              no     no             no        no         -
    transforming()           no      no              no               yes    yes            yes       no         -
    is_transformed(x)        no      no              no               yes    yes            no        no         -
    may_read(x)              CPU     no              no               no     no             CPU       no         no
    checking(x)              CPU     no              no               CPU    CPU            CPU       CPU        no
    readable(x)              x       x               x                no     what it is     x         x          x
    has_memory(x)            yes     no              no               no     no             no        no         yes
    is_constant(x)           (1)     no              (1)              no     no             no        (1)        -
    differentiated_again()   (2)     no              (2)              yes    yes            yes       (2)        -
    in_batched_backward(x)   no      no              no               no     no             no        yes        -

(1) yes, unless x requires a gradient; (2) with create_graph alone. `checks(True)` makes `checking` say yes on CUDA, and
`readable` look into vmap; `checks(False)` makes `checking` say no. A value is *checked* where a check may wait for it and
end in an error; it is *read* where that costs nothing, to take a shorter way. `may_launch(x)` is `has_memory(x)` where
nobody records, torch.jit.trace included.

`torch.compiler.assume_constant_result` imports `torch._dynamo` to set one attribute, and that import takes ten times as
long as all of this library. So the attribute is set here. It has carried this meaning since torch 2.0; a test compares it
with what torch itself sets.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from spectralgrad.errors import OptionError

Marked = TypeVar("Marked", bound=Callable[..., Any])

# Private names of torch, below `torch.`, each with the first and the last version that was looked at. A test finds all that
# this file uses here, and none of them in another file.
PRIVATE = dict.fromkeys(
    (
        "_C._TorchDispatchModeKey",
        "_C._are_functorch_transforms_active",
        "_C._autograd._pop_saved_tensors_default_hooks",
        "_C._autograd._push_saved_tensors_default_hooks",
        "_C._autograd._top_saved_tensors_default_hooks",
        "_C._current_graph_task_id",
        "_C._dispatch_keys",
        "_C._dispatch_tls_local_exclude_set",
        "_C._dispatch_tls_local_include_set",
        "_C._ForceDispatchKeyGuard",
        "_C._functorch.get_unwrapped",
        "_C._functorch.is_batchedtensor",
        "_C._functorch.is_functorch_wrapped_tensor",
        "_C._functorch.unwrap_if_dead",
        "_C._get_dispatch_mode",
        "_C._get_fp32_precision_getter",
        "_C._get_tracing_state",
        "_C._has_storage",
        "_C._len_torch_dispatch_stack",
        "_assert",
        "_foreach_lerp_",
    ),
    ("2.9", "2.15"),
)
# Of builds with CUDA alone: None where torch came without them.
raw_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # current_stream().cuda_stream without the objects
launch_kernel: Callable[..., None] | None = getattr(getattr(torch._C, "_StaticCudaLauncher", None), "_launch_kernel", None)

assert_traced = torch._assert  # an assertion that tracers record
foreach_lerp_ = torch._foreach_lerp_
fp32_precision = torch._C._get_fp32_precision_getter  # what torch.backends.*.fp32_precision reads, in a tenth of the time
_TRACERS = tuple(getattr(torch._C._TorchDispatchModeKey, name) for name in ("FAKE", "PROXY", "FUNCTIONAL"))
_LAZY = (torch._C.DispatchKey.Conjugate, torch._C.DispatchKey.Negative)

_forced: ContextVar[bool | None] = ContextVar("spectralgrad_checks", default=None)


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


# Who looks on: compilers and tracers.

compiling = torch.compiler.is_compiling  # torch's own function, which its compiler knows: no function around it
transforms_active = torch._C._are_functorch_transforms_active  # of torch.func; for busy ways, and not for compiled code


def recording() -> bool:
    """`tracing` by anything but Dynamo. After a graph break Dynamo may compile this frame alone, and then that says yes to
    code that nothing traces: where that would be wrong, ask `compiling() or recording()` in place."""
    if compiling() or torch._C._len_torch_dispatch_stack() == 0:  # nearly always, and that in 50 ns
        return False
    return any(torch._C._get_dispatch_mode(tracer) is not None for tracer in _TRACERS)


def tracing() -> bool:
    """Whether operations are recorded for later, or tried on shapes alone: torch.compile, torch.export, `make_fx` and what
    stands on it (`torch.func.linearize`), `FakeTensorMode`. Then no value may be read, and what reads some is one operator.

    >>> tracing()
    False
    """
    return compiling() or recording()


@constant_when_compiled
def exporting() -> bool:
    """`torch.compiler.is_exporting`, which torch 2.11's compiler takes for true wherever it meets it."""
    return torch.compiler.is_exporting()


@constant_when_compiled
def exporting_to_onnx() -> bool:
    """Whether torch.onnx exports; Dynamo takes torch's own answer for False."""
    return bool(torch.onnx.is_in_onnx_export())


def has_dispatch_modes() -> bool:
    """Whether any mode, such as a profiler's or a tracer's, sees each operation."""
    return bool(torch._C._len_torch_dispatch_stack())


def kept_whole(layer: Module, *inputs: Any) -> Any:
    """A call of the layer as `torch.fx.symbolic_trace` records it, where the first input is its Proxy: one node.

    torch.fx goes into every module that is not of torch.nn, unless its Tracer is told otherwise. Ours are to be found whole
    in a graph, as those are; and what a Proxy stands for has neither shape nor dtype to look at.
    """
    tracer: Any = inputs[0].tracer
    path = tracer.path_of_module(layer)
    called = next(kind for kind in type(layer).__mro__ if "forward" in vars(kind))
    if not path or not called.__module__.startswith("spectralgrad."):  # the model itself; a subclass that adds to forward
        raise OptionError(
            f"`{type(layer).__name__}`: torch.fx.symbolic_trace can keep this layer whole, but not look into it. Put it "
            "into a torch.nn.Sequential, tell the Tracer that it is a leaf (is_leaf_module), or use torch.export."
        )
    return tracer.create_proxy("call_module", path, inputs, {})


# Who differentiates, and how.


@constant_when_compiled
def in_torch_func() -> bool:
    """Whether a transform of torch.func is at work; for compiled code too."""
    return bool(torch._C._are_functorch_transforms_active())


def transforming() -> bool:
    """Whether forward mode or a transform of torch.func is at work; not for compiled code."""
    return torch.autograd.forward_ad._current_level >= 0 or bool(torch._C._are_functorch_transforms_active())


def is_constant(x: Tensor) -> bool:
    """Whether no derivative with respect to ``x`` can be asked for: then only a node's forward pass is needed."""
    return not (x.requires_grad and torch.is_grad_enabled()) and not compiling() and not transforming()


def differentiated_again() -> bool:
    """Whether what a backward pass computes now may be differentiated again: create_graph, forward mode, torch.func.

    Never under torch.compile, which has no double backward.
    """
    return not compiling() and (torch.is_grad_enabled() or transforming())


def in_batched_backward(x: Tensor) -> bool:
    """Whether ``x`` is a cotangent of torch.autograd.grad(is_grads_batched=True), which knows few operations."""
    return not compiling() and str(torch._C._dispatch_keys(x)).rstrip(")").endswith(" Batched")


def is_plain_backward(*cotangents: Tensor) -> bool:
    """Whether nothing looks into what a backward pass does with these: then a kernel may do it."""
    return not compiling() and not differentiated_again() and not any(map(in_batched_backward, cotangents))


def in_backward() -> bool:
    """Whether a backward pass calls this: activation checkpointing runs a forward pass again, whose batch was counted."""
    return not compiling() and torch._C._current_graph_task_id() != -1


def without_hooks() -> AbstractContextManager[None]:
    """Where no hook on saved tensors reaches, such as those of activation checkpointing and of `save_on_cpu`.

    For a small graph that is differentiated at once. There is nothing to gain by hooks; torch.func refuses to work under
    them, and checkpointing would drop what is saved and recompute the model a second time for it.
    """
    if compiling() or torch._C._autograd._top_saved_tensors_default_hooks(False) is None:
        return nullcontext()
    return _without_hooks()


@contextmanager
def _without_hooks() -> Iterator[None]:
    hooks = []
    while (pair := torch._C._autograd._top_saved_tensors_default_hooks(False)) is not None:
        hooks.append(pair)
        torch._C._autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pair in reversed(hooks):
            torch._C._autograd._push_saved_tensors_default_hooks(*pair)


def unwrapped_if_dead(x: Tensor) -> Tensor:
    """``x`` itself where it was wrapped for a transform that has ended, as where another one goes over what `torch.func.vjp`
    returned. torch's operations unwrap such a tensor by themselves; its transforms end in an internal error."""
    return torch._C._functorch.unwrap_if_dead(x)


# What may be done with a tensor.


def is_transformed(x: Tensor) -> bool:
    """Whether ``x`` stands for other values inside vmap, grad or jvp, so that plain code cannot look at them."""
    return not compiling() and bool(torch._C._functorch.is_functorch_wrapped_tensor(x))


def may_read(x: Tensor) -> bool:
    """Whether a value of ``x`` can be read here without waiting: a plain tensor on the CPU.

    Not one that stands for others, inside torch.func or a batched backward pass, whose tensors have no CPU memory.
    """
    return not tracing() and not is_transformed(x) and bool(torch._C._dispatch_keys(x).has(torch._C.DispatchKey.CPU))


def has_memory(x: Tensor) -> bool:
    """Whether ``x`` has entries at an address: not a fake one, nor one that stands for others, in torch.func and where
    torch.autograd.grad takes several gradients at once, nor a zero of forward mode, which lies nowhere."""
    plain = type(x) in (Tensor, Parameter) and x.numel() > 0 and torch._C._has_storage(x)
    return plain and not x._is_zerotensor()


def may_launch(x: Tensor) -> bool:
    """Whether a kernel of ours may work on ``x`` unseen: it has memory, and nobody records what is done to it."""
    if compiling() or recording() or torch._C._get_tracing_state() is not None:
        return False
    return has_memory(x)


def checking(x: Tensor) -> bool:
    """Whether value checks apply to ``x`` here and now."""
    if compiling() or recording():
        return False
    forced = _forced.get()
    return x.device.type == "cpu" if forced is None else forced


def may_look(x: Tensor) -> bool:
    """`checking`, and plain code sees the values of ``x`` themselves."""
    return checking(x) and not is_transformed(x)


def readable(x: Tensor) -> Tensor | None:
    """The values of ``x`` that a check may read: those under torch.func's grad and jvp too; inside vmap only if forced."""
    while is_transformed(x):
        if torch._C._functorch.is_batchedtensor(x) and not is_forced():
            return None
        x = torch._C._functorch.get_unwrapped(x)
    return x


def is_forced() -> bool:
    """Whether the block is inside ``checks(True)``."""
    return _forced.get() is True


@contextmanager
def forcing(enabled: bool) -> Iterator[None]:
    """A block in which `checking` says so, for the current thread or task."""
    token = _forced.set(enabled)
    try:
        yield
    finally:
        _forced.reset(token)


def with_lazy_views(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` for a place where torch has switched lazy conjugates off.

    A compiled graph calls its operators below the dispatch keys that resolve them, and there every operation takes x.mH,
    which is a view with a mark, for x.mT: complex results would be wrong without a word. So the keys are put back.
    """

    def resolving(*args: Any, **kwargs: Any) -> Any:
        excluded = torch._C._dispatch_tls_local_exclude_set()
        if not excluded.has(torch._C.DispatchKey.Conjugate):
            return function(*args, **kwargs)
        for key in _LAZY:
            excluded = excluded.remove(key)
        with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded):
            return function(*args, **kwargs)

    return resolving
