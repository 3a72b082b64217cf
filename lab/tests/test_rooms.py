"""The laboratory's rooms: one direction of flow."""

from pathlib import Path

import pytest

import spectralgrad_lab
from support.rooms import House, write

SOURCE = Path(spectralgrad_lab.__file__).parent
HOUSE = House(
    "spectralgrad_lab",
    (
        *("files", "deadline", "drawing", "models", "data", "records", "training", "sweep", "transfer", "style_network"),
        *("artifacts", "report", "bench", "cli"),
    ),
    # A report reads records, and never runs a network.
    strangers=tuple(
        ("spectralgrad_lab.report", f"spectralgrad_lab.{room}")
        for room in ("models", "training", "transfer", "style_network")
    ),
)


def test_the_flow_has_one_direction() -> None:
    assert HOUSE.violations(SOURCE) == []


def test_every_room_is_there() -> None:
    for name in HOUSE.rooms:
        assert (SOURCE / f"{name}.py").exists() or (SOURCE / name / "__init__.py").exists()


FAULTS = {
    "models/resnet.py": ("from spectralgrad_lab.training import loop", "later room"),
    "records/store.py": ("def f():\n    from ..artifacts.spec import Spec", "later room"),
    "report/page.py": ("import spectralgrad_lab.cli", "later room"),
    "report/tables.py": ("from spectralgrad_lab.training.watch import figures", "a stranger"),
    "report/gallery.py": ("def f():\n    from ..transfer.deep import load_networks", "a stranger"),
    "report/gallery_page.py": ("from spectralgrad_lab.style_network.studio import studio", "a stranger"),
    "report/panels.py": ("from spectralgrad_lab import models", "a stranger"),
    "helpers.py": ("import os", "no room"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_found(name: str, tmp_path: Path) -> None:
    """Negative control: one bad import among good ones."""
    fine = {
        "models/resnet.py": "import spectralgrad as sg\nimport numpy",
        "cli/app.py": "from spectralgrad_lab.report import page\nimport typer",
        "report/publish.py": "from spectralgrad_lab.artifacts.spec import Spec\nfrom ..records import store",
        "training/loop.py": "from spectralgrad_lab.models.resnet import ResNet\nfrom ..records import store",
    }
    write(tmp_path, fine)
    assert HOUSE.violations(tmp_path) == []
    text, wrong = FAULTS[name]
    write(tmp_path, {name: text})
    found = HOUSE.violations(tmp_path)
    assert len(found) == 1
    assert wrong in found[0]
