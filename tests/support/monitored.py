"""Small models under a `ConditionMonitor`, and trainings of them."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from spectralgrad.diagnostics import ConditionMonitor
from spectralgrad.nn import DecorrelatedBatchNorm1d

from . import cases

D = 6


def samples(w: Tensor, n: int = 40, seed: int = 0) -> Tensor:
    """(n, d) float64, mean 0, whose covariance, divided by n, has exactly the eigenvalues ``w``."""
    x = cases.random(n, len(w), seed=seed)
    Q = torch.linalg.qr(x - x.mean(0))[0]
    return math.sqrt(n) * (Q * w.sqrt()) @ cases.rotation(len(w), seed=seed + 1).mT


def model(d: int = D, **options: Any) -> nn.Sequential:
    torch.manual_seed(0)
    layer = DecorrelatedBatchNorm1d(d, dtype=torch.float64, **options)
    return nn.Sequential(nn.Linear(d, d, dtype=torch.float64), layer, nn.Linear(d, 2, dtype=torch.float64))


def train(net: nn.Module, monitor: ConditionMonitor | None = None, steps: int = 4, d: int = D) -> list[dict[str, Any]]:
    """Some steps of SGD; the records of all of them."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    new: list[dict[str, Any]] = []
    for step in range(steps):
        optimizer.zero_grad()
        net(cases.random(20, d, seed=step)).square().mean().backward()
        optimizer.step()
        new += monitor.step() if monitor is not None else []
    return new


def one(layer: nn.Module, x: Tensor, **options: Any) -> list[dict[str, Any]]:
    """The records of one forward pass."""
    with ConditionMonitor(layer, **options) as monitor:
        layer(x)
        return monitor.step()


class Residual(nn.Module):
    """The layer's input goes on through another branch too, and its output is changed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(D, D, dtype=torch.float64)
        self.norm = DecorrelatedBatchNorm1d(D, dtype=torch.float64)
        self.relu = nn.ReLU(inplace=True)
        self.by_name = False

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        y: Tensor = self.norm(input=h) if self.by_name else self.norm(h)
        return self.relu(y) + 3 * h
