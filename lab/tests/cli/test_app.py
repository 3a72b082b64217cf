"""The command line: its commands, its help, its exit codes."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import spectralgrad as sg
import spectralgrad_lab
from spectralgrad_lab.artifacts.registry import IDS
from spectralgrad_lab.cli import main
from spectralgrad_lab.records.store import Store
from spectralgrad_lab.records.trial import Trial

Captured = pytest.CaptureFixture[str]


def test_version(capsys: Captured) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"spectralgrad {sg.__version__}\n"


@pytest.mark.parametrize("arguments", [["benchmark"], ["run"], ["run", "pami-eq60", "--scale", "huge"]])
def test_wrong_use_is_exit_code_2(arguments: list[str], capsys: Captured) -> None:
    assert main(arguments) == 2
    assert "Usage: spectralgrad" in capsys.readouterr().err


def test_a_terminal_without_our_signs_gets_a_question_mark(tmp_path: Path) -> None:
    code = "import sys; from spectralgrad_lab.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "run", "pami-eq60", "--records", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, env={**os.environ, "PYTHONIOENCODING": "latin-1"}, check=False)
    assert done.returncode == 0, done.stderr
    assert b"Equal to the paper's own numbers" in done.stdout
    assert b"?" in done.stdout


def from_shell(*arguments: str, out: str = os.devnull, **variables: str) -> "subprocess.CompletedProcess[str]":
    """The command as a shell starts it, writing into ``out``."""
    command = [sys.executable, "-m", "spectralgrad_lab", *arguments]
    with Path(out).open("w") as file:
        return subprocess.run(
            command, stdout=file, stderr=subprocess.PIPE, text=True, env={**os.environ, **variables}, check=False
        )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux's full device")
@pytest.mark.parametrize("flags", ["--version", "--help", "--show-completion", "list --help", "list"])
def test_a_full_disk_is_one_line(flags: str) -> None:
    done = from_shell(*flags.split(), out="/dev/full", SHELL="/bin/bash")
    if "not supported" in done.stderr:
        pytest.skip("the shell that runs the tests has no completion")
    assert done.returncode == 1
    assert done.stderr.startswith("spectralgrad")
    assert ": No space left on device." in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("flags", ["list", "train --help"])
def test_without_doc_strings_every_flag_is_there(flags: str, tmp_path: Path) -> None:
    done = from_shell(*flags.split(), out=str(tmp_path / "out"), PYTHONOPTIMIZE="2")
    assert (done.returncode, done.stderr) == (0, "")
    assert ("pami-table4" if flags == "list" else "--milestones") in (tmp_path / "out").read_text()


def test_a_misspelt_method_is_named(tmp_path: Path, capsys: Captured) -> None:
    assert main(["train", "--method", "taylr", "--records", str(tmp_path / "r")]) == 2
    assert "`Trial`: method must be one of svd, clip, taylor," in (said := capsys.readouterr().err)
    assert "got 'taylr'" in said


def test_help_of_bench_names_the_sections(capsys: Captured) -> None:
    assert main(["bench", "--help"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in ("eigh", "whitening", "graph", "--gpu", "--quick", "--page"))
    assert all(name in text for name in ("gradients", "roots", "host", "style", "digits"))


def test_list_shows_every_artifact_and_what_is_recorded(tmp_path: Path, capsys: Captured) -> None:
    assert main(["run", "pami-eq60", "--records", str(tmp_path / "r")]) == 0
    capsys.readouterr()
    assert main(["list", "--records", str(tmp_path / "r")]) == 0
    lines = capsys.readouterr().out.splitlines()
    for id in IDS:
        assert sum(f" {id} " in line for line in lines) == 1
    assert "smoke" in next(line for line in lines if " pami-eq60 " in line)
    assert "smoke" not in next(line for line in lines if " pami-fig4 " in line)


def test_list_makes_no_folder(tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["list"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["list", "--records", "recrods"]) == 0
    assert "there is no folder recrods" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_run_takes_several_and_shows_each(tmp_path: Path, capsys: Captured) -> None:
    assert main(["run", "pami-eq60", "pami-fig4", "--records", str(tmp_path / "r")]) == 0
    store = Store(tmp_path / "r")
    assert all(store.load_computed(id, "smoke") for id in ("pami-eq60", "pami-fig4"))
    assert main(["run", "nips19-table1", "pami-tabel4", "--records", str(tmp_path / "r")]) == 2
    assert store.load_computed("nips19-table1", "smoke") is None  # a wrong id is told before the first is run


def test_out_of_seconds_is_exit_code_3_and_the_same_command_goes_on(tmp_path: Path, capsys: Captured) -> None:
    command = ["run", "pami-eq60", "--records", str(tmp_path / "r")]
    assert main([*command, "--seconds", "0"]) == 3
    assert capsys.readouterr().err.strip().endswith("out of time; the same command goes on from here.")
    assert Store(tmp_path / "r").load_computed("pami-eq60", "smoke") is None
    assert main([*command, "--seconds", "600"]) == 0
    assert main([*command, "--seconds", "0"]) == 0  # nothing is left to do


def test_report_can_show_one_artifact_alone(tmp_path: Path, capsys: Captured) -> None:
    records, out = str(tmp_path / "r"), tmp_path / "page"
    assert main(["run", "pami-eq60", "pami-fig4", "--records", records]) == 0
    assert main(["report", "--only", "pami-eq60", "--records", records, "-o", str(out)]) == 0
    html = (out / "index.html").read_text(encoding="utf-8")
    assert 'id="pami-eq60"' in html
    assert "pami-fig4" not in html
    assert not list(out.glob("pami-fig4*"))
    assert main(["report", "--only", "pami-eq6", "--records", records]) == 2
    assert "`report`: there is no artifact 'pami-eq6'. Did you mean pami-eq60" in capsys.readouterr().err


def test_there_is_no_side_entrance() -> None:
    """One application: no file is a program of its own, or reads a command line by itself. `python -m` is that one too."""
    root = Path(spectralgrad_lab.__file__).parent
    texts = {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in root.rglob("*.py")}
    assert {name for name, text in texts.items() if "__main__" in name or "__main__" in text} == {"__main__.py"}
    assert "from .cli import main" in texts["__main__.py"]
    assert "def " not in texts["__main__.py"]
    assert {name for name, text in texts.items() if "argparse" in text} == set()


def test_a_wrong_id_suggests_the_nearest(tmp_path: Path, capsys: Captured) -> None:
    assert main(["run", "pami-tabel4", "--records", str(tmp_path / "r")]) == 2
    assert "Did you mean pami-table4" in capsys.readouterr().err


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (OSError(13, "Permission denied"), 1)])
def test_what_stops_a_run_has_its_exit_code(
    error: BaseException, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(app_module(), "run_spec", fail)
    assert main(["run", "pami-eq60", "--records", str(tmp_path / "r")]) == code


@pytest.mark.parametrize(("command", "works"), [("run", "cli.app.run_spec"), ("report", "report.page.write_page")])
def test_ctrl_c_promises_to_go_on_only_where_it_does(
    command: str, works: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    Store(tmp_path / "r")
    monkeypatch.setattr(f"spectralgrad_lab.{works}", stop)
    chosen = ["pami-eq60"] if command == "run" else []
    assert main([command, *chosen, "--records", str(tmp_path / "r")]) == 130
    assert ("goes on from here" in capsys.readouterr().err) == (command == "run")


def app_module() -> ModuleType:
    return import_module("spectralgrad_lab.cli.app")


def test_a_folder_of_another_format_is_exit_code_1(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "FORMAT").write_text("spectralgrad records, format 99")
    assert main(["run", "pami-eq60", "--records", str(tmp_path)]) == 1
    assert "nothing in it was changed" in capsys.readouterr().err


def test_every_field_of_a_trial_is_a_flag_that_reaches_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values: dict[str, object] = {}
    for field in fields(Trial):
        old = field.default
        values[field.name] = {str: "x", bool: False}.get(type(old), 7) if old is not None and old != () else 7
    values |= {"treatments": ("OW", "NOG"), "milestones": (1, 2), "lr": 0.5, "energy": 0.5}
    flags = []
    for name, value in values.items():
        flag = name.replace("_", "-")
        text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        flags += [f"--no-{flag}"] if value is False else [f"--{flag}", text]
    seen: list[Trial] = []

    def note(trials: list[Trial], store: Store, **_: object) -> None:
        seen.extend(trials)
        raise KeyboardInterrupt

    monkeypatch.setattr(import_module("spectralgrad_lab.cli.train"), "run_trials", note)
    assert main(["train", *flags, "--records", str(tmp_path / "r")]) == 130
    assert seen == [Trial(**values)]  # type: ignore[arg-type]


def test_without_the_extra_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.delitem(sys.modules, "spectralgrad_lab.cli.app", raising=False)
    monkeypatch.delattr("spectralgrad_lab.cli.app", raising=False)
    monkeypatch.setitem(sys.modules, "typer", None)
    assert main(["list"]) == 2
    text = capsys.readouterr().err
    assert "pip install spectralgrad-lab" in text
    assert f"--target carry --python-version {sys.version_info[0]}.{sys.version_info[1]} " in text  # to be taken along
    assert text.count("\n") == 1


def test_a_checkout_runs_without_being_installed(tmp_path: Path) -> None:
    """`python -m spectralgrad_lab`, with workers, which import its module again."""
    command = [sys.executable, "-m", "spectralgrad_lab", "run", "nips19-table4c", "--jobs", "2", "--device", "cpu"]
    done = subprocess.run([*command, "--records", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "It runs: 2 of 2 trainings stayed finite." in done.stdout
    assert subprocess.run([*command[:3], "no-command"], capture_output=True, check=False).returncode == 2


START = "import sys; from spectralgrad_lab.cli import main; print('up', flush=True); sys.exit(main(['list']))"


@pytest.mark.parametrize("seconds", [0.0, 0.3])
def test_ctrl_c_while_it_starts_is_one_line_and_exit_code_130(seconds: float) -> None:
    """The imports take seconds, and an interrupt may come out of any of them."""
    process = subprocess.Popen([sys.executable, "-c", START], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    time.sleep(0.05 + seconds)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, "spectralgrad: stopped.\n")


def test_damaged_records_cost_the_report_a_line_each_and_are_run_again(tmp_path: Path, capsys: Captured) -> None:
    records, id = tmp_path / "records", "pami-eq60"
    assert main(["run", id, "--records", str(records)]) == 0
    (path,) = (records / "computed").glob("*.json")
    whole = json.loads(path.read_text())
    del whole["result"]["tables"][0]["rows"]
    path.write_text(json.dumps(whole))
    damaged = path.read_bytes()
    report = ["report", "--records", str(records), "-o", str(tmp_path / "page"), "--only", id]
    capsys.readouterr()
    assert main(report) == 0
    said = f"`Store`: {path} is damaged (rows is missing)"
    assert said in capsys.readouterr().err
    assert "is damaged (rows is missing)" in (tmp_path / "page" / "index.html").read_text()
    assert path.read_bytes() == damaged
    assert main(["run", id, "--records", str(records)]) == 0
    assert said in capsys.readouterr().err
    assert main(report) == 0
    assert capsys.readouterr().err == ""
    assert path.with_name(f"{path.name}.damaged").read_bytes() == damaged


@pytest.mark.parametrize("what", ["a pipe", "a ring of links"])
def test_a_result_that_is_no_file_is_refused_before_the_work(what: str, tmp_path: Path, capsys: Captured) -> None:
    from PIL import Image

    out = tmp_path / "out.png"
    os.mkfifo(out) if what == "a pipe" else out.symlink_to(out)
    for name in ("a.png", "b.png"):
        Image.new("RGB", (8, 8)).save(tmp_path / name)
    command = ["transfer", str(tmp_path / "a.png"), str(tmp_path / "b.png"), "--level", "pixels", "-o", str(out)]
    assert main(command) == 1
    assert f"{out} cannot be written: " in capsys.readouterr().err


def test_a_report_at_a_scale_without_records_names_the_others(tmp_path: Path, capsys: Captured) -> None:
    records = str(tmp_path / "records")
    assert main(["run", "pami-eq60", "--records", records, "--scale", "paper"]) == 0
    capsys.readouterr()
    command = ["report", "--only", "pami-eq60", "--records", records, "-o", str(tmp_path / "page")]
    for _ in range(2):  # its own page may be written again
        assert main(command) == 0
        assert "has no records at scale smoke. It has some: --scale paper." in capsys.readouterr().err
    assert main([*command, "--scale", "paper"]) == 0
    assert capsys.readouterr().err == ""


def test_a_page_of_somebody_else_is_kept(tmp_path: Path, capsys: Captured) -> None:
    records, page = str(tmp_path / "records"), tmp_path / "index.html"
    assert main(["run", "pami-eq60", "--records", records]) == 0
    page.write_text("my page")
    assert main(["report", "--records", records, "-o", str(tmp_path)]) != 0
    assert "is another page" in capsys.readouterr().err
    assert page.read_text() == "my page"
