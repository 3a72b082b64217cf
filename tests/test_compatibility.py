"""What docs/compatibility.md says: no kernel of ours is tried on a device that is not CUDA; the sources are Python 3.10."""

import ast
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from spectralgrad.kernels.availability import status
from support.fake_gpu import hopper  # noqa: F401

ROOT = Path(__file__).parent.parent
M = torch.zeros(5, 4, 4, device="meta")
MAPS, CLOUD = torch.zeros(8, 4, 3, 3, device="meta"), torch.zeros(5, 7, 3, device="meta")
CALLS: dict[str, Callable[[], Any]] = {
    "eigh": lambda: sg.eigh(M).eigenvectors,
    "jacobi": lambda: sg.eigh(M, solver=sg.Jacobi()).eigenvectors,
    "power iteration": lambda: sg.eigh(M, gradient=sg.PowerIteration(9)).eigenvectors,
    "svd": lambda: sg.svd(M)[0],
    "inv_sqrtm": lambda: sg.inv_sqrtm(M),
    "products": lambda: sg.sqrtm(M, solver=sg.NewtonSchulz()),
    "polar": lambda: sg.polar(M),
    "projector": lambda: sg.projector(M, rank=2),
    "covariance": lambda: sg.covariance(M),
    "kabsch": lambda: sg.kabsch(CLOUD, CLOUD)[0],
    "spd": lambda: sg.spd.geodesic(M, M, 0.5),
    "whitening": lambda: sg.nn.DecorrelatedBatchNorm2d(4, device="meta")(MAPS),
    "denoising": lambda: sg.nn.PCADenoise2d(4, rank=2, device="meta")(MAPS),
    "pooling": lambda: sg.nn.CovariancePool2d(4, reduced=2, device="meta")(MAPS),
}


@pytest.mark.parametrize("kind", ["mps", "xpu", "meta", "privateuseone"])
def test_no_kernel_runs_on_another_kind_of_device(kind: str, hopper: pytest.MonkeyPatch) -> None:  # noqa: F811
    """Even beside a GPU that has all of them."""
    found = status(torch.device(kind))
    assert found
    assert all(not runs and f"this is {kind}" in reason for _, runs, reason in found)
    assert any(runs for _, runs, _ in status(torch.device("cuda", 0)))  # the control


def test_no_kernel_runs_on_rocm(hopper: pytest.MonkeyPatch) -> None:  # noqa: F811
    """There a device is called cuda too."""
    hopper.setattr(torch.version, "cuda", None)
    assert all(not runs and "without CUDA" in reason for _, runs, reason in status(torch.device("cuda", 0)))


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_shapes_without_memory(call: Callable[[], Any]) -> None:
    """On the meta device everything takes the plain way: nothing of ours asks for an address or a value."""
    result = call()
    assert isinstance(result, Tensor)
    assert result.device.type == "meta"


@pytest.mark.parametrize("folder", [name for name in ("src", "lab/src", "examples") if (ROOT / name).exists()])
def test_sources_are_python_3_10(folder: str) -> None:
    paths = list((ROOT / folder).rglob("*.py"))
    assert paths
    for path in paths:
        ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 10))


def unions_asked(source: str) -> list[int]:
    """The lines of types A | B that are made while a function runs, which the compiler of torch 2.9 does not know: those of
    `isinstance(x, A | B)`, and in the annotations of a function inside a function."""
    made: list[ast.expr] = []
    for outer in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)):
        for node in (node for node in ast.walk(outer) if node is not outer):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
                made.append(node.args[1])
            elif isinstance(node, ast.FunctionDef):
                told = [node.returns, *(argument.annotation for argument in (*node.args.args, *node.args.kwonlyargs))]
                made += [annotation for annotation in told if annotation is not None]
    return sorted({part.lineno for part in made for node in ast.walk(part) if isinstance(node, ast.BinOp)})


def test_no_union_is_asked_where_torch_2_9_compiles() -> None:
    found = {path.name: unions_asked(path.read_text(encoding="utf-8")) for path in (ROOT / "src").rglob("*.py")}
    assert {name: lines for name, lines in found.items() if lines} == {}
    control = """def f(x: int | float):
        isinstance(x, (int, float))
        isinstance(x, int | float)
        def g(x: "int | float"): ...
        def h(x: int | float): ..."""
    assert unions_asked(control) == [3, 5]


def test_newer_syntax_would_be_found() -> None:
    with pytest.raises(SyntaxError):
        ast.parse("try:\n    pass\nexcept* ValueError:\n    pass", feature_version=(3, 10))


@pytest.mark.parametrize("platform", ["win32", "linux"])
def test_what_needs_another_system_is_skipped_by_name(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hook of conftest.py marks exactly the files that it lists, on that system alone."""
    hooks = runpy.run_path(str(ROOT / "conftest.py"))
    listed = hooks["ELSEWHERE"]["win32"]
    assert [place for place in listed if place.startswith("tests/") and not (ROOT / place).exists()] == []
    marks: dict[str, list[str]] = {name: [] for name in (*listed, "tests/linalg/test_svd.py")}

    def item(name: str) -> SimpleNamespace:
        def add_marker(mark: pytest.MarkDecorator) -> None:
            marks[name].append(mark.kwargs["reason"])

        return SimpleNamespace(path=ROOT / name, add_marker=add_marker, get_closest_marker=lambda _: None)

    monkeypatch.setattr(sys, "platform", platform)
    hooks["pytest_collection_modifyitems"](
        SimpleNamespace(rootpath=ROOT, getoption=lambda _: False), [item(name) for name in marks]
    )
    for name, reasons in marks.items():
        path = (ROOT / name).relative_to(ROOT).as_posix()
        expected = [f"not on win32: {why}" for place, why in listed.items() if path.startswith(place)]
        assert reasons == (expected if platform == "win32" else [])
