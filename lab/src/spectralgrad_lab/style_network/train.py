"""Training a style trial: from the start, from where it was stopped, or not at all if it has ended.

<folder>/style/<variant>-<domains>-<key>/
    log.jsonl                           start, log, log, ..., end: one line each; the first holds the trial in full
    checkpoint.ckpt, lock               while it runs
    weights.pt, weights-photo.pt        to art, and back to photographs: averaged weights in half precision
    samples.png, results.png            contact sheets; samples holds originals
"""

import time
from pathlib import Path
from typing import NamedTuple

from spectralgrad.errors import OptionError
from spectralgrad_lab.data.artworks import Artworks, embedded_artworks, load_artworks
from spectralgrad_lab.data.device import convolutions, torch_device
from spectralgrad_lab.deadline import Deadline
from spectralgrad_lab.models.wct import PHOTO, StylePair
from spectralgrad_lab.records.machine import circumstances
from spectralgrad_lab.records.recording import Line, Recording, end_of
from spectralgrad_lab.records.store import Store
from spectralgrad_lab.training import checkpoint
from spectralgrad_lab.training.recorded import LineListener, another_network, go_on
from spectralgrad_lab.training.watch import Diverged, failed_attempts
from spectralgrad_lab.transfer.pretrained import load_encoder

from .run import StyleRun, new_pair
from .sheet import write_sheets
from .trial import StyleTrial

__all__ = ["StyleOutcome", "TrainedStyle", "trained"]

WEIGHTS, PHOTO_WEIGHTS = "weights.pt", "weights-photo.pt"


class StyleOutcome(NamedTuple):
    """How a trial ended: "finished"; "failed" with the reason and the step; or "stopped" where its time was up."""

    status: str
    reason: str
    step: int
    nonfinite: int  # steps with a loss or a gradient that is not finite
    seconds: float  # of training


class TrainedStyle(NamedTuple):
    """A trained pair in evaluation mode, None where the training failed; its outcome; and its log: step, losses, seconds."""

    network: StylePair | None
    outcome: StyleOutcome
    log: tuple[Line, ...]


def trained(
    trial: StyleTrial,
    folder: Path,
    *,
    data: Path | None = None,
    device: str = "auto",
    progress: LineListener | None = None,
    seconds: float | None = None,
    encoder: Path | None = None,
) -> TrainedStyle:
    """Train a style trial to its end and keep what it leaves; go on from its checkpoint; or load it if it has ended.

    A training that diverges, or raises in a step, has failed, and that is its outcome.

    Args:
        trial: what to train.
        folder: of the records; the trial gets a folder of its own in it.
        data: the directory of the artworks; None is the environment variable SPECTRALGRAD_DATA.
        device: auto, cpu, cuda or cuda:N.
        progress: hears every line of the log as it is written.
        seconds: stop after this time, with weights and sheets of what there is; the same call later goes on.
        encoder: file of VGG-19's weights, where the trial's features are vgg; None finds an installed one.

    Returns:
        The networks are what the files hold, rounded to half precision.

    Raises:
        OptionError: the trial's options do not go together, or the record holds another version's network.
        DataError: the pictures cannot be had.
        BusyError, StoreError, CheckpointError: the record is in use, or cannot be written.
    """
    deadline, where = Deadline.after(seconds), torch_device("trained", device)
    with Store(folder).held(trial) as recording, convolutions():
        if not recording.has_ended:
            artworks = _artworks(trial, data)
            with checkpoint.own_randomness(trial.seed):
                run = StyleRun(trial, artworks, where, load_encoder(encoder) if trial.features == "vgg" else None)
                go_on(Steps(run, artworks, recording), recording, deadline=deadline, tell=progress or (lambda _: None))
        return load_trained(trial, folder, device=device)


class Steps:
    """A style network's training, some steps at a time: a `Training`."""

    def __init__(self, run: StyleRun, artworks: Artworks, recording: Recording) -> None:
        self.run, self.trial, self.artworks, self.place = run, run.trial, artworks, recording.path.parent
        self.failures, self.begin = failed_attempts(), time.perf_counter()
        self.before = self.spent = 0.0  # seconds of earlier runs; of all, at the end of the last part

    @property
    def key(self) -> str:
        return self.trial.key

    @property
    def step(self) -> int:
        return self.run.step

    @property
    def is_done(self) -> bool:
        return self.step >= self.trial.steps

    @property
    def is_due(self) -> bool:
        return self.step % self.trial.save == 0

    def opening(self) -> Line:
        gpu = self.run.device.type == "cuda"
        return {"trial": self.trial.as_json(), "step": self.step, **circumstances("train-style", gpu=gpu)}

    def part(self) -> Line:
        try:
            losses = self.run.advance(min(self.trial.every, self.trial.steps - self.step))
        except Diverged:
            raise
        except Exception:
            self.run.require_finite()  # an error long after the first NaN is that NaN's
            raise
        finally:
            self.spent = self.before + time.perf_counter() - self.begin
        tried = failed_attempts() - self.failures
        return {"step": self.step, **losses, "solver_failures": tried, "seconds": self.spent}

    def ending(self, failure: Diverged | None) -> Line:
        step = self.step if failure is None else failure.step
        return {"step": step, "nonfinite": int(self.run.bad), "seconds": self.spent}

    def leave(self) -> None:
        """Weights and contact sheets."""
        for network, name in ((self.run.average.to_art, WEIGHTS), (self.run.average.to_photo, PHOTO_WEIGHTS)):
            assert network is not None
            weights = {key: x.half().cpu().contiguous() for key, x in network.state_dict().items()}
            checkpoint.save(self.place / name, {"key": self.key, "trial": self.trial.as_json(), "weights": weights})
        write_sheets(self.place, self.run.average.eval(), self.artworks, self.run.device)

    def state(self) -> checkpoint.State:
        return {**self.run.state(), "seconds": self.spent}

    def restore(self, state: checkpoint.State) -> None:
        self.run.restore(state)
        self.before = self.spent = float(state["seconds"])
        self.begin = time.perf_counter()


def place_of(trial: StyleTrial, folder: Path) -> Path:
    """The folder of a trial among the records."""
    return trial.files.under(folder).record.parent


def load_trained(trial: StyleTrial, folder: Path, *, device: str = "auto") -> TrainedStyle:
    """What a training has left, without going on with it.

    Raises:
        OptionError: there is nothing, or weights of another version's network.
    """
    place, lines = place_of(trial, folder), Store(folder).lines(trial)
    log = tuple(line for line in lines if line["kind"] == "log")
    end = end_of(lines) or next((line for line in reversed(lines) if line["kind"] == "stop"), None)
    if end is None:
        raise OptionError(f"`load_trained`: {place} holds no training that has ended or was stopped. Train it first.")
    outcome = StyleOutcome(end.get("status", "stopped"), end.get("reason", ""), *(end[x] for x in StyleOutcome._fields[2:]))
    if outcome.status == "failed":
        return TrainedStyle(None, outcome, log)
    pair = _pair(trial, place).to(torch_device("trained", device)).eval().requires_grad_(False)
    return TrainedStyle(pair, outcome, log)


def _pair(trial: StyleTrial, place: Path) -> StylePair:
    """The networks whose weights a training left."""
    pair = new_pair(trial)
    for network, name in ((pair.to_art, WEIGHTS), (pair.to_photo, PHOTO_WEIGHTS)):
        state = checkpoint.load(place / name, trial.key)
        if state is not None:
            assert network is not None
            try:
                network.load_state_dict({key: x.float() for key, x in state["weights"].items()})
            except (RuntimeError, KeyError, AttributeError, TypeError) as error:
                raise OptionError(another_network("trained", place / name, error, "Remove its folder")) from error
        elif name == WEIGHTS:
            raise OptionError(
                f"`load_trained`: {place / name} is missing. Put it back, or remove the folder and train again."
            )
        else:
            pair.to_photo = None
    return pair


def _artworks(trial: StyleTrial, data: Path | None) -> Artworks:
    if trial.data == "embedded":
        drawn = embedded_artworks(trial.size)
        missing = [name for name in trial.domains if name not in drawn.train]
        if missing:
            known = ", ".join(name for name in drawn.train if name != PHOTO)
            raise OptionError(f"`trained`: pictures are drawn of {known}, got {', '.join(missing)}. Take data artworks.")
        return drawn
    return load_artworks(data, trial.size, (PHOTO, *trial.domains))


def told(line: Line) -> str:
    """A line of the log for people.

    >>> told({"kind": "end", "status": "failed", "reason": "loss not finite", "step": 7, "seconds": 1.0, "nonfinite": 1})
    'failed: loss not finite  step 7  1.0 s  not finite: 1'
    """
    if line["kind"] == "start":
        return f"start at step {line['step']}"
    losses = " ".join(f"{name} {x:.3f}" for name, x in line.items() if isinstance(x, float) and name != "seconds")
    ended = ": ".join(filter(None, (line.get("status", "stopped"), line.get("reason"))))
    step = f"step {line['step']:6d}" if line["kind"] == "log" else f"{ended}  step {line['step']}"
    return "  ".join(filter(None, (step, f"{line['seconds']:.1f} s", losses, f"not finite: {line['nonfinite']}")))
