"""`run` and `train` for people: progress in lines, what is recorded already, time that runs out, and what goes wrong."""

import errno
import io
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console

from spectralgrad_lab.artifacts.registry import find
from spectralgrad_lab.cli import main
from spectralgrad_lab.cli.app import app
from spectralgrad_lab.cli.bars import Bars, Lines, label, places
from spectralgrad_lab.cli.pace import Pace
from spectralgrad_lab.cli.train import sentences
from spectralgrad_lab.deadline import OutOfTime
from spectralgrad_lab.records.outcome import Outcome
from spectralgrad_lab.records.store import Store
from spectralgrad_lab.records.trial import Trial
from spectralgrad_lab.sweep.local import Event

Captured = pytest.CaptureFixture[str]
COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
QUICK = ["--epochs", "1", "--train-samples", "128", "--test-samples", "64", "--width", "8", "--device", "cpu"]
OUTCOME = Outcome("finished", "", ({"train_loss": 0.1},), 4.4444, 4.2, 12.0, classes=10)


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)], ids=str)
def test_h_is_help_everywhere(command: list[str], capsys: Captured) -> None:
    assert main([*command, "-h"]) == 0
    assert "Usage: spectralgrad" in capsys.readouterr().out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_flag_has_its_help(name: str) -> None:
    without = [p.name for p in COMMANDS[name].params if not getattr(p, "help", None)]
    assert without == []


def test_the_flags_of_train_say_what_the_trial_says() -> None:
    said = sentences(Trial.__doc__ or "")
    flags = {p.name: str(getattr(p, "help", "")) for p in COMMANDS["train"].params}
    assert flags["schedule"] == said["schedule"]
    assert flags["schedule"].startswith("steps (milestones and gamma) or onecycle")
    assert "seconds" in flags


# --- progress


def test_lines_tell_of_each_end_and_of_what_runs() -> None:
    told: list[str] = []
    first, second, third = (Trial(seed=seed, epochs=4) for seed in range(3))
    with Lines(3, "pami-table4", {first}, write=told.append, every=0.05) as lines:
        lines(Event(first, 4, OUTCOME))  # it was recorded before: of it no line
        lines(Event(second, 1))
        time.sleep(0.2)
        lines(Event(second, 4, OUTCOME))
        lines(Event(third, 2, Outcome("failed", "the gradient is not finite", (), None, None, 1.0)))
    assert told[0].startswith(f"pami-table4 [1/3] {label(second)}: epoch 1 of 4 (")
    ends = [line for line in told if "epoch 1" not in line and "at work" not in line]
    assert ends == [
        f"pami-table4 [2/3] {label(second)}: finished, converged, test error 4.44 % (best epoch 4.20 %), 12 s",
        f"pami-table4 [3/3] {label(third)}: failed: the gradient is not finite, 1 s",
    ]


def test_lines_tell_how_long_the_rest_will_take() -> None:
    told: list[str] = []
    before, second, third = (Trial(seed=seed, epochs=4) for seed in range(3))
    with Lines(3, "pami-table4", {before}, write=told.append, every=0.05) as lines:
        lines(Event(before, 4, OUTCOME))
        lines(Event(second, 2))  # where it goes on: nothing is known of the pace yet
        time.sleep(0.2)
        assert "left" not in "".join(told)
        lines(Event(second, 3))
        time.sleep(0.2)
        lines(Event(second, 4, OUTCOME))
        lines(Event(third, 4, OUTCOME))
    assert re.search(r"epoch 3 of 4 \(\d+ s, about \d+ s left\)", "".join(told))
    assert lines.pace.left() == ""


def test_epochs_that_a_kill_cost_do_not_slow_the_pace() -> None:
    """A record may have ten epochs where the checkpoint has five: the sixth is trained again."""
    now, trial = iter((0.0, 10.0)), Trial(epochs=20)
    pace = Pace(1, clock=lambda: next(now))
    for epochs in (10, 6, 7):
        pace(Event(trial, epochs))
    assert pace.left() == "about 2 min left"  # 13 epochs at 10 s


def test_bars_keep_every_word_in_a_narrow_terminal() -> None:
    trial, name = Trial(epochs=350), "ResNet18 SVD-PI, two-sided, d = 64, seed 12"
    bars = Bars(180, "pami-table4", names={trial: name})
    bars(Event(trial, 0))
    bars(Event(trial, 100))
    for width in (80, 200):
        console = Console(width=width, file=io.StringIO())
        console.print(bars.progress.get_renderable())
        first, second = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
        assert re.match(r"pami-table4, about \d+ s left +━* +0/180 +0:00:0\d", first)
        assert re.match(rf"{name} +━+╸? +100/350 +0:00:0\d", second)


def test_bars_leave_a_line_of_each_training_that_ends(capsys: Captured) -> None:
    """A sweep of hours showed nothing of what came out, nor of what failed, until its end."""
    before, good, bad = (Trial(seed=seed) for seed in range(3))
    bars = Bars(3, "pami-table4", {before}, names={good: "BN, seed 1", bad: "SVD, d = 64, seed 2"})
    for event in (Event(before, 4, OUTCOME), Event(good, 4, OUTCOME)):
        bars(event)
    bars(Event(bad, 0, Outcome("failed", "the gradient is not finite", (), None, None, 1.0)))
    assert " ".join(capsys.readouterr().err.split()) == (  # in as many lines as the terminal is narrow
        "pami-table4 [2/3] BN, seed 1: finished, converged, test error 4.44 % (best epoch 4.20 %), 12 s "
        "pami-table4 [3/3] SVD, d = 64, seed 2: failed: the gradient is not finite, 1 s"
    )


def test_a_bar_of_what_has_no_trainings_counts_none() -> None:
    console = Console(width=80, file=io.StringIO())
    console.print(Bars(0, "pami-fig1a").progress.get_renderable())
    line = console.file.getvalue()  # type: ignore[attr-defined]
    assert line.startswith("pami-fig1a ")
    assert "/" not in line


def test_lines_name_a_training_by_its_place_and_say_converged_only_where_that_is_judged() -> None:
    """SVD-PI and SVD-PI, two-sided have the same layer, method and d; and smoke's tables say «not judged»."""
    spec = find("pami-table4")
    assert spec.entries is not None
    names = places(spec.entries("smoke"))
    assert len(set(names.values())) == len(names) == len(spec.trials("smoke"))
    told: list[str] = []
    two_sided = next(trial for trial, name in names.items() if name == "SVD-PI, two-sided, d = 16, seed 0")
    with Lines(1, "pami-table4", write=told.append, names=names, judged=spec.is_judged("smoke")) as lines:
        lines(Event(two_sided, 2, OUTCOME))
    [line] = told
    assert line.endswith("SVD-PI, two-sided, d = 16, seed 0: finished, test error 4.44 % (best epoch 4.20 %), 12 s")


def test_what_the_same_command_has_just_trained_is_not_told_as_recorded_before(tmp_path: Path, capsys: Captured) -> None:
    command = ["run", "nips19-table4c", "nips19-table4b", "--records", str(tmp_path / "r"), "--device", "cpu"]
    assert main([*command, "--row", "2"]) == 0
    told = capsys.readouterr()
    assert "not run again" not in told.out
    assert "2 artifacts [2/2] nips19-table4b 2, seed 0: finished, test error" in told.err
    assert main([*command, "--row", "2"]) == 0
    again = capsys.readouterr().out
    assert again.count("1 of 1 trainings recorded on 20") == 2
    for name in ("nips19-table4b", "nips19-table4c"):  # or nobody would know which table is whose
        assert f"{name}: SMOKE TEST on digits" in again


def test_without_a_terminal_a_run_tells_of_its_trainings(tmp_path: Path, capsys: Captured) -> None:
    command = ["run", "nips19-table4c", "--records", str(tmp_path / "r"), "--device", "cpu"]
    assert main(command) == 0
    told = capsys.readouterr()
    assert [line.partition("]")[0] for line in told.err.splitlines() if "seed" in line] == [
        "nips19-table4c [1/2",
        "nips19-table4c [2/2",
    ]
    assert "SMOKE TEST on digits: not the paper's data" in told.out
    assert "It runs: 2 of 2 trainings stayed finite." in told.out
    assert main(command) == 0
    again = capsys.readouterr()
    assert "2 of 2 trainings recorded on 20" in again.out
    assert "not run again." in again.out.replace("\n", " ")
    assert "seed" not in again.err


def test_more_seeds_than_there_are_is_told(tmp_path: Path, capsys: Captured) -> None:
    command = ["run", "nips19-table4c", "pami-fig1b", "--records", str(tmp_path / "r"), "--device", "cpu"]
    assert main([*command, "--seeds", "3"]) == 2  # pami-fig1b has two at smoke, the other one
    told = capsys.readouterr().err.replace("\n", " ")
    assert "--seeds must be at most 2, which a cell has at scale smoke, got 3." in told
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("terminal", [True, False])
def test_report_tells_on_a_terminal_what_it_draws(
    terminal: bool, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR" if terminal else "NO_COLOR", "1")
    Store(tmp_path / "r")
    drawn: list[str] = []
    monkeypatch.setattr("rich.status.Status.update", lambda _, text: drawn.append(text))
    assert main(["report", "--records", str(tmp_path / "r"), "-o", str(tmp_path / "page"), "--only", "pami-eq60"]) == 0
    told = capsys.readouterr()
    assert told.out.endswith("index.html\n")
    assert ("reading the records" in told.err) == terminal
    assert drawn == ["drawing pami-eq60"]


def test_a_computed_result_that_is_there_says_so(tmp_path: Path, capsys: Captured) -> None:
    command = ["run", "pami-eq60", "--records", str(tmp_path / "r")]
    assert main(command) == 0
    assert "not run again" not in capsys.readouterr().out
    assert main(command) == 0
    assert "pami-eq60: recorded on 20" in capsys.readouterr().out


def test_train_rounds_and_says_what_is_recorded(tmp_path: Path, capsys: Captured) -> None:
    command = ["train", *QUICK, "--records", str(tmp_path / "r")]
    assert main(command) == 0
    first = capsys.readouterr().out
    assert "test error " in first
    assert len(first.partition("test error ")[2].partition(" %")[0].partition(".")[2]) == 2
    assert main(command) == 0
    assert "; recorded on 20" in capsys.readouterr().out


# --- time


def test_train_stops_after_its_seconds_and_goes_on(tmp_path: Path, capsys: Captured) -> None:
    command = ["train", *QUICK, "--epochs", "3", "--records", str(tmp_path / "r")]
    assert main([*command, "--seconds", "0.01"]) == 3
    assert "the same command goes on" in capsys.readouterr().err
    assert main(command) == 0
    [trial] = Store(tmp_path / "r").trials()
    outcome = Store(tmp_path / "r").outcome(trial)
    assert outcome is not None
    assert [line["epoch"] for line in outcome.epochs] == [0, 1, 2]


def test_several_artifacts_are_trained_in_one_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first seed of all, then the second: time that runs out leaves something of each."""
    order: list[tuple[str, int]] = []
    ids = ["nips19-table4a", "nips19-table4b"]

    def stop(trials: Any, *_: Any, **__: Any) -> None:
        order.extend(("rank" if trial.rank else "energy", trial.seed) for trial in trials)
        raise OutOfTime

    monkeypatch.setattr("spectralgrad_lab.cli.app.run_trials", stop)
    assert main(["run", *ids, "--scale", "short", "--records", str(tmp_path / "r"), "--device", "cpu"]) == 3
    assert [seed for _, seed in order] == sorted(seed for _, seed in order)
    assert {kind for kind, seed in order if seed == 0} == {"rank", "energy"}


def test_a_part_of_an_artifact(tmp_path: Path, capsys: Captured) -> None:
    command = ["run", "pami-table4", "--records", str(tmp_path / "r"), "--device", "cpu"]
    assert main([*command, "--row", "BN", "--row", "SVD-Taylor", "--column", "d = 4", "--seeds", "1"]) == 0
    shown = capsys.readouterr().out
    assert "SVD-Taylor" in shown
    assert "SVD-PI" not in shown
    assert len(list((tmp_path / "r" / "trials").glob("*.jsonl"))) == 2
    assert main([*command, "--row", "SVD-Tailor"]) == 2
    said = capsys.readouterr().err
    assert "--row must be one of the artifacts' own at scale smoke, got 'SVD-Tailor'. There are: BN; SVD" in said
    assert main(["run", "pami-eq60", "--records", str(tmp_path / "r"), "--column", "d = 4"]) == 2
    assert "There are: none" in capsys.readouterr().err


def test_seconds_too_short_for_a_training_are_told(tmp_path: Path, capsys: Captured) -> None:
    command = ["run", "nips19-table4c", "--records", str(tmp_path / "r"), "--device", "cpu"]
    assert main([*command, "--seconds", "0"]) == 3
    assert "--seconds 0 was too short to begin a training. Give more" in capsys.readouterr().err
    assert main(command) == 0
    capsys.readouterr()
    assert main([*command, "--seconds", "0"]) == 0  # nothing is left to do


# --- what goes wrong


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--device", "foo"], "device must be auto, cpu, cuda or cuda:N, got 'foo'"),
        (["--jobs", "0"], "--jobs must be at least 1"),
        (["--seconds", "-1"], "--seconds must be a number >= 0, got -1"),
        (["--seconds", "nan"], "--seconds must be a number >= 0"),
        (["--data", "nowhere"], "--data must be a folder"),
    ],
)
def test_options_are_refused_even_where_all_is_recorded(
    flags: list[str], words: str, tmp_path: Path, capsys: Captured
) -> None:
    command = ["run", "pami-eq60", "--records", str(tmp_path / "r")]
    assert main(command) == 0
    assert main([*command, *flags]) == 2
    assert words in capsys.readouterr().err
    assert main([*command, *flags, "--records", str(tmp_path / "new")]) == 2
    assert not (tmp_path / "new").exists()  # told before anything is made


def test_train_refuses_a_device_before_it_looks_for_a_record(tmp_path: Path, capsys: Captured) -> None:
    assert main(["train", *QUICK, "--device", "foo", "--records", str(tmp_path / "r")]) == 2
    assert "got 'foo'" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


def test_a_scale_without_data_says_what_to_put_where(tmp_path: Path, capsys: Captured, monkeypatch: Any) -> None:
    monkeypatch.delenv("SPECTRALGRAD_DATA", raising=False)
    command = ["run", "pami-table4", "--scale", "short", "--records", str(tmp_path / "r"), "--device", "cpu"]
    assert main([*command, "--data", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert "must hold" in said
    assert "Traceback" not in said
    assert Store(tmp_path / "r").trials() == []  # no invented failure


def test_two_runs_on_one_store_lose_nothing(tmp_path: Path, capsys: Captured) -> None:
    command = ["train", *QUICK, "--records", str(tmp_path / "r")]
    assert main([*command, "--seed", "1"]) == 0
    [trial] = Store(tmp_path / "r").trials()
    other = Trial(**{**trial.__dict__, "seed": 0})
    with Store(tmp_path / "r").held(other):
        assert main([*command, "--seed", "0"]) == 1
        assert f"is being written by process {os.getpid()}" in capsys.readouterr().err
    assert main([*command, "--seed", "0"]) == 0


def test_a_full_disk_is_one_line_and_the_same_command_goes_on(tmp_path: Path, capsys: Captured, monkeypatch: Any) -> None:
    command = ["train", *QUICK, "--epochs", "2", "--records", str(tmp_path / "r")]
    sync, calls = os.fsync, []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) > 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert main(command) == 1
    said = capsys.readouterr().err
    assert "No space left on device" in said
    assert "make room" in said.lower()
    assert len(said.strip().splitlines()) == 1
    assert main(command) == 0
    assert "finished" in capsys.readouterr().out


def test_records_of_another_version_are_refused_and_left_alone(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "FORMAT").write_text("spectralgrad records, format 99")
    for command in (["train", *QUICK], ["run", "pami-eq60"], ["report", "-o", str(tmp_path / "page")], ["list"]):
        assert main([*command, "--records", str(tmp_path)]) == 1
        assert "nothing in it was changed" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["FORMAT"]
