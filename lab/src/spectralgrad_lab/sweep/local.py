"""Trials, one after the other, on several processes or on a Ray cluster. What has a record is not run again."""

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import torch

from spectralgrad.errors import OptionError
from spectralgrad_lab.deadline import NEVER, Deadline
from spectralgrad_lab.records.recording import Line
from spectralgrad_lab.records.store import Outcome, Store
from spectralgrad_lab.records.trial import Trial


class Event(NamedTuple):
    """News of a trial: how many epochs are done, of which the first event tells at its beginning; its outcome at its end."""

    trial: Trial
    epochs: int
    outcome: Outcome | None = None


class Train(Protocol):
    """`train.run_trial`, or what a test puts in its place."""

    def __call__(
        self,
        trial: Trial,
        store: Store,
        *,
        data: Path | None = None,
        device: str = "auto",
        progress: Callable[[Line], None] | None = None,
        deadline: Deadline = NEVER,
    ) -> Outcome: ...


Listener = Callable[[Event], None]


def run_trials(
    trials: Iterable[Trial],
    store: Store,
    *,
    data: Path | None = None,
    jobs: int = 1,
    ray: str | None = None,
    device: str = "auto",
    progress: Listener | None = None,
    train: Train | None = None,
    deadline: Deadline = NEVER,
) -> None:
    """Run the trials that have not ended yet, each once. Options and errors: see `artifacts.run.run_spec`."""
    require_jobs("run", jobs, ray)
    hear = progress or silence
    waiting = missing(trials, store, hear)
    if not waiting:
        return
    train = train or _trainer()
    deadline.require_time()
    folder = None if data is None else data.resolve()  # workers may stand elsewhere
    if ray is not None:
        from .on_ray import run_on_ray

        run_on_ray(waiting, store, address=ray, data=folder, device=device, hear=hear, train=train, deadline=deadline)
    elif jobs > 1:
        from .workers import run_in_workers

        jobs = min(jobs, len(waiting))
        run_in_workers(waiting, store, jobs=jobs, data=folder, device=device, hear=hear, train=train, deadline=deadline)
    else:
        to_begin = 0.0  # seconds until the first epoch of a trial ends, as the last one took
        for trial in waiting:
            deadline.require_time(to_begin)
            first = FirstEpoch(hear)
            begin(trial, store, hear)
            outcome = train(trial, store, data=folder, device=device, progress=forward(trial, first), deadline=deadline)
            to_begin = first.seconds or to_begin
            hear(Event(trial, len(outcome.epochs), outcome))


def require_jobs(who: str, jobs: int, ray: str | None) -> None:
    """Raise for a number of worker processes that makes no sense."""
    if jobs < 1 or (jobs > 1 and ray is not None):
        came = f"{jobs} with --ray" if ray is not None else str(jobs)
        raise OptionError(f"`{who}`: --jobs must be at least 1, and only without --ray, got {came}.")


def missing(trials: Iterable[Trial], store: Store, hear: Listener | None = None) -> list[Trial]:
    """The trials without an end, each once, in their order; ``hear`` is told of the others, which are cleared."""
    found, hear = [], hear or silence
    for trial in dict.fromkeys(trials):
        outcome = store.outcome(trial)
        if outcome is None:
            found.append(trial)
        else:
            store.clear(trial)
            hear(Event(trial, len(outcome.epochs), outcome))
    return found


def record_crash(trial: Trial, store: Store, reason: str) -> Outcome:
    """End a trial whose process died: a failure like others, at the last epoch that it reached."""
    with store.recording(trial) as recording:
        last: Line = next((line for line in reversed(recording.lines) if line["kind"] == "epoch"), {})
        recording.append(
            "end",
            status="failed",
            reason=reason,
            step=last.get("step", 0),
            epoch=last.get("epoch", 0),
            test_error=None,
            best_error=None,
        )
    outcome = store.outcome(trial)
    assert outcome is not None
    return outcome


def begin(trial: Trial, store: Store, hear: Listener) -> None:
    """Tell that a trial begins, or where it goes on."""
    hear(Event(trial, _epochs(store.lines(trial))))


def news(running: Sequence[Trial], store: Store, heard: dict[Trial, int], hear: Listener) -> None:
    """Tell of the epochs that other processes have recorded since the last time, and of the trials that they have begun."""
    for trial in running:
        lines = store.lines(trial)
        if lines and _epochs(lines) != heard.get(trial):
            heard[trial] = _epochs(lines)
            hear(Event(trial, heard[trial]))


def _epochs(lines: Iterable[Line]) -> int:
    return sum(line["kind"] == "epoch" for line in lines)


def uses_gpu(device: str) -> bool:
    """Whether trials on ``device`` go to a GPU of this machine."""
    return device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())


class FirstEpoch:
    """Hears for another one, and notes after how many seconds the first epoch had ended; 0 before."""

    def __init__(self, hear: Listener) -> None:
        self.hear, self.start, self.seconds = hear, time.monotonic(), 0.0

    def __call__(self, event: Event) -> None:
        self.seconds = self.seconds or time.monotonic() - self.start
        self.hear(event)


def silence(event: Event) -> None:
    """Nobody listens."""


def forward(trial: Trial, hear: Listener) -> Callable[[Line], None]:
    def told(line: Line) -> None:
        if "epoch" in line:
            hear(Event(trial, int(line["epoch"]) + 1))

    return told


def _trainer() -> Train:
    from spectralgrad_lab.training.train import run_trial

    return run_trial
