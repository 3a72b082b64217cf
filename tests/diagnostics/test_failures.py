"""Solver failures and non-finite input between two recorded steps."""

from typing import Any

import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from spectralgrad.diagnostics import ConditionMonitor
from spectralgrad.nn import DecorrelatedBatchNorm1d
from support import cases
from support.monitored import D, model


@pytest.mark.usefixtures("without_native")
def test_solver_failures_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    eigh, failing = torch.linalg.eigh, [False]

    def flaky(H: Tensor, **options: Any) -> Any:
        w, V = eigh(H, **options)
        return (w * torch.nan, V) if failing[0] and H.dtype == torch.float32 else (w, V)

    monkeypatch.setattr(torch.linalg, "eigh", flaky)
    layer, x = DecorrelatedBatchNorm1d(D, group_size=3), cases.random(20, D, dtype=torch.float32)
    with ConditionMonitor(layer, every=2) as monitor:
        for failing[0] in (False, True, True, False, False):
            layer(x)
            monitor.step()
    # One for each of two groups, in steps 1 and 2; the counts are of the process, so both groups show them.
    assert [(r["step"], r["solver_failures"]) for r in monitor.records] == [(0, 0), (0, 0), (2, 4), (2, 4), (4, 0), (4, 0)]


def test_counts_that_were_there_before_or_are_reset_meanwhile() -> None:
    sg.counters.count("solver_retry_jitter", 5)
    sg.counters.count_on_device("nonfinite_input", torch.tensor([True, True]))
    net, x = model(), cases.random(20, D)
    with ConditionMonitor(net) as monitor:
        net(x)
        assert monitor.step()[0]["solver_failures"] == 0
        sg.reset_counts()
        sg.counters.count("solver_retry_float64", 2)
        sg.counters.count_on_device("nonfinite_input", torch.tensor([True, False, True, True]))
        net(x)
        record = monitor.step()[0]
        assert (record["solver_failures"], record["nonfinite_inputs"]) == (2, 3)
    sg.reset_counts()
