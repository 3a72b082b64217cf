"""The command line: its commands, its help, its exit codes."""

from pathlib import Path

import pytest

import spectralgrad as sg
from spectralgrad.cli import main
from spectralgrad.report import tour


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"spectralgrad {sg.__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["benchmark"], ["bench", "--fast"]])
def test_wrong_command_or_option_is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: spectralgrad" in capsys.readouterr().err


def test_help_of_bench_names_the_sections(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "--help"])
    text = capsys.readouterr().out
    assert all(name in text for name in ("eigh", "whitening", "graph", "--gpu", "--quick", "--page"))


def test_demo_prints_its_text_and_where_the_report_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tour, "run_tour", lambda folder: ("the tour", folder / "report.html"))
    assert main(["demo", "-o", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"the tour\n\nThe report: {tmp_path / 'report.html'}\n"


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (KeyboardInterrupt(), 130, "stopped"),
        (ModuleNotFoundError(name="matplotlib"), 1, "needs matplotlib. Install it with"),
        (OSError(13, "Permission denied"), 1, "cannot write to"),
    ],
)
def test_demo_that_cannot_go_on_says_why(
    error: BaseException,
    code: int,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(_: Path) -> None:
        raise error

    monkeypatch.setattr(tour, "run_tour", fail)
    assert main(["demo", "-o", str(tmp_path)]) == code
    assert words in capsys.readouterr().err
