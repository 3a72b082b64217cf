"""Training a style trial: from the start, from where it was stopped, or not at all if it has ended.

    <folder>/style/<variant>-<domains>-<key>/
        log.jsonl                           start, log, log, ..., end: one line each; the first holds the trial in full
        checkpoint.ckpt, lock               while it runs
        weights.pt, weights-photo.pt        to art, and back to photographs: averaged weights in half precision
        samples.png, results.png            contact sheets; samples holds originals

Also a command: python -m spectralgrad_lab.style_network.train --variant exact --scale smoke --records DIR
"""

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import torch

from spectralgrad.errors import OptionError, SpectralError
from spectralgrad_lab.data.artworks import Artworks, embedded_artworks, load_artworks
from spectralgrad_lab.data.device import fastest_convolutions, torch_device
from spectralgrad_lab.models.vgg import Encoder
from spectralgrad_lab.models.wct import PHOTO, StylePair
from spectralgrad_lab.records.lock import hold
from spectralgrad_lab.records.machine import circumstances
from spectralgrad_lab.records.results import SCALES, Scale
from spectralgrad_lab.training import checkpoint
from spectralgrad_lab.training.watch import Diverged, failed_attempts

from .run import StyleRun, new_pair
from .sheet import write_sheets
from .trial import DOMAINS, StyleTrial, style_trial

__all__ = ["StyleOutcome", "TrainedStyle", "trained"]

LOG, CHECKPOINT, WEIGHTS, PHOTO_WEIGHTS = "log.jsonl", "checkpoint.ckpt", "weights.pt", "weights-photo.pt"
REASON = 500  # characters of an error that a record keeps
STOPPED = 130  # exit code after Ctrl-C
Line = dict[str, Any]
Progress = Callable[[Line], None]


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
    progress: Progress | None = None,
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
        seconds: stop after so much time, with weights and sheets of what there is; the same call later goes on.
        encoder: file of VGG-19's weights, where the trial's features are vgg; None finds an installed one.

    Returns:
        The networks are what the files hold, rounded to half precision.

    Raises:
        OptionError: the trial's options do not go together, or the record holds another version's network.
        DataError: the pictures cannot be had.
        BusyError, CheckpointError: the record is in use, or cannot be written.
    """
    place, where = place_of(trial, folder), torch_device("trained", device)
    place.mkdir(parents=True, exist_ok=True)
    with hold(place / "lock", f"`trained`: {place.name}"), fastest_convolutions():
        if _end(read_log(place)) is None:
            _train(trial, place, where, data, progress or (lambda _: None), seconds, encoder)
        return load_trained(trial, folder, device=device)


def place_of(trial: StyleTrial, folder: Path) -> Path:
    """The folder of a trial among the records."""
    return folder / "style" / f"{trial.variant}-{'-'.join(trial.domains)}-{trial.key}"


def load_trained(trial: StyleTrial, folder: Path, *, device: str = "auto") -> TrainedStyle:
    """What a training has left, without going on with it.

    Raises:
        OptionError: there is nothing, or weights of another version's network.
    """
    place = place_of(trial, folder)
    lines = read_log(place)
    log = tuple(line for line in lines if line["kind"] == "log")
    end = _end(lines) or next((line for line in reversed(lines) if line["kind"] == "stop"), None)
    if end is None:
        raise OptionError(f"`load_trained`: {place} holds no training that has ended or was stopped. Train it first.")
    outcome = StyleOutcome(end.get("status", "stopped"), end.get("reason", ""), *(end[x] for x in StyleOutcome._fields[2:]))
    if outcome.status == "failed":
        return TrainedStyle(None, outcome, log)
    pair = new_pair(trial)
    for network, name in ((pair.to_art, WEIGHTS), (pair.to_photo, PHOTO_WEIGHTS)):
        state = checkpoint.load(place / name, trial.key)
        if state is not None:
            try:
                network.load_state_dict({key: x.float() for key, x in state["weights"].items()})  # type: ignore[union-attr]
            except RuntimeError as error:
                raise _of_another_version(place / name, error) from error
        elif name == WEIGHTS:
            raise OptionError(
                f"`load_trained`: {place / name} is missing. Put it back, or remove the folder and train again."
            )
        else:
            pair.to_photo = None
    return TrainedStyle(pair.to(torch_device("trained", device)).eval().requires_grad_(False), outcome, log)


def _of_another_version(path: Path, error: Exception) -> OptionError:
    return OptionError(
        f"`trained`: {path} holds another network than this version of spectralgrad makes of the same trial "
        f"({str(error).splitlines()[0]}). Remove its folder and train again."
    )


def read_log(place: Path) -> list[Line]:
    """The lines of a log; one that a kill cut short is left out, and of two for the same step the later one counts.

    >>> read_log(Path("/nonexistent"))
    []
    """
    path = place / LOG
    lines: dict[Any, Line] = {}
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines() if path.exists() else ()):
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            continue
        name = ("log", line["step"]) if line["kind"] == "log" else number
        lines.pop(name, None)
        lines[name] = line
    return list(lines.values())


def _end(lines: Sequence[Line]) -> Line | None:
    return next((line for line in lines if line["kind"] == "end"), None)


class _Log:
    """Appends lines that are on the disk before `write` returns."""

    def __init__(self, path: Path, progress: Progress) -> None:
        self.path, self.progress = path, progress

    def write(self, kind: str, **values: Any) -> None:
        line = {"kind": kind, **values}
        text = json.dumps({key: str(x) if isinstance(x, float) and not math.isfinite(x) else x for key, x in line.items()})
        with self.path.open("a+b") as file:
            broken = file.tell() > 0 and not self._ends_whole(file)
            file.write(("\n" if broken else "").encode() + text.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.progress(line)

    @staticmethod
    def _ends_whole(file: Any) -> bool:
        file.seek(-1, os.SEEK_END)
        return bool(file.read(1) == b"\n")


def _train(
    trial: StyleTrial,
    place: Path,
    device: torch.device,
    data: Path | None,
    progress: Progress,
    seconds: float | None,
    encoder: Path | None,
) -> None:
    """All steps that are missing, or as many as there is time for."""
    start = time.perf_counter()
    artworks = _artworks(trial, data)
    with checkpoint.own_randomness(trial.seed):
        run = StyleRun(trial, artworks, device, _encoder(trial, encoder))
        state = checkpoint.load(place / CHECKPOINT, trial.key)
        before = 0.0
        if state is not None:
            try:
                run.restore(state)
            except (RuntimeError, ValueError) as error:
                raise _of_another_version(place / CHECKPOINT, error) from error
            before = float(state["seconds"])
        log = _Log(place / LOG, progress)
        log.write("start", trial=trial.as_json(), step=run.step, **circumstances("train-style", gpu=device.type == "cuda"))
        failures, begin = failed_attempts(), time.perf_counter()
        spent = before
        while run.step < trial.steps:
            try:
                losses = run.advance(min(trial.every, trial.steps - run.step))
            except Exception as error:
                found = error if isinstance(error, Diverged) else _blamed(run, error)
                spent = before + time.perf_counter() - begin
                ended = {"status": "failed", "reason": found.reason, "step": found.step}
                log.write("end", **ended, nonfinite=int(run.bad), seconds=spent)
                return
            spent = before + time.perf_counter() - begin
            tried = failed_attempts() - failures
            log.write("log", step=run.step, **losses, solver_failures=tried, seconds=spent)
            over = seconds is not None and time.perf_counter() - start > seconds and run.step < trial.steps
            if over or (run.step % trial.save == 0 and run.step < trial.steps):
                checkpoint.save(place / CHECKPOINT, {**run.state(), "seconds": spent})
            if over:
                break
        _leave(trial, place, run, artworks, device)
        how = {"step": run.step, "nonfinite": int(run.bad), "seconds": spent}
        if run.step < trial.steps:
            log.write("stop", **how)
        else:
            log.write("end", status="finished", reason="", **how)
            (place / CHECKPOINT).unlink(missing_ok=True)


def _blamed(run: StyleRun, error: Exception) -> Diverged:
    """What failed in a step: an error long after the first NaN is that NaN's."""
    try:
        run.require_finite()
    except Diverged as found:
        return found
    return Diverged(f"{type(error).__name__}: {str(error)[:REASON]}", run.step + 1)


def _leave(trial: StyleTrial, place: Path, run: StyleRun, artworks: Artworks, device: torch.device) -> None:
    """Weights and contact sheets."""
    for network, name in ((run.average.to_art, WEIGHTS), (run.average.to_photo, PHOTO_WEIGHTS)):
        assert network is not None
        weights = {key: x.half().cpu().contiguous() for key, x in network.state_dict().items()}
        checkpoint.save(place / name, {"key": trial.key, "trial": trial.as_json(), "weights": weights})
    write_sheets(place, run.average.eval(), artworks, device)


def _artworks(trial: StyleTrial, data: Path | None) -> Artworks:
    if trial.data == "embedded":
        return embedded_artworks(trial.size)
    return load_artworks(data, trial.size, (PHOTO, *trial.domains))


def _encoder(trial: StyleTrial, path: Path | None) -> Encoder | None:
    if trial.features != "vgg":
        return None
    from spectralgrad_lab.transfer.pretrained import load_encoder

    return load_encoder(path)


# The command, for machines without typer; cli/style.py is the same with it.


def chosen(variant: str, scale: Scale, domains: str, changes: Sequence[str]) -> StyleTrial:
    """The trial that options on a command line mean.

    Args:
        domains: names with commas.
        changes: fields as name=value, values in JSON or plain words.

    Raises:
        OptionError: an unknown field, or a value out of its range.

    >>> chosen("gd", "smoke", "monet", ["steps=7"]).steps
    7
    """
    values: dict[str, Any] = {}
    known = {field.name for field in fields(StyleTrial)} - {"variant", "domains"}
    for change in changes:
        name, found, text = change.partition("=")
        if not found or name not in known:
            raise OptionError(
                f"`train-style`: --set takes name=value with a name of {', '.join(sorted(known))}, got {change!r}."
            )
        try:
            values[name] = json.loads(text)
        except json.JSONDecodeError:
            values[name] = text
    return style_trial(variant, scale, tuple(filter(None, domains.split(","))), **values)


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


def main(argv: Sequence[str] | None = None) -> int:
    """Train one variant; returns the exit code: 0, 1 for a training that failed, 2 for wrong use, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser("train-style", description=main.__doc__)
    parser.add_argument("--variant", default="exact", help="gd, clip, pi, taylor or exact")
    parser.add_argument("--domains", default=",".join(DOMAINS), help="kinds of art, with commas")
    parser.add_argument("--scale", default="smoke", choices=SCALES)
    parser.add_argument("--data", type=Path, help="folder of the artworks (or SPECTRALGRAD_DATA)")
    parser.add_argument("--encoder", type=Path, help="file of VGG-19's weights; else the installed one")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--records", type=Path, default=Path("records"))
    parser.add_argument("--seconds", type=float, help="stop after so much time; the same command goes on")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="another field of the trial")
    options = parser.parse_args(argv)
    try:
        trial = chosen(options.variant, options.scale, options.domains, options.set)
        found = trained(
            trial,
            options.records,
            data=options.data,
            device=options.device,
            progress=lambda line: print(f"{trial.variant:6s} {told(line)}", flush=True),
            seconds=options.seconds,
            encoder=options.encoder,
        )
    except SpectralError as error:
        print(f"train-style: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("train-style: stopped; the same command goes on from its last checkpoint.", file=sys.stderr)
        return STOPPED
    print(f"{trial.variant}: {found.outcome.status} {found.outcome.reason} in {place_of(trial, options.records)}")
    return int(found.outcome.status == "failed")


if __name__ == "__main__":
    sys.exit(main())
