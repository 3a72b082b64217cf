"""Sweeps: every trial once, in this process or in workers; what dies is tried again; a fault around the trials ends it."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from attack.processes import SERVER
from lab_support.trainings import train
from spectralgrad.errors import OptionError
from spectralgrad_lab.artifacts.run import run_spec
from spectralgrad_lab.artifacts.spec import Entry, Spec
from spectralgrad_lab.deadline import NEVER, Deadline, OutOfTime
from spectralgrad_lab.records.results import Computed, Scale
from spectralgrad_lab.records.store import Outcome, Store
from spectralgrad_lab.records.trial import Trial
from spectralgrad_lab.sweep.local import Event, missing, run_trials
from spectralgrad_lab.sweep.workers import DONE, _gpu, _read, _Work, _Worker

SUPPORT = Path(__file__).parents[1]  # where the stand-in for the training is


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "records")


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers come from a server that has imported torch; a new interpreter would do that for every one of them."""
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: SERVER)


def fast(seed: int, model: str = "digits") -> Trial:
    return Trial(seed=seed, model=model, epochs=2, lr=0.01)


def starts(store: Store, trial: Trial) -> int:
    return sum(line["kind"] == "start" for line in store.lines(trial))


def status(store: Store, trial: Trial) -> str:
    outcome = store.outcome(trial)
    return outcome.status if outcome else "none"


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_every_trial_runs_once_however_often_it_is_listed(jobs: int, store: Store) -> None:
    trials = [fast(seed) for seed in range(4)]
    heard: list[Event] = []
    run_trials([*trials, trials[0]], store, jobs=jobs, progress=heard.append, train=train)
    assert [starts(store, trial) for trial in trials] == [1] * 4
    assert [status(store, trial) for trial in trials] == ["finished"] * 4
    assert sorted(event.trial.seed for event in heard if event.outcome) == [0, 1, 2, 3]
    assert all(event.epochs == 2 for event in heard if event.outcome)
    processes = {line["monitor"]["process"] for trial in trials for line in store.lines(trial) if line["kind"] == "epoch"}
    assert (os.getpid() in processes) == (jobs == 1)
    if jobs == 1:
        assert [event.epochs for event in heard if event.trial == trials[0] and event.outcome is None] == [0, 1, 2]
    run_trials(trials, store, jobs=jobs, train=train)  # again: nothing is left to do
    assert [starts(store, trial) for trial in trials] == [1] * 4


def test_ctrl_c_does_not_reach_a_worker_while_it_imports(store: Store) -> None:
    """It comes to all processes of a terminal: a worker would print a traceback out of torch's imports."""
    worker = _Worker(0, _Work(1, store.folder, None, "cpu", train, NEVER))
    try:
        assert worker.process.pid is not None
        os.kill(worker.process.pid, signal.SIGINT)
        worker.give(fast(0))
        assert _read(worker.pipe) == DONE
    finally:
        worker.stop()


def test_a_failed_training_is_a_result(store: Store) -> None:
    bad, good = fast(0, "diverges"), fast(1)
    run_trials([bad, good], store, train=train)
    assert (status(store, bad), status(store, good)) == ("failed", "finished")
    assert missing([bad, good], store) == []  # and it is not tried again


@pytest.mark.usefixtures("forked")
def test_a_dead_worker_is_replaced_and_its_trial_tried_once_more(store: Store) -> None:
    once, always, other = fast(0, "dies-once"), fast(1, "dies"), fast(2)
    run_trials([once, always, other], store, jobs=2, train=train)
    assert (starts(store, once), status(store, once)) == (2, "finished")
    assert status(store, other) == "finished"
    outcome = store.outcome(always)
    assert outcome is not None
    assert (outcome.status, outcome.reason) == ("failed", "its process was killed by SIGKILL, twice")
    assert starts(store, always) == 3  # two attempts, and the one who wrote the end


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_fault_around_the_trials_ends_the_sweep_with_its_own_error(jobs: int, store: Store) -> None:
    trials = [fast(0, "broken"), *(Trial(seed=seed, epochs=50, lr=1.0) for seed in range(1, 3))]
    with pytest.raises(OptionError, match="no such model, 'broken'"):
        run_trials(trials, store, jobs=jobs, train=train)
    assert store.outcome(trials[0]) is None  # no invented failure: repaired, it runs again
    assert not any(store.outcome(trial) for trial in trials)
    for trial in trials:
        with store.recording(trial):  # no worker is left that holds a lock
            pass


def _cores(trial: Trial, store: Store, **_: object) -> object:
    with store.recording(trial) as recording:
        recording.append("epoch", epoch=0, monitor={"threads": torch.get_num_threads()})
        recording.append("end", status="finished", reason="")
    return store.outcome(trial)


def test_workers_share_the_cores(store: Store) -> None:
    trials = [fast(seed) for seed in range(2)]
    run_trials(trials, store, jobs=2, train=_cores)  # type: ignore[arg-type]
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for trial in trials:
        outcome = store.outcome(trial)
        assert outcome is not None
        assert outcome.epochs[0]["monitor"]["threads"] == max(1, available // 2)


def test_workers_take_the_gpus_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    def seen(device: str, number: int) -> str | None:
        with _gpu(device, number):
            return os.environ.get("CUDA_VISIBLE_DEVICES")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [seen("cuda", number) for number in range(4)] == ["0", "1", "2", "0"]
    assert seen("cpu", 1) is None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    assert [seen("cuda", number) for number in range(3)] == ["5", "7", "5"]
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "5,7"  # nothing is left changed


def test_when_time_is_up_the_epoch_ends_and_the_same_sweep_goes_on(store: Store) -> None:
    trials = [Trial(seed=seed, epochs=3, lr=10.0) for seed in range(2)]
    with pytest.raises(OutOfTime):
        run_trials(trials, store, train=train, deadline=Deadline.after(0.5))
    assert [len(store.lines(trial)) for trial in trials] == [2, 0]  # a start and one epoch; no second trial
    run_trials(trials, store, train=train)
    assert [starts(store, trial) for trial in trials] == [2, 1]
    assert [status(store, trial) for trial in trials] == ["finished"] * 2
    run_trials(trials, store, train=train, deadline=Deadline.after(0))  # nothing is left to do: no matter what the time is


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("jobs", [1, 2])
def test_when_time_is_up_no_other_trial_is_begun(jobs: int, store: Store) -> None:
    """Trials of one epoch end with it, whatever the time is; the one after them is left for the next sweep."""
    run_trials([fast(7), fast(8)], store, jobs=jobs, train=train)  # the workers' server has imported torch
    trials = [Trial(seed=seed, epochs=1, lr=30.0) for seed in range(jobs + 1)]
    with pytest.raises(OutOfTime):
        run_trials(trials, store, jobs=jobs, train=train, deadline=Deadline.after(2.0))
    assert [status(store, trial) for trial in trials] == [*["finished"] * jobs, "none"]
    assert starts(store, trials[-1]) == 0


def test_no_trial_is_begun_whose_first_epoch_would_end_too_late(store: Store) -> None:
    """The first trial shows how long that takes."""

    def slow(trial: Trial, store: Store, **how: Any) -> Outcome:
        time.sleep(0.6)
        return train(trial, store, **how)

    trials = [Trial(seed=seed, epochs=1) for seed in range(2)]
    start = time.monotonic()
    with pytest.raises(OutOfTime):
        run_trials(trials, store, train=slow, deadline=Deadline.after(1.1))
    assert time.monotonic() - start < 1.1
    assert [status(store, trial) for trial in trials] == ["finished", "none"]


@pytest.mark.usefixtures("forked")
def test_a_worker_begins_no_trial_whose_first_epoch_would_end_too_late(store: Store) -> None:
    """Each worker goes by its own last trial; what the others have not begun is left as well."""
    run_trials([fast(7), fast(8)], store, jobs=2, train=train)  # the workers' server has imported torch
    trials = [Trial(seed=seed, epochs=1, lr=30.0) for seed in range(4)]  # an epoch takes three seconds
    deadline = Deadline.after(5.5)
    with pytest.raises(OutOfTime):
        run_trials(trials, store, jobs=2, train=train, deadline=deadline)
    assert not deadline.is_over
    assert [status(store, trial) for trial in trials] == ["finished", "finished", "none", "none"]
    assert [starts(store, trial) for trial in trials] == [1, 1, 0, 0]


@pytest.mark.usefixtures("forked")
def test_workers_stop_after_their_epoch_when_time_is_up(store: Store) -> None:
    trials = [Trial(seed=seed, epochs=1000, lr=5.0) for seed in range(3)]
    with pytest.raises(OutOfTime):
        run_trials(trials, store, jobs=2, train=train, deadline=Deadline.after(3.0))
    epochs = [sum(line["kind"] == "epoch" for line in store.lines(trial)) for trial in trials]
    assert min(epochs[:2]) >= 1
    assert max(epochs) < 1000
    assert epochs[2] == 0
    for trial in trials:
        with store.recording(trial):  # no worker is left that holds a lock
            pass


@pytest.mark.parametrize(("jobs", "ray"), [(0, None), (-1, None), (2, "local")])
def test_options_that_make_no_sense_are_refused(jobs: int, ray: str | None, store: Store) -> None:
    with pytest.raises(OptionError, match="--jobs must be at least 1"):
        run_trials([fast(0)], store, jobs=jobs, ray=ray, train=train)


# --- specs


def entries(scale: Scale) -> tuple[Entry, ...]:
    seeds = 1 if scale == "smoke" else 3
    return (Entry("SVD", "4", tuple(fast(seed) for seed in range(seeds))), Entry("BN", "", (fast(0),)))


def test_a_spec_trains_what_its_scale_needs(store: Store) -> None:
    spec = Spec("pami-table4", "PAMI", "errors", "training", entries=entries)
    run_spec(spec, "smoke", store, train=train)
    assert store.trials() == [fast(0)]
    run_spec(spec, "short", store, train=train)
    assert {trial.seed for trial in store.trials()} == {0, 1, 2}
    assert starts(store, fast(0)) == 1  # smoke's is not run again


def test_a_spec_is_computed_once(store: Store) -> None:
    calls: list[str] = []

    def compute(scale: Scale) -> Computed:
        calls.append(scale)
        return Computed(remarks=(scale,))

    spec = Spec("pami-eq60", "PAMI", "an example", "computed", compute=compute)
    for scale in ("smoke", "smoke", "paper"):
        run_spec(spec, scale, store)
    assert calls == ["smoke", "paper"]
    assert store.load_computed("pami-eq60", "paper") == Computed(remarks=("paper",))


# --- kills

SWEEP = """
import sys
from pathlib import Path
from typing import Any
from spectralgrad_lab.records.store import Outcome, Store
from spectralgrad_lab.sweep.local import run_trials
from spectralgrad_lab.records.trial import Trial
from attack.processes import SERVER
from lab_support.trainings import train

if __name__ == "__main__":
    run_trials([Trial(seed=i, epochs=8, lr=2.0) for i in range(2)], Store(Path(sys.argv[1])), jobs=2, train=train)
"""


@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGINT])
def test_a_sweep_that_is_killed_leaves_no_worker_and_goes_on(sign: signal.Signals, store: Store, tmp_path: Path) -> None:
    (tmp_path / "sweep.py").write_text(SWEEP)
    trials = [Trial(seed=i, epochs=8, lr=2.0) for i in range(2)]
    environment = {**os.environ, "PYTHONPATH": str(SUPPORT)}
    sweep = subprocess.Popen(
        [sys.executable, str(tmp_path / "sweep.py"), str(store.folder)], env=environment, stderr=subprocess.DEVNULL
    )
    while not all(len(store.lines(trial)) > 2 for trial in trials):
        assert sweep.poll() is None
        time.sleep(0.1)
    sweep.send_signal(sign)
    sweep.wait()
    until = time.monotonic() + 5
    while list(store.folder.rglob("*.lock")) and time.monotonic() < until:
        try:
            for trial in trials:
                with store.recording(trial):
                    pass
        except RuntimeError:
            time.sleep(0.05)
    before = [len(store.lines(trial)) for trial in trials]
    time.sleep(0.5)
    assert [len(store.lines(trial)) for trial in trials] == before  # nobody writes any more
    assert all(store.outcome(trial) is None for trial in trials)
    run_trials(trials, store, train=train)
    for trial in trials:
        outcome = store.outcome(trial)
        assert outcome is not None
        assert [line["epoch"] for line in outcome.epochs] == list(range(8))
        assert len({line["monitor"]["process"] for line in outcome.epochs}) == 2  # the first part was kept
