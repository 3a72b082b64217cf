"""Gradient norms against plain hooks, through the layer alone; copies of a watched layer take no part."""

import copy
import math
import pickle

import pytest
import torch
from torch import Tensor, nn

from spectralgrad.diagnostics import ConditionMonitor
from spectralgrad.nn import DecorrelatedBatchNorm1d
from support import cases
from support.monitored import D, Residual, model


@pytest.mark.parametrize("by_name", [False, True])
def test_gradient_norms_are_those_through_the_layer_alone(by_name: bool) -> None:
    torch.manual_seed(0)
    net, x = Residual(), cases.random(20, D)
    net.by_name = by_name
    with ConditionMonitor(net) as monitor:
        (net(x) * cases.random(20, D, seed=1)).sum().backward()
        [record] = monitor.step()
    h = net.first(x).detach().requires_grad_()
    y = net.norm(h)
    arriving = cases.random(20, D, seed=1) * (y > 0)
    [leaving] = torch.autograd.grad(y, h, arriving)
    assert record["gradient_before"] == pytest.approx(float(arriving.norm()), rel=1e-12)
    assert record["gradient_after"] == pytest.approx(float(leaving.norm()), rel=1e-9)


def test_gradients_of_several_passes_add_up() -> None:
    net = model()
    with ConditionMonitor(net) as monitor:
        norms = []
        for seed in range(2):  # accumulation: two passes, one step
            seen: list[Tensor] = []
            handle = net[1].register_forward_hook(lambda *a, seen=seen: a[-1].register_hook(seen.append) and None)
            net(cases.random(20, D, seed=seed)).square().sum().backward()
            handle.remove()
            norms.append(float(seen[0].norm()))
        [record] = monitor.step()
    assert record["gradient_before"] == pytest.approx(math.hypot(*norms), rel=1e-12)


def test_no_gradient_where_there_is_none() -> None:
    layer, x = DecorrelatedBatchNorm1d(D, dtype=torch.float64), cases.random(20, D)
    with ConditionMonitor(layer) as monitor:
        layer(x).square().sum().backward()
        [record] = monitor.step()
        assert record["gradient_before"] > 0
        assert record["gradient_after"] is None  # the input needs none
        with torch.no_grad():
            layer(x)
        [record] = monitor.step()
        assert record["gradient_before"] is record["gradient_after"] is None
        assert math.isfinite(record["condition"])


def test_a_backward_pass_after_the_step_is_not_counted_in_the_next() -> None:
    net, x = model(), cases.random(20, D)
    with ConditionMonitor(net) as monitor:
        late = net(x).sum()
        assert monitor.step()[0]["gradient_before"] is None
        late.backward()
        net(x)
        assert monitor.step()[0]["gradient_before"] is None


def test_copies_and_pickles_take_no_part() -> None:
    net, x = model(), cases.random(20, D)
    with ConditionMonitor(net) as monitor:
        for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
            twin(x).sum().backward()
            assert monitor.step() == []
        net(x).sum().backward()
        [alone] = monitor.step()
        net(x).sum().backward()
        shallow = copy.copy(net[1])  # shares the hooks, as the replicas of DataParallel do
        assert shallow._forward_hooks
        shallow(x.requires_grad_()).sum().backward()
        assert monitor.step() == [{**alone, "step": 3}]


def test_a_copy_of_a_watched_model_can_be_watched() -> None:
    net, x = model(), cases.random(20, D)
    with ConditionMonitor(net) as monitor:
        twins = [copy.deepcopy(net), pickle.loads(pickle.dumps(net)), nn.Sequential(copy.copy(net[1]))]
        for twin in twins:
            with ConditionMonitor(twin) as other:
                twin(x.requires_grad_()).sum().backward()
                assert [record["gradient_before"] is None for record in other.step()] == [False]
            assert monitor.step() == []
        net(x).sum().backward()
        assert [record["gradient_before"] is None for record in monitor.step()] == [False]


def test_a_layer_that_the_user_watches_too() -> None:
    net, x = model(), cases.random(20, D)
    net[1].monitored = True
    with ConditionMonitor(net, every=2) as monitor:
        net(x)
        assert len(monitor.step()) == 1
        assert net[1].monitored
        assert net[1].last_covariance is not None
        net(x)
        assert monitor.step() == []
        assert monitor.step() == []  # an old covariance is not new
        assert net[1].last_covariance is not None
