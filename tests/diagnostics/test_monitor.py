"""Which steps are recorded, what that costs, and what the monitor leaves alone."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spectralgrad as sg
from spectralgrad.diagnostics import ConditionMonitor
from spectralgrad.errors import OptionError
from spectralgrad.nn import DecorrelatedBatchNorm2d, PCADenoise1d
from support import cases
from support.monitored import D, Residual, model, train


def test_eval_mode_records_nothing() -> None:
    net, x = model(), cases.random(20, D)
    with ConditionMonitor(net) as monitor:
        net(x)
        assert len(monitor.step()) == 1
        net.eval()
        net(x).sum().backward()
        assert monitor.step() == []
        assert monitor.step() == []  # no pass at all
        net.train()(x)
        assert [record["step"] for record in monitor.step()] == [3]
    assert len(monitor.records) == 2


def test_every_and_start() -> None:
    with ConditionMonitor(net := model(), every=3, start=4) as monitor:
        records = train(net, monitor, steps=8)
    assert [record["step"] for record in records] == [6, 9]
    assert monitor.records == records
    with ConditionMonitor(net := model()) as each:  # the same numbers as by recording every step
        all_records = train(net, each, steps=8)
    assert [{**r, "step": 0} for r in records] == [{**all_records[i], "step": 0} for i in (2, 5)]


def test_other_steps_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for owner, name in ((torch.linalg, "eigvalsh"), (torch.linalg, "vector_norm"), (Tensor, "view_as"), (Tensor, "cpu")):
        original = getattr(owner, name)

        def counted(*args: Any, original: Any = original, name: str = name, **kwargs: Any) -> Any:
            calls.append(name)
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, counted)
    net = model()
    train(net, steps=1)  # what the model itself calls
    own = len(calls)
    calls.clear()
    with ConditionMonitor(net, every=1000) as monitor:
        train(net, monitor, steps=1)
        assert set(calls) >= {"eigvalsh", "vector_norm", "view_as"}
        calls.clear()
        train(net, monitor, steps=5)
        assert len(calls) == 5 * own
        assert not net[1].monitored
        assert net[1].last_covariance is None
    assert len(monitor.records) == 1


def test_one_transfer_for_each_recorded_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many layers, groups, gradients and device counters there are. Of another device than the CPU: below."""
    cpu, calls = Tensor.cpu, []
    monkeypatch.setattr(Tensor, "cpu", lambda x: calls.append(x) or cpu(x))
    sg.counters.count_on_device("nonfinite_input", torch.tensor([False]))
    net = nn.Sequential(Residual(), Residual(), model(group_size=2))
    with ConditionMonitor(net) as monitor:
        assert len(train(net, monitor, steps=1)) == 1 + 1 + 3
    assert len(calls) == 1


@pytest.mark.cuda
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_no_other_wait_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = Tensor.cpu

    def allowed(x: Tensor) -> Tensor:
        torch.cuda.set_sync_debug_mode("default")
        return cpu(x)

    net, x = model(group_size=2).cuda(), cases.random(20, D).cuda()
    with ConditionMonitor(net) as monitor:
        net(x).square().mean().backward()
        monkeypatch.setattr(Tensor, "cpu", allowed)
        torch.cuda.set_sync_debug_mode("error")  # any wait before the transfer raises; after it all is on the host
        try:
            records = monitor.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    with ConditionMonitor(plain := model(group_size=2)) as each:
        plain(x.cpu()).square().mean().backward()
        expected = each.step()
    for record, same in zip(records, expected, strict=True):
        for name in ("condition", "smallest_gap", "mean_ratio", "gradient_before", "gradient_after"):
            assert record[name] == pytest.approx(same[name], rel=1e-8)


def test_attached_to_an_optimizer() -> None:
    net = model()
    optimizer = torch.optim.Adam(net.parameters())
    monitor = ConditionMonitor(net).attach(optimizer)
    for seed in range(3):
        net(cases.random(20, D, seed=seed)).square().mean().backward()
        optimizer.step()
    assert [record["step"] for record in monitor.records] == [0, 1, 2]
    with pytest.raises(OptionError, match="attached to one already"):
        monitor.attach(optimizer)
    monitor.detach()
    assert not optimizer._optimizer_step_post_hooks
    net(cases.random(20, D)).mean().backward()
    optimizer.step()
    assert len(monitor.records) == 3


def test_training_is_the_same_bit_for_bit() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(Residual(), Residual(), PCADenoise1d(D, dtype=torch.float64))
    watched = copy.deepcopy(plain)
    with ConditionMonitor(watched, every=2) as monitor:
        assert len(train(watched, monitor, steps=5)) == 9
    train(plain, steps=5)
    for (name, a), b in zip(plain.state_dict().items(), watched.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


def test_detach_restores_everything() -> None:
    net, x = model(), cases.random(20, D)
    net[1].monitored = True
    net(x)
    other = DecorrelatedBatchNorm2d(4)
    both = nn.ModuleDict({"a": net, "b": other})
    kept, before = net[1].last_covariance, copy.deepcopy(both)
    monitor = ConditionMonitor(both)
    assert other.monitored
    monitor.detach()
    monitor.detach()
    for layer in (net[1], other):
        assert not layer._forward_hooks
        assert not layer._forward_pre_hooks
        assert not layer._forward_hooks_with_kwargs
        assert not layer._forward_pre_hooks_with_kwargs
        assert not layer._backward_hooks
    assert (net[1].monitored, other.monitored) == (True, False)
    assert net[1].last_covariance is kept
    assert other.last_covariance is None
    assert other.__dict__.keys() == DecorrelatedBatchNorm2d(4).__dict__.keys()
    assert torch.equal(net(x), before["a"](x))
    with pytest.raises(OptionError, match="after detach"):
        monitor.step()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, "every"),
        ({"every": 1.5}, "every"),
        ({"samples": 0}, "samples"),
        ({"start": -1}, "start"),
        ({"decompose_on": "gpu"}, "decompose_on"),
        ({"layers": ["0"]}, "among 1, got 0"),
        ({"layers": [nn.Linear(1, 1)]}, "among 1, got Linear"),
        ({"layers": []}, "among 1, got none"),
        ({"to": 3}, "to must be None"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    net = model()
    with pytest.raises(OptionError, match=message):
        ConditionMonitor(net, **options)
    assert not net[1]._forward_hooks
    assert not net[1].monitored
