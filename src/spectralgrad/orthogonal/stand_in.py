"""Learning rates of some parameters that hold for one step of an optimizer, which is never changed.

A step pre-hook may replace the arguments of the step, `self` among them. So where a parameter gets a learning rate of its
own, the step runs on a *stand-in*: an object that shares all attributes with the optimizer but has its own list of groups,
in which that parameter stands alone. Nothing has to be restored, whatever the step raises, and schedulers, `state_dict` and
other hooks never see the difference.

A rate is a number, and then a group is split only where one is used; or it is a tensor on the device, which the host never
reads, and then the split does not depend on it.
"""

import functools
from typing import Any

from torch.optim import Optimizer

Group = dict[str, Any]
Entries = dict[str, Any]
Rates = dict[int, Entries]  # id of a parameter -> what its group says otherwise in this step: "lr", and how to step with it


class StandIn:
    """Marks a class as that of a stand-in; the class is made from the optimizer's."""

    __slots__ = ()
    parts: "list[_Part]"


def stand_in_for(optimizer: Optimizer, rates: Rates) -> Any:
    """A copy of the optimizer with its own groups; everything else that it reads and writes is the original's."""
    stand_in = object.__new__(_stand_in_type(type(optimizer)))  # type: ignore[arg-type]
    stand_in.__dict__ = optimizer.__dict__
    regroup(stand_in, optimizer, rates)
    return stand_in


def regroup(stand_in: Any, optimizer: Optimizer, rates: Rates) -> None:
    """Give ``stand_in`` the groups of the optimizer, with each parameter that has its own rate in a group of its own."""
    stand_in.param_groups, stand_in.parts = [], []
    for group in optimizer.param_groups:
        params = group["params"]
        shared = [i for i, p in enumerate(params) if id(p) not in rates]
        if len(shared) == len(params):
            stand_in.param_groups.append(group)
            continue
        own = [{**_own(group, [i]), **rates[id(p)]} for i, p in enumerate(params) if id(p) in rates]
        parts = [_Part(group, x) for x in ([_own(group, shared)] if shared else []) + own]
        stand_in.param_groups += [part.group for part in parts]
        # One part stands for the group: a counter that the optimizer keeps there is to count once.
        stand_in.parts.append(parts[0])


def write_back(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """The post-hook: what the step has written into the groups of a stand-in goes into the optimizer's."""
    if isinstance(args[0], StandIn) and not isinstance(optimizer, StandIn):
        for part in args[0].parts:
            part.write_back()


@functools.cache
def _stand_in_type(kind: type[Optimizer]) -> type[Optimizer]:
    # A slot is a data descriptor of the class: it comes before the instance's __dict__, which is the optimizer's own.
    slots = {"__slots__": ("param_groups", "parts"), "__module__": kind.__module__}
    return type(kind.__name__, (StandIn, kind), slots)


def _own(group: Group, places: list[int]) -> Group:
    """The lists of a part of a group, with the parameters at ``places``."""
    return {key: [group[key][i] for i in places] for key in ("params", "param_names") if key in group}


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
