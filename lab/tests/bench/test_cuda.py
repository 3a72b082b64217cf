"""The sections of `spectralgrad bench` that need a GPU measure something there."""

import pytest

from spectralgrad_lab.bench import run
from spectralgrad_lab.bench.progress import Progress

pytestmark = [pytest.mark.cuda, pytest.mark.filterwarnings("default")]


@pytest.mark.parametrize(
    "section", ["host", "kernels", "layouts", "newton", "power", "settings", "style", "graph", "networks", "uses"]
)
def test_a_section_measures(section: str) -> None:
    outcome = run.run(run.Options(gpu=True, quick=True, only=[section]), Progress())
    assert outcome.rows
    for row in outcome.rows:
        assert row.failed == {}
        assert row.figure is not None
        assert row.figure >= 0 or row.section == "networks"  # what is added may be noise
