"""What NOG and OLR share: one pre-hook of the optimizer's step, and learning rates that hold for one step.

A hook on the backward pass would see a part of the gradient (accumulation), that of one rank (DDP) or a scaled one
(GradScaler). The step sees what is really applied.

A step pre-hook may replace the arguments of the step, `self` among them. So the optimizer is never changed: where a
parameter gets a learning rate of its own, the step runs on a *stand-in*, an object that shares all attributes with the
optimizer but has its own list of groups, in which that parameter stands alone. Nothing has to be restored, whatever the
step raises, and schedulers, `state_dict` and other hooks never see the difference.
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

Group = dict[str, Any]
Rates = dict[int, float]  # id of a parameter -> its learning rate in this step


class Treatment:
    """Something done to chosen parameters in every step of an optimizer, until `detach`."""

    order: ClassVar[int]  # NOG before OLR, whatever the order of attaching

    def __init__(self, optimizer: Optimizer, params: Tensor | Iterable[Tensor]) -> None:
        self.params = _require_params(type(self), optimizer, params)
        self._optimizer = weakref.ref(optimizer)  # a cycle would keep the optimizer's state until the next collection
        hook = _hook_of(optimizer)
        if hook is None:
            hook = StepHook()
            hook.handles = (optimizer.register_step_pre_hook(hook), optimizer.register_step_post_hook(_write_back))
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

    def check(self, optimizer: Optimizer, held: list[tuple[Tensor, Group]]) -> None:
        """Raise what has to be raised; called for all treatments before any of them acts."""
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

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if isinstance(optimizer, _StandIn):  # a step that calls its parent class's step: all is done already
            return None
        by_name = kwargs.get("closure")
        if by_name is not None:
            stand_in, treated = self.around(optimizer, by_name)
            return (stand_in, *args[1:]), {**kwargs, "closure": treated}
        if len(args) > 1 and callable(args[1]):
            return (*self.around(optimizer, args[1]), *args[2:]), kwargs
        rates = self.treat(optimizer)
        return ((_stand_in(optimizer, rates), *args[1:]), kwargs) if rates else None

    def around(self, optimizer: Optimizer, closure: Callable[[], Any]) -> tuple[Any, Callable[[], Any]]:
        """For step(closure): the gradient comes from the closure, inside the step, and the groups are read after it."""
        stand_in = _stand_in(optimizer, {})

        def treated() -> Any:
            loss = closure()
            _regroup(stand_in, optimizer, self.treat(optimizer))
            return loss

        return stand_in, treated

    @torch.no_grad()
    def treat(self, optimizer: Optimizer) -> Rates:
        """Let all treatments act; the learning rates that differ in this step."""
        held = {id(p): (p, group) for group in optimizer.param_groups for p in group["params"] if p.grad is not None}
        chosen = [(t, [held[id(p)] for p in t.params if id(p) in held]) for t in self.treatments]
        for treatment, found in chosen:
            treatment.check(optimizer, found)
        rates: Rates = {}
        for treatment, found in chosen:
            treatment.act(optimizer, found, rates)
        return rates


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


# The stand-in.


class _StandIn:
    __slots__ = ()
    parts: "list[_Part]"


@functools.cache
def _stand_in_type(kind: type[Optimizer]) -> type[Optimizer]:
    # A slot is a data descriptor of the class: it comes before the instance's __dict__, which is the optimizer's own.
    slots = {"__slots__": ("param_groups", "parts"), "__module__": kind.__module__}
    return type(kind.__name__, (_StandIn, kind), slots)


def _stand_in(optimizer: Optimizer, rates: Rates) -> Any:
    """The optimizer, but for its groups: what it reads and writes elsewhere is the original's."""
    stand_in = object.__new__(_stand_in_type(type(optimizer)))  # type: ignore[arg-type]
    stand_in.__dict__ = optimizer.__dict__
    _regroup(stand_in, optimizer, rates)
    return stand_in


def _regroup(stand_in: Any, optimizer: Optimizer, rates: Rates) -> None:
    """Give ``stand_in`` the groups of the optimizer, with each parameter that has its own rate in a group of its own."""
    stand_in.param_groups, stand_in.parts = [], []
    for group in optimizer.param_groups:
        params = group["params"]
        shared = [i for i, p in enumerate(params) if id(p) not in rates]
        if len(shared) == len(params):
            stand_in.param_groups.append(group)
            continue
        own = [_own(group, [i], rates[id(p)]) for i, p in enumerate(params) if id(p) in rates]
        parts = [_Part(group, x) for x in ([_own(group, shared, None)] if shared else []) + own]
        stand_in.param_groups += [part.group for part in parts]
        # One part stands for the group: a counter that the optimizer keeps there is to count once.
        stand_in.parts.append(parts[0])


def _own(group: Group, places: list[int], rate: float | None) -> Group:
    """In what the part of a group that holds the parameters at ``places`` differs from the group."""
    own: Group = {key: [group[key][i] for i in places] for key in ("params", "param_names") if key in group}
    if rate is not None:
        own["lr"] = torch.full_like(group["lr"], rate) if isinstance(group["lr"], Tensor) else rate
    return own


class _Part:
    """A part of a group, for one step."""

    def __init__(self, whole: Group, own: Group) -> None:
        self.whole, self.own, self.before = whole, own, dict(whole)
        self.group: Group = {**whole, **own}

    def write_back(self) -> None:
        """Enter into the whole group what the step has written into this part of it; some optimizers count there."""
        for key, value in self.group.items():
            if key not in self.own and (key not in self.before or self.before[key] is not value):
                self.whole[key] = value


def _write_back(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """The post-hook."""
    if isinstance(args[0], _StandIn) and not isinstance(optimizer, _StandIn):
        for part in args[0].parts:
            part.write_back()
