"""Inputs of layers, and what tests of layers ask of them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import spectralgrad as sg
from support import cases

Layer = Any  # a module whose attributes are read freely


Make = Callable[..., Layer]


def correlated(n: int, d: int = 6, dtype: torch.dtype = torch.float64, seed: int = 0, mean: float = 1.0) -> Tensor:
    """Samples (n, d) of mixed channels with well-separated variances."""
    mix = torch.eye(d, dtype=torch.float64) + 0.5 * cases.random(d, d, seed=seed + 1) / d**0.5
    scale = torch.linspace(0.5, 1.5, d, dtype=torch.float64)
    return (cases.random(n, d, seed=seed) * scale @ mix.mT + mean).to(dtype)


def images(n: int = 8, d: int = 6, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    """The same as (n, d, 3, 2)."""
    return correlated(6 * n, d, dtype, seed).view(n, 3, 2, d).permute(0, 3, 1, 2).contiguous()


def rows(x: Tensor, groups: int = 1) -> Tensor:
    """(N, C, *) -> (groups, C/groups, samples)."""
    return x.detach().transpose(0, 1).reshape(groups, x.shape[1] // groups, -1)


def gradient(layer: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Of a loss that sees every output."""
    x = x.detach().clone().requires_grad_()
    y = layer(x)
    weights = cases.random(*y.shape, seed=9).to(y.dtype)
    return torch.autograd.grad((weights * y).sum() + (y**3).sum() / 10, x)[0]


class Counting(sg.Solver):
    """Lapack, with a record of what it was given."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []

    def solve(self, H: Tensor) -> tuple[Tensor, Tensor]:
        self.shapes.append(tuple(H.shape))
        return sg.Lapack().solve(H)


def few(d: int) -> Tensor:
    return correlated(d // 2 + 1, d, torch.float32)


def duplicates(d: int) -> Tensor:
    x = correlated(300, d, torch.float32)
    x[:, d // 2 :] = x[:, : d // 2]
    return x


def one_direction(d: int) -> Tensor:
    return correlated(300, 1, torch.float32) * torch.linspace(0.1, 1, d)
