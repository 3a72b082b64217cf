"""The records: append-only, whole after a kill at any moment, one writer at a time, and errors that say what to do."""

import errno
import getpass
import json
import math
import multiprocessing
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from spectralgrad.errors import OptionError
from spectralgrad_lab import files
from spectralgrad_lab.records import recording as module
from spectralgrad_lab.records.lock import BusyError, hold
from spectralgrad_lab.records.results import Computed, Curve, Printed, Surface
from spectralgrad_lab.records.store import Store, StoreError
from spectralgrad_lab.records.trial import FORMAT, Trial

TRIAL = Trial(d=8, epochs=3, treatments=("OW",))
FORK = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # Python 3.12 warns of a fork beside threads
END = {"status": "finished", "reason": "", "step": 30, "epoch": 2, "test_error": 0.25, "best_error": 0.125}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "records")


def record(store: Store, trial: Trial = TRIAL, epochs: int = 3) -> Path:
    with store.recording(trial) as recording:
        for epoch in range(epochs):
            recording.append("epoch", epoch=epoch, train_loss=1 / (epoch + 1), seconds=0.5, monitor={})
        recording.append("end", **END)
    return recording.path


def test_a_record_is_read_back_as_it_was_written(store: Store) -> None:
    path = record(store)
    outcome = store.outcome(TRIAL)
    assert outcome is not None
    assert (outcome.status, outcome.test_error, outcome.best_error, outcome.seconds) == ("finished", 0.25, 0.125, 1.5)
    assert [line["train_loss"] for line in outcome.epochs] == [1.0, 0.5, 1 / 3]  # to the last bit
    assert store.trials() == [TRIAL]
    assert store.outcome(Trial(d=16)) is None
    assert path.name == f"{TRIAL.key}.jsonl"
    assert [json.loads(line)["kind"] for line in path.read_text().splitlines()] == ["start", *["epoch"] * 3, "end"]


def test_the_start_line_says_what_ran_where_and_names_nobody(store: Store) -> None:
    start = json.loads(record(store).read_text().splitlines()[0])
    assert Trial.from_json(json.dumps(start["trial"])) == TRIAL
    assert {"torch", "spectralgrad", "python"} <= set(start["versions"])
    assert {"cpu", "cores", "system", "architecture"} <= set(start["machine"])
    assert start["date"].endswith("UTC")
    words = json.dumps({key: value for key, value in start.items() if key != "trial"})
    for name in (platform.node(), str(store.folder), str(Path.cwd()), str(Path.home())):
        assert name not in words
    assert f'"{getpass.getuser()}"' not in words


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.1, None, True])
def test_every_number_survives_json(value: Any, store: Store) -> None:
    with store.recording(TRIAL) as recording:
        recording.append("epoch", epoch=0, figure=value, monitor={"condition": [value]})
        recording.append("end", **{**END, "status": "failed", "reason": "NaN"})
    text = recording.path.read_text()
    for line in text.splitlines():
        json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    outcome = store.outcome(TRIAL)
    assert outcome is not None
    for came in (outcome.epochs[0]["figure"], outcome.epochs[0]["monitor"]["condition"][0]):
        assert came == value or (value != value and came != came)
    assert outcome.reason == "NaN"  # a word stays a word


def test_every_cut_of_a_record_is_readable_and_goes_on(tmp_path: Path) -> None:
    """A kill may leave any number of bytes: whole lines count, the torn one does not, and the next begins on its own."""
    whole = record(Store(tmp_path / "whole")).read_bytes()
    store = Store(tmp_path / "cut")
    record(store)
    path = store.folder / "trials" / f"{TRIAL.key}.jsonl"
    ends = [i for i, byte in enumerate(whole) if byte == ord("\n")]
    for cut in sorted({0, 1, *ends, *(end + 1 for end in ends), *random.Random(0).sample(range(len(whole)), 20)}):
        path.write_bytes(whole[:cut])
        complete = sum(end <= cut for end in ends)  # a line that lacks its newline alone is whole
        assert len(store.lines(TRIAL)) == complete, cut
        assert len(store.trials()) == (complete > 0)
        with store.recording(TRIAL) as recording:
            assert len(recording.lines) == complete + 1
            recording.append("epoch", epoch=2, train_loss=7.0)
        assert path.read_bytes().startswith(whole[:cut])  # append-only
        assert [line["train_loss"] for line in store.lines(TRIAL) if line["kind"] == "epoch"][-1] == 7.0
        assert store.outcome(TRIAL) is None


def test_zeros_after_a_power_cut_are_ignored(store: Store) -> None:
    path = record(store)
    path.write_bytes(path.read_bytes() + b"\0" * 100)
    assert store.outcome(TRIAL) is not None


def test_of_epochs_that_were_run_again_the_last_run_counts(store: Store) -> None:
    with store.recording(TRIAL) as recording:
        for epoch, loss in [(0, 1.0), (1, 2.0), (2, 3.0), (1, 4.0)]:
            recording.append("epoch", epoch=epoch, train_loss=loss)
    assert [(line["epoch"], line["train_loss"]) for line in store.lines(TRIAL)[1:]] == [(0, 1.0), (1, 4.0)]


def test_the_checkpoint_is_beside_the_record_until_the_end(store: Store) -> None:
    with store.recording(TRIAL) as recording:
        recording.checkpoint.write_bytes(b"weights")
        recording.append("epoch", epoch=0)
        assert recording.checkpoint.exists()
        assert recording.checkpoint.name == f"{TRIAL.key}.ckpt"
        recording.append("end", **END)
        assert not recording.checkpoint.exists()


def test_what_a_killed_writer_of_the_checkpoint_left_is_removed(store: Store) -> None:
    left = store.folder / "trials" / f".{TRIAL.key}.ckpt.0123abcd.part"
    left.parent.mkdir()
    left.write_bytes(b"half a checkpoint")
    files._swept.clear()
    record(store)
    assert not left.exists()


@pytest.mark.parametrize(("kind", "fields"), [("epcoh", {}), ("start", {}), ("end", {"status": "done"}), ("end", {})])
def test_no_other_line_is_written(kind: str, fields: dict[str, str], store: Store) -> None:
    with store.recording(TRIAL) as recording, pytest.raises(OptionError, match="an epoch, or an end"):
        recording.append(kind, **fields)
    assert len(store.lines(TRIAL)) == 1


# --- folders


@pytest.mark.parametrize("head", [f"spectralgrad records, format {FORMAT + 1}\n", "", "\xff\n"])
def test_a_folder_of_another_format_is_refused_and_untouched(head: str, tmp_path: Path) -> None:
    record(Store(tmp_path))
    (tmp_path / "FORMAT").write_text(head, encoding="latin-1")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(StoreError, match="choose a new folder; nothing in it was changed"):
        Store(tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(StoreError, match=r"holds other files \(thesis.tex"):
        Store(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "records").write_text("mine")
    with pytest.raises(StoreError, match="cannot be used: File exists"):
        Store(tmp_path / "records")
    assert (tmp_path / "records").read_text() == "mine"


def test_an_unreadable_record_is_an_error(store: Store) -> None:
    path = record(store)
    path.unlink()
    path.mkdir()
    with pytest.raises(StoreError, match="cannot be read"):
        store.lines(TRIAL)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('"gamma"', '"decay"', "another version"),
        ('"kind": "end"', '"kind": "ende"', "neither start, stop, end nor epoch"),
        ('"status": "finished", ', "", "the line of kind end has no status"),
        ('"epoch": 1,', "", "the line of kind epoch has no epoch"),
        ('"epoch": 1,', '"epoch": "1",', "epoch must be a whole number >= 0, got '1'"),
        ('"seconds": 0.5', '"seconds": [0.5]', "seconds must be a number"),
        ('"monitor": {}', '"monitor": 3', "monitor must be a dictionary"),
        ('"machine": {', '"machine": {"gpu": {"a": 1}, ', "machine must be a dictionary of facts"),
        ('"monitor": {}', '"monitor": ' + 200_000 * "[" + 200_000 * "]", "nested too deeply"),
        ('"kind": "start"', '"kind": "stop"', "it has no start line"),
        ('"epoch": 1,', '"epoch": 7,', "an epoch is missing"),
        ('"d": 8', '"d": 4', "it holds the record of trial"),
    ],
)
def test_a_damaged_record_is_named_left_out_and_begun_again(old: str, new: str, why: str, store: Store) -> None:
    path = record(store)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    damaged = path.read_bytes()
    assert store.outcome(TRIAL) is None
    (line,) = store.damaged.values()
    assert f"{path} is damaged (" in line
    assert why in line
    assert store.damage_of([TRIAL]) == [line]
    assert store.trials() == []
    assert path.read_bytes() == damaged  # reading changes nothing
    record(store)
    assert store.outcome(TRIAL) is not None
    assert store.damaged == {}
    aside = path.with_name(f"{path.name}.damaged")
    assert not aside.exists() or aside.read_bytes() == damaged
    assert aside.exists() or path.read_bytes().startswith(damaged)  # nothing is deleted


def test_a_renamed_record_is_left_out(store: Store) -> None:
    path = record(store)
    path.rename(path.with_name("0123456789abcdef.jsonl"))
    assert store.trials() == []
    assert "it holds the record of trial" in next(iter(store.damaged.values()))


def test_a_full_disk_is_a_clear_error_and_what_was_written_stands(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with store.recording(TRIAL) as recording:
        recording.append("epoch", epoch=0, train_loss=1.0)
        before = recording.path.read_bytes()

        def full(_: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(StoreError, match=r"No space left on device\. What was recorded before stands; make room"):
                recording.append("epoch", epoch=1, train_loss=2.0)
            with pytest.raises(StoreError, match="No space left"):
                store.save_computed("pami-eq60", "smoke", Computed())
        assert recording.path.read_bytes().startswith(before)
        assert store.load_computed("pami-eq60", "smoke") is None
    assert [path.name for path in (store.folder / "computed").iterdir()] == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux's full device")
def test_a_really_full_device_is_the_same_error(store: Store) -> None:
    with store.recording(TRIAL) as recording:
        recording.path = Path("/dev/full")
        with pytest.raises(StoreError, match="No space left on device"):
            recording._write({"kind": "epoch", "epoch": 0})


def test_a_store_that_vanishes_during_a_run_is_a_clear_error(store: Store) -> None:
    with store.recording(TRIAL) as recording:
        shutil.rmtree(store.folder)
        with pytest.raises(StoreError, match="cannot be written: No such file or directory"):
            recording.append("epoch", epoch=0, train_loss=1.0)
    record(Store(store.folder))  # and begins again
    assert store.outcome(TRIAL) is not None


# --- locks


def test_a_second_process_on_one_trial_is_refused(store: Store) -> None:
    with store.recording(TRIAL):
        text = (
            "import sys; from pathlib import Path; from spectralgrad_lab.records.store import Store, Trial\n"
            "with Store(Path(sys.argv[1])).recording(Trial.from_json(sys.argv[2])): pass"
        )
        other = subprocess.run(
            [sys.executable, "-c", text, str(store.folder), TRIAL.as_json()], capture_output=True, text=True
        )
        assert other.returncode == 1
        assert f"trial {TRIAL.key} is being written by process {os.getpid()}" in other.stderr
        with store.recording(Trial(d=16)):  # another trial is free
            pass
    assert len(store.lines(TRIAL)) == 1
    assert not list(store.folder.rglob("*.lock"))
    record(store)


def test_the_lock_of_a_dead_process_is_taken_over(store: Store) -> None:
    (store.folder / "trials").mkdir()
    lock = store.folder / "trials" / f"{TRIAL.key}.lock"
    lock.write_text(f"{os.getpid()}\n")  # the number may even belong to a living process again
    record(store)
    assert not lock.exists()


def test_a_disk_too_full_for_the_lock_leaves_it_free(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(StoreError, match="No space left on device"), store.recording(TRIAL):
            pass
    assert not list(store.folder.rglob("*.lock"))
    record(store)  # make room, and the same process goes on


def _contend(path: Path, count: Path, rounds: int) -> None:
    for _ in range(rounds):
        while True:
            try:
                with hold(path, "`it`"):
                    value = int(count.read_text())
                    time.sleep(0)
                    count.write_text(str(value + 1))
                break
            except BusyError:
                time.sleep(0.0005)


@FORK
def test_the_lock_excludes_also_while_its_file_comes_and_goes(tmp_path: Path) -> None:
    (tmp_path / "count").write_text("0")
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_contend, args=(tmp_path / "lock", tmp_path / "count", 100)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert (tmp_path / "count").read_text() == "300"


def _write_forever(folder: Path) -> None:
    store = Store(folder)
    with store.recording(TRIAL) as recording:
        epoch = sum(line["kind"] == "epoch" for line in recording.lines)
        while True:
            recording.append("epoch", epoch=epoch, train_loss=1 / (epoch + 1), monitor={"x": [epoch] * 2000})
            epoch += 1


@FORK
def test_a_kill_at_random_moments_leaves_the_record_whole(store: Store) -> None:
    moments = random.Random(1)
    before = 0
    for _ in range(10):
        process = multiprocessing.get_context("fork").Process(target=_write_forever, args=(store.folder,))
        process.start()
        while len(store.lines(TRIAL)) < before + 4:  # on a busy machine it takes a while to start
            time.sleep(0.01)
        time.sleep(moments.random() / 10)
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
        epochs = [line for line in store.lines(TRIAL) if line["kind"] == "epoch"]
        assert [line["epoch"] for line in epochs] == list(range(len(epochs)))  # no gap, no repetition
        assert all(line["train_loss"] == 1 / (i + 1) for i, line in enumerate(epochs))
        assert len(epochs) >= before
        before = len(epochs)
    assert before > 10
    record(store)
    assert store.outcome(TRIAL) is not None


# --- computed artifacts

COMPUTED = Computed(
    tables=(Printed(("a", "NaN"), {"Infinity": ("NaN", None), "b": ("1", "2")}, "caption", ("eq. 8",)),),
    curves=(Curve("K = 9", (1.0, 2.0), (math.inf, 0.1)),),
    surfaces=(Surface((0.0, 1.0), (2.0,), ((0.5, -math.inf),), (0.05,), (("A", 0.1, 0.2),), "x", "y"),),
    log="xy",
    agrees=True,
    remarks=("a remark",),
)


@pytest.mark.parametrize("result", [COMPUTED, Computed(), Computed(agrees=False, x_label="d")])
def test_what_is_computed_is_read_back_as_it_was(result: Computed, store: Store) -> None:
    store.save_computed("pami-fig4", "smoke", result)
    assert store.load_computed("pami-fig4", "smoke") == result
    assert store.load_computed("pami-fig4", "short") is None
    assert [path.name for path in (store.folder / "computed").iterdir()] == ["pami-fig4-smoke.json"]


@pytest.mark.parametrize(
    "text", ["", "{}", '{"result": {"tables": 3}}', "\xff", "[1]", '{"machine": 3}', 200_000 * "[" + 200_000 * "]"]
)
def test_a_damaged_result_is_named_left_out_and_kept_when_it_is_computed_again(text: str, store: Store) -> None:
    store.save_computed("pami-fig4", "smoke", COMPUTED)
    path = store.folder / "computed" / "pami-fig4-smoke.json"
    path.write_text(text, encoding="latin-1")
    assert store.load_computed("pami-fig4", "smoke") is None
    assert f"{path} is damaged (" in store.damage_of([], ("pami-fig4", "smoke"))[0]
    store.save_computed("pami-fig4", "smoke", COMPUTED)
    assert store.load_computed("pami-fig4", "smoke") == COMPUTED
    assert store.damaged == {}
    assert path.with_name(f"{path.name}.damaged").read_text(encoding="latin-1") == text


@pytest.mark.parametrize("id", ["../../etc/passwd", "a/b", "", "A", "a--b"])
def test_an_id_is_no_path(id: str, store: Store) -> None:
    with pytest.raises(OptionError, match="an id is"):
        store.save_computed(id, "smoke", COMPUTED)


def test_the_negative_control_of_the_torn_line(monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    """Were a torn line not tolerated, the tests above would see it."""
    path = record(store)
    path.write_bytes(path.read_bytes()[:-9])
    monkeypatch.setattr(module, "_parse", lambda *args: json.loads(args[1]))
    with pytest.raises(json.JSONDecodeError):
        store.lines(TRIAL)
