"""The optimizers that feed the tests of this folder. A new one is tested by being listed."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn, optim

from support.cases import random

OPTIMIZERS: dict[str, Callable[..., optim.Optimizer]] = {
    "SGD": partial(optim.SGD, lr=0.1),
    "SGD-momentum": partial(optim.SGD, lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True),
    "SGD-foreach": partial(optim.SGD, lr=0.1, momentum=0.9, foreach=True),
    "SGD-fused": partial(optim.SGD, lr=0.1, momentum=0.9, fused=True),
    "Adam": partial(optim.Adam, lr=0.1, foreach=False),
    "Adam-foreach": partial(optim.Adam, lr=0.1, foreach=True),
    "Adam-fused": partial(optim.Adam, lr=0.1, fused=True, amsgrad=True),
    "AdamW": partial(optim.AdamW, lr=0.1, weight_decay=0.1),
    "AdamW-fused": partial(optim.AdamW, lr=0.1, fused=True),
    "Adagrad": partial(optim.Adagrad, lr=0.1),
    "Adagrad-fused": partial(optim.Adagrad, lr=0.1, fused=True),
    "RMSprop": partial(optim.RMSprop, lr=0.01, momentum=0.5),  # its first steps are lr * 10: with 0.1 rounding grows
    "Adadelta": partial(optim.Adadelta, lr=0.1),
    "Adamax": partial(optim.Adamax, lr=0.1),
    "NAdam": partial(optim.NAdam, lr=0.1),
    "RAdam": partial(optim.RAdam, lr=0.1),
    "ASGD": partial(optim.ASGD, lr=0.1),
    "Rprop": partial(optim.Rprop, lr=0.1),
    "Adafactor": partial(optim.Adafactor, lr=0.1),
}
FUSED = [name for name in OPTIMIZERS if name.endswith("-fused")]


def network() -> nn.Sequential:
    """A convolution (8, 2*3*3) and a linear layer (3, 8)."""
    return nn.Sequential(nn.Conv2d(2, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))


def nearest(G: Tensor) -> Tensor:
    """U V^H, computed apart from the library."""
    U, _, Vh = torch.linalg.svd(G.flatten(1).to(torch.complex128 if G.is_complex() else torch.float64), full_matrices=False)
    return (U @ Vh).reshape(G.shape).to(G.dtype)


def data(seed: int, samples: int = 12) -> tuple[Tensor, Tensor]:
    return random(samples, 2, 6, 6, seed=seed).float(), torch.arange(samples) % 3


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def assert_same(model: nn.Module, other: nn.Module, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    for (name, p), q in zip(model.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=rtol, atol=atol, msg=lambda text, name=name: f"{name}: {text}")
