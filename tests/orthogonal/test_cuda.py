"""NOG and OLR on a GPU, with a fused optimizer."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from spectralgrad.orthogonal import NearestOrthogonalGradient, OptimalLearningRate
from support import cases
from support.gpu import error

pytestmark = [pytest.mark.cuda, pytest.mark.filterwarnings("default")]


def test_a_step_with_a_scaler_is_the_step_without(record_property: Callable[[str, object], None]) -> None:
    weights = []
    for scaled in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 4)).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
        NearestOrthogonalGradient(optimizer, [model[0].weight])
        OptimalLearningRate(optimizer, [model[0].weight])
        scaler = torch.amp.GradScaler("cuda", enabled=scaled)
        for step in range(3):
            optimizer.zero_grad()
            images = cases.random(4, 3, 8, 8, dtype=torch.float32, seed=step).cuda() + 1
            scaler.scale(model(images).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
        weights.append(model[0].weight.detach())
    record_property("difference", difference := error(weights[1], weights[0]))
    assert difference <= 1e-5
