"""Sweeps on a Ray cluster: a lost node's trials are tried again, nothing runs twice, nothing is lost."""

import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab_support.trainings import train
from spectralgrad.errors import OptionError
from spectralgrad_lab.deadline import NEVER, Deadline
from spectralgrad_lab.records.store import Store
from spectralgrad_lab.records.trial import Trial
from spectralgrad_lab.sweep.local import Event, run_trials
from spectralgrad_lab.sweep.on_ray import GPU_SHARE, _task, run_on_ray

SUPPORT = Path(__file__).parents[1]  # where the stand-in for the training is
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Ray's own warnings


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "records")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Two nodes of two cores each, on this machine; the driver sits on the first."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", str(SUPPORT))  # the nodes import the stand-in for the training
    monkeypatch.setenv("RAY_health_check_period_ms", "500")
    monkeypatch.setenv("RAY_health_check_failure_threshold", "4")
    made = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}
    )
    made.second = made.add_node(num_cpus=2, object_store_memory=80 * 2**20)
    try:
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


def test_a_node_killed_in_the_middle_loses_nothing(cluster: Any, store: Store) -> None:
    trials = [Trial(seed=seed, epochs=12, lr=3.0) for seed in range(6)]
    heard: list[Event] = []
    busy = threading.Event()

    def listen(event: Event) -> None:
        heard.append(event)
        if sum(1 for trial in trials if len(store.lines(trial)) > 2) >= 3:  # both nodes are at work
            busy.set()

    def kill() -> None:
        assert busy.wait(60)
        time.sleep(0.3)
        cluster.remove_node(cluster.second, allow_graceful=False)

    killer = threading.Thread(target=kill)
    killer.start()
    run_trials(trials, store, ray=cluster.address, device="cpu", train=train, progress=listen)
    killer.join()
    again = 0
    for trial in trials:
        outcome = store.outcome(trial)
        assert outcome is not None
        assert outcome.status == "finished"
        assert [line["epoch"] for line in outcome.epochs] == list(range(12))
        raw = (store.folder / "trials" / f"{trial.key}.jsonl").read_text()
        assert raw.count('"kind": "epoch"') == 12  # no epoch was trained twice
        assert raw.count('"kind": "end"') == 1
        again += raw.count('"kind": "start"') - 1
    assert again > 0, "the node was killed while it trained"
    ends = [event.trial for event in heard if event.outcome]
    assert sorted(trial.seed for trial in ends) == list(range(6))
    run_trials(trials, store, ray="nowhere:1", train=train)  # nothing is left: the cluster is not even asked


def test_a_cluster_is_started_here_and_ended(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT))
    trials = [Trial(seed=0, epochs=2, lr=0.01), Trial(seed=1, epochs=2, lr=0.01, model="diverges")]
    run_trials(trials, store, ray="local", device="cpu", train=train)
    outcomes = [store.outcome(trial) for trial in trials]
    assert [outcome and outcome.status for outcome in outcomes] == ["finished", "failed"]
    assert not ray.is_initialized()
    with pytest.raises(OptionError, match="no such model, 'broken'"):
        run_trials([Trial(model="broken")], store, ray="local", device="cpu", train=train)
    dies = Trial(model="dies", epochs=1)
    run_trials([dies], store, ray="local", device="cpu", train=train)
    outcome = store.outcome(dies)
    assert outcome is not None
    assert outcome.status == "failed"
    assert outcome.reason.startswith("lost 4 times by Ray")


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "127.0.0.1", "nonsense", ""])
def test_an_address_where_nothing_answers_is_an_error(address: str, store: Store) -> None:
    pytest.importorskip("ray")
    with pytest.raises(OptionError, match=f"no Ray cluster at '{re.escape(address)}'"):
        run_trials([Trial()], store, ray=address, train=train)


def test_without_ray_the_error_says_what_to_install(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(OptionError, match=r"pip install 'spectralgrad-lab\[ray\]'"):
        run_on_ray([Trial()], store, address="local", data=None, device="cpu", hear=lambda _: None, train=train)


def test_a_task_says_whether_its_trial_ended_or_time_was_up(store: Store) -> None:
    trial, late = Trial(epochs=3, lr=0.01), Deadline.after(0)
    how = (trial.as_json(), str(store.folder), None, "cpu", train)
    assert not _task(*how, late)
    assert store.lines(trial) == []  # not even begun
    assert _task(*how, NEVER)
    assert store.outcome(trial) is not None
    assert _task(*how, late)  # it has ended, whatever the time is


def test_small_trials_share_a_gpu() -> None:
    assert GPU_SHARE["digits"] <= 0.25
    assert all(0 < share <= 1 for share in GPU_SHARE.values())
