"""`spectralgrad bench` measures, guards and judges; and the numbers it reports are the ones it should."""

import dataclasses
import io
import json
import math
from contextlib import nullcontext
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

import spectralgrad as sg
from spectralgrad_lab.bench import accuracy, graph, inputs, layers, matrices, measure, on_request, peers, run, table
from spectralgrad_lab.bench.case import AS_FAST, Case
from spectralgrad_lab.bench.cases import CPU, GPU, QUICK_CPU, QUICK_GPU, SECTIONS, cases
from spectralgrad_lab.bench.peers import OURS
from spectralgrad_lab.bench.progress import Progress
from spectralgrad_lab.bench.rows import Row
from spectralgrad_lab.cli import main
from support.cases import generator

CPU_DEVICE = torch.device("cpu")
INSTANT = measure.Effort(0.0, most=2, sample_seconds=0.0)


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    """Idle threads of torch's pool spin beside other tests; and with one thread no target of time is set."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_quick_run_measures_every_section_of_the_cpu_and_leaves_a_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "--quick", "--write", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    (path,) = tmp_path.glob("bench-*-quick.json")
    text = path.read_text()
    record = json.loads(text)
    assert str(tmp_path) not in text
    assert record["command"] == "spectralgrad bench --quick"
    assert record["versions"]["torch"] == metadata.version("torch")
    assert (record["partial"], record["quick"]) == (False, True)
    assert path.with_suffix(".md").read_text().strip() in printed

    rows = [Row.from_record(line) for line in record["rows"]]
    assert {row.section for row in rows} == {case.section for case in QUICK_CPU}
    for row in rows:
        assert OURS not in row.failed, row
        assert row.figure is not None
        for first, median, third in row.seconds.values():
            assert 0 < first <= median <= third
        if row.kind == "ratio":
            assert row.ratios[row.baseline] == (1, 1, 1)
            assert row.figure == row.ratios[OURS][1]
    found = {(row.section, row.case, row.d): row for row in rows}
    for d in (4, 32):
        assert found["accuracy", "residual", d].verdict == found["accuracy", "orthogonality", d].verdict == "met"
    assert found["pooling", "error of the gradient", 16].verdict == "met"


def test_only_chooses_sections(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--quick", "--only", "pooling", "backward"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert {line.split()[1] for line in lines[2:]} == {"pooling", "backward"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--only", "eigh", "speed"], ["--only takes eigh, eigh64", "got speed"]),
        (["--only", "graph"], ["graph has no case for the CPU"]),
        (["--page", "missing.json"], ["missing.json: No such file"]),
    ],
)
def test_wrong_names_are_a_clear_error(arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *arguments]) == (1 if "--page" in arguments else 2)
    message = capsys.readouterr().err
    assert [word for word in words if word not in message] == []
    assert "Traceback" not in message


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_gpu_without_a_device_is_a_clear_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--gpu"]) == 2
    assert "--gpu needs a CUDA device" in capsys.readouterr().err


def test_folder_that_cannot_be_made_is_an_error_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "run", lambda *_: pytest.fail("measured"))
    (tmp_path / "file").write_text("")
    assert main(["bench", "--write", str(tmp_path / "file")]) == 1
    assert "file" in capsys.readouterr().err


def good(case: Case, *_: object) -> list[Row]:
    return [Row(case.section, "", case.d, case.batch, "ratio", 2.0, target=1.0)]


def test_ctrl_c_keeps_the_finished_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> list[Row]:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "TASKS", {**dict.fromkeys(SECTIONS, good), "accuracy": interrupted})
    assert main(["bench", "--write", str(tmp_path)]) == 130
    captured = capsys.readouterr()
    assert "**Partial**" in captured.out
    assert "stopped" in captured.err
    (path,) = tmp_path.glob("bench-*-partial.json")
    record = json.loads(path.read_text())
    assert record["partial"] is True
    assert len(record["rows"]) == sum(case.section == "eigh" for case in CPU)


def test_error_in_a_case_is_a_row_and_the_rest_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> list[Row]:
        raise RuntimeError("no kernel in /home/somebody/kernels/jacobi.cu | line 1 of 3/4/5\nmore")

    monkeypatch.setattr(run, "TASKS", {**dict.fromkeys(SECTIONS, good), "inv_sqrtm": broken})
    assert main(["bench"]) == 0
    out = capsys.readouterr().out
    assert "RuntimeError: no kernel in jacobi.cu / line 1 of 3/4/5" in out
    assert "somebody" not in out
    assert "FAILED" in out
    after = [line for line in out.splitlines() if line.startswith("| whitening")]
    assert len(after) == sum(case.section == "whitening" for case in CPU)


@pytest.mark.parametrize(
    ("figure", "target", "at_least", "verdict"),
    [
        (2.0, 2.0, True, "met"),
        (1.99, 2.0, True, "missed"),
        (2.0, 2.0, False, "met"),
        (2.01, 2.0, False, "missed"),
        (math.nan, 2.0, True, "missed"),
        (math.nan, 2.0, False, "missed"),
        (1e9, None, False, "-"),
        (None, 2.0, True, "failed"),
    ],
)
def test_verdict(figure: float | None, target: float | None, at_least: bool, verdict: str) -> None:
    row = Row("eigh", "", 4, 1, "ratio", figure, target=target, at_least=at_least)
    assert row.verdict == verdict
    assert table.line(row)[9] == table.MARKS[verdict]  # type: ignore[index]
    failed = dataclasses.replace(row, failed={OURS: "RuntimeError: x"})
    assert failed.verdict == "failed"
    peer_failed = dataclasses.replace(row, failed={"xitorch": "raises X"})
    assert peer_failed.verdict == verdict


def synthetic(at_least: bool, **seconds: list[float]) -> Row:
    case = Case("eigh", 4, 1, target=1.5)
    times = measure.Times(
        {OURS: seconds["ours"], "base": seconds["base"], **{k: seconds[k] for k in seconds if k == "peer"}}
    )
    return measure.timed_row(case, times, "base", at_least)


def test_figure_is_the_median_of_the_ratios_within_a_round() -> None:
    row = synthetic(True, ours=[1.0, 2.0, 4.0], base=[2.0, 6.0, 4.0])  # ratios 2, 3, 1; of the medians 2
    assert row.figure == 2
    assert row.spread == (1.5, 2.5)
    assert row.verdict == "met"
    row = synthetic(False, ours=[1.0, 2.0, 4.0], base=[2.0, 6.0, 4.0])
    assert row.figure == 0.5
    assert row.verdict == "met"
    assert synthetic(False, ours=[2.0, 2.0], base=[1.0, 1.0]).verdict == "missed"


def test_losses_name_misses_failures_and_rivals() -> None:
    slower = synthetic(True, ours=[1.0, 1.0], base=[1.6, 1.6], peer=[0.5, 0.5])
    assert slower.verdict == "met"
    missed = synthetic(True, ours=[1.0, 1.0], base=[1.2, 1.2])
    fine = synthetic(True, ours=[1.0, 1.0], base=[2.0, 2.0])
    batch_norm = synthetic(False, ours=[1.2, 1.2], base=[1.0, 1.0])  # does less: no rival
    failed = Row("graph", "", 16, 64, "error", failed={OURS: "RuntimeError: capture"})
    text = table.losses([fine, slower, missed, batch_norm, failed])
    assert len(text) == 3
    assert "peer faster" in text[0]
    assert "target >= 1.5" in text[1]
    assert "RuntimeError: capture" in text[2]


def test_sizes_that_are_lost_in_one_way_are_one_sentence() -> None:
    rows = [
        Row("eigh", "", d, batch, "ratio", figure, (0.5, 9.0), goal, baseline="base")
        for d, batch, figure, goal in (
            (8, 1, 1.5, 2.0),
            (64, 16, 1.2, 2.0),
            (16, 4, 1.8, 2.0),
            (8, 4, 1.0, 3.0),
            (8, 9, 5.0, 3.0),
        )
    ]
    assert table.losses(rows) == [
        "eigh, d = 8 to 64, B = 1 to 16 (3 cases): 1.2x to 1.8x, target >= 2.",
        "eigh, d = 8, B = 4: 1x (0.5 to 9), target >= 3.",
    ]


def test_measure_takes_every_method_in_turn_and_rotates_the_inputs() -> None:
    calls: list[tuple[str, int]] = []

    def call(name: str) -> measure.Call:
        return lambda i: calls.append((name, i))

    def broken() -> measure.Call:
        raise NotImplementedError

    effort = measure.Effort(0.0, most=7, sample_seconds=0.0)
    optional = {"peer": lambda: call("peer"), "broken": broken}
    times = measure.measure(call("ours"), ("base", call("base")), optional, CPU_DEVICE, effort)
    assert {name: len(values) for name, values in times.seconds.items()} == {OURS: 7, "base": 7, "peer": 7}
    assert times.failed == {"broken": "raises NotImplementedError"}
    rounds = calls[-21:]
    assert [name for name, _ in rounds[:6]] == ["ours", "base", "peer", "peer", "base", "ours"]
    assert [i for _, i in rounds[::3]] == [0, 1, 2, 0, 1, 2, 0]


def test_baseline_that_raises_leaves_our_time_and_no_ratio() -> None:
    def broken(_: int) -> object:
        raise torch.linalg.LinAlgError("failed to converge")

    effort = measure.Effort(0.0, most=2, sample_seconds=0.0)
    times = measure.measure(lambda i: i, ("base", broken), {}, CPU_DEVICE, effort)
    assert times.failed == {"base": "raises LinAlgError"}
    case = Case("pooling", 4, 1, target=1e3)
    assert measure.timed_row(case, times, "base", False, "milliseconds").verdict == "met"
    ratio = measure.timed_row(case, times, "base", True)
    assert ratio.verdict == "failed"
    assert "base raises LinAlgError" in table.losses([ratio])[0]
    assert table.line(ratio)[6] == "raises LinAlgError base"


def test_error_of_ours_goes_up() -> None:
    def broken(_: int) -> object:
        raise torch.linalg.LinAlgError("failed to converge")

    with pytest.raises(torch.linalg.LinAlgError):
        measure.measure(broken, ("base", lambda i: i), {}, CPU_DEVICE, INSTANT)


def test_torch_that_gives_up_leaves_our_accuracy(monkeypatch: pytest.MonkeyPatch) -> None:
    def gives_up(M: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        raise torch.linalg.LinAlgError("failed to converge")

    right = torch.linalg.eigh
    monkeypatch.setattr(accuracy.sg, "eigh", lambda M: right(M))
    monkeypatch.setattr(torch.linalg, "eigh", gives_up)
    rows = accuracy.check_eigh(Case("accuracy", 4, 2, batches=(1, 2)), CPU_DEVICE, INSTANT)
    assert len(rows) == 4
    assert all(row.verdict != "failed" and row.failed == {"torch.linalg.eigh": "raises LinAlgError"} for row in rows)
    monkeypatch.setattr(accuracy.sg, "eigh", gives_up)
    with pytest.raises(torch.linalg.LinAlgError):
        accuracy.check_eigh(Case("accuracy", 4, 2, batches=(1, 2)), CPU_DEVICE, INSTANT)


def test_slow_baseline_leaves_peers_out_and_is_called_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {"ours": 0, "base": 0}
    clock = {"ours": 0.001, "base": 2.5}

    def call(name: str) -> measure.Call:
        def run_once(_: int) -> None:
            counts[name] += 1

        run_once.__name__ = name
        return run_once

    def fake(call: Any, index: int, device: torch.device, repeats: int = 1) -> float:
        call(index)
        return clock[call.__name__]

    monkeypatch.setattr(measure, "seconds_of", fake)
    peer = {"peer": lambda: pytest.fail("built")}
    times = measure.measure(call("ours"), ("base", call("base")), peer, CPU_DEVICE, measure.Effort(0.0))
    assert set(times.seconds) == {OURS, "base"}
    assert counts["base"] == 3  # one to warm up, two rounds
    assert times.seconds["base"] == [2.5, 2.5]


def test_cases_have_the_targets_that_were_set() -> None:
    target = {(case.section, case.d, case.batch): case.target for case in GPU}
    assert [target["eigh", 32, batch] for batch in (1, 16, 256, 4096, 30_000)] == [2, 2, 2.5, 6, 6]
    assert [target["eigh", 64, batch] for batch in (1, 16, 256, 4096)] == [2, 2, 2.5, 2.5]
    assert [target["eigh", 128, batch] for batch in (1, 16, 256)] == [2, 1.5, 1.5]
    assert target["eigh64", 64, 256] == 2
    assert {case.target for case in GPU if case.kind == AS_FAST} == {None}  # it follows from the opponent's time
    assert target["inv_sqrtm", 256, 256] == 50
    assert {value for (section, _, _), value in target.items() if section == "backward"} == {8}
    assert len(target) == len(GPU)  # nothing twice
    assert {case.section for case in GPU} == set(SECTIONS) == set(run.TASKS) - set(on_request.SECTIONS)
    assert cases(gpu=True, quick=False, only=["graph"]) == [GPU[-1]]
    assert all(case in GPU for case in QUICK_GPU if case.section != "accuracy")
    (large,) = [case for case in GPU if case.section == "accuracy" and case.d == 64]
    assert large.batches == (1, 16, 256, 4096)


def test_a_routine_of_others_may_cost_a_little_more_through_us(monkeypatch: pytest.MonkeyPatch) -> None:
    """5 % and 0.05 ms: at 1 ms the ratio must be 1 / 1.1 at least."""
    monkeypatch.setattr(measure, "seconds_of", lambda call, index, *_: call(index) and 1e-3)
    (row,) = matrices.time_eigh(Case("eigh", 4, 2, kind=AS_FAST), CPU_DEVICE, INSTANT)
    assert row.target == pytest.approx(1 / 1.1)
    assert row.verdict == "met"
    (row,) = matrices.time_eigh(Case("eigh64", 4, 2, 5.0, dtype="float64"), CPU_DEVICE, INSTANT)
    assert (row.target, row.dtype, row.baseline) == (5.0, "float64", "torch.linalg.eigh")


def test_the_baseline_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert next(iter(peers.eigensolvers(CPU_DEVICE))) == peers.TORCH_EIGH
    monkeypatch.setattr(peers.syev, "obstacle", lambda _: None)
    assert next(iter(peers.eigensolvers(torch.device("cuda")))) == peers.XSYEV
    monkeypatch.setattr(peers.syev, "obstacle", lambda _: "too old")
    assert next(iter(peers.eigensolvers(torch.device("cuda")))) == peers.TORCH_EIGH


def test_patience_lengthens_a_case(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []

    def task(case: Case, device: torch.device, effort: measure.Effort) -> list[Row]:
        seen.append(effort.seconds)
        return good(case)

    monkeypatch.setattr(run, "TASKS", dict.fromkeys(SECTIONS, task))
    monkeypatch.setattr(run, "cases", lambda *_: [Case("eigh", 4, 1), Case("resnet", 4, 1, patience=4.0)])
    run.run(run.Options(), Progress(io.StringIO()))
    assert seen == [measure.FULL_CPU.seconds, 4 * measure.FULL_CPU.seconds]


def test_targets_of_time_need_two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "TASKS", {**run.TASKS, "eigh": good})
    assert run._guarded(Case("eigh", 4, 1), CPU_DEVICE, INSTANT)[0].target is None
    torch.set_num_threads(2)
    assert run._guarded(Case("eigh", 4, 1), CPU_DEVICE, INSTANT)[0].target == 1


def test_accuracy_notices_wrong_eigenpairs() -> None:
    """Negative control: each figure sees the error that it is for, and NaN is never forgotten."""

    def with_wrong_values(M: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        w, V = torch.linalg.eigh(M)
        return torch.cat([w[..., :1] * (1 + 0.01), w[..., 1:]], -1), V

    def with_wrong_vectors(M: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        w, V = torch.linalg.eigh(M)
        return w, V * (1 + 1e-4)

    def with_nan_at_first(M: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        w, V = torch.linalg.eigh(M)
        return (w * torch.nan, V) if len(M) == 1 else (w, V)

    right = accuracy.errors(lambda M: sg.eigh(M.double()), 6, (1, 4), CPU_DEVICE)
    assert right["eigenvalues, scaled"] < 1e-9
    assert right["eigenvalues, rotated"] < 1e-9
    assert max(right["residual"], right["orthogonality"]) < 1
    values = accuracy.errors(with_wrong_values, 6, (1, 4), CPU_DEVICE)
    assert values["residual"] > 100
    assert values["eigenvalues, scaled"] > 5e-3
    vectors = accuracy.errors(with_wrong_vectors, 6, (1, 4), CPU_DEVICE)
    assert vectors["orthogonality"] > 100
    assert math.isnan(accuracy.errors(with_nan_at_first, 6, (1, 4), CPU_DEVICE)["eigenvalues, rotated"])


@pytest.mark.parametrize("make", [inputs.badly_scaled, inputs.rotated])
def test_hard_matrices_have_their_condition(make: Any) -> None:
    M = make(8, 100, CPU_DEVICE)
    w = torch.linalg.eigvalsh(M.double())
    kappa = w[:, -1] / w[:, 0]
    assert M.dtype == torch.float32
    assert torch.equal(M, M.mT)
    assert 1e4 < float(kappa.median()) < 1e6
    assert len(torch.unique(M.flatten(1), dim=0)) == 100  # no two alike


def test_pooling_reference_is_the_gradient() -> None:
    """Against finite differences of the matrix root by SVD, for a map of deficient rank."""
    x = torch.randn(1, 5, 2, 2, dtype=torch.float64, generator=generator())
    g = torch.randn(1, 15, dtype=torch.float64, generator=generator(1))

    def pooled(x: torch.Tensor) -> torch.Tensor:
        X = x.flatten(-2)
        U, s, _ = torch.linalg.svd(X - X.mean(-1, keepdim=True), full_matrices=False)
        root = (U * s.unsqueeze(-2)) @ U.mT / 2  # n = 4
        return (root[0][tuple(torch.triu_indices(5, 5))] * g[0]).sum()

    step, numeric = 1e-6, torch.zeros_like(x)
    for index in range(x.numel()):
        e = torch.zeros_like(x).flatten()
        e[index] = step
        e = e.reshape(x.shape)
        numeric.view(-1)[index] = (pooled(x + e) - pooled(x - e)) / (2 * step)
    exact = layers.pooling_gradient(x, g)
    assert float((exact - numeric).abs().max()) < 1e-7
    assert float(exact.abs().max()) > 0.1


def test_training_to_be_captured_starts_again_in_place() -> None:
    """What the graph relies on: the same curve twice, from the same memory, and a loss that moves."""
    training = graph.CapturedTraining(Case("graph", 4, 8, 1e-6, (8, 1, 8, 8)), CPU_DEVICE)
    training.step()
    places = [p.data_ptr() for p in training.net.parameters()]
    first = training.curve(training.step)
    assert torch.equal(first, training.curve(training.step))
    assert places == [p.data_ptr() for p in training.net.parameters()]
    assert first.shape == (graph.STEPS,)
    assert len(first.unique()) == graph.STEPS
    assert not torch.equal(first, training.curve(lambda: training.loss.add_(1)))  # a curve of something else


class FakeEvent:
    """Stands for a CUDA event: 7 ms between two of them."""

    log: ClassVar[list[str]] = []

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.log.append("record")

    def synchronize(self) -> None:
        self.log.append("wait")

    def elapsed_time(self, end: "FakeEvent") -> float:
        return 7.0


def test_gpu_time_goes_from_a_quiet_device_to_completion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeEvent, "log", [])
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: FakeEvent.log.append("quiet"))
    seconds = measure.seconds_of(lambda i: FakeEvent.log.append(f"call {i}"), 2, torch.device("cuda"))
    assert seconds == pytest.approx(7e-3)
    assert FakeEvent.log == ["quiet", "record", "call 2", "record", "wait"]


@pytest.mark.parametrize(("drift", "verdict"), [(0.0, "met"), (1e-3, "missed")])
def test_graph_compares_the_replayed_curve_with_the_eager_one(
    drift: float, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the CPU, with a "graph" that takes the step again, and one whose steps are a little off."""
    made: list[graph.CapturedTraining] = []

    class Recorded(graph.CapturedTraining):
        def __init__(self, case: Case, device: torch.device) -> None:
            super().__init__(case, device)
            made.append(self)

    class FakeGraph:
        def replay(self) -> None:
            made[0].images.mul_(1 + drift)
            made[0].step()

    monkeypatch.setattr(graph, "CapturedTraining", Recorded)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    for name in ("Stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, lambda _: SimpleNamespace(wait_stream=lambda _: None))
    for name in ("graph", "stream"):
        monkeypatch.setattr(torch.cuda, name, lambda _: nullcontext())
    (row,) = graph.check_graph(Case("graph", 4, 8, 1e-6, (8, 1, 8, 8)), CPU_DEVICE, INSTANT)
    assert row.verdict == verdict
    assert row.errors["eager again"] == 0


@pytest.mark.parametrize(("kind", "label"), [("", "2x8x4x4"), ("channels_last", "2x8x4x4, channels_last")])
def test_whitening_is_timed_in_the_memory_format_of_its_case(kind: str, label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = layers.layer_step

    def seen(layer: Any, leaves: list[torch.Tensor], gradient: torch.Tensor) -> Any:
        assert all(x.is_contiguous() != bool(kind) for x in (*leaves, gradient))
        return steps(layer, leaves, gradient)

    monkeypatch.setattr(layers, "layer_step", seen)
    (row,) = layers.time_whitening(Case("whitening", 4, 2, 4.0, (2, 8, 4, 4), kind=kind), CPU_DEVICE, INSTANT)
    assert row.case == label


def test_missing_peer_leaves_an_empty_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "_package", lambda _: None)
    assert peers.inverse_roots() == {}
    assert peers.xitorch_eigh() is None
    assert peers.kornia_whitening(1e-4) is None
    assert peers.kornia_zca_of_samples(1e-4) is None
    (row,) = run.TASKS["inv_sqrtm"](Case("inv_sqrtm", 4, 2), CPU_DEVICE, INSTANT)
    assert table.line(row)[-3:] == ["", "", ""]


def test_peer_that_is_there_has_its_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "inverse_roots", lambda: {"torchspd": peers.torch_inv_sqrtm})
    (row,) = run.TASKS["backward"](Case("backward", 4, 2), CPU_DEVICE, INSTANT)
    assert table.line(row)[-3].endswith("x")
    assert table.line(row)[-2:] == ["", ""]


def test_whoever_was_measured_has_a_column() -> None:
    """A method that is faster than the baseline is not hidden because it is none of the optional peers."""
    ratios = {peers.OURS: (2.0, 2.0, 2.0), peers.XSYEV: (1.0, 1.0, 1.0), peers.CUPY: (1.5, 1.5, 1.5)}
    row = Row("eigh", "", 16, 1, "ratio", 2.0, baseline=peers.XSYEV, ratios=ratios)
    *_, header, _, line, _ = [text for text in table.report([row]).splitlines() if "|" in text or text.endswith("met.")]
    assert header.count(peers.XSYEV) == 0
    assert [cell.strip() for cell in header.split("|")][-5:-1] == [*peers.PEERS, peers.CUPY]
    assert [cell.strip() for cell in line.split("|")][-5:-1] == ["", "", "", "1.5x"]


def test_progress_is_drawn_on_a_terminal_only() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        bar = Progress(stream)
        bar.show(5, 10, "eigh")
        bar.clear()
    assert "[###############...............] 5/10 eigh" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")
    assert file.getvalue() == ""
