"""The time limit on every test (conftest.py), on tests made for it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HANGS = "import threading\n\ndef test_that_hangs():\n    threading.Event().wait(60)\n"
ONCE = "import time\n\ndef test_{}():\n    time.sleep(0.7)\n\n"
TWICE = ONCE.format("a") + ONCE.format("b")  # together over the limit, which is that of one test


def pytest_on(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    shutil.copy(ROOT / "conftest.py", folder)
    (folder / "test_it.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--time-limit", "1", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}  # what conftest.py imports
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=folder, env=environment)


def test_a_test_that_hangs_ends_with_its_stack(tmp_path: Path) -> None:
    done = pytest_on(tmp_path, TWICE + HANGS)
    assert done.returncode == 1
    assert "Timeout (0:00:01)!" in done.stderr
    assert "in test_that_hangs" in done.stderr
    assert "in test_a\n" not in done.stderr
    assert "in test_b\n" not in done.stderr


@pytest.mark.slow  # quick: the two that come before the one that hangs
def test_a_test_within_its_time_passes(tmp_path: Path) -> None:
    done = pytest_on(tmp_path, TWICE)
    assert done.returncode == 0, done.stdout + done.stderr
