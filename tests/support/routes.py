"""Layers by a route that a test hands in, in the place of the one that the device would choose."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from spectralgrad.nn.base import BatchStatistics
from spectralgrad.nn.route import Route, route_of

Choose = Callable[[BatchStatistics, Tensor], Route]


def always(*_: object) -> bool:
    return True


def never(*_: object) -> bool:
    return False


def single(_: BatchStatistics, x: Tensor) -> bool:
    """Not in double precision, as the kernels of a whitening step."""
    return x.dtype != torch.float64


plain: Choose = partial(route_of, takes=never)
one_node: Choose = partial(route_of, takes=always, takes_step=never)  # inputs of any size, in any dtype
kernels: Choose = partial(route_of, takes=always, takes_step=single, compiles_step=single)


def take(patch: pytest.MonkeyPatch, choose: Choose) -> None:
    """Let every layer go the way that ``choose`` says."""
    patch.setattr(BatchStatistics, "forward", lambda layer, input: choose(layer, input).normalize(layer, input))


def node_of(y: Tensor) -> str:
    """What made ``y``: the name of a step of ours, or of autograd's own node."""
    return type(getattr(y.grad_fn, "step", y.grad_fn)).__name__
