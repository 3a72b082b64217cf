"""One page from made-up records, for all tests that only read it."""

import pytest

pytest.importorskip("matplotlib")

from lab_support.synthetic import HOSTILE, SPECS, fill
from lab_support.written import Written
from spectralgrad_lab.report.page import write_page


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """The failure reasons in these records are hostile."""
    store = fill(tmp_path_factory.mktemp("records") / "r", reason=HOSTILE)
    page = write_page(tmp_path_factory.mktemp("page") / "p", store, SPECS, "short")
    return Written(page, store, page.read_text(encoding="utf-8"))
