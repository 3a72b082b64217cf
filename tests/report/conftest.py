"""One page from made-up records, for all tests that only read it."""

from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("matplotlib")

from spectralgrad.experiments.store import Store
from spectralgrad.report.page import write_page

from .synthetic import HOSTILE, SPECS, fill


class Written(NamedTuple):
    page: Path
    store: Store
    html: str

    @property
    def folder(self) -> Path:
        return self.page.parent


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """The failure reasons in these records are hostile."""
    store = fill(tmp_path_factory.mktemp("records") / "r", reason=HOSTILE)
    page = write_page(tmp_path_factory.mktemp("page") / "p", store, SPECS, "short")
    return Written(page, store, page.read_text(encoding="utf-8"))
