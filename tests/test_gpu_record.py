"""The record of the tests on a GPU: what it counts, what it notes, and what it leaves unimported."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
FILES = {
    "test_some.py": """
import pytest
pytestmark = pytest.mark.cuda

def test_good(record_property):
    record_property("error", 1.25e-7)

def test_bad():
    assert 1 == 2

def test_none():
    pytest.skip("no reason")

@pytest.fixture
def broken():
    raise RuntimeError

def test_unprepared(broken):
    pass
""",
    "test_other.py": "import a_package_that_no_machine_has\n\ndef test_it():\n    pass\n",
}


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """pytest with the plugin alone, as on a machine that has nothing else."""
    for name, text in FILES.items():
        (folder / name).write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = cuda: on a GPU\n")
    command = [sys.executable, "-m", "pytest", "-p", "support.gpu_record", "-p", "no:cacheprovider", "-m", "cuda", *options]
    environment = {"PYTHONPATH": str(ROOT / "tests"), "PATH": "/usr/bin:/bin"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def test_the_record(tmp_path: Path) -> None:
    done = run(tmp_path, "--record", "kept/record.txt")
    text = (tmp_path / "kept" / "record.txt").read_text()
    assert done.returncode == 1, done.stdout
    assert text.strip() in done.stdout
    lines = text.splitlines()
    assert lines[-1].startswith("1 passed, 2 failed, 1 skipped, ")
    assert lines[-1].endswith(" s")
    assert "ok   test_some.py::test_good: error 1.2e-07" in lines
    assert "MISS test_some.py::test_bad" in lines
    assert "MISS test_some.py::test_unprepared" in lines
    assert "skip test_some.py::test_none" in lines
    head = "\n".join(lines[:3])
    assert [word for word in ("cores", "torch ", "CUDA ", "triton ", "source ", "UTC") if word not in head] == []
    assert str(tmp_path) not in text
    assert "test_other" not in done.stdout  # would have been an error of import


def test_a_file_that_cannot_be_imported_is_counted(tmp_path: Path) -> None:
    """And stops no other; one that is skipped as a whole says why."""
    (tmp_path / "test_third.py").write_text("import a_package_that_no_machine_has  # mark.cuda\n")
    (tmp_path / "test_fourth.py").write_text("import pytest  # mark.cuda\npytest.importorskip('one_more', reason='rare')\n")
    done = run(tmp_path)
    assert done.returncode != 0
    assert "1 passed, 2 failed, 1 skipped, 1 files not collected" in done.stdout
    assert "MISS test_third.py: ModuleNotFoundError: No module named 'a_package_that_no_machine_has'" in done.stdout
    assert "skip test_fourth.py: Skipped: rare" in done.stdout
