"""Training from records: what is recorded, failures as results, resuming bit for bit, and full disks."""

import copy
import errno
import math
import os
import random
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins import MixedPrecision

from attack import kills
from attack.kills import RANDOM
from spectralgrad.errors import OptionError
from spectralgrad.nn import DecorrelatedBatchNorm2d
from spectralgrad_lab.data import DataError, load
from spectralgrad_lab.deadline import Deadline, OutOfTime
from spectralgrad_lab.records.store import Outcome, Recording, Store, StoreError
from spectralgrad_lab.records.trial import Trial
from spectralgrad_lab.training import checkpoint, loop
from spectralgrad_lab.training import train as trainer
from spectralgrad_lab.training.checkpoint import CheckpointError
from spectralgrad_lab.training.loop import Run
from spectralgrad_lab.training.train import run_trial
from spectralgrad_lab.training.watch import Diverged, Finiteness, figures
from support.marks import slow_but

TINY = Trial(width=8, epochs=3, batch=64, train_samples=192, test_samples=64, milestones=(2,))


@pytest.fixture(autouse=True)
def checkpoints_after_every_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """These epochs take a moment; else the first checkpoint would come after 20 seconds."""
    monkeypatch.setattr(trainer, "CHECKPOINT", 0.0)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "records")


def metrics(outcome: Outcome | None) -> list[dict[str, Any]]:
    """All of the epochs' numbers but the time."""
    assert outcome is not None
    return [{name: value for name, value in line.items() if name != "seconds"} for line in outcome.epochs]


def train(trial: Trial, store: Store, **options: Any) -> Outcome:
    return run_trial(trial, store, device="cpu", **options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Of an unbroken run of `RANDOM`."""
    return metrics(train(RANDOM, Store(tmp_path_factory.mktemp("whole") / "records")))


def test_record_has_every_epoch_and_the_end(store: Store) -> None:
    heard: list[dict[str, Any]] = []
    trial = replace(TINY, layer="zca", method="exact", d=16)
    outcome = train(trial, store, progress=heard.append)
    assert (outcome.status, outcome.reason) == ("finished", "")
    assert [(line["epoch"], line["step"]) for line in outcome.epochs] == [(0, 3), (1, 6), (2, 9)]
    assert [line["epoch"] for line in heard] == [0, 1, 2]
    for line in outcome.epochs:
        assert 0 < line["train_loss"] < 10
        assert 0 <= line["train_error"] <= 100
        assert 0 <= line["top5_error"] < line["test_error"] <= 100
        assert line["seconds"] > 0
    assert outcome.test_error == outcome.epochs[-1]["test_error"]
    assert outcome.best_error == min(line["test_error"] for line in outcome.epochs)
    last = store.lines(trial)[-1]
    assert (last["kind"], last["step"], last["epoch"]) == ("end", 9, 2)
    assert not list((store.folder / "trials").glob("*.ckpt*"))


def test_digits_are_learnt_in_three_epochs(store: Store) -> None:
    outcome = train(Trial(width=16, epochs=3, layer="zca", method="exact", d=16), store)
    assert outcome.epochs[2]["train_loss"] < outcome.epochs[0]["train_loss"] / 2
    assert outcome.test_error is not None
    assert outcome.test_error < 40  # guessing is 90


def test_test_error_is_in_percent_of_the_test_set(store: Store) -> None:
    for line in train(TINY, store).epochs:
        wrong = line["test_error"] * 64 / 100
        assert wrong == pytest.approx(round(wrong), abs=1e-9)
        wrong = line["train_error"] * 192 / 100
        assert wrong == pytest.approx(round(wrong), abs=1e-9)


def test_a_trial_that_has_ended_is_not_trained_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    first = train(TINY, store)
    lines = store.lines(TINY)
    monkeypatch.setattr(Run, "epoch", lambda *_: pytest.fail("trained again"))
    assert train(TINY, store) == first
    assert store.lines(TINY) == lines


def test_equal_trials_give_equal_numbers_and_other_seeds_others(store: Store, whole: list[dict[str, Any]]) -> None:
    assert metrics(train(RANDOM, store)) == whole
    assert metrics(train(replace(RANDOM, seed=1), store)) != whole


BASE = replace(TINY, layer="zca", method="taylor", d=4, epochs=2, train_samples=128, milestones=(1,))  # four steps
CHANGES: list[dict[str, Any]] = [
    {"lr": 0.05},
    {"momentum": 0.5},
    {"weight_decay": 0.1},
    {"gamma": 0.5},
    {"milestones": (2,)},
    {"batch": 48},
    {"schedule": "onecycle"},
    {"nesterov": True},
    {"augment": False},
    {"train_samples": 64},
    {"test_samples": 32},
    {"width": 4},
    {"precision": "bf16-mixed"},
    {"eps": 1e-1},
    {"running": "whitening"},
    {"where": "block"},
    {"d": 8},
    {"layer": "pca"},
    {"layer": "denoise", "d": None, "energy": 0.8},
    {"layer": "bn", "method": "exact", "d": None},
    {"method": "svd-pi"},
    {"method": "taylor", "iterations": 0},
    {"treatments": ("SN",)},
    {"treatments": ("OW",)},
    {"treatments": ("OL",)},
    {"treatments": ("NOG",)},
    {"treatments": ("OLR",)},
]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return metrics(train(BASE, Store(tmp_path_factory.mktemp("plain") / "records")))


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_every_option_changes_the_result(change: dict[str, Any], store: Store, plain: list[dict[str, Any]]) -> None:
    outcome = train(replace(BASE, **change), store)
    assert outcome.status == "finished", outcome.reason
    shown = ("train_loss", "test_loss")
    assert [[line[name] for name in shown] for line in outcome.epochs] != [[line[name] for name in shown] for line in plain]


def test_learning_rate_follows_the_milestones(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []
    original = Run._step

    def spied(self: Run, *args: Any, **how: Any) -> None:
        rates.append(self.optimizer.param_groups[0]["lr"])
        original(self, *args, **how)

    monkeypatch.setattr(Run, "_step", spied)
    train(replace(TINY, epochs=5, milestones=(1, 3), gamma=0.5, train_samples=64), store)
    assert rates == [0.1, 0.05, 0.05, 0.025, 0.025]


def test_one_cycle_rises_and_falls_to_zero(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []
    original = Run._step
    monkeypatch.setattr(
        Run, "_step", lambda self, *a, **k: (rates.append(self.optimizer.param_groups[0]["lr"]), original(self, *a, **k))[1]
    )
    train(replace(TINY, epochs=3, schedule="onecycle", lr=0.1), store)
    assert len(rates) == 9
    assert max(rates) == rates[2] == pytest.approx(0.1)  # after 30 % of the steps
    assert rates[:3] == sorted(rates[:3])
    assert rates[2:] == sorted(rates[2:], reverse=True)
    assert rates[-1] == pytest.approx(0, abs=1e-12)


def test_without_the_last_batch_its_images_are_left_out(store: Store) -> None:
    trial = replace(TINY, batch=80, epochs=1)
    whole, part = (train(replace(trial, drop_last=drop), store).epochs[0] for drop in (False, True))
    assert (whole["step"], part["step"]) == (3, 2)
    wrong = part["train_error"] * 160 / 100  # of two batches
    assert wrong == pytest.approx(round(wrong), abs=1e-9)
    with pytest.raises(OptionError, match="not be larger than the 192 images"):
        train(replace(trial, batch=500, drop_last=True), store)


def test_some_epochs_are_evaluated_and_the_last_always(store: Store) -> None:
    outcome = train(replace(TINY, epochs=5, evaluate=2), store)
    assert ["test_error" in line for line in outcome.epochs] == [False, True, False, True, True]
    assert outcome.test_error == outcome.epochs[-1]["test_error"]
    assert outcome.best_error == min(outcome.epochs[i]["test_error"] for i in (1, 3, 4))


def test_a_checkpoint_is_due_after_a_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[int] = []
    original = checkpoint.save
    monkeypatch.setattr(checkpoint, "save", lambda path, state: (saved.append(state["epoch"]), original(path, state))[1])
    train(TINY, store)
    assert saved == [0, 1]  # the last epoch ends the record instead
    monkeypatch.setattr(trainer, "CHECKPOINT", 1000.0)
    train(replace(TINY, seed=1), store)
    assert saved == [0, 1]


# The monitor.


def test_monitor_reports_the_layer_under_test(store: Store) -> None:
    outcome = train(replace(TINY, layer="zca", method="exact", d=64, eps=1e-4), store)
    for line in outcome.epochs:
        monitor = line["monitor"]
        assert 50 <= monitor["at_floor"] <= 62  # conv1 sees 9 inputs, border pixels apart: 64 channels of rank 9
        assert monitor["kept_rank"] == 64 - monitor["at_floor"]
        assert monitor["smallest_gap"] < 1e-6
        assert 0 < monitor["mean_ratio"] < 1
        assert monitor["condition_shifted"] > 10
        assert 0 <= monitor["singular"] <= 1
        assert monitor["range"] == 9
        assert 1 < monitor["condition_range"] < 1e6 < (monitor["condition"] or float("inf"))
        assert monitor["solver_failures"] == 0


def test_batch_norm_is_watched_and_trains_as_if_it_were_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = train(replace(TINY, d=16), Store(tmp_path / "one"))
    assert watched.epochs[0]["monitor"]["condition_shifted"] > 1
    assert watched.epochs[0]["monitor"]["kept_rank"] <= 16
    monkeypatch.setattr(loop, "watched_layers", lambda _: [])
    alone = train(replace(TINY, d=16), Store(tmp_path / "two"))
    assert set(alone.epochs[0]["monitor"]) == {"solver_failures"}
    for one, two in zip(watched.epochs, alone.epochs, strict=True):
        assert (one["train_loss"], one["test_loss"]) == (two["train_loss"], two["test_loss"])


def test_every_group_of_a_watched_batch_norm_counts(tmp_path: Path) -> None:
    """One start, one step: whitening in the same groups sees the same covariances."""
    small = replace(TINY, epochs=1, train_samples=64, batch=64, d=16)
    norm, whitened = (
        train(replace(small, layer=layer), Store(tmp_path / layer)).epochs[0]["monitor"] for layer in ("bn", "zca")
    )
    for name in ("condition_range", "condition_shifted", "mean_ratio"):
        assert norm[name] == pytest.approx(whitened[name], rel=1e-3)


def test_condition_on_the_range_is_told_before_eps_and_for_every_method(tmp_path: Path) -> None:
    """One start, one step: SVD, Newton-Schulz and batch norm see one covariance, whatever eps shifts it by."""
    small = replace(TINY, epochs=1, train_samples=64, batch=64)
    kinds: list[dict[str, Any]] = [
        {"layer": "zca", "method": name, "eps": eps} for name, eps in (("taylor", 1.0), ("newton", 0.1))
    ]
    found = [
        train(replace(small, **kind), Store(tmp_path / str(i))).epochs[0]["monitor"]
        for i, kind in enumerate([*kinds, {"layer": "bn"}])
    ]
    assert [monitor["range"] for monitor in found] == [9, 9, 9]
    values = [monitor["condition_range"] for monitor in found]
    assert max(values) == pytest.approx(min(values), rel=1e-3)


def test_figures_of_no_records_are_none() -> None:
    assert set(figures([], 1e-4).values()) == {None}


# Failures are results.


def test_divergence_is_recorded_with_reason_and_step(store: Store) -> None:
    """The papers' analytic gradient on ties: 64 channels of rank 9."""
    trial = replace(TINY, layer="zca", method="svd", d=64, eps=1e-2, train_samples=None, epochs=8)
    outcome = train(trial, store)
    assert outcome.status == "failed"
    assert "not finite" in outcome.reason
    end = store.lines(trial)[-1]
    assert end["step"] >= 1
    assert end["epoch"] == len(outcome.epochs)
    assert not list((store.folder / "trials").glob("*.ckpt*"))


def test_a_learning_rate_that_explodes_is_a_failure(store: Store) -> None:
    outcome = train(replace(TINY, lr=1e30), store)
    assert outcome.status == "failed"
    assert "finite" in outcome.reason
    assert outcome.test_error is None


@pytest.mark.parametrize("at", [1, 5])
def test_an_exception_in_a_step_is_a_failure(at: int, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Run._step

    def broken(self: Run, *args: Any, **how: Any) -> None:
        if self.step + 1 == at:
            raise torch.linalg.LinAlgError("did not converge")
        original(self, *args, **how)

    monkeypatch.setattr(Run, "_step", broken)
    outcome = train(TINY, store)
    assert (outcome.status, outcome.reason) == ("failed", "_LinAlgError: did not converge")
    assert store.lines(TINY)[-1]["step"] == at
    assert len(outcome.epochs) == (at - 1) // 3
    assert outcome.test_error == (outcome.epochs[-1]["test_error"] if outcome.epochs else None)


@pytest.mark.parametrize("what", ["weight", "running"])
def test_state_that_is_not_finite_is_a_failure(what: str, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Run._train

    def spoilt(self: Run, epoch: int) -> tuple[float, float]:
        result = original(self, epoch)
        tensor: Any = self.model.classifier.bias if what == "weight" else self.model.norm1.running_var
        with torch.no_grad():
            tensor[0] = math.nan
        return result

    monkeypatch.setattr(Run, "_train", spoilt)
    outcome = train(TINY, store)
    assert outcome.status == "failed"
    assert outcome.reason == ("a weight is not finite" if what == "weight" else "the test loss is not finite")


def test_first_step_that_is_not_finite_is_kept_until_somebody_looks() -> None:
    """On a GPU nobody looks at every step: what comes after the first must not hide it."""
    seen = Finiteness(torch.device("cpu"))
    one, nan = torch.ones(()), torch.tensor(math.nan)
    seen.note(one, [one])
    seen.check()
    seen.note(one, [one, nan])
    seen.note(nan, [nan])
    with pytest.raises(Diverged, match="gradient") as caught:
        seen.check()
    assert caught.value.step == 2
    seen = Finiteness(torch.device("cpu"))
    seen.note(one, [torch.full((2,), 1e30)])  # its squares overflow; it does not
    seen.check()
    seen.note(torch.tensor(math.inf), [])
    with pytest.raises(Diverged, match="loss"):
        seen.check()


# Stopping and going on.


def test_interrupt_passes_and_loses_the_running_epoch_only(
    whole: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, original = Store(tmp_path / "broken"), Run._step

    def interrupted(self: Run, *args: Any, **how: Any) -> None:
        if self.step == 10:
            raise KeyboardInterrupt
        original(self, *args, **how)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(RANDOM, store)
    assert store.outcome(RANDOM) is None
    assert sum(line["kind"] == "epoch" for line in store.lines(RANDOM)) == 3
    trained: list[int] = []
    monkeypatch.setattr(Run, "epoch", lambda self, epoch, f=Run.epoch: (trained.append(epoch), f(self, epoch))[1])
    assert metrics(train(RANDOM, store)) == whole
    assert trained == [3, 4, 5]


def test_killed_at_the_worst_moments_it_ends_as_an_unbroken_run(tmp_path: Path) -> None:
    """Many more kills, and at drawn moments: `make attack ONLY=kills`."""
    subject = kills.SUBJECTS["a training"]
    subject.finish(tmp_path / "whole")
    for moment in ("between", "write", "line", "between", "end", "ended"):
        assert kills.attempt(subject.work, tmp_path / "broken", moment) == -signal.SIGKILL
    assert subject.results(tmp_path / "broken") == subject.results(tmp_path / "whole")
    assert len(list((tmp_path / "broken").rglob("*.ckpt"))) == len(list((tmp_path / "broken").rglob("*.lock"))) == 1
    assert kills.attempt(subject.work, tmp_path / "broken") == 0
    assert not [path for pattern in kills.LEFT for path in (tmp_path / "broken").rglob(pattern)]


def test_resuming_needs_the_generators(whole: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: without their states in the checkpoint the numbers differ."""
    monkeypatch.setattr(loop, "set_random_state", lambda _: None)
    store, original = Store(tmp_path / "broken"), Run.epoch

    def stopped(self: Run, epoch: int) -> dict[str, Any]:
        if epoch == 3:
            raise KeyboardInterrupt
        return original(self, epoch)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "epoch", stopped)
        with pytest.raises(KeyboardInterrupt):
            train(RANDOM, store)
    assert metrics(train(RANDOM, store)) != whole


def test_generators_of_the_caller_are_left_alone(store: Store) -> None:
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    want = (torch.rand(1), random.random(), np.random.rand())  # noqa: NPY002
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    train(replace(RANDOM, epochs=1), store)
    assert (torch.rand(1), random.random(), np.random.rand()) == want  # noqa: NPY002


def test_random_state_round_trips_through_a_checkpoint(tmp_path: Path) -> None:
    checkpoint.seed_all(7)
    random.gauss(0, 1)
    path = tmp_path / "state.ckpt"
    checkpoint.save(path, {"key": "k", "random": checkpoint.random_state()})
    want = [(random.random(), float(torch.rand(())), np.random.standard_normal()) for _ in range(3)]  # noqa: NPY002
    checkpoint.seed_all(8)
    state = checkpoint.load(path, "k")
    assert state is not None
    checkpoint.set_random_state(state["random"])
    assert [(random.random(), float(torch.rand(())), np.random.standard_normal()) for _ in range(3)] == want  # noqa: NPY002


def test_stopped_by_the_clock_it_ends_as_an_unbroken_run(whole: list[dict[str, Any]], tmp_path: Path) -> None:
    store = Store(tmp_path / "stopped")
    for epoch in range(RANDOM.epochs - 1):
        with pytest.raises(OutOfTime):
            train(RANDOM, store, deadline=Deadline.after(0))
        assert store.outcome(RANDOM) is None
        assert store.lines(RANDOM)[-1]["kind"] == "stop"
        assert store.lines(RANDOM)[-1]["epoch"] == epoch
    assert metrics(train(RANDOM, store, deadline=Deadline.after(0))) == whole


def test_a_checkpoint_of_another_versions_network_is_one_clear_error(store: Store) -> None:
    with pytest.raises(OutOfTime):
        train(TINY, store, deadline=Deadline.after(0))
    path = store.files(TINY).checkpoint
    state = checkpoint.load(path, TINY.key)
    assert state is not None
    state["model"].popitem()
    checkpoint.save(path, state)
    with pytest.raises(OptionError, match=r"\.ckpt holds another network .* Remove it and train again"):
        train(TINY, store)


# Faults around the training.


@pytest.mark.parametrize("part", ["line", "checkpoint"])
def test_a_full_disk_is_an_error_and_leaves_the_records(
    part: str, whole: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, real, count = Store(tmp_path / "broken"), os.fsync, 0

    def fsync(descriptor: int) -> None:
        # Starts with the start line; an epoch then has its line, its checkpoint and the folder.
        nonlocal count
        count += 1
        if count == {"line": 5, "checkpoint": 6}[part]:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(StoreError if part == "line" else CheckpointError, match="No space left on device"):
            train(RANDOM, store)
    assert store.outcome(RANDOM) is None
    found = [line for line in store.lines(RANDOM) if line["kind"] == "epoch"]
    assert len(found) >= 1
    assert metrics(Outcome("", "", tuple(found), None, None, 0.0)) == whole[: len(found)]
    assert not list((store.folder / "trials").glob("*.part"))
    assert metrics(train(RANDOM, store)) == whole


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def _lose(state: dict[str, Any], *names: str) -> dict[str, Any]:
    part = state
    for name in names[:-1]:
        part = part[name]
    del part[names[-1]]
    return state


@pytest.mark.parametrize(
    "damage",
    slow_but(
        ["a generator less", "half an optimizer", "another trial"],
        {
            "no generators": lambda state: _lose(state, "random"),
            "a generator less": lambda state: _lose(state, "random", "numpy"),
            "half an optimizer": lambda state: _lose(state, "optimizer", "param_groups"),
            "epoch as text": lambda state: {**state, "epoch": "first"},
            "a number": lambda state: {**state, "random": 3},
            "another trial": lambda state: {**state, "key": "other"},
            "a list": lambda state: [state],
        },
    ),
)
def test_a_damaged_checkpoint_is_set_aside_and_the_trial_starts_over(
    damage: Callable[[Any], Any],
    whole: list[dict[str, Any]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the numbers of a run that never had one: what was taken up of it before the fault is taken back."""
    store = Store(tmp_path / "broken")
    with monkeypatch.context() as patch:
        patch.setattr(Recording, "append", _interrupted(Recording.append, at=3))
        with pytest.raises(KeyboardInterrupt):
            train(RANDOM, store)
    path = store.files(RANDOM).checkpoint
    torch.save(damage(torch.load(path, weights_only=True)), path)
    damaged = path.read_bytes()
    assert metrics(train(RANDOM, store)) == whole
    assert f"It is kept as {path.name}.damaged, and the trial starts over" in capsys.readouterr().err
    assert path.with_name(f"{path.name}.damaged").read_bytes() == damaged


def _interrupted(append: Callable[..., None], at: int) -> Callable[..., None]:
    """`append` that is interrupted before the line of that epoch."""

    def instead(self: Recording, kind: str, **fields: Any) -> None:
        if kind == "epoch" and fields["epoch"] == at:
            raise KeyboardInterrupt
        append(self, kind, **fields)

    return instead


def test_a_checkpoint_runs_nothing_and_must_belong_to_the_trial(tmp_path: Path) -> None:
    path, mark = tmp_path / "a.ckpt", tmp_path / "mark"
    torch.save({"format": 1, "key": "k", "evil": Evil(mark)}, path)
    with pytest.raises(CheckpointError, match="damaged"):
        checkpoint.load(path, "k")
    assert not mark.exists()
    torch.load(path, weights_only=False)  # the control: it is a live one
    assert mark.exists()
    checkpoint.save(path, {"key": "k"})
    assert checkpoint.load(path, "k") == {"format": 1, "key": "k"}
    with pytest.raises(CheckpointError, match="no checkpoint of trial other"):
        checkpoint.load(path, "other")
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(CheckpointError, match="damaged"):
        checkpoint.load(path, "k")
    assert checkpoint.load(tmp_path / "none", "k") is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"epochs": 0}, "epochs must be a whole number >= 1, got 0"),
        ({"batch": 1.5}, "batch"),
        ({"lr": math.nan}, "lr must be a finite number"),
        ({"milestones": (3, 1)}, "ascending"),
        ({"milestones": (-1,)}, "epochs >= 0"),
        ({"eps": -1.0}, "eps must be a finite number"),
        ({"seed": 1.5}, "seed must lie in"),
        ({"precision": "8-true"}, "precision must be one of"),
        ({"precision": "16-mixed"}, "16-mixed needs a GPU"),
        ({"seed": 2**64}, "seed must lie in"),
        ({"model": "vgg"}, "model must be one of"),
        ({"layer": "ln"}, "layer must be one of"),
        ({"data": "mnist"}, "data must be one of"),
        ({"treatments": ("NOG",)}, "batch norm has none"),
    ],
)
def test_wrong_options_are_errors_and_leave_no_record(change: dict[str, Any], words: str, store: Store) -> None:
    with pytest.raises(OptionError, match=words):
        train(replace(TINY, **change), store)
    assert store.trials() == []


@pytest.mark.parametrize("layer", ["bn", "zca"])
def test_bfloat16_throughout(layer: str, store: Store) -> None:
    assert train(replace(TINY, layer=layer, precision="bf16-true"), store).status == "finished"


def test_missing_data_is_an_error_and_leaves_no_record(store: Store, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cifar-10-batches-py"):
        train(replace(TINY, data="cifar10"), store, data=tmp_path)
    assert store.trials() == []


@pytest.mark.parametrize("device", ["tpu", "cpu:1", "cuda:x"])
def test_unknown_devices_are_named(device: str, store: Store) -> None:
    with pytest.raises(OptionError, match=f"got '{device}'"):
        run_trial(TINY, store, device=device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_cuda_without_a_gpu_is_an_error(store: Store) -> None:
    with pytest.raises(OptionError, match="sees no GPU"):
        run_trial(TINY, store, device="cuda")


def test_starting_bases_go_through_a_checkpoint(tmp_path: Path) -> None:
    """What layers with warm_start go on from is in no state_dict."""
    model = torch.nn.Sequential(DecorrelatedBatchNorm2d(4, 2, warm_start=True), DecorrelatedBatchNorm2d(4, 2))
    model[0].last_basis = torch.eye(2).flip(0).repeat(2, 1, 1)
    checkpoint.save(tmp_path / "a.ckpt", {"key": "k", "bases": checkpoint.bases_of(model)})
    state = checkpoint.load(tmp_path / "a.ckpt", "k")
    assert state is not None
    other = copy.deepcopy(model)
    other[0].last_basis, other[1].last_basis = None, torch.eye(2).repeat(2, 1, 1)
    checkpoint.set_bases(other, state["bases"], torch.device("cpu"))
    assert torch.equal(other[0].last_basis, model[0].last_basis)
    assert other[1].last_basis is None


def test_the_scale_of_a_gradient_scaler_goes_through_a_checkpoint(tmp_path: Path) -> None:
    """From the scale that it starts at, steps would be skipped again. Half precision is a GPU's; scalers run on the CPU."""
    some = replace(TINY, precision="16-mixed")

    def run() -> Run:
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
        fabric = Fabric(accelerator="cpu", devices=1, plugins=[MixedPrecision("16-mixed", "cpu", scaler=scaler)])
        fabric.launch()
        return Run(some, load("digits", train_samples=192, test_samples=64), fabric)

    first, again = run(), run()
    first.epoch(0)
    checkpoint.save(tmp_path / "ckpt", first.state(0))
    state = checkpoint.load(tmp_path / "ckpt", some.key)
    assert state is not None
    assert state["precision"]["scale"] > 4.0
    again.restore(state)
    assert again.state(0)["precision"] == first.state(0)["precision"]
    del state["precision"]  # as an older version left it
    again.restore(state)
