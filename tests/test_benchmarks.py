"""The benchmarks run as they are documented, name every method, and their references can be trusted."""

import json
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
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


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(BENCHMARKS / script), *arguments], capture_output=True, text=True, timeout=300
    )


def load(monkeypatch: pytest.MonkeyPatch, name: str) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return __import__(name)


@pytest.mark.slow
def test_accuracy_keeps_every_requirement(tmp_path: Path) -> None:
    done = run("accuracy.py", "--quick", "--write", str(tmp_path))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    assert [name for name in METHODS if name not in done.stdout] == []

    (path,) = tmp_path.glob("core-accuracy-*.json")
    record = json.loads(path.read_text())
    assert str(tmp_path) not in path.read_text()
    assert record["command"] == "python benchmarks/accuracy.py --quick --write"
    assert record["versions"]["torch"]
    torch_at_ties = [row["errors"][METHODS[2]] for row in record["rows"] if row["case"] == "identity"]
    assert torch_at_ties == ["nan"] * len(torch_at_ties) != []  # the table shows failures as failures
    assert path.with_suffix(".md").read_text().strip() in done.stdout


def test_speed_compares_every_method(tmp_path: Path) -> None:
    done = run("speed.py", "--quick", "--write", str(tmp_path))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    assert [name for name in METHODS if name not in done.stdout] == []

    (path,) = tmp_path.glob("core-speed-*.json")
    rows = json.loads(path.read_text())["rows"]
    assert {row["dtype"] for row in rows} == {"float32"}
    for row in rows:
        first, median, third = row["seconds"]["spectralgrad Exact"]
        assert 0 < first <= median <= third
        assert row["ratios"]["torch.linalg.eigh + autograd"] == [1, 1, 1]


def test_accuracy_reports_a_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    accuracy = load(monkeypatch, "accuracy")
    row = accuracy.Row(
        "sqrtm", "float64", "identity", 4, 1, 1e-10, {"right": 1e-11, "wrong": 1e-9, "nan": np.nan, "raises": "raises X"}
    )
    assert [row.missed_by(name) for name in ("right", "wrong", "nan", "raises", "absent")] == [
        False,
        True,
        True,
        True,
        False,
    ]


def test_accuracy_fails_for_a_gradient_that_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    accuracy, peers = load(monkeypatch, "accuracy"), load(monkeypatch, "peers")
    monkeypatch.setattr(peers, "EXACT", "spectralgrad Taylor(9)")  # held to our requirement instead of Exact
    monkeypatch.setattr(accuracy, "QUICK_SIZES", (4,))
    monkeypatch.setattr(sys, "argv", ["accuracy.py", "--quick"])
    assert accuracy.main() == 1
    assert "MISSED by spectralgrad Taylor(9): sqrtm, float64, identity, d = 4, B = 1" in capsys.readouterr().out


def test_extended_product_has_thirty_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    ex = load(monkeypatch, "extended")
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((5, 5)) for _ in range(2))
    high, low = ex.matmul(ex.as_pair(a), ex.as_pair(b))
    for i in range(5):
        for j in range(5):
            exact = sum(Fraction(a[i, k]) * Fraction(b[k, j]) for k in range(5))
            assert abs(Fraction(high[i, j]) + Fraction(low[i, j]) - exact) < Fraction(1, 10**29)
    assert np.abs(low).max() > 0  # one float64 would not do


@pytest.mark.parametrize("inverse", [False, True])
def test_the_two_references_agree_and_notice_a_wrong_matrix(monkeypatch: pytest.MonkeyPatch, inverse: bool) -> None:
    reference, ex, inputs = (load(monkeypatch, name) for name in ("reference", "extended", "inputs"))
    for case in ("covariance", "identity", "gaps 1e-12", "graded 1e12"):
        M, G = (
            x.numpy() for x in (inputs.matrices(case, 4, 1, torch.float64)[0], inputs.cotangents(4, 1, torch.float64)[0])
        )
        exact = reference.by_mpmath(M, G, inverse)
        refined = reference.by_refinement(ex.as_pair(M), ex.as_pair(G), inverse)[0]
        other = reference.by_refinement(ex.as_pair(M + 1e-13 * np.eye(4)), ex.as_pair(G), inverse)[0]
        size = np.linalg.norm(exact)
        assert np.linalg.norm(refined - exact) <= 1e-15 * size
        assert np.linalg.norm(other - exact) > 1e-14 * size


@pytest.mark.slow
def test_training_with_whitening_always_finishes() -> None:
    done = run("train_digits.py", "--quick")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    assert "0 runs of Exact and Taylor(9) did not finish" in done.stdout
