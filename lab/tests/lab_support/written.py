"""A page that was written from made-up records."""

from pathlib import Path
from typing import NamedTuple

from spectralgrad_lab.records.store import Store


class Written(NamedTuple):
    page: Path
    store: Store
    html: str

    @property
    def folder(self) -> Path:
        return self.page.parent
