"""OLR: the rate, who gets it and for how long, and that the optimizer never shows it."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.optim import lr_scheduler

from spectralgrad.errors import OptionError
from spectralgrad.orthogonal import NearestOrthogonalGradient, OptimalLearningRate, orthogonal_weight
from support.cases import random, rotation
from support.optimizers import OPTIMIZERS, assert_same, data, loss_of, nearest, network


@pytest.fixture(autouse=True)
def _seed() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def eta_of(w: Tensor, l: Tensor) -> float:  # noqa: E741
    """ECCV22 eq. 20, written apart from the library."""
    w, l = w.detach().double().flatten(), l.double().flatten()  # noqa: E741
    ww, lw, ll = float(w @ w), float(l @ w), float(l @ l)
    return ww * lw / (ww * ll + 2 * lw**2)


def towards(p: Tensor, share: float, seed: int = 0) -> Tensor:
    """A gradient with a component along the parameter: eta is positive for a positive share."""
    noise = random(*p.shape, seed=seed + 100).to(p.dtype)
    return share * p.detach() / p.detach().norm() + noise / noise.norm()


def plain(optimizer: optim.Optimizer) -> list[dict[str, Any]]:
    return copy.deepcopy(optimizer.state_dict()["param_groups"])


# The rate.


@pytest.mark.parametrize(
    ("share", "lr", "used"), [(1.0, 10.0, True), (1.0, 1e-3, False), (-1.0, 10.0, False), (0.01, 10.0, True)]
)
def test_rate_is_used_only_between_zero_and_lr(share: float, lr: float, used: bool) -> None:
    p = nn.Parameter(random(8, 2, 3, 3))
    p.grad = towards(p, share)
    w, eta = p.detach().clone(), eta_of(p, p.grad)
    assert (0 < eta < lr) == used  # the case is what it says
    optimizer = optim.SGD([p], lr=lr)
    olr = OptimalLearningRate(optimizer, p)
    assert olr.rates == [None]
    optimizer.step()
    assert olr.rates == pytest.approx([eta if used else lr], rel=1e-12)
    torch.testing.assert_close(p.detach(), w - (eta if used else lr) * p.grad)


def test_rate_is_negative_for_about_half_of_all_gradients() -> None:
    """Eq. 21 has no 0 in it: without one the weight would go against the descent."""
    w = random(8, 4)
    negative = sum(eta_of(w, random(8, 4, seed=i)) < 0 for i in range(1, 401))
    assert 150 < negative < 250


def test_proposition_1_does_not_hold() -> None:
    """Its lower bound is 1/(N^2 + 2) for orthogonal weight and gradient; a positive eta below it is easily found."""
    N = 6
    etas = [eta_of(rotation(N), rotation(N, seed=i)) for i in range(1, 400)]
    assert any(0 < eta < 1 / (N**2 + 2) for eta in etas)


def test_rate_does_not_minimise_the_distance_it_was_derived_from() -> None:
    """Eq. 18 at eta, and at a tenth of it: the reason why nothing here is called optimal but the paper's class name."""

    def distance(eta: float) -> float:
        W = w - eta * l
        return float((W.mT @ W - torch.eye(6)).norm())

    w, l = 0.5 * rotation(6), rotation(6)  # noqa: E741
    eta = eta_of(w, l)
    assert eta > 0
    assert distance(eta) > distance(eta / 10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_dtypes(dtype: torch.dtype) -> None:
    p = nn.Parameter(random(6, 4, dtype=torch.complex128 if dtype.is_complex else torch.float64).to(dtype))
    p.grad = (p.detach() + 0.5).clone()
    optimizer = optim.SGD([p], lr=10.0)
    olr = OptimalLearningRate(optimizer, p)
    real = [torch.view_as_real(x) if x.is_complex() else x for x in (p.detach(), p.grad)]
    expected = eta_of(*real)
    optimizer.step()
    assert olr.rates == pytest.approx([expected], rel=1e-12)


def test_maximize_turns_the_gradient_round() -> None:
    p = nn.Parameter(random(4, 4))
    p.grad = towards(p, 1.0)
    w, eta = p.detach().clone(), eta_of(p, -p.grad)
    assert eta < 0
    optimizer = optim.SGD([p], lr=10.0, maximize=True)
    olr = OptimalLearningRate(optimizer, p)
    optimizer.step()
    assert olr.rates == [10.0]
    p.data, p.grad = w.clone(), towards(p, -1.0)
    eta = eta_of(w, -p.grad)
    optimizer.step()
    assert olr.rates == pytest.approx([eta])
    torch.testing.assert_close(p.detach(), w + eta * p.grad)


@pytest.mark.parametrize("case", ["zero gradient", "zero weight", "nan", "inf"])
def test_no_rate_where_it_is_not_a_number(case: str) -> None:
    p = nn.Parameter(torch.zeros(3, 3) if case == "zero weight" else torch.ones(3, 3))
    p.grad = torch.zeros(3, 3) if case == "zero gradient" else torch.ones(3, 3)
    if case in ("nan", "inf"):
        p.grad[0, 0] = float(case)
    optimizer = optim.SGD([p], lr=10.0)
    olr = OptimalLearningRate(optimizer, p)
    optimizer.step()  # as without the treatment
    assert olr.rates == [10.0]


@pytest.mark.parametrize("nog_first", [True, False])
def test_nog_acts_before_olr_whatever_the_order(nog_first: bool) -> None:
    p = nn.Parameter(random(6, 4))
    p.grad = towards(p, 1.0)
    w, G = p.detach().clone(), p.grad.clone()
    optimizer = optim.SGD([p], lr=10.0)
    kinds = [NearestOrthogonalGradient, OptimalLearningRate]
    treatments = {kind: kind(optimizer, p) for kind in (kinds if nog_first else kinds[::-1])}
    optimizer.step()
    eta = eta_of(w, nearest(G))
    assert treatments[OptimalLearningRate].rates == pytest.approx([eta], rel=1e-6)
    assert eta != pytest.approx(eta_of(w, G), rel=1e-2)  # control: the order matters
    torch.testing.assert_close(p.detach(), w - eta * nearest(G))
    assert len(optimizer._optimizer_step_pre_hooks) == 1


def test_with_an_orthogonal_weight_it_acts_on_what_the_optimizer_holds() -> None:
    layer = orthogonal_weight(nn.Linear(4, 6), keep=False)
    A = layer.parametrizations.weight.original
    optimizer = optim.SGD([A], lr=100.0)
    olr = OptimalLearningRate(optimizer, A)
    (layer.weight * random(6, 4).float()).sum().backward()
    if eta_of(A, A.grad) < 0:
        A.grad.neg_()
    expected = eta_of(A, A.grad)
    optimizer.step()
    assert olr.rates == pytest.approx([expected])


# Exactly those parameters, exactly that step, with every optimizer.


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("alone", [False, True], ids=["in a group with others", "alone in its group"])
def test_step_equals_one_with_groups_split_by_hand(name: str, alone: bool) -> None:
    model = network()
    other = copy.deepcopy(model)

    def groups(m: nn.Sequential) -> list[dict[str, Any]]:
        if alone:
            return [{"params": [m[0].weight]}, {"params": [m[0].bias, m[4].weight, m[4].bias]}]
        return [{"params": list(m.parameters())}]

    optimizer = OPTIMIZERS[name](groups(model))
    olr = OptimalLearningRate(optimizer, [model[4].weight, model[0].weight])
    layout = plain(optimizer)
    chosen = [other[4].weight, other[0].weight]
    rest = [other[0].bias, other[4].bias]
    reference = OPTIMIZERS[name]([{"params": [p]} for p in chosen] + [{"params": rest}])
    lr = reference.param_groups[0]["lr"]
    for i in range(4):
        for m, o in ((model, optimizer), (other, reference)):
            o.zero_grad()
            loss_of(m, data(i)).backward()
            m[0].weight.grad = towards(m[0].weight, 20.0, seed=i) * 30  # 0 < eta < lr
        for j, p in enumerate(chosen):
            eta = eta_of(p, p.grad)
            reference.param_groups[j]["lr"] = eta if 0 < eta < lr else lr
        optimizer.step()
        reference.step()
        assert olr.rates == pytest.approx([group["lr"] for group in reference.param_groups[:2]], rel=1e-3)
        assert olr.rates[1] < lr  # control: it is used
        assert plain(optimizer) == layout
    assert_same(model, other)
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        for key, value in optimizer.state[p].items():
            torch.testing.assert_close(
                torch.as_tensor(value), torch.as_tensor(reference.state[q][key]), rtol=1e-4, atol=1e-5
            )


def set_up(make: Callable[..., optim.Optimizer]) -> tuple[nn.Sequential, optim.Optimizer, OptimalLearningRate]:
    """A network whose convolution gets its own rate in the next step."""
    model = network()
    optimizer = make(model.parameters())
    olr = OptimalLearningRate(optimizer, [model[0].weight])
    loss_of(model, data(0)).backward()
    model[0].weight.grad = towards(model[0].weight, 20.0) * 30
    return model, optimizer, olr


class Broken(optim.SGD):
    """Fails in the middle of a step, having seen the rates in use."""

    seen: list[float]
    outside: Any = None

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        if closure is not None:
            with torch.enable_grad():
                closure()
        self.seen = [float(group["lr"]) for group in self.param_groups]
        if self.outside is not None:
            self.outside()
        raise ArithmeticError("in the middle of the step")


@pytest.mark.parametrize("lr", [0.1, torch.tensor(0.1)], ids=["float", "tensor"])
@pytest.mark.parametrize("closure", [None, lambda: 0.0])
def test_a_step_that_raises_leaves_the_optimizer_as_it_was(lr: float | Tensor, closure: Any) -> None:
    model, optimizer, olr = set_up(lambda params: Broken(params, lr=lr))
    before, groups = plain(optimizer), optimizer.param_groups
    looks = []
    optimizer.outside = lambda: looks.append(plain(optimizer))
    with pytest.raises(ArithmeticError):
        optimizer.step(closure)
    assert optimizer.seen == pytest.approx([0.1, olr.rates[0]])  # the step itself saw the rate,
    assert olr.rates[0] < 0.1
    assert looks == [before]  # nobody else did, not even while it ran
    assert plain(optimizer) == before
    assert optimizer.param_groups is groups
    assert groups[0]["lr"] is lr
    assert all(p is q for p, q in zip(groups[0]["params"], model.parameters(), strict=True))


def test_a_closure_that_raises() -> None:
    _, optimizer, _ = set_up(OPTIMIZERS["SGD"])
    before = plain(optimizer)

    def closure() -> float:
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        optimizer.step(closure)
    assert plain(optimizer) == before


SCHEDULERS: dict[str, Callable[[optim.Optimizer], lr_scheduler.LRScheduler]] = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2, 0.5),
    "Cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 10),
    "OneCycle": lambda o: lr_scheduler.OneCycleLR(o, 0.2, total_steps=10),
    "Exponential": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
}


@pytest.mark.parametrize("first", ["scheduler", "treatment"])
@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("tensor", [False, True])
def test_schedulers_see_the_unchanged_rate(name: str, first: str, tensor: bool) -> None:
    """Warnings are errors here: the scheduler's own wrapping of `step` stays intact in either order."""

    def run(treat: bool) -> tuple[list[float], list[Any]]:
        model = network()
        lr = torch.tensor(0.1) if tensor else 0.1
        optimizer = optim.AdamW(model.parameters(), lr=lr, foreach=False)
        used: list[Any] = []
        olr = OptimalLearningRate(optimizer, [model[0].weight]) if treat and first == "treatment" else None
        scheduler = SCHEDULERS[name](optimizer)
        olr = OptimalLearningRate(optimizer, [model[0].weight]) if treat and olr is None else olr
        seen = []
        for i in range(6):
            optimizer.zero_grad()
            loss_of(model, data(i)).backward()
            model[0].weight.grad = towards(model[0].weight, 20.0, seed=i) * 60
            optimizer.step()
            scheduler.step()
            seen.append(float(optimizer.param_groups[0]["lr"]))
            assert isinstance(optimizer.param_groups[0]["lr"], Tensor) == tensor
            used += olr.rates if olr else []
        return seen, used

    seen, used = run(treat=True)
    assert seen == run(treat=False)[0]
    assert min(used) < min(seen)  # control: other rates were used


def test_detached_under_a_scheduler() -> None:
    model, optimizer, olr = set_up(OPTIMIZERS["SGD"])
    scheduler = lr_scheduler.StepLR(optimizer, 1)
    olr.detach()
    w, g = model[0].weight.detach().clone(), model[0].weight.grad
    optimizer.step()
    scheduler.step()
    torch.testing.assert_close(model[0].weight.detach(), w - 0.1 * g)
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


# Optimizers that keep things of their own.


class Counting(optim.SGD):
    """Counts its steps in its groups and in itself, as some optimizers do, and uses the names of its parameters."""

    total = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.total += 1
        for group in self.param_groups:
            group["k"] = group.get("k", 0) + 1
            group.setdefault("seen", []).append(len(group["params"]))
            for _, p in zip(group["param_names"], group["params"], strict=True):
                self.state[p]["steps"] = self.state[p].get("steps", 0) + 1
                p.add_(p.grad, alpha=-group["lr"])


@pytest.mark.parametrize("everything", [False, True])
def test_what_the_optimizer_writes_stays_written(everything: bool) -> None:
    model = network()
    optimizer = Counting(model.named_parameters(), lr=0.1)
    chosen = list(model.parameters()) if everything else [model[0].weight]
    olr = OptimalLearningRate(optimizer, chosen)
    names = list(optimizer.param_groups[0]["param_names"])
    for i in range(3):
        for p in model.parameters():
            p.grad = towards(p, 20.0, seed=i) * 60
        before = [(p.detach().clone(), p.grad) for p in chosen]
        optimizer.step()
        for p, (w, g), rate in zip(chosen, before, olr.rates, strict=True):
            assert 0 < rate < 0.1
            torch.testing.assert_close(p.detach(), w - rate * g)
    (group,) = optimizer.param_groups
    assert group["k"] == 3
    assert group["lr"] == 0.1
    assert len(group["params"]) == 4
    assert group["param_names"] == names
    assert optimizer.total == 3
    assert [optimizer.state[p]["steps"] for p in model.parameters()] == [3] * 4


def test_frozen_and_absent_gradients() -> None:
    model, optimizer, _ = set_up(OPTIMIZERS["Adam"])
    olr = OptimalLearningRate(optimizer, [model[4].weight, model[4].bias])
    model[4].weight.grad = None
    optimizer.step()
    assert olr.rates[0] is None
    assert isinstance(olr.rates[1], float)


def test_a_group_without_lr_is_refused() -> None:
    class Other(optim.Optimizer):
        def __init__(self, params: Any) -> None:
            super().__init__(params, {"rate": 0.1})

    p = nn.Parameter(torch.zeros(3, 3))
    optimizer = Other([p])
    with pytest.raises(OptionError, match="must have an 'lr', but those of Other have params, rate"):
        OptimalLearningRate(optimizer, p)
    assert not optimizer._optimizer_step_pre_hooks
    NearestOrthogonalGradient(optimizer, p)  # which needs none


@pytest.mark.filterwarnings("ignore")  # of torch.compile, about the profiler
def test_compiled_step() -> None:
    rates = []
    for compiled in (False, True):
        torch.manual_seed(0)
        torch.compiler.reset()
        model, optimizer, olr = set_up(OPTIMIZERS["SGD-momentum"])
        w = model[0].weight.detach().clone()
        (torch.compile(optimizer.step, backend="eager") if compiled else optimizer.step)()
        rates.append((olr.rates[0], w - model[0].weight.detach(), plain(optimizer)))
    assert rates[0][0] == rates[1][0] < 0.1
    torch.testing.assert_close(rates[0][1], rates[1][1])
    assert rates[0][2] == rates[1][2]
    torch.compiler.reset()
