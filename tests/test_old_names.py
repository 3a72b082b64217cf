"""Whoever asks the library for a module that moved to the laboratory is told where it is."""

import importlib.util
import subprocess
import sys

import pytest

import spectralgrad as sg
from spectralgrad import old_names

MOVED = ("cli", "data", "experiments", "files", "models", "report", "style")
FORMS = (
    "import spectralgrad.{}",
    "import spectralgrad.{}.resnet",
    "from spectralgrad.{}.resnet import ResNet",
    "from spectralgrad import {}",
    "import importlib; importlib.import_module('spectralgrad.{}')",
)


def sentence(name: str) -> str:
    return f"spectralgrad.{name} is now spectralgrad_lab."


@pytest.mark.parametrize("name", MOVED)
@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_import(form: str, name: str) -> None:
    with pytest.raises(ModuleNotFoundError) as caught:
        exec(form.format(name))
    assert str(caught.value).startswith(sentence(name))
    assert str(caught.value).endswith("spectralgrad-lab: pip install spectralgrad-lab, in a checkout ./lab.")
    assert f"spectralgrad.{name}" not in sys.modules


@pytest.mark.parametrize("name", MOVED)
def test_the_attribute(name: str) -> None:
    with pytest.raises(AttributeError, match=sentence(name)):
        getattr(sg, name)
    assert not hasattr(sg, name)


def test_the_whole_sentence() -> None:
    assert old_names._sentence("models") == (
        "spectralgrad.models is now spectralgrad_lab.models, in the distribution spectralgrad-lab: "
        "pip install spectralgrad-lab, in a checkout ./lab."
    )
    assert old_names._sentence("style").startswith(
        "spectralgrad.style is now spectralgrad_lab.style_network and spectralgrad_lab.transfer, in"
    )


def test_other_names_are_missing_as_ever() -> None:
    with pytest.raises(AttributeError, match=r"^module 'spectralgrad' has no attribute 'eihg'$"):
        sg.eihg  # noqa: B018
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'spectralgrad\.eihg'$"):
        importlib.import_module("spectralgrad.eihg")
    with pytest.raises(ImportError, match=r"^cannot import name 'eihg' from 'spectralgrad'"):
        exec("from spectralgrad import eihg")
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'spectralgrad\.nn\.models'$"):
        importlib.import_module("spectralgrad.nn.models")


@pytest.mark.slow
def test_python_suggests_what_is_near_but_not_for_what_moved() -> None:
    """As the traceback of a user shows it."""
    code = "import spectralgrad as sg; sg.{}"
    shown = {
        name: subprocess.run([sys.executable, "-c", code.format(name)], capture_output=True, text=True, check=False).stderr
        for name in ("eigg", "models")
    }
    assert "Did you mean: 'eigh'?" in shown["eigg"]
    assert shown["models"].endswith("pip install spectralgrad-lab, in a checkout ./lab.\n")


def test_the_finder_comes_last_and_once() -> None:
    old_names.announce()
    assert [type(finder) for finder in sys.meta_path].count(old_names._Finder) == 1
    code = "import sys, spectralgrad; sys.exit(type(sys.meta_path[-1]).__module__ != 'spectralgrad.old_names')"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_new_names_exist() -> None:
    lab = pytest.importorskip("spectralgrad_lab")
    for new in old_names._MOVED.values():
        for name in new:
            assert importlib.util.find_spec(f"{lab.__name__}.{name}") is not None
