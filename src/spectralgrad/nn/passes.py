"""The four passes over (N, C, *) of a step by batch statistics: in kernels on a GPU, block by block on a CPU."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from torch import Tensor

from spectralgrad.kernels import affine, moments, tiles

from . import blocks

P = ParamSpec("P")
R = TypeVar("R")


def by_device(kernel: Callable[P, R], in_blocks: Callable[P, R]) -> Callable[P, R]:
    """The pass that the first argument's device takes. Triton's interpreter, where it is on, runs the kernels on a CPU."""

    @wraps(kernel)
    def choose(*args: P.args, **kwargs: P.kwargs) -> R:
        x = args[0]
        assert isinstance(x, Tensor)
        return (in_blocks if x.is_cpu and not tiles.is_interpreted() else kernel)(*args, **kwargs)

    return choose


grouped_moments = by_device(moments.grouped_moments, blocks.grouped_moments)
transform = by_device(affine.transform, blocks.transform)
transform_sums = by_device(affine.transform_sums, blocks.transform_sums)
combine = by_device(affine.combine, blocks.combine)
