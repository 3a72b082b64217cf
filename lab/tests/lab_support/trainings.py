"""What stands for a training in the tests of store and sweep: it writes the same lines, and fails on command."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spectralgrad.errors import OptionError
from spectralgrad_lab.deadline import NEVER, Deadline, OutOfTime
from spectralgrad_lab.records.store import Outcome, Store
from spectralgrad_lab.records.trial import Trial


def train(
    trial: Trial,
    store: Store,
    *,
    data: Path | None = None,
    device: str = "auto",
    progress: Callable[[dict[str, Any]], None] | None = None,
    deadline: Deadline = NEVER,
) -> Outcome:
    """The model says what happens: broken, diverges, dies, dies-once; lr / 10 is the seconds of an epoch."""
    if trial.model == "broken":
        raise OptionError("`train`: no such model, 'broken'.")
    with store.recording(trial) as recording:
        starts = sum(line["kind"] == "start" for line in recording.lines)
        done = sum(line["kind"] == "epoch" for line in recording.lines)
        if trial.model == "dies" or (trial.model == "dies-once" and starts == 1):
            os.kill(os.getpid(), signal.SIGKILL)
        for epoch in range(done, trial.epochs):
            time.sleep(trial.lr / 10)
            loss = float("nan") if trial.model == "diverges" else 1 / (epoch + 1)
            line = {"epoch": epoch, "step": 10 * (epoch + 1), "train_loss": loss, "seconds": trial.lr / 10}
            recording.append("epoch", **line, monitor={"process": os.getpid()})
            if progress:
                progress(line)
            if deadline.is_over and epoch + 1 < trial.epochs:
                raise OutOfTime
            if trial.model == "diverges":
                recording.append("end", status="failed", reason="the loss is NaN", step=10, epoch=epoch)
                break
        else:
            recording.append("end", status="finished", reason="", epoch=trial.epochs - 1, test_error=0.1, best_error=0.1)
    outcome = store.outcome(trial)
    assert outcome is not None
    return outcome
