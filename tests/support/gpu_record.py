"""A record of the tests on a GPU: `pytest -p support.gpu_record -m cuda` prints it, `--record FILE` keeps it.

Machine, versions, commit, date, a line for each test with the figures that it noted, counts and seconds; no host, user or
path. A GPU machine may have torch and pytest alone, so files that hold no test for a GPU are not even imported.
"""

import os
import platform
import re
import subprocess
import time
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

MARK = "mark.cuda"
ROOT = Path(__file__).resolve().parents[2]
WORDS = {"passed": "ok  ", "failed": "MISS", "skipped": "skip"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", type=Path, metavar="FILE", help="write the record of the tests on a GPU there")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    return True if collection_path.suffix == ".py" and MARK not in collection_path.read_text(encoding="utf-8") else None


def pytest_configure(config: pytest.Config) -> None:
    config.option.continue_on_collection_errors = True  # device time is rare: a file that is broken stops no other
    config.pluginmanager.register(Record(), "gpu record")


class Record:
    """What became of each test."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.outcomes: dict[str, str] = {}
        self.figures: dict[str, list[tuple[str, Any]]] = {}
        self.left_out: list[str] = []  # files, with the reason

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.outcome != "passed" and report.nodeid.endswith(".py"):
            self.left_out.append(f"{WORDS[report.outcome]} {report.nodeid}: {_last_line(report.longrepr)}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # A test has up to three reports; one that fails or skips in its fixtures has no call.
        if report.when == "call" or report.outcome != "passed":
            if self.outcomes.get(report.nodeid) != "failed":
                self.outcomes[report.nodeid] = report.outcome
            self.figures[report.nodeid] = list(report.user_properties)

    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        errors = len(terminalreporter.stats.get("error", [])) - sum(
            report.nodeid in self.outcomes for report in terminalreporter.stats.get("error", [])
        )
        text = self.text(errors)
        terminalreporter.write_line(f"\n{text}")
        path = config.getoption("--record")
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n", encoding="utf-8")
            terminalreporter.write_line(f"\nwrote {path}")

    def text(self, not_collected: int) -> str:
        lines = [WORDS[outcome] + f" {name}{_told(self.figures[name])}" for name, outcome in self.outcomes.items()]
        counts = [f"{list(self.outcomes.values()).count(word)} {word}" for word in WORDS]
        broken = [f"{not_collected} files not collected"] if not_collected else []
        seconds = f"{time.perf_counter() - self.start:.0f} s"
        return "\n".join([*_circumstances(), "", *lines, *self.left_out, "", ", ".join([*counts, *broken, seconds])])


def _last_line(reason: Any) -> str:
    """Of why a file was not collected: the error, or the reason to skip it.

    >>> _last_line(("test_it.py", 3, "Skipped: no such package"))
    'Skipped: no such package'
    """
    text = str(reason[-1] if isinstance(reason, tuple) else reason).strip()
    return text.splitlines()[-1].removeprefix("E").strip() if text else "no reason"


def _told(figures: list[tuple[str, Any]]) -> str:
    """The figures that a test noted.

    >>> _told([("value", 1.25e-7), ("gradient", 0.5)])
    ': value 1.2e-07, gradient 5.0e-01'
    """
    words = [f"{name} {value:.1e}" if isinstance(value, float) else f"{name} {value}" for name, value in figures]
    return f": {', '.join(words)}" if words else ""


def _circumstances() -> list[str]:
    gpu = "no CUDA device"
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        gpu = f"{properties.name}, {properties.total_memory / 2**30:.1f} GiB"
    versions = {"python": platform.python_version(), "torch": torch.__version__, "CUDA": torch.version.cuda}
    versions["triton"] = _version("triton")
    return [
        f"{gpu}; {_cpu()}, {os.cpu_count()} cores, {platform.machine()} {platform.system()}",
        ", ".join(f"{name} {version or 'not installed'}" for name, version in versions.items()),
        f"source {_source()}; {datetime.now(timezone.utc).strftime('%Y-%m-%d %H:%M UTC')}",
    ]


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE) if info.exists() else None
    return found[1].strip() if found else platform.machine()


def _source() -> str:
    """The commit, and whether the tree differs from it."""
    git = ["git", "-C", str(ROOT)]
    try:
        commit, changed = (
            subprocess.run([*git, *words], capture_output=True, text=True, check=True).stdout.strip()
            for words in (("rev-parse", "--short", "HEAD"), ("status", "--porcelain"))
        )
    except (OSError, subprocess.CalledProcessError):
        return "not under git"
    return f"{commit}, modified" if changed else commit
