"""Damaged records: none may raise anything, change a file, or keep the report from being written."""

import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from lab_support.synthetic import COMPUTED, SPECS, always, train
from spectralgrad_lab.records.store import Store
from spectralgrad_lab.report.artifact import section
from spectralgrad_lab.report.findings import files_of, gather, pictures_of
from spectralgrad_lab.report.page import Snapshot, write_page

from .damage import damaged_text

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # a disk takes longer to write a file than we to read it
DRAWN = 1000  # records between two pages that are drawn in full: figures take a second


def records(count: int, draw: Random) -> Iterator[str | None]:
    """Damage ``count`` records, one at a time, and read them as report and run do; yields what went wrong."""
    with TemporaryDirectory(dir=MEMORY) as folder:
        store, owners = Store(Path(folder, "records")), []
        for spec in SPECS.values():  # one trial of each form: what differs between trials are numbers
            if spec.entries is not None:
                entry = spec.entries("short")[0]
                trial = entry.trials[0]
                if not store.files(trial).record.exists():
                    train(store, trial)
                owners.append((replace(spec, entries=always((replace(entry, trials=(trial,)),))), store.files(trial).record))
        for id, result in COMPUTED.items():
            store.save_computed(id, "short", result)
            owners.append((SPECS[id], store._computed(id, "short")))
        for number in range(count):
            spec, path = draw.choice(owners)
            whole = path.read_bytes()
            hurt = damaged_text(whole.decode(), draw)
            path.write_bytes(hurt)
            try:
                found = gather(spec, "short", Snapshot(store.folder))
                section(found, [b"" for _ in found.panels], [])
                if number % DRAWN == DRAWN - 1:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        files_of(found, pictures_of(found))
                        write_page(Path(folder, "page"), Store(store.folder), {spec.id: spec}, "short")
                if path.read_bytes() != hurt:
                    yield f"{path.name}: changed by reading"
            except Exception as error:
                yield f"{spec.id} {path.name}: {type(error).__name__}: {str(error)[:200]} of {hurt[:300]!r}"
            path.write_bytes(whole)
            yield None
