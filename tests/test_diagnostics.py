"""The condition monitor: its numbers against numpy, gradient norms against plain hooks, writers, what it leaves alone."""

import copy
import csv
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import spectralgrad as sg
from spectralgrad.diagnostics import _COLUMNS, ConditionMonitor, _Csv
from spectralgrad.errors import OptionError
from spectralgrad.nn import DecorrelatedBatchNorm1d, DecorrelatedBatchNorm2d, PCADenoise1d
from spectralgrad.nn.pooling import CovariancePool2d
from support import cases

D = 6


def samples(w: Tensor, n: int = 40, seed: int = 0) -> Tensor:
    """(n, d) float64, mean 0, whose covariance, divided by n, has exactly the eigenvalues ``w``."""
    x = cases.random(n, len(w), seed=seed)
    Q = torch.linalg.qr(x - x.mean(0))[0]
    return math.sqrt(n) * (Q * w.sqrt()) @ cases.rotation(len(w), seed=seed + 1).mT


def model(d: int = D, **options: Any) -> nn.Sequential:
    torch.manual_seed(0)
    layer = DecorrelatedBatchNorm1d(d, dtype=torch.float64, **options)
    return nn.Sequential(nn.Linear(d, d, dtype=torch.float64), layer, nn.Linear(d, 2, dtype=torch.float64))


def train(net: nn.Module, monitor: ConditionMonitor | None = None, steps: int = 4, d: int = D) -> list[dict[str, Any]]:
    """Some steps of SGD; the records of all of them."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    new: list[dict[str, Any]] = []
    for step in range(steps):
        optimizer.zero_grad()
        net(cases.random(20, d, seed=step)).square().mean().backward()
        optimizer.step()
        new += monitor.step() if monitor is not None else []
    return new


def one(layer: nn.Module, x: Tensor, **options: Any) -> list[dict[str, Any]]:
    """The records of one forward pass."""
    with ConditionMonitor(layer, **options) as monitor:
        layer(x)
        return monitor.step()


# The numbers


def test_of_a_spectrum_against_numpy() -> None:
    w = torch.tensor([1e-6, 1e-3, 0.5, 0.52, 2.0, 7.0], dtype=torch.float64)
    x = samples(w)
    [record] = one(DecorrelatedBatchNorm1d(D, eps=1e-2, dtype=torch.float64), x)
    found = np.linalg.eigvalsh(np.cov(x.numpy(), rowvar=False, bias=True))[::-1]  # descending
    assert record["condition"] == pytest.approx(found[0] / found[-1], rel=1e-8)
    assert record["condition"] == pytest.approx(7e6, rel=1e-8)  # before eps: with it 700
    assert record["largest"] == pytest.approx(7, rel=1e-12)
    assert record["smallest"] == pytest.approx(1e-6, rel=1e-8)
    assert record["smallest_gap"] == pytest.approx(min(-np.diff(found)) / found[0], rel=1e-8)
    # 1e-6 / 1e-3 is left out: the larger one is below eps
    assert record["mean_ratio"] == pytest.approx(np.mean([2 / 7, 0.52 / 2, 0.5 / 0.52, 1e-3 / 0.5]), rel=1e-8)
    assert (record["at_floor"], record["kept_rank"]) == (2, 4)
    assert (record["step"], record["layer"], record["group"]) == (0, "DecorrelatedBatchNorm1d", 0)
    assert tuple(record) == _COLUMNS


@pytest.mark.parametrize("decompose_on", ["cpu", "device"])
@pytest.mark.parametrize("spectrum", cases.SPECTRA, ids=lambda f: f.__name__)
def test_condition_of_every_spectrum(spectrum: Any, decompose_on: str) -> None:
    w = spectrum(8)
    [record] = one(DecorrelatedBatchNorm1d(8, dtype=torch.float64), samples(w), decompose_on=decompose_on)
    if float(w[0]) == 0:
        assert record["condition"] > 1e15  # inf or rounding over rounding
        assert record["at_floor"] == 4
    else:
        assert record["condition"] == pytest.approx(float(w[-1] / w[0]), rel=1e-15 / float(w[0] / w[-1]) + 1e-9)
    assert record["smallest_gap"] == pytest.approx(float(w.diff().min() / w[-1]), abs=1e-14)


def test_float32_is_decomposed_in_float64() -> None:
    x = samples(torch.logspace(-9, 0, D, dtype=torch.float64)).float()
    layer = DecorrelatedBatchNorm1d(D)
    layer.monitored = True
    layer(x)
    C = layer.last_covariance
    assert C is not None
    [record] = one(layer, x)
    wide = np.linalg.eigvalsh(C[0].double().numpy())
    assert record["smallest"] == pytest.approx(wide[0], rel=1e-6)
    assert record["smallest"] != pytest.approx(float(torch.linalg.eigvalsh(C[0])[0]), rel=1e-3)  # what float32 would give
    assert record["condition"] == (pytest.approx(wide[-1] / wide[0]) if wide[0] > 0 else math.inf)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=cases.ident)
def test_constant_input(dtype: torch.dtype) -> None:
    [record] = one(DecorrelatedBatchNorm1d(D, dtype=dtype), torch.full((10, D), 3.0, dtype=dtype))
    assert record["condition"] == math.inf
    assert (record["largest"], record["smallest"], record["smallest_gap"]) == (0, 0, 0)
    assert (record["at_floor"], record["kept_rank"], record["mean_ratio"]) == (D, 0, None)


def test_one_channel_has_no_gap() -> None:
    [record] = one(DecorrelatedBatchNorm1d(1), torch.tensor([[1.0], [3.0]]))
    assert (record["condition"], record["smallest_gap"], record["mean_ratio"]) == (1, None, None)


def test_groups_have_their_own_records() -> None:
    x = torch.cat(
        [samples(torch.tensor(w, dtype=torch.float64), seed=i) for i, w in enumerate(([1.0, 4], [1, 9], [2, 3]))], 1
    )
    records = one(DecorrelatedBatchNorm1d(D, group_size=2, dtype=torch.float64), x)
    assert [record["group"] for record in records] == [0, 1, 2]
    assert [record["condition"] for record in records] == pytest.approx([4, 9, 1.5])


@pytest.mark.parametrize("options", [{"rank": 2}, {"energy": 0.8}, {"energy": 1.0}, {}], ids=str)
def test_kept_rank_of_denoising_is_that_of_the_projector(options: dict[str, Any]) -> None:
    x = samples(torch.tensor([0.001, 0.01, 0.1, 0.2, 0.6, 1.0], dtype=torch.float64), 60)
    layer = PCADenoise1d(D, dtype=torch.float64, affine=False, **options)
    [record] = one(layer, x)
    assert record["kept_rank"] == int(torch.linalg.matrix_rank(layer(x)))
    assert record["at_floor"] == 0  # so that the number above the floor would be wrong
    assert (record["kept_rank"] == D) == (options == {"energy": 1.0})


def test_rank_of_pooling_is_that_of_the_map() -> None:
    pool = CovariancePool2d(16, reduced=None)
    x = cases.random(5, 16, 3, 3, dtype=torch.float32)
    [record] = one(pool, x)
    assert record["kept_rank"] == 8  # 9 positions, centred
    assert record["at_floor"] == 8
    records = one(pool, x, samples=None)
    assert [r["group"] for r in records] == list(range(5))
    assert records[0] == record
    assert len({r["largest"] for r in records}) == 5


def test_a_covariance_that_is_not_finite_is_marked() -> None:
    net, x = model(group_size=3), cases.random(10, D)
    with ConditionMonitor(net) as monitor:
        net(x)
        C = net[1].last_covariance.clone()
        C[0, 0, 0] = torch.nan
        net[1].last_covariance = C
        broken, fine = monitor.step()
    assert all(math.isnan(broken[name]) for name in ("condition", "largest", "smallest", "smallest_gap", "mean_ratio"))
    assert broken["at_floor"] is broken["kept_rank"] is None
    assert math.isfinite(fine["condition"])
    assert "nan" in monitor.table()


# Gradient norms


class Residual(nn.Module):
    """The layer's input goes on through another branch too, and its output is changed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(D, D, dtype=torch.float64)
        self.norm = DecorrelatedBatchNorm1d(D, dtype=torch.float64)
        self.relu = nn.ReLU(inplace=True)
        self.by_name = False

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        y: Tensor = self.norm(input=h) if self.by_name else self.norm(h)
        return self.relu(y) + 3 * h


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


# Which steps


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


# Solver failures


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


# What it leaves alone


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


# Which layers


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


# Writers


def read(path: Path) -> list[dict[str, Any]]:
    def value(name: str, text: str) -> Any:
        return text if name == "layer" else None if text == "" else float(text)

    with path.open(newline="") as file:
        return [{name: value(name, text) for name, text in row.items()} for row in csv.DictReader(file)]


def test_csv_round_trip_and_append(tmp_path: Path) -> None:
    path, net = tmp_path / "log.csv", model(group_size=3)
    new: list[dict[str, Any]] = []
    for start in (0, 2):
        with ConditionMonitor(net, to=path if start else str(path), start=start) as monitor:
            new += train(net, monitor, steps=2)
            assert read(path) == new  # flushed already
        assert monitor.records == new[-2:]  # the last step only
    with ConditionMonitor(net[1], to=path, start=4) as monitor:
        net[1](torch.ones(4, D, dtype=torch.float64))
        new += monitor.step()
    assert read(path) == new
    assert new[-1]["condition"] == math.inf
    assert [r["step"] for r in new] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert path.read_text().count("condition") == 1


def test_csv_cut_in_a_line_is_repaired(tmp_path: Path) -> None:
    path, net = tmp_path / "log.csv", model()
    with ConditionMonitor(net, to=path) as monitor:
        train(net, monitor, steps=3)
    whole = path.read_bytes()
    for cut in (3, len(whole.splitlines()[0]), len(whole) - 1, len(whole) - 40):
        path.write_bytes(whole[:cut])
        if cut < len(whole) // 3:  # in the header: nothing to report
            _Csv(path).file.close()
            assert path.read_bytes() == whole.splitlines(keepends=True)[0]
        else:
            with pytest.warns(UserWarning, match="not finished"):
                _Csv(path).file.close()
            assert path.read_bytes() == b"".join(whole.splitlines(keepends=True)[:-1])


@pytest.mark.parametrize("text", ["step,loss\n0,1.5\n", "a letter", "\n"])
def test_csv_of_another_kind_is_refused(tmp_path: Path, text: str) -> None:
    path, net = tmp_path / "log.csv", model()
    path.write_text(text)
    with pytest.raises(OptionError, match="must have the columns"):
        ConditionMonitor(net, to=path)
    assert path.read_text() == text
    assert not net[1]._forward_hooks
    assert not net[1].monitored


class Writer:
    def __init__(self) -> None:
        self.seen: list[tuple[str, float, int]] = []

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.seen.append((tag, value, step))


def test_writer_of_scalars() -> None:
    net = nn.Sequential(DecorrelatedBatchNorm1d(D, group_size=3), PCADenoise1d(D, rank=2)).double()
    writer = Writer()
    with ConditionMonitor(net, to=writer, start=7) as monitor:
        net(cases.random(20, D)).square().sum().backward()
        first, second, denoise = monitor.step()
    assert {step for *_, step in writer.seen} == {7}
    seen = {tag: value for tag, value, _ in writer.seen}
    assert len(seen) == len(writer.seen)
    assert seen["0/0/condition"] == first["condition"]
    assert seen["0/1/condition"] == second["condition"]
    assert seen["1/kept_rank"] == denoise["kept_rank"] == 2
    assert seen["0/gradient_before"] == first["gradient_before"]
    assert "0/gradient_after" not in seen  # None: the input needs no gradient
    assert seen["1/gradient_after"] == denoise["gradient_after"]


def test_table() -> None:
    net = model()
    with ConditionMonitor(net) as monitor:
        assert monitor.table().split() == list(_COLUMNS)
        net(cases.random(20, D))
        [record] = monitor.step()
        header, row = monitor.table().splitlines()
    assert len(header) == len(row)
    cells = dict(zip(header.split(), row.split(), strict=True))
    assert float(cells["condition"]) == pytest.approx(record["condition"], rel=1e-3)
    assert cells["gradient_before"] == "-"
    assert cells["at_floor"] == "0"


# Bad input


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


def test_bad_models_and_optimizers() -> None:
    with pytest.raises(OptionError, match="Sequential has none"):
        ConditionMonitor(nn.Sequential(nn.BatchNorm1d(3)))
    with pytest.raises(OptionError, match=r"torch\.nn\.Module, got list"):
        ConditionMonitor([])  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"torch\.optim\.Optimizer, got Sequential"):
        ConditionMonitor(net := model()).attach(net)  # type: ignore[arg-type]
