"""What is public: the names in these lists. They exist, and the documentation and the examples use no others."""

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import spectralgrad as sg

ROOT = Path(__file__).parent.parent
MODULES = (
    "spectralgrad",
    "spectralgrad.nn",
    "spectralgrad.nn.functional",
    "spectralgrad.orthogonal",
    "spectralgrad.spd",
    "spectralgrad.diagnostics",
    "spectralgrad.errors",
)
PUBLIC = {f"{module}.{name}" for module in MODULES for name in importlib.import_module(module).__all__}
PUBLIC |= {*MODULES, "spectralgrad.__version__"}
READ_BY_USERS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").glob("*.py"))]


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_exists(module: str) -> None:
    found = importlib.import_module(module)
    assert [name for name in found.__all__ if not hasattr(found, name)] == []
    assert len(set(found.__all__)) == len(found.__all__) > 0
    assert re.search(rf"`{module.removeprefix('spectralgrad.')}`", sg.__doc__ or "") or module == "spectralgrad"


ENTRY = re.compile(r"    ([\w*]+(?:, [\w*]+)*): ")
CALLED = [
    f"{module}.{name}"
    for module in MODULES
    for name in importlib.import_module(module).__all__
    if module != "spectralgrad.errors" and callable(getattr(importlib.import_module(module), name))
]


def documented(doc: str) -> list[str]:
    """The names in the section of the arguments, or of the attributes of what is only read."""
    section = re.search(r"^(?:Args|Attributes):\n((?:    .*\n|\n)+)", f"{doc}\n", re.MULTILINE)
    entries = [found[1] for line in (section[1].splitlines() if section else []) if (found := ENTRY.match(line))]
    return [name.strip("*") for entry in entries for name in entry.split(", ")]


@pytest.mark.parametrize("name", CALLED)
def test_a_docstring_has_every_argument_and_an_example_that_can_be_pasted(name: str) -> None:
    home, _, last = name.rpartition(".")
    public = getattr(importlib.import_module(home), last)
    doc = inspect.getdoc(public) or ""
    if not re.search(r"^`\w+` for inputs ", doc):  # the 1d and 3d of a layer send the reader to its 2d
        assert sorted(documented(doc)) == sorted(inspect.signature(public).parameters)
    first, *others = re.findall(r"^>>> (.+)$", doc, re.MULTILINE)
    assert first in ("import torch, spectralgrad as sg", "import spectralgrad as sg")
    called = rf"\b{name.replace('spectralgrad', 'sg', 1)}\b"
    assert re.search(called, "\n".join(others), re.IGNORECASE)  # `Moments` are what `moments` returns


def code_of(text: str, suffix: str) -> str:
    """The Python of a file: all of it, or what stands in the fences of a page."""
    return text if suffix == ".py" else "\n".join(re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE))


def used(code: str) -> Iterator[str]:
    """Full names of what ``code`` takes from the library: by import, or as an attribute of a module of it."""
    tree, bound = ast.parse(code), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
                bound[alias.asname or "spectralgrad"] = alias.name if alias.asname else alias.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            for alias in node.names:
                yield f"{node.module}.{alias.name}"
                bound[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            path, inner = [node.attr], node.value
            while isinstance(inner, ast.Attribute):
                path, inner = [inner.attr, *path], inner.value
            if isinstance(inner, ast.Name) and bound.get(inner.id) in MODULES:
                yield ".".join([bound[inner.id], *path])


def private(code: str) -> list[str]:
    """What ``code`` uses of the library and should not. Attributes of what is public are public."""
    ours = {name for name in used(code) if name.split(".")[0] == "spectralgrad"}
    return sorted(name for name in ours if not is_public(name))


def is_public(name: str) -> bool:
    home, _, last = name.rpartition(".")
    return name in PUBLIC or (home not in MODULES and bool(last) and is_public(home))


@pytest.mark.parametrize("path", READ_BY_USERS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_users_read_uses_public_names_only(path: Path) -> None:
    assert private(code_of(path.read_text(encoding="utf-8"), path.suffix)) == []


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import spectralgrad as sg\nsg.eigh(sg.nn.functional.whiten_color, sg.Taylor.degree)", []),
        ("import spectralgrad.nn as snn\nsnn.fuse.__doc__", []),
        ("from spectralgrad.linalg.eigh import eigh", ["spectralgrad.linalg.eigh.eigh"]),
        ("from spectralgrad import counters", ["spectralgrad.counters"]),
        ("import spectralgrad as sg\nsg.counters.count('x')", ["spectralgrad.counters", "spectralgrad.counters.count"]),
        ("import spectralgrad.nn\nspectralgrad.nn.pooling", ["spectralgrad.nn.pooling"]),
        ("from spectralgrad.nn import pooling as p", ["spectralgrad.nn.pooling"]),
        ("import spectralgrad_lab.models\nfrom torch import eye", []),
    ],
)
def test_private_names_are_found(code: str, found: list[str]) -> None:
    assert private(code) == found
    assert private(code_of(f"text\n\n```python\n{code}\n```\n", ".md")) == found
