"""Every layer with batch statistics, as tests take them."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import spectralgrad as sg
from spectralgrad.nn import (
    DecorrelatedBatchNorm2d,
    PCADenoise2d,
)
from support import cases
from support.features import Layer, Make, images

WHITENING: dict[str, Make] = {
    "zca": partial(DecorrelatedBatchNorm2d, 6, group_size=3),
    "pca": partial(DecorrelatedBatchNorm2d, 6, whitening="pca"),
    "running whitening": partial(DecorrelatedBatchNorm2d, 6, group_size=2, running="whitening"),
    "cumulative": partial(DecorrelatedBatchNorm2d, 6, momentum=None),
    "newton": partial(DecorrelatedBatchNorm2d, 6, group_size=3, solver=sg.NewtonSchulz()),
}

EVERY: dict[str, Make] = {
    **WHITENING,
    "rank": partial(PCADenoise2d, 6, rank=3),
    "energy": partial(PCADenoise2d, 6, energy=0.9),
    "all energy": partial(PCADenoise2d, 6, energy=1),
}


each_layer = pytest.mark.parametrize("make", EVERY.values(), ids=EVERY)


each_mode = pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])


def trained(make: Make, steps: int = 3, **options: Any) -> Layer:
    """A layer in eval mode whose statistics and parameters have moved."""
    layer = make(dtype=torch.float64, **options)
    for step in range(steps):
        layer(images(seed=step) * (1 + step))
    for i, parameter in enumerate(layer.parameters()):
        nn.init.uniform_(parameter, 0.5, 1.5, generator=cases.generator(i))
    return layer.eval()
