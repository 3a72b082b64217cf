"""What NOG and OLR share: something done to chosen parameters in every step of an optimizer.

A hook on the backward pass would see a part of the gradient (accumulation), that of one rank (DDP) or a scaled one
(GradScaler). The step sees what is really applied. So all treatments of an optimizer share one pre-hook of its step; where
they change a learning rate, the step runs on a stand-in (stand_in.py).
"""

import functools
import weakref
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer
from torch.utils.hooks import RemovableHandle

from spectralgrad.errors import OptionError

from .stand_in import Group, Rates, StandIn, regroup, stand_in_for, write_back


class Treatment:
    """Something done to chosen parameters in every step of an optimizer, until `detach`."""

    order: ClassVar[int]  # NOG before OLR, whatever the order of attaching

    def __init__(self, optimizer: Optimizer, params: Tensor | Iterable[Tensor]) -> None:
        self.params = _require_params(type(self), optimizer, params)
        for p in self.params:
            self.require_param(p)
        self._optimizer = weakref.ref(optimizer)  # a cycle would keep the optimizer's state until the next collection
        hook = _hook_of(optimizer)
        if hook is None:
            hook = StepHook()
            hook.handles = (optimizer.register_step_pre_hook(hook), optimizer.register_step_post_hook(write_back))
        hook.treatments = sorted([*hook.treatments, self], key=lambda treatment: treatment.order)

    def detach(self) -> None:
        """Take the treatment off the optimizer, which is then as it was before. A second call does nothing."""
        optimizer = self._optimizer()
        hook = None if optimizer is None else _hook_of(optimizer)
        if hook is None or self not in hook.treatments:
            return
        hook.treatments = [treatment for treatment in hook.treatments if treatment is not self]
        if not hook.treatments:
            for handle in hook.handles:
                handle.remove()

    def require_param(self, p: Tensor) -> None:
        """Raise if a parameter cannot have the treatment; called before the optimizer gets it."""

    def check(self, optimizer: Optimizer, held: list[tuple[Tensor, Group]]) -> None:
        """Raise if the treatment cannot act; called for all treatments before any of them acts."""
        if any(p.grad is not None and p.grad.layout != torch.strided for p, _ in held):
            raise OptionError(
                f"`{type(self).__name__}`: a gradient must be dense, got a sparse one. Make the layer with sparse=False, or "
                "detach() the treatment."
            )

    def act(self, optimizer: Optimizer, held: list[tuple[Tensor, Group]], rates: Rates) -> None:
        """Change gradients, or write into ``rates``, for those of ``params`` that have a gradient, with their groups."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.params)} parameters)"


class StepHook:
    """The pre-hook: all treatments in order, on the gradients that the step is about to use."""

    handles: tuple[RemovableHandle, ...]

    def __init__(self) -> None:
        self.treatments: list[Treatment] = []
        self._uncompiled = _uncompiled()

    def __call__(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._uncompiled(self, optimizer, args, kwargs)

    def _replace_arguments(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Arguments for a step that does what the treatments say; None keeps the present ones."""
        if isinstance(optimizer, StandIn):  # a step that calls its parent class's step: all is done already
            return None
        by_name = kwargs.get("closure")
        if by_name is not None:
            stand_in, treated = self.around(optimizer, by_name)
            return (stand_in, *args[1:]), {**kwargs, "closure": treated}
        if len(args) > 1 and callable(args[1]):
            return (*self.around(optimizer, args[1]), *args[2:]), kwargs
        rates = self.treat(optimizer)
        return ((stand_in_for(optimizer, rates), *args[1:]), kwargs) if rates else None

    def around(self, optimizer: Optimizer, closure: Callable[[], Any]) -> tuple[Any, Callable[[], Any]]:
        """For step(closure): the gradient comes from the closure, inside the step, and the groups are read after it."""
        stand_in = stand_in_for(optimizer, {})

        def treated() -> Any:
            loss = closure()
            regroup(stand_in, optimizer, self.treat(optimizer))
            return loss

        return stand_in, treated

    @torch.no_grad()
    def treat(self, optimizer: Optimizer) -> Rates:
        """Let all treatments act, and return the learning rates that differ in this step."""
        held = {id(p): (p, group) for group in optimizer.param_groups for p in group["params"] if p.grad is not None}
        chosen = [(t, [held[id(p)] for p in t.params if id(p) in held]) for t in self.treatments]
        for treatment, found in chosen:
            treatment.check(optimizer, found)
        rates: Rates = {}
        for treatment, found in chosen:
            treatment.act(optimizer, found, rates)
        return rates


@functools.cache
def _uncompiled() -> Callable[..., Any]:
    """The hook outside compiled steps. Asked for with the first hook, not by a decorator: asking loads the compiler."""
    return torch.compiler.disable(StepHook._replace_arguments)  # type: ignore[no-any-return]


def grad_scale(optimizer: Optimizer) -> Tensor | None:
    """What the optimizer will divide the gradients by: a GradScaler leaves that to fused optimizers."""
    return getattr(optimizer, "grad_scale", None)


def found_inf(optimizer: Optimizer) -> Tensor | None:
    """Not 0 if a GradScaler saw Inf or NaN, and the fused optimizer will skip the step. Kept on the device."""
    return getattr(optimizer, "found_inf", None)


def _hook_of(optimizer: Optimizer) -> StepHook | None:
    hooks = optimizer._optimizer_step_pre_hooks.values()
    return next((hook for hook in hooks if isinstance(hook, StepHook)), None)


def _require_params(kind: type[Treatment], optimizer: Optimizer, params: Tensor | Iterable[Tensor]) -> tuple[Tensor, ...]:
    """The parameters, each held by the optimizer and without this treatment, or the error that says why not."""
    who = kind.__name__
    if not isinstance(optimizer, Optimizer):
        raise OptionError(f"`{who}`: `optimizer` must be a torch.optim.Optimizer, got {type(optimizer).__name__}.")
    if isinstance(optimizer, LBFGS):
        raise OptionError(
            f"`{who}`: LBFGS fits its model to differences of true gradients and searches along them; changing either "
            "breaks it. Use another optimizer."
        )
    if isinstance(params, nn.Module) or not isinstance(params, Iterable):
        raise OptionError(f"`{who}`: `params` must be parameters, got {type(params).__name__}. Pass [layer.weight].")
    chosen = (params,) if isinstance(params, Tensor) else tuple(params)
    if not chosen or not all(isinstance(p, Tensor) for p in chosen):
        kinds = ", ".join(sorted({type(p).__name__ for p in chosen})) or "none"
        raise OptionError(f"`{who}`: `params` must be one or more parameters, got {kinds}. Pass [layer.weight].")
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    hook = _hook_of(optimizer)
    treated = {id(p) for t in (hook.treatments if hook else []) if isinstance(t, kind) for p in t.params}
    for i, p in enumerate(chosen):
        what = f"`{who}`: parameter {i} of shape {tuple(p.shape)}"
        if id(p) not in groups:
            raise OptionError(
                f"{what} is not held by this {type(optimizer).__name__}; parameters are told apart by identity. Of a "
                "parametrized layer pass layer.parametrizations.weight.original."
            )
        if id(p) in treated:
            raise OptionError(f"{what} already has this treatment. Call detach() on that one first.")
        if groups[id(p)].get("differentiable", False):
            raise OptionError(f"{what} belongs to an optimizer with differentiable=True, through which it would not be.")
        treated.add(id(p))
    return chosen
