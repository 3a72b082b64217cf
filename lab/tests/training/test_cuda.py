"""On a GPU a step is one CUDA graph: the same numbers as launched by hand, and a run that is resumed ends as another."""

from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from spectralgrad_lab.deadline import Deadline, OutOfTime
from spectralgrad_lab.records.store import Outcome, Store
from spectralgrad_lab.records.trial import Trial

pytest.importorskip("lightning_fabric", reason="trainings need it, and a GPU machine may have torch and pytest alone")
from spectralgrad_lab.training.train import run_trial

pytestmark = [pytest.mark.cuda, pytest.mark.filterwarnings("default")]

# 20 steps an epoch.
BASE = Trial(width=16, epochs=2, batch=64, milestones=(), drop_last=True, train_samples=1280, schedule="onecycle")
ZCA = replace(BASE, layer="zca", method="exact", d=16, eps=1e-2)


@pytest.fixture(autouse=True)
def one_algorithm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions that are chosen by trying them out round otherwise in every run."""

    def fixed(*, exact: bool) -> AbstractContextManager[None]:
        return torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=not exact)

    monkeypatch.setattr("spectralgrad_lab.training.train.convolutions", fixed)


def numbers(outcome: Outcome) -> list[tuple[float, float]]:
    assert outcome.status == "finished", outcome.reason
    return [(line["train_loss"], line["test_loss"]) for line in outcome.epochs]


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize(
    "trial",
    [BASE, ZCA, replace(ZCA, method="svd-pi"), replace(ZCA, method="pi"), replace(ZCA, method="pi", layer="pca")],
    ids=lambda t: t.method + t.layer,
)
def test_replayed_steps_are_those_launched_by_hand(trial: Trial, precision: str, tmp_path: Path) -> None:
    trial = replace(trial, precision=precision)
    by_hand, replayed = (
        run_trial(trial, Store(tmp_path / str(graph)), device="cuda", graph=graph) for graph in (False, True)
    )
    assert [line["graph"] for line in by_hand.epochs] == [False, False]
    assert [line["graph"] for line in replayed.epochs] == [True, True]
    assert numbers(replayed) == numbers(by_hand)


def test_a_resumed_run_ends_as_an_unbroken_one(tmp_path: Path) -> None:
    whole = run_trial(ZCA, Store(tmp_path / "whole"), device="cuda")
    store = Store(tmp_path / "broken")
    with pytest.raises(OutOfTime):
        run_trial(ZCA, store, device="cuda", deadline=Deadline.after(0))
    assert numbers(run_trial(ZCA, store, device="cuda")) == numbers(whole)


@pytest.mark.parametrize("names", [("NOG",), ("OLR",), ("OW",), ("SN",), ("OL",), ("NOG", "OW", "OLR")], ids="-".join)
def test_steps_with_treatments_are_captured(names: tuple[str, ...], tmp_path: Path) -> None:
    trial = replace(ZCA, treatments=names)
    by_hand, replayed, plain = (
        run_trial(trial, Store(tmp_path / name), device="cuda", graph=graph)
        for name, trial, graph in (("hand", trial, False), ("graph", trial, True), ("plain", ZCA, True))
    )
    assert [line["graph"] for line in replayed.epochs] == [True, True]
    for replay, hand in zip(numbers(replayed), numbers(by_hand), strict=True):
        assert replay == pytest.approx(hand, rel=1e-3)
    assert numbers(replayed)[1] != pytest.approx(numbers(plain)[1], rel=1e-3)  # control: the treatment acts


def test_what_waits_for_the_host_is_launched_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def waiting(G: Tensor, solver: object) -> Tensor:
        return sg.polar(G) * float(G.isfinite().all())

    monkeypatch.setattr("spectralgrad.orthogonal.gradient.polar", waiting)
    outcome = run_trial(replace(ZCA, treatments=("NOG",)), Store(tmp_path), device="cuda")
    assert [line["graph"] for line in outcome.epochs] == [False, False]


def test_a_step_that_is_not_finite_is_found_at_the_end_of_its_epoch(tmp_path: Path) -> None:
    outcome = run_trial(replace(ZCA, lr=1e30, schedule="steps"), Store(tmp_path), device="cuda")
    assert outcome.status == "failed"
    assert "not finite" in outcome.reason
