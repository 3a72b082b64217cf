"""The library's rooms: one direction of flow, torch alone, and nothing of the laboratory."""

from pathlib import Path

import pytest

import spectralgrad
from support.rooms import House, write

SOURCE = Path(spectralgrad.__file__).parent
ROOMS = (
    "errors",
    "context",
    "validation",
    "counters",
    "kernels",
    "linalg",
    "align",
    "distances",
    "orthogonal",
    "spd",
    "nn",
    "diagnostics",
    "dropin",
    "selfcheck",
)
HOUSE = House(
    "spectralgrad",
    ROOMS,
    allowed={room: {"torch", "triton"} if room == "kernels" else {"torch"} for room in ROOMS},
    strangers=(("spectralgrad.linalg.rules", "spectralgrad.linalg.solvers"),),
    forbidden=("spectralgrad_lab",),
)


def test_the_flow_has_one_direction() -> None:
    assert HOUSE.violations(SOURCE) == []


def test_the_rooms_are_those_of_the_design() -> None:
    """Nothing is checked by looking at an empty place: the rooms that must exist do, and their files are found."""
    for name in ROOMS:
        assert (SOURCE / f"{name}.py").exists() or (SOURCE / name / "__init__.py").exists()
    assert {path.name for path in (SOURCE / "linalg").rglob("*.py")} >= {"eigh.py", "lapack.py", "taylor.py", "fallback.py"}
    names = list(HOUSE.imported(SOURCE / "linalg" / "solvers" / "fallback.py", SOURCE))
    assert "spectralgrad.linalg.precision.hermitian_part" in names  # relative imports are followed
    assert "spectralgrad.errors.ConvergenceError" in names


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
    "nn/pooling.py": ("from spectralgrad import diagnostics", "later room"),
    "spd/mean.py": ("from spectralgrad.nn import pooling", "later room"),
    "orthogonal/weight.py": ("from spectralgrad.spd import mean", "later room"),
    "nn/functional.py": ("import spectralgrad as sg", "later room"),
    "orthogonal/loss.py": ("if True:\n    import matplotlib.pyplot", "neither torch"),
    "diagnostics/layers.py": ("from spectralgrad_lab.models.resnet import ResNet", "stands on us"),
    "errors.py": ("from .linalg import eigh", "later room"),
    "nn/denoise.py": ("def f():\n    import spectralgrad_lab.models", "stands on us"),
    "__main__.py": ("from spectralgrad_lab.cli import main", "stands on us"),
    "utils.py": ("import os", "no room"),
}
FINE = {
    "__init__.py": "from spectralgrad import errors, nn\nfrom .linalg.eigh import eigh\nimport spectralgrad.diagnostics",
    "errors.py": "import torch.linalg",
    "kernels/jacobi.py": "import triton.language as tl\nfrom ..errors import OptionError",
    "linalg/rules/taylor.py": "from .base import Rule\nfrom spectralgrad.errors import OptionError",
    "linalg/solvers/lapack.py": "import os\nfrom ..checks import x\nfrom spectralgrad.kernels import jacobi",
    "linalg/eigh.py": "from .rules import Rule\nfrom .solvers import Solver",
    "orthogonal/weight.py": "from spectralgrad.linalg.polar import polar",
    "nn/bimap.py": "from spectralgrad.orthogonal.weight import OrthogonalWeight\nfrom ..spd import mean",
    "diagnostics/monitor.py": "from torch.utils import tensorboard\nfrom ..nn import pooling\nfrom ..orthogonal import loss",
}


def test_what_is_allowed_passes(tmp_path: Path) -> None:
    write(tmp_path, FINE)
    assert HOUSE.violations(tmp_path) == []


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_found(name: str, tmp_path: Path) -> None:
    """Negative control: one bad import among good ones."""
    text, wrong = FAULTS[name]
    write(tmp_path, {**FINE, name: text})
    found = HOUSE.violations(tmp_path)
    assert len(found) == 1
    assert wrong in found[0]
    assert found[0].startswith(f"spectralgrad.{name.removesuffix('.py').replace('/', '.')} ")
