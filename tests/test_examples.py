"""Every example says what one learns, runs, and leaves its picture and nothing else; what it prints is what it teaches."""

import ast
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parent.parent
EXAMPLES = {path.stem: path for path in sorted((ROOT / "examples").glob("*.py"))}
QUICK: dict[str, dict[str, Any]] = {  # a second or two each; the usual sizes are those of the slow test
    "color_transfer": {"arguments": []},
    "condition_number": {"steps": 12},
    "covariance_pooling_head": {"steps": 10},
    "fid": {"steps": 40},
    "kabsch": {"steps": 60},
    "shampoo_and_soap": {"steps": 12},
    "spd_network": {"steps": 3, "seeds": 1},
    "style_transfer": {"size": 64},
    "whitening_classifier": {"steps": 30},
    "whitening_resnet": {"steps": 12},
}


def taught(name: str, found: Any) -> bool:
    """Whether a run of an example shows what its docstring says."""
    if name == "condition_number":
        return found["orthogonal weight"][-1] < found["no treatment"][-1]
    if name == "fid":
        return found["generated"] < found["blurred"] < found["noise alone"]
    if name == "kabsch":
        return found["learned weights"] < 0.2 * found["equal weights"]
    if name == "style_transfer":
        mean = [found[which].mean((1, 2)) for which in ("style", "colours alone", "content")]
        return bool((mean[1] - mean[0]).norm() < 0.3 * (mean[2] - mean[0]).norm())
    if name == "whitening_resnet":
        lengths = [len(losses) for losses in found.values()]
        return lengths[0] == lengths[1] > lengths[2] and found["whitening, exact gradient"][-1] < 2
    return True  # has a test of its own, beside the layer or the function


def run(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Any:
    if "spectralgrad_lab" in EXAMPLES[name].read_text(encoding="utf-8"):
        pytest.importorskip("spectralgrad_lab")
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.argv", ["example"])
    with torch.random.fork_rng():
        return runpy.run_path(str(EXAMPLES[name]))["main"](picture=str(folder / "picture.png"), **options)


@pytest.mark.parametrize("name", EXAMPLES)
def test_it_runs_and_leaves_its_picture(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert taught(name, run(name, tmp_path, monkeypatch, **QUICK[name]))
    left = {path.name for path in tmp_path.iterdir() if not path.name.startswith("color_transfer")}
    assert left == {"picture.png"}
    image = pytest.importorskip("PIL.Image").open(tmp_path / "picture.png")
    assert len(image.convert("L").getcolors()) > 20  # something is drawn


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_with_its_usual_sizes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert taught(name, run(name, tmp_path, monkeypatch))


@pytest.mark.parametrize("name", EXAMPLES)
def test_it_keeps_the_convention(name: str) -> None:
    text = EXAMPLES[name].read_text(encoding="utf-8")
    doc = ast.get_docstring(ast.parse(text)) or ""
    assert doc.splitlines()[0].endswith(".")
    assert "\nWhat one learns: " in doc
    assert f"python examples/{name}.py" in doc
    assert len(text.splitlines()) <= 170  # a screen or two
    picture = ROOT / "docs" / "figures" / "examples" / f"{name}.svg"
    assert 5_000 < picture.stat().st_size < 300_000
    assert f"[{name}.py]({name}.py)" in (ROOT / "examples" / "README.md").read_text(encoding="utf-8")


def test_no_picture_without_an_example() -> None:
    assert {path.stem for path in (ROOT / "docs" / "figures" / "examples").iterdir()} == set(EXAMPLES) == set(QUICK)
