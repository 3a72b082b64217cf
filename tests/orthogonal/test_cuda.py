"""NOG, OLR and OW on a GPU: with a scaler, without a wait, and as a CUDA graph."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn, optim

from spectralgrad.orthogonal import NearestOrthogonalGradient, OptimalLearningRate, orthogonal_weight
from spectralgrad.orthogonal.exponential import skew_exponential
from support import cases
from support.gpu import captured, error, no_host_wait

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


TREATMENTS = [("NOG",), ("OLR",), ("OW",), ("NOG", "OLR", "OW")]
# The rate as a number and as a tensor, by every way of SGD's and by Adam's two that can be captured.
OPTIMIZERS: dict[str, Callable[..., optim.Optimizer]] = {
    "SGD": partial(optim.SGD, lr=0.1, momentum=0.9),
    "SGD-fused": partial(optim.SGD, lr=0.1, momentum=0.9, nesterov=True, fused=True),
    "AdamW-fused": partial(optim.AdamW, lr=0.01, fused=True, capturable=True),
    "Adam-capturable": partial(optim.Adam, lr=0.01, capturable=True),
}


class Training:
    """A small network with treatments of its convolution, and a batch that every step reads."""

    def __init__(self, names: tuple[str, ...], make: Callable[..., optim.Optimizer], **options: object) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 36, 4)).cuda()
        if "OW" in names:
            orthogonal_weight(self.model[0], keep=False)
        held = self.model[0].parametrizations.weight.original if "OW" in names else self.model[0].weight
        self.optimizer = make(self.model.parameters(), **options)
        if "NOG" in names:
            NearestOrthogonalGradient(self.optimizer, [held])
        self.olr = OptimalLearningRate(self.optimizer, [held]) if "OLR" in names else None
        self.images = cases.random(16, 3, 8, 8, dtype=torch.float32).cuda() + 1
        self.labels = torch.arange(16, device="cuda") % 4

    def step(self) -> Tensor:
        self.optimizer.zero_grad(set_to_none=False)
        loss = nn.functional.cross_entropy(self.model(self.images), self.labels)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def weights(self) -> list[Tensor]:
        return [p.detach().clone() for p in self.model.parameters()]


@pytest.mark.parametrize("names", TREATMENTS, ids="-".join)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_never_makes_the_host_wait(names: tuple[str, ...], name: str) -> None:
    training = Training(names, OPTIMIZERS[name])
    for _ in range(2):
        training.step()
    torch.cuda.synchronize()
    with no_host_wait():
        training.step()


@pytest.mark.parametrize("names", TREATMENTS, ids="-".join)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_captured_step_replays_as_launched(names: tuple[str, ...], name: str) -> None:
    """Three steps by hand, and three replays after them, against six by hand; the rate differs from step to step."""
    training, other = (Training(names, OPTIMIZERS[name]) for _ in range(2))
    _, _, replay = captured(training.step)
    rates = []
    for _ in range(3):
        replay()
        rates.append(training.olr.rates[0] if training.olr else None)
    for _ in range(6):
        other.step()
    for got, want in zip(training.weights(), other.weights(), strict=True):
        assert error(got, want) <= 1e-4
    if other.olr is not None:
        assert rates[-1] == pytest.approx(other.olr.rates[0], rel=1e-3)


def test_the_rate_as_a_tensor_follows_a_schedule_inside_a_graph() -> None:
    lr = torch.tensor(0.1, device="cuda")
    training = Training(("OLR",), partial(optim.SGD, lr=lr, momentum=0.9, fused=True))
    _, _, replay = captured(training.step)
    for value in (1e-9, 1e-12):  # below every eta: the rate of the group itself
        lr.fill_(value)
        replay()
        assert training.olr is not None
        assert training.olr.rates[0] == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize("shape", [(64, 27), (6, 6), (40, 27)])
def test_the_exponential_and_its_gradient_are_those_of_the_cpu(shape: tuple[int, int]) -> None:
    A = cases.random(*shape)
    found = []
    for device in ("cpu", "cuda"):
        X = A.to(device).requires_grad_()
        W = skew_exponential(X)
        found.append((W, *torch.autograd.grad(W.square().sum() + W.sum(), X)))
    for want, got in zip(*found, strict=True):
        assert error(got, want) <= 1e-11


@pytest.mark.parametrize("shape", [(512, 4608), (256, 256)])
def test_large_gradients_become_orthogonal_without_a_wait(shape: tuple[int, int]) -> None:
    p = nn.Parameter(torch.zeros(shape, device="cuda"))
    G = cases.random(*shape, dtype=torch.float32).cuda()
    optimizer = optim.SGD([p], lr=1.0)
    NearestOrthogonalGradient(optimizer, p)
    p.grad = G.clone()
    torch.cuda.synchronize()
    with no_host_wait():
        optimizer.step()
    U, _, Vh = torch.linalg.svd(G.double(), full_matrices=False)
    assert error(p.grad, (U @ Vh).float()) <= 1e-4
