"""One direction of flow: a room imports only from rooms before it, and the first ones need torch alone."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import spectralgrad

PACKAGE = "spectralgrad"
SOURCE = Path(spectralgrad.__file__).parent
ROOMS = [
    *("errors", "files", "kernels", "linalg", "nn", "orthogonal", "diagnostics"),
    *("models", "data", "style", "experiments", "report", "cli"),
]
TORCH_ALONE = ["errors", "files", "kernels", "linalg", "nn", "orthogonal", "diagnostics"]
STRANGERS = [(f"{PACKAGE}.linalg.rules", f"{PACKAGE}.linalg.solvers")]  # these do not know each other


def module_name(path: Path, root: Path) -> str:
    parts = [PACKAGE, *path.relative_to(root).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path, root: Path) -> Iterator[str]:
    """The full name of everything that a file imports, at the top, inside functions or for type checking."""
    module = module_name(path, root)
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{source}.{alias.name}" for alias in node.names)


def room(name: str) -> str:
    """The room of a module of ours; "" for the package itself and for names in its public list."""
    top, _, rest = name.partition(".")
    second = rest.partition(".")[0]
    return second if top == PACKAGE and second in ROOMS else ""


def is_inside(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def complaint(module: str, name: str, last_listed: int) -> str | None:
    """What is wrong with ``module`` importing ``name``."""
    here, top = room(module), name.partition(".")[0]
    if top != PACKAGE:
        allowed = {"torch", "triton"} if here == "kernels" else {"torch"}
        foreign = here in TORCH_ALONE and top not in sys.stdlib_module_names | allowed
        return "neither torch nor the standard library" if foreign else None
    # `import spectralgrad` brings all that its __init__ imports: it belongs after the last of those.
    if (ROOMS.index(room(name)) if room(name) else last_listed + 0.5) > ROOMS.index(here):
        return "of a later room"
    pairs = [*STRANGERS, *((b, a) for a, b in STRANGERS)]
    return "a stranger" if any(is_inside(module, a) and is_inside(name, b) for a, b in pairs) else None


def violations(root: Path) -> list[str]:
    """Every import under ``root`` that goes against the flow."""
    files = {path: list(imported(path, root)) for path in sorted(root.rglob("*.py"))}
    listed = [ROOMS.index(room(name)) for name in files.get(root / "__init__.py", []) if room(name)]
    found = []
    for path, names in files.items():
        module = module_name(path, root)
        if module in (PACKAGE, f"{PACKAGE}.__main__"):
            continue
        if not room(module):
            found.append(f"{module} belongs to no room")
            continue
        for name in names:
            what = complaint(module, name, max(listed, default=-1))
            if what:
                found.append(f"{module} imports {name}, {what}")
    return found


def test_the_flow_has_one_direction() -> None:
    assert violations(SOURCE) == []


def test_the_rooms_are_those_of_the_design() -> None:
    """Nothing is checked by looking at an empty place: the rooms that must exist do, and their files are found."""
    for name in ("errors", "linalg"):
        assert (SOURCE / f"{name}.py").exists() or (SOURCE / name / "__init__.py").exists()
    assert {path.name for path in (SOURCE / "linalg").rglob("*.py")} >= {"eigh.py", "lapack.py", "taylor.py", "fallback.py"}
    names = list(imported(SOURCE / "linalg" / "solvers" / "fallback.py", SOURCE))
    assert f"{PACKAGE}.linalg.checks.require_finite" in names  # relative imports are followed
    assert f"{PACKAGE}.errors.ConvergenceError" in names


FAULTS = {
    "linalg/eigh.py": ("from spectralgrad.nn import functional", "later room"),
    "linalg/rules/taylor.py": ("from ..solvers import Lapack", "stranger"),
    "linalg/rules/clip.py": ("from ...linalg.solvers.lapack import Lapack", "stranger"),
    "linalg/solvers/lapack.py": ("def f():\n    from ..rules.base import Rule", "stranger"),
    "linalg/solvers/svd.py": ("from .. import rules", "stranger"),
    "linalg/svd.py": ("import numpy as np", "neither torch"),
    "linalg/power.py": ("import triton", "neither torch"),
    "kernels/jacobi.py": ("from ..linalg.precision import matmul", "later room"),
    "kernels/whiten.py": ("import scipy.linalg", "neither torch"),
    "nn/pooling.py": ("from spectralgrad import orthogonal", "later room"),
    "nn/functional.py": ("import spectralgrad as sg", "later room"),
    "orthogonal/loss.py": ("if True:\n    import matplotlib.pyplot", "neither torch"),
    "diagnostics.py": ("from spectralgrad.models.resnet import ResNet", "later room"),
    "errors.py": ("from .linalg import checks", "later room"),
    "report/page.py": ("import spectralgrad.cli", "later room"),
    "utils.py": ("import os", "no room"),
}
FINE = {
    "__init__.py": "from spectralgrad import errors, nn\nfrom .linalg.eigh import eigh\nimport spectralgrad.diagnostics",
    "errors.py": "import torch.linalg",
    "kernels/jacobi.py": "import triton.language as tl\nfrom ..errors import OptionError",
    "linalg/rules/taylor.py": "from .base import Rule\nfrom spectralgrad.errors import OptionError",
    "linalg/solvers/lapack.py": "import os\nfrom ..checks import x\nfrom spectralgrad.kernels import jacobi",
    "linalg/eigh.py": "from .rules import Rule\nfrom .solvers import Solver",
    "orthogonal/weight.py": "from spectralgrad.nn import pooling",
    "diagnostics.py": "from torch.utils import tensorboard\nfrom .nn import pooling\nfrom .orthogonal import loss",
    "models/resnet.py": "import spectralgrad as sg\nimport numpy\nfrom spectralgrad import __version__",
    "cli.py": "from .report import page\nfrom . import experiments",
}


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def test_what_is_allowed_passes(tmp_path: Path) -> None:
    write(tmp_path, FINE)
    assert violations(tmp_path) == []


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_found(name: str, tmp_path: Path) -> None:
    """Negative control: one bad import among good ones."""
    text, wrong = FAULTS[name]
    write(tmp_path, {**FINE, name: text})
    found = violations(tmp_path)
    assert len(found) == 1
    assert wrong in found[0]
    assert found[0].startswith(f"{PACKAGE}.{name.removesuffix('.py').replace('/', '.')} ")
