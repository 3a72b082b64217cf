"""Training a trial from its record: from the start, or from where it was stopped."""

import logging
import os
import time
from collections.abc import Sequence
from contextlib import nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy

from spectralgrad.errors import OptionError
from spectralgrad.validation import is_number, is_whole
from spectralgrad_lab.data import Source, open_source
from spectralgrad_lab.data.dataset import VARIABLE
from spectralgrad_lab.data.device import convolutions, torch_device
from spectralgrad_lab.deadline import NEVER, Deadline, OutOfTime
from spectralgrad_lab.records.recording import Line
from spectralgrad_lab.records.store import Outcome, Store, opening
from spectralgrad_lab.records.trial import Trial

from . import checkpoint
from .loop import Run
from .recorded import LineListener, go_on
from .schedule import SCHEDULES
from .watch import Diverged

__all__ = ["PRECISIONS", "run_trial"]

CHECKPOINT = 20.0  # seconds after which one is due, at the end of an epoch
PRECISIONS = ("32-true", "64-true", "bf16-mixed", "16-mixed", "bf16-true")


def run_trial(
    trial: Trial,
    store: Store,
    *,
    data: Path | None = None,
    device: str = "auto",
    progress: LineListener | None = None,
    deadline: Deadline = NEVER,
    graph: bool = True,
) -> Outcome:
    """Train a trial to its end and record it; go on from its checkpoint if it was stopped; return at once if it has ended.

    A training that diverges, or raises in a step, has failed, and that is its outcome. Under `torchrun` all ranks call this,
    the batch is shared out among them, and rank 0 records. There an exception ends the run as well, after it is recorded:
    the other ranks may be waiting for this one.

    Args:
        trial: what to train.
        store: where its record is kept.
        data: the directory of the data sets; None is the environment variable SPECTRALGRAD_DATA.
        device: auto, cpu, cuda or cuda:N.
        progress: hears every epoch line as it is recorded.
        deadline: looked at after each epoch: no other is begun that would end too late.
        graph: let steps be replays of a CUDA graph where they can; see `loop.Run`.

    Raises:
        OutOfTime: the deadline is near; the same call goes on with the next epoch.
        OptionError: the trial's options do not go together; nothing is recorded.
        DataError: the data set cannot be had, and nothing is recorded; or a file of a folder is broken or cannot be read
            on the way, and what is recorded stands.
        StoreError, BusyError, CheckpointError: the record is in use or cannot be written; what it holds stands.
    """
    _require_schedule(trial)
    ended = store.outcome(trial)
    fabric = _fabric(trial, device)
    if fabric.broadcast(ended is not None):
        if fabric.global_rank == 0:
            store.clear(trial)
        return _outcome(store, trial)
    with checkpoint.own_randomness(trial.seed), convolutions(exact=trial.precision.endswith("mixed")):
        run = Run(trial, _dataset(trial, data), fabric, graph=graph)
        try:
            with store.held(trial) if fabric.global_rank == 0 else nullcontext() as recording:
                epochs = Epochs(run, recording.lines if recording is not None else [])
                found = go_on(epochs, recording, deadline=deadline, tell=_epochs_for(progress), agree=fabric.broadcast)
                if found is not None and found.failure is not None and fabric.world_size > 1:
                    _raise_cause(found.failure)
        finally:
            run.close()
    fabric.barrier()
    if found is not None and found.status == "stopped":
        raise OutOfTime
    return _outcome(store, trial)


class Epochs:
    """A classifier's training, an epoch at a time: a `Training`."""

    def __init__(self, run: Run, lines: Sequence[Line]) -> None:
        self.run, self.trial, self.lines = run, run.trial, lines
        self.saved = time.monotonic()  # the last checkpoint
        self.epoch = 0  # the next one
        self.errors: dict[int, float] = {}  # of the test, by epoch

    @property
    def key(self) -> str:
        return self.trial.key

    @property
    def step(self) -> int:
        return self.run.step

    @property
    def is_done(self) -> bool:
        return self.epoch == self.trial.epochs

    @property
    def is_due(self) -> bool:
        return time.monotonic() - self.saved >= CHECKPOINT

    def opening(self) -> Line:
        return {**opening(self.trial, gpu=self.run.fabric.device.type == "cuda"), "classes": self.run.data.classes}

    def part(self) -> Line:
        line = self.run.epoch(self.epoch)
        if "test_error" in line:
            self.errors[self.epoch] = line["test_error"]
        self.epoch += 1
        return line

    def ending(self, failure: Diverged | None) -> Line:
        """The epoch that failed or the last one; the error of the last epoch that was evaluated, and the smallest."""
        return {
            "step": self.step if failure is None else failure.step,
            "epoch": self.epoch - (failure is None),
            "test_error": self.errors[max(self.errors)] if self.errors else None,
            "best_error": min(self.errors.values(), default=None),
        }

    def leave(self) -> None:
        """Nothing: its record is all."""

    def state(self) -> checkpoint.State:
        self.saved = time.monotonic()
        return self.run.state(self.epoch - 1)

    def restore(self, state: checkpoint.State) -> None:
        self.epoch = self.run.restore(state)
        done = [line for line in self.lines if line["kind"] == "epoch" and line["epoch"] < self.epoch]
        self.errors = {line["epoch"]: line["test_error"] for line in done if "test_error" in line}


def _epochs_for(progress: LineListener | None) -> LineListener:
    """Tells of epochs alone: starts and ends are the caller's own doing."""
    return lambda line: progress(line) if progress is not None and line["kind"] == "epoch" else None


def _raise_cause(failure: Diverged) -> None:
    if failure.__cause__ is not None:
        raise failure.__cause__


def _outcome(store: Store, trial: Trial) -> Outcome:
    outcome = store.outcome(trial)
    assert outcome is not None, "a training that returns has ended its record"
    return outcome


def _require_schedule(trial: Trial) -> None:
    """Raise for numbers that no training can use."""
    for name in ("epochs", "batch", "evaluate"):
        if not is_whole(getattr(trial, name)):
            raise OptionError(f"`Trial`: {name} must be a whole number >= 1, got {getattr(trial, name)!r}.")
    if not (is_whole(trial.seed, -(2**63)) and trial.seed < 2**64):
        raise OptionError(f"`Trial`: seed must lie in [-2^63, 2^64), as torch's, got {trial.seed!r}.")
    for name in ("lr", "momentum", "weight_decay", "gamma", "eps"):
        value = getattr(trial, name)
        if not (is_number(value) and value >= 0):
            raise OptionError(f"`Trial`: {name} must be a finite number >= 0, got {value!r}.")
    if not all(is_whole(epoch, 0) for epoch in trial.milestones) or list(trial.milestones) != sorted(trial.milestones):
        raise OptionError(f"`Trial`: milestones must be epochs >= 0 in ascending order, got {trial.milestones!r}.")
    if trial.schedule not in SCHEDULES:
        raise OptionError(f"`Trial`: schedule must be one of {', '.join(SCHEDULES)}, got {trial.schedule!r}.")
    if trial.nesterov and trial.momentum == 0:
        raise OptionError("`Trial`: nesterov needs a momentum above 0. Leave it out, or give one.")
    if trial.precision not in PRECISIONS:
        raise OptionError(f"`Trial`: precision must be one of {', '.join(PRECISIONS)}, got {trial.precision!r}.")


def _fabric(trial: Trial, device: str) -> Fabric:
    """Fabric on one device, or on those that torchrun has started processes for."""
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # the record says what it would tell of every trial
    where = torch_device("train", device)
    kind = where.type
    world, local = (int(os.environ.get(name, "1")) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    if kind == "cpu" and trial.precision == "16-mixed":  # Fabric would take bfloat16 instead
        raise OptionError("`Trial`: precision 16-mixed needs a GPU. Take bf16-mixed or 32-true on the CPU.")
    precision: Any = "32-true" if trial.precision == "64-true" else trial.precision  # see `Run`
    if world > 1 and torch.distributed.is_torchelastic_launched():
        # Buffers need no broadcast: merged statistics are the same on every rank.
        strategy = DDPStrategy(broadcast_buffers=False)
        fabric = Fabric(
            accelerator=kind, devices=local, num_nodes=max(1, world // local), strategy=strategy, precision=precision
        )
    else:
        which: Any = 1 if kind == "cpu" else [torch.cuda.current_device() if where.index is None else where.index]
        fabric = Fabric(accelerator=kind, devices=which, precision=precision)
    fabric.launch()
    return fabric


def _dataset(trial: Trial, data: Path | None) -> Source:
    place = data or (Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None)
    return _kept(trial.data, place, trial.train_samples, trial.test_samples, trial.broken)


@lru_cache(maxsize=2)  # the trials of a sweep come one after the other with the same data
def _kept(name: str, data: Path | None, train_samples: int | None, test_samples: int | None, broken: str) -> Source:
    return open_source(name, data, train_samples=train_samples, test_samples=test_samples, broken=broken)
