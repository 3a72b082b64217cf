"""The sections on request run as they are documented, name every method, and their references can be trusted."""

import json
import statistics
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import spectralgrad as sg
from spectralgrad_lab.bench import cases as by_itself
from spectralgrad_lab.bench import (
    comparison,
    gradients,
    host,
    inputs,
    kernels,
    native,
    native_cases,
    networks,
    newton,
    on_request,
    peers,
    reference,
    roots,
    run,
    table,
    uses,
)
from spectralgrad_lab.bench import extended as ex
from spectralgrad_lab.bench.case import Case
from spectralgrad_lab.bench.measure import Effort, Times
from spectralgrad_lab.bench.rows import Row
from spectralgrad_lab.cli import main
from spectralgrad_lab.cli.bench import spread

CPU_DEVICE = torch.device("cpu")
INSTANT = Effort(0.0, most=2, sample_seconds=0.0)
METHODS = [
    "spectralgrad Exact",
    "spectralgrad NewtonSchulz()",
    "torch.linalg.eigh + autograd",
    "spectralgrad Taylor(9)",
    "spectralgrad Lorentzian",
    "spectralgrad NewtonSchulz(steps=5)",
    "torchspd",
    "xitorch",
    "kornia",
]
Captured = pytest.CaptureFixture[str]


@pytest.mark.slow
def test_gradients_keep_every_requirement(tmp_path: Path, capsys: Captured) -> None:
    code = main(["bench", "--quick", "--only", "gradients", "--write", str(tmp_path)])
    printed = capsys.readouterr().out
    assert code == 0, printed[-2000:]
    assert [name for name in METHODS if name not in printed] == []

    (path,) = tmp_path.glob("core-accuracy-*.json")
    record = json.loads(path.read_text())
    assert str(tmp_path) not in path.read_text()
    assert record["command"] == "spectralgrad bench --quick --only gradients"
    assert record["versions"]["torch"]
    torch_at_ties = [row["errors"][METHODS[2]] for row in record["rows"] if row["case"] == "identity"]
    assert torch_at_ties == ["NaN"] * len(torch_at_ties) != []  # the table shows failures as failures
    assert path.with_suffix(".md").read_text().strip() in printed


@pytest.mark.slow
def test_roots_compare_every_method(tmp_path: Path, capsys: Captured) -> None:
    assert main(["bench", "--quick", "--only", "roots", "--write", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert [name for name in METHODS if name not in printed] == []

    (path,) = tmp_path.glob("core-speed-*.json")
    rows = json.loads(path.read_text())["rows"]
    assert {row["dtype"] for row in rows} == {"float32"}
    for row in rows:
        first, median, third = row["seconds"]["spectralgrad Exact"]
        assert 0 < first <= median <= third
        assert row["ratios"]["torch.linalg.eigh + autograd"] == [1, 1, 1]


def test_a_row_reports_a_miss() -> None:
    errors = {"right": 1e-11, "wrong": 1e-9, "nan": np.nan}
    row = Row("gradients", "identity", 4, 1, "error", target=1e-10, errors=errors, failed={"raises": "raises X"})
    assert [row.missed_by(name) for name in ("right", "wrong", "nan", "raises", "absent")] == [
        False,
        True,
        True,
        True,
        False,
    ]


def only(monkeypatch: pytest.MonkeyPatch, *cases: Case) -> None:
    monkeypatch.setattr(run, "cases", lambda *_: list(cases))


IDENTITY = Case("gradients", 4, 16, batches=(1, 16), function="sqrtm", dtype="float64", kind="identity")


def test_gradients_fail_for_one_that_is_wrong(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setattr(gradients, "HELD", "spectralgrad Taylor(9)")  # held to our requirement instead of Exact
    only(monkeypatch, IDENTITY)
    assert main(["bench", "--quick", "--only", "gradients"]) == 1
    assert "MISSED by spectralgrad Taylor(9): sqrtm, float64, identity, d = 4, B = 1" in capsys.readouterr().out


def test_gradients_fail_where_the_references_differ(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    exact = reference.by_mpmath
    monkeypatch.setattr(reference, "by_mpmath", lambda *given: exact(*given) * (1 + 1e-14))
    only(monkeypatch, IDENTITY)
    assert main(["bench", "--only", "gradients"]) == 1
    assert "FAILED: sqrtm, float64, identity, d = 4, B = 16: ArithmeticError: the two references" in capsys.readouterr().out
    monkeypatch.setattr(reference, "by_mpmath", exact)
    assert main(["bench", "--only", "gradients"]) == 0


def test_a_method_that_raises_has_that_as_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(M: torch.Tensor) -> torch.Tensor:
        raise ValueError("no")

    monkeypatch.setattr(peers, "torchspd", lambda: peers.Method("torchspd", broken, broken))
    rows = gradients.check_gradients(IDENTITY, CPU_DEVICE, INSTANT)
    assert [row.failed for row in rows] == [{"torchspd": "raises ValueError"}] * 2
    assert [row.verdict for row in rows] == ["met"] * 2
    text = "\n".join(comparison.report(rows))
    assert "raises ValueError !" in text
    assert "| torchspd                           | 2    | 0                      | 0   | 2      |" in text


def test_extended_product_has_thirty_digits() -> None:
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((5, 5)) for _ in range(2))
    high, low = ex.matmul(ex.as_pair(a), ex.as_pair(b))
    for i in range(5):
        for j in range(5):
            exact = sum(Fraction(a[i, k]) * Fraction(b[k, j]) for k in range(5))
            assert abs(Fraction(high[i, j]) + Fraction(low[i, j]) - exact) < Fraction(1, 10**29)
    assert np.abs(low).max() > 0  # one float64 would not do


@pytest.mark.parametrize("inverse", [False, True])
def test_the_two_references_agree_and_notice_a_wrong_matrix(inverse: bool) -> None:
    for kind in ("covariance", "identity", "gaps 1e-12", "graded 1e12"):
        M, G = (
            x.numpy() for x in (inputs.matrices(kind, 4, 1, torch.float64)[0], inputs.cotangents(4, 1, torch.float64)[0])
        )
        exact = reference.by_mpmath(M, G, inverse)
        refined = reference.by_refinement(ex.as_pair(M), ex.as_pair(G), inverse)[0]
        other = reference.by_refinement(ex.as_pair(M + 1e-13 * np.eye(4)), ex.as_pair(G), inverse)[0]
        size = np.linalg.norm(exact)
        assert np.linalg.norm(refined - exact) <= 1e-15 * size
        assert np.linalg.norm(other - exact) > 1e-14 * size


@pytest.mark.slow
def test_training_with_whitening_always_finishes(tmp_path: Path, capsys: Captured) -> None:
    assert main(["bench", "--quick", "--only", "digits", "--write", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("bench-*-quick-digits.json")
    rows = [Row.from_record(line) for line in json.loads(path.read_text())["rows"]]
    guarded = [row for row in rows if not row.case.startswith("Analytic")]
    assert [row.figure for row in guarded] == [1.0] * 8  # of Exact and Taylor(9) all runs finish
    assert len(rows) == 12


def test_a_training_that_ends_breaks_the_promise() -> None:
    ended = Row("digits", "Exact, eps 1e-02", 64, 64, "share", 0.8, target=1.0, note="4 of 5 finished")
    beside = Row("digits", "Analytic, eps 1e-02", 64, 64, "share", 0.0)
    slow = Row("eigh", "", 64, 64, "ratio", 0.8, target=1.0)
    assert run.Measured([ended, beside, slow]).broken == [ended]
    assert run.Measured([beside, slow]).broken == []
    assert table.line(ended)[7:10] == ["80 %", ">= 1", "MISSED"]


def test_style_tells_all_parts() -> None:
    (case,) = [case for case in on_request.CPU_QUICK if case.section == "style"]
    rows = run.TASKS["style"](Case("style", 64, 1, 60e3), CPU_DEVICE, INSTANT)
    assert [row.case for row in rows[:2]] == ["all", "share of the decompositions"]
    assert (rows[0].target, rows[1].target) == (60e3, 0.2)
    assert "decomposition" in [row.case for row in rows[2:]]
    parts = sum(row.figure or 0.0 for row in rows[2:])
    found = {row.case: row.figure for row in rows}
    assert rows[1].figure == pytest.approx((found["decomposition"] or 0.0) / parts)
    assert case.target is None


def test_sections_on_request_are_measured_only_when_named() -> None:
    named = set(on_request.SECTIONS)
    for gpu in (False, True):
        for quick in (False, True):
            assert not named & {case.section for case in by_itself.cases(gpu, quick)}
    reached = {case.section for gpu in (False, True) for case in by_itself.cases(gpu, False, list(named))}
    assert reached == named
    assert set(run.TASKS) == {*by_itself.SECTIONS, *named}


def test_requirements_are_those_that_were_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert [roots.requirement(32, 256, s) for s in (1e-4, 1.0)] == [0.7, 0.7]
    assert [roots.requirement(16, 256, s) for s in (9e-4, 1.5e-3, 3e-3)] == [1.5, None, 1.15]
    M = torch.diag(torch.tensor([1.0, 1e6], dtype=torch.float64))
    assert gradients.requirement("graded", torch.float64, M) == pytest.approx(20 * 2.220446049250313e-16 * 1e6)
    assert gradients.requirement("graded", torch.float64, torch.eye(2, dtype=torch.float64)) == 1e-10
    assert gradients.requirement("rank-deficient + 1e-5", torch.float32, M) == 0.15
    assert gradients.requirement("covariance", torch.float32, M) == 1e-5
    roots_alone = [case for case in on_request.CPU if case.section == "gradients" and case.function in on_request.OF_ROOTS]
    assert len(roots_alone) == 4 + 4 * 2 * (15 + 12) + 2 * 3 * 4


def test_host_parts_are_timed_and_put_back() -> None:
    def double(x: int) -> int:
        return 2 * x

    owner = SimpleNamespace(__name__="a.b", double=double)
    results: list[int] = []

    def step() -> None:
        results.extend(owner.double(i) for i in range(3))

    spent: dict[str, list[float]] = host.parts_of(step, [(owner, "double")])
    assert results == [0, 2, 4]
    assert list(spent) == ["b.double"]
    assert len(spent["b.double"]) == 3
    assert statistics.median(spent["b.double"]) >= 0
    assert owner.double is double


SMALL = {
    "host": Case("host", 4, 2, shape=(2, 8, 3, 3)),
    "kernels": Case("kernels", 4, 2, shape=(2, 8, 3, 3), function="tf32x3", kind="channels_last"),
    "layouts": Case("layouts", 4, 2, 2.0, (2, 8, 3, 3), dtype="bfloat16", kind="contiguous"),
    "newton": Case("newton", 4, 2, 20.0, function="milliseconds of inv_sqrtm"),
    "newton ratio": Case("newton", 4, 2, function="inv_sqrtm"),
    "newton bmm": Case("newton", 4, 2, function="bmm"),
    "newton pooling": Case("newton", 4, 2, 15.0, (2, 4, 3, 3), function="CovariancePool2d"),
    "power": Case("power", 4, 2, 2.0, (2, 8, 3, 3), kind="SVD-PI"),
    "power both ways": Case("power", 4, 2, 2.0, (2, 8, 3, 3), kind="PI"),
    "svd": Case("svd", 3, 2, 100.0, (4, 3), function="svd", dtype="float64"),
    "polar": Case("polar", 3, 2, 3.0, (3, 3), function="procrustes, special"),
    "settings": Case("settings", 16, 2, shape=(2, 16, 3, 3), kind="sums"),
    "networks": Case("networks", 4, 2, 1.35, (2, 3, 8, 8), 4, function="eager", kind="all"),
    "networks treated": Case("networks", 4, 2, 1.1, (2, 3, 8, 8), 4, function="eager float32", kind="NOG + OLR"),
    "networks adds": Case("networks", 4, 2, 2.0, (2, 3, 8, 8), 4, function="eager float32", kind="SVD-PI"),
    **{f"uses, {name}": Case("uses", 8, 2, function=name) for name in (on_request.SHAMPOO, on_request.BY_PRODUCTS)},
    "uses, SOAP": Case("uses", 8, 2, function=on_request.SOAP),
    "uses, procrustes": Case("uses", 3, 4, 10.0, (3, 3), function=on_request.PROCRUSTES),
    "uses, kabsch": Case("uses", 3, 4, 10.0, (5, 3), function=on_request.KABSCH),
    "uses, FID": Case("uses", 12, 6, 10.0, (6, 12), function=on_request.FID),
}
ROWS = {
    "host": ["autograd.grad of a multiplication", "BatchNorm2d, eager", "BatchNorm2d, as a CUDA graph"],
    "kernels": [f"{name}, tf32x3, channels_last" for name in on_request.PASSES],
    "layouts": [f"bfloat16, contiguous, {clock}" for clock in ("events", "wall clock", "CUDA graph")],
    "newton pooling": ["2x4x3x3", "error of the gradient"],
    "power": ["SVD-PI, 2x8x3x3"],
    "power both ways": ["PI, 2x8x3x3"],
    "svd": ["4x3"],
    "polar": ["3x3"],
    "networks": ["all, eager"],
    "networks treated": ["NOG + OLR, eager float32"],
    "networks adds": ["SVD-PI, eager float32"],
    "uses, SOAP": ["", "off-diagonal part of Q^T M Q"],
    "uses, procrustes": ["3x3"],
    "uses, kabsch": ["5x3"],
    "uses, FID": ["6x12", "error of the value, 6x12", "error of the gradient, 6x12"],
}


@pytest.mark.parametrize("name", SMALL)
def test_sections_for_a_gpu_make_their_rows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU, with clocks that call once and a graph that calls."""
    milliseconds = iter(float(i) for i in range(1, 1000))

    def clock(call: Any, *_: object, **__: object) -> float:
        call()
        return next(milliseconds)

    for module in (host, kernels):
        monkeypatch.setattr(module, "wall_ms", clock)
        monkeypatch.setattr(module, "captured", lambda call: call)
    monkeypatch.setattr(kernels, "queued_ms", clock)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    case = SMALL[name]
    tables = [dict(config) for config in (kernels.affine.SUM_CONFIGS, kernels.moments.CONFIGS)]
    precision, fast = kernels.tiles.PRECISION, newton.iteration.FAST_FLOAT64
    rows = run.TASKS[case.section](case, CPU_DEVICE, INSTANT)
    assert [row.case for row in rows][: len(ROWS.get(name, []))] == ROWS.get(name, [])
    assert all(row.section == case.section and row.figure is not None and row.failed == {} for row in rows)
    # What was turned for the measurement is turned back.
    assert tables == [dict(config) for config in (kernels.affine.SUM_CONFIGS, kernels.moments.CONFIGS)]
    assert (precision, fast) == (kernels.tiles.PRECISION, newton.iteration.FAST_FLOAT64)
    if name == "layouts":
        assert [row.target for row in rows] == [2.0, 2.0, None]
        assert [row.figure for row in rows] == [1 / 2, 3 / 4, 5 / 6]  # ours first, then batch norm
    if name in ("svd", "polar"):  # a ratio must be large, milliseconds few; torch stands beside both
        (row,) = rows
        assert (row.kind, row.at_least, row.target) == (
            ("ratio", True, 100.0) if name == "svd" else ("milliseconds", False, 3.0)
        )
        assert set(row.seconds) == {peers.OURS, peers.TORCH_SVD}
    if name.startswith("networks"):
        (row,) = rows
        baseline = "whitening alone" if name.endswith("treated") else "BatchNorm2d"
        assert row.baseline == baseline
        assert (row.kind, row.at_least) == ("milliseconds" if name.endswith("adds") else "ratio", False)
    if name == "settings":
        assert [row.figure for row in rows] == [1.0, 2.0, 3.0]  # the three best


def test_what_power_iterations_add(monkeypatch: pytest.MonkeyPatch) -> None:
    times = Times({peers.OURS: [5e-3, 6e-3, 9e-3], "BatchNorm2d": [3e-3, 3e-3, 4e-3]})
    monkeypatch.setattr(networks, "measure", lambda *_: times)
    (row,) = networks.time_networks(SMALL["networks adds"], CPU_DEVICE, INSTANT)
    assert row.figure == pytest.approx(3.0)  # of 2, 3 and 5 ms
    (row,) = networks.time_networks(SMALL["networks"], CPU_DEVICE, INSTANT)
    assert row.figure == pytest.approx(2.0)  # of 5 / 3, 6 / 3 and 9 / 4


def use(name: str) -> list[Row]:
    return uses.time_uses(SMALL[f"uses, {name}"], CPU_DEVICE, INSTANT)


def test_uses_stand_beside_the_usual_ways() -> None:
    timed, root = use(on_request.SHAMPOO)
    assert timed.kind == "ratio"
    assert timed.at_least
    assert set(timed.seconds) == set(root.errors) == {peers.OURS, peers.TORCH_EIGH}
    _, by_products = use(on_request.BY_PRODUCTS)  # in float64, where eigenpairs in float32 lose the condition number, 1e5
    assert by_products.errors[peers.OURS] < 1e-6 < 1e-5 < by_products.errors[peers.TORCH_EIGH]
    _, basis = use("SOAP")
    assert all(error < 1e-5 for error in basis.errors.values())
    _, value, gradient = use("FID")
    assert (value.verdict, gradient.verdict) == ("met", "met")
    assert value.errors[peers.OURS] < 1e-6 < value.errors[on_request.FID_WAYS]


def test_without_roma_there_is_no_target(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("roma")
    for name in ("procrustes", "kabsch"):
        (row,) = use(name)
        assert (row.baseline, row.target) == (peers.ROMA, 10.0)
        assert set(row.seconds) == {peers.OURS, peers.ROMA, peers.TORCH_SVD}
    monkeypatch.setattr(peers, "_package", lambda _: None)
    for name in ("procrustes", "kabsch"):
        (row,) = use(name)
        assert (row.baseline, row.target, row.verdict) == (peers.TORCH_SVD, None, "-")


def test_the_usual_ways_of_uses_are_right() -> None:
    """In float64 they agree with ours, and the exact distance with differences."""
    x, y = (inputs.normal(5, 7, 3, seed=seed, dtype=torch.float64) for seed in range(2))
    torch.testing.assert_close(uses.torch_kabsch(x, y), tuple(sg.kabsch(x, y)))
    M = inputs.covariances(4, 3, dtype=torch.float64)
    torch.testing.assert_close(uses.torch_root(M), sg.inv_root(M, 4))
    few, many = (inputs.normal(n, 9, seed=n, dtype=torch.float64).requires_grad_() for n in (4, 6))
    torch.testing.assert_close(uses.exact_fid(few, many), sg.frechet_distance_of(few, many))
    torch.testing.assert_close(uses.torch_fid(few, many), sg.frechet_distance_of(few, many), rtol=1e-6, atol=1e-6)
    assert torch.autograd.gradcheck(uses.exact_fid, (few, many))


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--page", "a", "b", "--into", "c"], ["--page", "a", "--page", "b", "--into", "c"]),
        (["--write"], ["--write", "results"]),
        (["--only", "eigh", "--write", "x", "y"], ["--only", "eigh", "--write", "x", "y"]),  # y is too much, and said so
        ([], []),
    ],
)
def test_flags_with_several_values(words: list[str], found: list[str]) -> None:
    assert spread(words) == found


def test_kinds_have_their_spectra() -> None:
    """Each kind of matrix is what its name says."""

    def spectrum(kind: str, dtype: Any = torch.float64) -> torch.Tensor:
        return torch.linalg.eigvalsh(inputs.matrices(kind, 16, 1, dtype)[0].double())

    assert float(spectrum("graded 1e8")[-1] / spectrum("graded 1e8")[0]) == pytest.approx(1e8, rel=1e-6)
    assert len(spectrum("repeated rotated").round(decimals=9).unique()) == 5
    assert float(spectrum("rank-deficient + 1e-5")[7]) == pytest.approx(1e-5, rel=1e-6)
    assert float(spectrum("covariance, x 1e8").max()) > 1e8
    pairs = spectrum("gaps 1e-12").view(-1, 2)
    assert float((pairs[:, 1] - pairs[:, 0]).max()) < 1e-11
    X = inputs.samples_of("orthogonal samples + 2^-17", 8, torch.float64)
    torch.testing.assert_close(X @ X.mT / X.shape[-1], torch.eye(8, dtype=torch.float64))
    assert inputs.samples_of("rank-deficient + 2^-17", 8, torch.float64).shape == (8, 4)


NATIVE = [
    Case("cpu", 3, 4, 30.0, (3, 3), function=function, dtype="float64", numbers=(20.0,))
    for function in (*native._WAYS, native_cases.PROCRUSTES)
] + [Case("cpu", 3, 4, 30.0, (9, 3), function=native_cases.KABSCH, numbers=(20.0,))]


@pytest.mark.skipif(native.load.obstacle() is not None, reason="no native kernels")
@pytest.mark.parametrize("case", NATIVE, ids=lambda case: case.function)
def test_native_kernels_have_a_row_for_each_set_of_instructions(case: Case) -> None:
    levels = native.load.levels()[::-1]
    rows = native.time_native(case, CPU_DEVICE, INSTANT)
    assert [row.case for row in rows] == [f"{case.label}, {case.dtype}, {level}" for level in levels]
    asked = {"avx512": 30.0, "avx2": 20.0}
    alignment = rows[0].baseline == peers.TORCH_SVD and case.function in (native_cases.PROCRUSTES, native_cases.KABSCH)
    assert [row.target for row in rows] == [None if alignment else asked.get(level) for level in levels]
    assert all(row.figure is not None and row.failed == {} for row in rows)
    single = native.time_native(Case("cpu", 3, 1, shape=(3, 3), function="eigh"), CPU_DEVICE, INSTANT)
    assert len(single) == 1


@pytest.mark.skipif(native.load.obstacle() is not None, reason="no native kernels")
def test_each_set_of_instructions_is_what_runs_and_what_its_row_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    milliseconds = dict(zip(native.load.levels(), (8.0, 4.0, 2.0), strict=False))
    ran: list[str] = []

    def eigh(_: torch.Tensor) -> torch.Tensor:
        ran.append(native.load.level())
        return torch.ones(1)

    def by_name(ours: Any, baseline: Any, others: Any, *_: object) -> Times:
        found = {peers.OURS: ours, **{name: build() for name, build in others.items()}}
        seconds = {name: [milliseconds[(call(0), ran[-1])[1]]] for name, call in found.items()}
        return Times({**seconds, baseline[0]: [16.0]})

    monkeypatch.setitem(native._WAYS, "eigh", (eigh, "other", eigh))
    monkeypatch.setattr(native, "measure", by_name)
    best = native.load.level()
    rows = native.time_native(Case("cpu", 3, 4, shape=(3, 3), function="eigh"), CPU_DEVICE, INSTANT)
    assert [row.figure for row in rows] == [16.0 / milliseconds[level] for level in native.load.levels()[::-1]]
    assert native.load.level() == best


def test_native_cases_name_what_can_be_done_and_their_inputs_are_as_said() -> None:
    for case in (*native_cases.CPU, *native_cases.CPU_QUICK):
        ours, _, theirs = native._ways(case)
        assert callable(ours)
        assert callable(theirs)
    (x,) = native._inputs(Case("cpu", 8, 2, shape=(64, 8), function="svd", dtype="float64"), 0)
    assert (x.shape, x.dtype) == ((2, 64, 8), torch.float64)
