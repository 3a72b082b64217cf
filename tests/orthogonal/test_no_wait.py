"""NOG, OLR and OW in a step in which the host reads nothing, and the step is what it was when it did."""

import copy
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn, optim

import spectralgrad as sg
from spectralgrad.linalg import choices
from spectralgrad.orthogonal import NearestOrthogonalGradient, OptimalLearningRate, orthogonal_weight
from spectralgrad.orthogonal.rate import _on_device
from support.host_reads import HostReads
from support.optimizers import assert_same, data, loss_of, nearest, network

COMBINATIONS = [("NOG",), ("OLR",), ("OW",), ("NOG", "OLR"), ("NOG", "OW"), ("OLR", "OW"), ("NOG", "OLR", "OW")]


@pytest.fixture(autouse=True)
def _seed() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.fixture
def _an_svd_that_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The decomposition alone reads on a CPU, in its chain of retries; on a GPU its kernel does not."""
    monkeypatch.setattr("spectralgrad.orthogonal.gradient.polar", lambda G, **_: nearest(G))


def treated(names: tuple[str, ...], lr: float | Tensor, fused: bool) -> tuple[nn.Sequential, optim.Optimizer, list[object]]:
    model = network()
    if "OW" in names:
        orthogonal_weight(model[0], keep=False)
    held = model[0].parametrizations.weight.original if "OW" in names else model[0].weight
    optimizer = optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=5e-4, nesterov=True, fused=fused)
    kinds = {"NOG": NearestOrthogonalGradient, "OLR": OptimalLearningRate}
    return model, optimizer, [kinds[name](optimizer, [held]) for name in names if name in kinds]


def step(model: nn.Module, optimizer: optim.Optimizer, batch: tuple[Tensor, Tensor]) -> None:
    optimizer.zero_grad()
    loss_of(model, batch).backward()
    optimizer.step()


@pytest.mark.usefixtures("_an_svd_that_reads_nothing")
@pytest.mark.parametrize("names", COMBINATIONS, ids="-".join)
def test_host_reads_nothing_in_a_step(names: tuple[str, ...]) -> None:
    """With the learning rate as a tensor where the parameters are, as on a GPU."""
    model, optimizer, _ = treated(names, torch.tensor(0.1), fused=True)
    for i in range(3):
        with sg.checks(False), HostReads() as reads:
            step(model, optimizer, data(i))
        assert reads.found == []


def test_a_read_is_found() -> None:
    """Control: the rate as a number is read; and so does torch's own exponential."""
    model, optimizer, _ = treated(("OLR",), 0.1, fused=False)
    with sg.checks(False), HostReads() as reads:
        step(model, optimizer, data(0))
    assert reads.found == ["aten._local_scalar_dense.default"]
    with HostReads() as reads:
        torch.matrix_exp(torch.zeros(2, 2))
    assert reads.found


@pytest.mark.parametrize("names", COMBINATIONS, ids="-".join)
def test_steps_with_a_rate_on_the_device_are_those_with_a_number(names: tuple[str, ...]) -> None:
    model, optimizer, treatments = treated(names, torch.tensor(0.5, dtype=torch.float64), fused=False)
    torch.manual_seed(0)
    other, reference, controls = treated(names, 0.5, fused=False)
    other.load_state_dict(model.state_dict())
    for i in range(4):
        step(model, optimizer, data(i))
        step(other, reference, data(i))
        if "OLR" in names:
            assert treatments[-1].rates == pytest.approx(controls[-1].rates, rel=1e-4)
            assert all(isinstance(rate, float) for rate in treatments[-1].rates)
    assert_same(model, other)


def test_groups_do_not_depend_on_the_rate() -> None:
    """A captured step is the same list of launches whatever the rate; with a number the group is split where it is used."""
    seen: list[list[int]] = []

    class Looking(optim.SGD):
        def step(self, closure: None = None) -> None:
            seen.append([len(group["params"]) for group in self.param_groups])

    for lr, expected in ((torch.tensor(10.0), [3, 1]), (torch.tensor(1e-6), [3, 1]), (1e-6, [4]), (10.0, [3, 1])):
        model = network()
        optimizer = Looking(model.parameters(), lr=lr)
        OptimalLearningRate(optimizer, [model[0].weight])
        for p in model.parameters():
            p.grad = p.detach().clone()  # eta = 1/3
        optimizer.step()
        assert seen[-1] == expected


def test_who_reads_a_rate_from_the_device() -> None:
    """A GPU is not here; what is asked of the parameter is where it is and what it holds."""

    class OnGPU:
        is_cuda, device = True, torch.device("cuda:0")

        def __init__(self, real: bool = True) -> None:
            self.is_floating_point = lambda: real

    p = [nn.Parameter(torch.zeros(2, 2))]
    twin = {"fused": True, "foreach": False}
    sgd, adam, rms = optim.SGD(p, lr=0.1), optim.Adam(p, lr=0.1), optim.RMSprop(p, lr=0.1)
    here, number = OnGPU(), {"lr": 0.1}
    assert _on_device(sgd, here, number) == twin
    assert _on_device(sgd, OnGPU(real=False), number) is None  # no fused step there
    assert _on_device(type("Own", (optim.SGD,), {})(p), here, number) is None  # who knows what its step reads
    assert _on_device(sgd, here, {**number, "fused": True}) == {}
    assert _on_device(adam, here, number) is None
    assert _on_device(adam, here, {**number, "capturable": True}) == {}
    assert _on_device(rms, here, {**number, "capturable": True}) is None  # it reads the value of a tensor
    assert _on_device(sgd, p[0], number) is None
    assert _on_device(sgd, p[0], {"lr": torch.tensor(0.1)}) == {}


def test_the_twin_of_a_step_of_sgd_is_the_fused_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU does with a number as the rate and SGD's usual step, here on the CPU."""
    results = []
    for patched in (False, True):
        torch.manual_seed(0)
        model, optimizer, _ = treated(("NOG", "OLR"), 0.5, fused=False)
        if patched:
            monkeypatch.setattr("spectralgrad.orthogonal.rate._on_device", lambda *_: {"fused": True, "foreach": False})
        before = copy.deepcopy(optimizer.state_dict()["param_groups"])
        for i in range(4):
            step(model, optimizer, data(i))
        assert optimizer.state_dict()["param_groups"] == before
        results.append(model)
    assert_same(*results)


def test_large_gradients_go_by_products_on_a_gpu() -> None:
    large, small = (torch.zeros(n, 4608, device="meta") for n in (512, 64))
    assert choices.for_one_polar(large) is choices.AUTO  # not on this device
    assert choices.for_one_polar(small) is choices.AUTO
    there = SimpleNamespace(shape=(512, 4608), device=torch.device("cuda"), is_complex=lambda: False)
    assert isinstance(choices.for_one_polar(there), sg.NewtonSchulz)
    there.shape = (64, 27)
    assert choices.for_one_polar(there) is choices.AUTO


def test_products_leave_a_deficient_gradient_bounded() -> None:
    """Null directions stay between 0 and 1; the others become 1."""
    G = torch.randn(40, 6, dtype=torch.float64) @ torch.randn(6, 30, dtype=torch.float64)
    with sg.checks(False):
        values = torch.linalg.svdvals(sg.polar(G.float(), solver=sg.NewtonSchulz()).double())
    torch.testing.assert_close(values[:6], torch.ones(6, dtype=torch.float64), rtol=0, atol=1e-5)
    assert float(values.max()) <= 1 + 1e-5
