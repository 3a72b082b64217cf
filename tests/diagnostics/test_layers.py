"""Which layers are watched: by name, as modules, inside compiled and distributed models."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from spectralgrad.diagnostics import ConditionMonitor
from spectralgrad.errors import OptionError
from support.monitored import D, model, train


def test_choice_of_layers() -> None:
    net = nn.ModuleDict({"a": model(), "b": model(), "c": nn.BatchNorm1d(D)})
    assert [tap.name for tap in ConditionMonitor(net, layers=["b.1"])._taps] == ["b.1"]
    with ConditionMonitor(net, layers=[net["a"][1]]) as monitor:
        assert [tap.name for tap in monitor._taps] == ["a.1"]
    assert not net["a"][1].monitored
    with pytest.raises(OptionError, match=r"layer b\.1 already"):
        ConditionMonitor(net)
    assert not net["a"][1]._forward_hooks  # nothing was begun


def test_compiled_model() -> None:
    net = model()
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    with ConditionMonitor(compiled, every=2) as monitor:
        new = train(compiled, monitor, steps=3)
    with ConditionMonitor(plain := model(), every=2) as each:
        expected = train(plain, each, steps=3)
    assert [r["layer"] for r in new] == ["1", "1"]
    assert [r["condition"] for r in new] == pytest.approx([r["condition"] for r in expected])
    assert {r["gradient_before"] for r in new} == {None}  # hooks do not fire inside a compiled graph
    for a, b in zip(net.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # of dynamo's own looking at the input
def test_compiled_layer_inside_a_model() -> None:
    net = model()
    net[1] = torch.compile(net[1], backend="eager")
    with ConditionMonitor(net) as monitor:
        assert [tap.name for tap in monitor._taps] == ["1"]
        assert [r["layer"] for r in train(net, monitor, steps=1)] == ["1"]


def test_distributed_model(tmp_path: Path) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        net = nn.parallel.DistributedDataParallel(model(process_group=dist.group.WORLD))
        with ConditionMonitor(net) as monitor:
            [record] = train(net, monitor, steps=1)
        del net, monitor  # before the group: a Reducer that is the last to hold one may wait for gloo's threads for ever
    finally:
        dist.destroy_process_group()
    plain = model()
    with ConditionMonitor(plain) as monitor:
        [expected] = train(plain, monitor, steps=1)
    assert record["layer"] == "1"
    assert record["condition"] == pytest.approx(expected["condition"], rel=1e-9)
    assert record["gradient_after"] == pytest.approx(expected["gradient_after"], rel=1e-9)


def test_bad_models_and_optimizers() -> None:
    with pytest.raises(OptionError, match="Sequential has none"):
        ConditionMonitor(nn.Sequential(nn.BatchNorm1d(3)))
    with pytest.raises(OptionError, match=r"torch\.nn\.Module, got list"):
        ConditionMonitor([])  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"torch\.optim\.Optimizer, got Sequential"):
        ConditionMonitor(net := model()).attach(net)  # type: ignore[arg-type]
