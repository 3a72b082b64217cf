"""Functions of a spectrum, as they are written down while somebody else's code applies them.

A `Call` is one elementwise operation of torch on others; `SPECTRUM` is the spectrum itself. What a call closes over must be
the same for all numbers of one matrix, so that the chain is a function f of one number: a number, or a tensor with a last
dimension of 1. `Recorded` evaluates the chain again, at any points, and so gives it divided differences (elementwise.py).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spectralgrad.linalg.elementwise import Elementwise


class Call:
    """``function`` of numbers, tensors and other calls; the versions of those tensors tell whether somebody changed them."""

    __slots__ = ("arguments", "function", "options", "versions")

    def __init__(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> None:
        self.function, self.arguments, self.options = function, arguments, options
        self.versions = [_version(x) for x in (*arguments, *options.values())]


SPECTRUM = Call(torch.positive)


def _version(x: Any) -> int:
    return x._version if isinstance(x, Tensor) and not x.is_inference() else 0


def shared(x: Tensor, flat: bool) -> Tensor | None:
    """``x`` as what all numbers of a matrix share: () or (*B, 1); None if it differs between them.

    ``flat``: it stood beside a spectrum (*B, n), and not beside (*B, 1, n) or (*B, n, 1).
    """
    if x.ndim == 0 or (flat and x.shape[-1] == 1):
        return x
    if not flat and x.numel() and x.shape[-2:].numel() == 1:
        return x if x.ndim == 1 else x.squeeze(-1)
    return None


def replayed(call: Call, x: Tensor, extra: int = 0) -> Tensor:
    """f(x) for points x of a spectrum (*B, n) that has got ``extra`` dimensions at its end."""
    found: dict[int, Any] = {id(SPECTRUM): x}

    def value(each: Any) -> Any:
        if isinstance(each, Call):
            if id(each) not in found:
                found[id(each)] = run(each)
            return found[id(each)]
        return each.reshape(each.shape + (1,) * extra) if isinstance(each, Tensor) and each.ndim else each

    def run(each: Call) -> Any:
        given = (*each.arguments, *each.options.values())
        if [_version(y) for y in given] != each.versions:
            raise RuntimeError(
                "`drop_in`: a tensor that a function of eigenvalues depends on has been modified by an inplace operation "
                "since. Modify a clone of it."
            )
        return each.function(*map(value, each.arguments), **{name: value(y) for name, y in each.options.items()})

    return value(call)  # type: ignore[no-any-return]


def as_number(x: Tensor) -> Tensor:
    """What a cast does to points: nothing but that yes and no become 1 and 0. Differences are taken in float64."""
    return x if x.is_floating_point() else x.to(torch.float64)


def masked(x: Tensor, mask: Tensor, y: Any) -> Tensor:
    """x[mask] = y."""
    return torch.where(mask, y, x)


@dataclass(frozen=True, eq=False)
class Recorded(Elementwise):
    """The function that was written down for spectra with ``dimensions``; ``odd``: continued to negative numbers."""

    call: Call = SPECTRUM
    dimensions: int = 1
    odd: bool = False

    at_once = False  # dimensions are counted: a closed-over tensor has those of the batch

    def __post_init__(self) -> None:
        object.__setattr__(self, "function", self._at)  # of any shape

    def _at(self, x: Tensor) -> Tensor:
        call = _oddly if self.odd else replayed
        return call(self.call, x, extra=max(x.ndim - self.dimensions, 0))


def _oddly(call: Call, x: Tensor, extra: int) -> Tensor:
    """sign(x) f(|x|), and 0 at 0, where f is not asked."""
    zero = x == 0
    return torch.where(zero, 0, x.sign() * replayed(call, torch.where(zero, 1, x.abs()), extra))
