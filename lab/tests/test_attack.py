"""A small share of every campaign of `make attack`; the full figures are behind the marker slow."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from random import Random

import pytest

from attack import damage, kills, ranks, records, stores, threads
from attack.__main__ import CAMPAIGNS

SHARES = {
    "records": 40,
    "pickles": 500,
    "pictures": 150,
    "weights": 60,
    "interrupts": 15,
    "batches": 40,
    "ranks": 1,
    "stores": 2,
}  # of the kills: training/test_train.py


def faults(steps: Iterator[str | None]) -> list[str]:
    return [fault for fault in steps if fault is not None]


@pytest.mark.parametrize("name", SHARES)
def test_a_share_finds_nothing(name: str) -> None:
    campaign, _ = CAMPAIGNS[name]
    assert faults(campaign(SHARES[name], Random(f"{name} 1"))) == []


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:invalid escape sequence:DeprecationWarning"
)  # Python's own, of a damaged pickle's string
@pytest.mark.parametrize("name", CAMPAIGNS)
def test_the_full_campaign_finds_nothing(name: str) -> None:
    campaign, count = CAMPAIGNS[name]
    assert faults(campaign(count, Random(f"{name} 2"))) == []


# The controls: a campaign sees what it is made to see.


PYTHONS_OWN = """
import pickle
from random import Random
from attack import files

files.read_pickle = lambda *args: pickle.loads(args[1].read_bytes(), encoding="bytes")
print(next(fault for fault in files.pickles(300, Random(0)) if fault is not None))
"""


def test_pickles_that_pythons_own_reader_takes_are_noticed() -> None:
    """In a process of its own, and no further than the first: what they run may end it, or change it for later tests."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.run([sys.executable, "-c", PYTHONS_OWN], capture_output=True, text=True, env=environment, check=False)
    assert child.returncode == 0, child.stderr
    assert " of b" in child.stdout


def test_a_record_that_raises_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def raising(*_: object) -> None:
        raise KeyError("epoch")

    monkeypatch.setattr(records, "gather", raising)
    assert len(faults(records.records(3, Random(0)))) == 3


def test_an_interrupt_that_is_swallowed_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = threads.sg.eigh

    def deaf(M: object) -> object:
        try:
            return real(M)
        except KeyboardInterrupt:
            return real(M)

    monkeypatch.setattr(threads, "PATIENCE", 0.3)
    monkeypatch.setattr(threads.sg, "eigh", deaf)
    assert any("lost" in fault for fault in faults(threads.interrupts(5, Random(0))))


def test_a_rank_that_hangs_or_is_told_something_else_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "LIFETIME", 1)
    assert any("hung, or died" in fault for fault in ranks.fault("comes late", 2))  # of the first rank, or of the last alone
    monkeypatch.setitem(ranks.FAULTS, "NaN", (ranks.FAULTS["NaN"][0], "other words"))
    assert [fault for fault in ranks.fault("NaN", 2) if "must be finite on every rank" in fault]


def test_a_record_that_ends_otherwise_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    other = replace(stores.TRIAL, lr=0.2)
    monkeypatch.setattr(stores, "SUBJECT", kills.Subject(partial(kills.classifier, other), (other,)))
    assert any("the record differs" in fault for fault in faults(stores.stores(1, Random(0))))


def test_there_are_twenty_faults_of_ranks() -> None:
    assert len(ranks.FAULTS) == 20


def test_damage_is_damage() -> None:
    draw = Random(0)
    text = '{"kind": "start", "a": [1, 2]}\n{"kind": "epoch", "epoch": 0}\n'
    assert sum(damage.damaged_text(text, draw) == text.encode() for _ in range(200)) < 5
