"""Training a trial from its record: from the start, or from where it was stopped."""

import os
from collections.abc import Callable
from contextlib import nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy

from spectralgrad.errors import OptionError
from spectralgrad.validation import is_number, is_whole
from spectralgrad_lab.data import Dataset, load
from spectralgrad_lab.data.dataset import VARIABLE
from spectralgrad_lab.data.device import fastest_convolutions, torch_device
from spectralgrad_lab.records.store import Outcome, Recording, Store
from spectralgrad_lab.records.trial import Trial

from . import checkpoint
from .loop import Run
from .watch import Diverged

__all__ = ["PRECISIONS", "run_trial"]

PRECISIONS = ("32-true", "64-true", "bf16-mixed", "16-mixed", "bf16-true")
REASON = 500  # characters of an error that a record keeps
Progress = Callable[[dict[str, Any]], None]


def run_trial(
    trial: Trial,
    store: Store,
    *,
    data: Path | None = None,
    device: str = "auto",
    progress: Progress | None = None,
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

    Raises:
        OptionError: the trial's options do not go together; nothing is recorded.
        DataError: the data set cannot be had; nothing is recorded.
        StoreError, BusyError, CheckpointError: the record is in use or cannot be written; what it holds stands.
    """
    _require_schedule(trial)
    ended = store.outcome(trial)
    fabric = _fabric(trial, device)
    if fabric.broadcast(ended is not None):
        return _outcome(store, trial)
    is_first = fabric.global_rank == 0
    gpu = fabric.device.type == "cuda"
    with checkpoint.own_randomness(trial.seed), fastest_convolutions():
        run = Run(trial, _dataset(trial, data), fabric)
        try:
            with store.recording(trial, gpu=gpu) if is_first else nullcontext() as recording:
                _train(run, recording, progress or (lambda _: None))
        finally:
            run.close()
    fabric.barrier()
    return _outcome(store, trial)


def _train(run: Run, recording: Recording | None, progress: Progress) -> None:
    """All epochs that are missing; ``recording`` is None on ranks that do not record."""
    trial, fabric = run.trial, run.fabric
    lines = recording.lines if recording is not None else []
    state = checkpoint.load(recording.checkpoint, trial.key) if recording is not None else None
    # Another process may have ended the trial between our first look and the lock.
    over, state = fabric.broadcast((any(line["kind"] == "end" for line in lines), state))
    if over:
        return
    start = 0 if state is None else run.restore(state)
    errors = {line["epoch"]: line["test_error"] for line in lines if line["kind"] == "epoch" and line["epoch"] < start}
    for epoch in range(start, trial.epochs):
        line = _attempt(run, epoch)
        if isinstance(line, Diverged):
            if recording is not None:
                recording.append("end", **_end("failed", line.reason, line.step, epoch, errors))
            if fabric.world_size > 1 and line.__cause__ is not None:
                raise line.__cause__
            return
        errors[epoch] = line["test_error"]
        if recording is not None:
            # The line first: a kill in between repeats the epoch, and its second line counts. The other way round the line
            # would be lost.
            recording.append("epoch", **line)
            if epoch + 1 < trial.epochs:
                checkpoint.save(recording.checkpoint, run.state(epoch))
            progress({"kind": "epoch", **line})
    if recording is not None:
        recording.append("end", **_end("finished", "", run.step, trial.epochs - 1, errors))


def _attempt(run: Run, epoch: int) -> dict[str, Any] | Diverged:
    """An epoch, or how it failed; Ctrl-C passes."""
    try:
        return run.epoch(epoch)
    except Diverged as failure:
        return failure
    except Exception as error:
        raised = Diverged(f"{type(error).__name__}: {str(error)[:REASON]}", run.step + 1)
        raised.__cause__ = error
        return raised


def _end(status: str, reason: str, step: int, epoch: int, errors: dict[int, float]) -> dict[str, Any]:
    """The fields of an end line: the error of the last epoch that was evaluated, and the smallest."""
    return {
        "status": status,
        "reason": reason,
        "step": step,
        "epoch": epoch,
        "test_error": errors[max(errors)] if errors else None,
        "best_error": min(errors.values(), default=None),
    }


def _outcome(store: Store, trial: Trial) -> Outcome:
    outcome = store.outcome(trial)
    assert outcome is not None, "a training that returns has ended its record"
    return outcome


def _require_schedule(trial: Trial) -> None:
    """Raise for numbers that no training can use."""
    for name in ("epochs", "batch"):
        if not is_whole(getattr(trial, name)):
            raise OptionError(f"`Trial`: {name} must be a whole number >= 1, got {getattr(trial, name)!r}.")
    for name in ("lr", "momentum", "weight_decay", "gamma"):
        value = getattr(trial, name)
        if not (is_number(value) and value >= 0):
            raise OptionError(f"`Trial`: {name} must be a finite number >= 0, got {value!r}.")
    if list(trial.milestones) != sorted(trial.milestones):
        raise OptionError(f"`Trial`: milestones must be in ascending order, got {trial.milestones!r}.")
    if trial.precision not in PRECISIONS:
        raise OptionError(f"`Trial`: precision must be one of {', '.join(PRECISIONS)}, got {trial.precision!r}.")


def _fabric(trial: Trial, device: str) -> Fabric:
    """Fabric on one device, or on those that torchrun has started processes for."""
    where = torch_device("train", device)
    kind = where.type
    world, local = (int(os.environ.get(name, "1")) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
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


def _dataset(trial: Trial, data: Path | None) -> Dataset:
    place = data or (Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None)
    return _kept(trial.data, place, trial.train_samples, trial.test_samples)


@lru_cache(maxsize=2)  # the trials of a sweep come one after the other with the same data
def _kept(name: str, data: Path | None, train_samples: int | None, test_samples: int | None) -> Dataset:
    return load(name, data, train_samples=train_samples, test_samples=test_samples)
