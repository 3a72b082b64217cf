"""The library of native kernels: which one is trusted, what its absence says, how it is compiled, who may use threads."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from spectralgrad.kernels.cpu import build, load, team
from spectralgrad.kernels.cpu import eigh as native
from support.lanes import needs_native, same_bits


@needs_native
def test_a_library_of_these_sources_is_trusted() -> None:
    found = load.load(build.HERE / build.NAME, "")
    assert found.obstacle is None
    assert found.library is not None
    assert load.level() == load.levels()[-1]


def damaged(folder: Path, kind: str) -> Path:
    path = folder / build.NAME
    if kind == "empty":
        path.write_bytes(b"")
    elif kind == "foreign":
        path.write_bytes(b"MZ" + bytes(5000))
    elif kind == "cut":
        path.write_bytes((build.HERE / build.NAME).read_bytes()[:-2000])
    elif kind == "half":
        whole = (build.HERE / build.NAME).read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
    elif kind == "old":
        path.write_bytes((build.HERE / build.NAME).read_bytes().replace(build.digest().encode(), b"0" * 16))
    return path


@needs_native
@pytest.mark.parametrize(
    ("kind", "reason"),
    [("missing", "not compiled"), ("empty", "damaged"), ("foreign", "damaged"), ("cut", "damaged"), ("half", "damaged"),
     ("old", "other sources")],
)  # fmt: skip
def test_no_other_library_is(kind: str, reason: str, tmp_path: Path) -> None:
    found = load.load(damaged(tmp_path, kind), "")
    assert found.library is None
    assert reason in str(found.obstacle)


def in_a_process(code: str, **environment: str) -> str:
    variables = {**os.environ, **environment, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=variables)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


ASK = """
import torch
from spectralgrad.kernels.cpu import eigh, load
print(load.level(), load.obstacle(), eigh.runs_on(torch.eye(2)))
"""


@needs_native
@pytest.mark.parametrize("wanted", load.LEVELS)
def test_the_variable_chooses_the_instructions(wanted: str) -> None:
    if wanted in load.levels():
        assert in_a_process(ASK, SPECTRALGRAD_CPU=wanted) == f"{wanted} None True"
    else:
        assert "which this processor does not have False" in in_a_process(ASK, SPECTRALGRAD_CPU=wanted)


@pytest.mark.parametrize(("wanted", "reason"), [("off", "SPECTRALGRAD_CPU=off"), ("sse9", "must be one of")])
def test_the_variable_turns_them_off(wanted: str, reason: str) -> None:
    answer = in_a_process(ASK, SPECTRALGRAD_CPU=wanted)
    assert reason in answer
    assert answer.endswith("False")


def test_without_a_compiler_the_reason_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(build.NotBuilt, match="no C\\+\\+ compiler"):
        build.build(tmp_path / "x.so")
    assert not [*tmp_path.iterdir()]


def test_a_compiler_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", f"{sys.executable} -c raise(SystemExit('no'))")
    with pytest.raises(build.NotBuilt, match="failed: "):
        build.build(tmp_path / "x.so")
    assert not [*tmp_path.iterdir()]


def test_a_digest_is_of_every_source(tmp_path: Path) -> None:
    for path in build.HERE.iterdir():
        if path.suffix in (".h", ".cpp", ".py"):
            (tmp_path / path.name).write_bytes(path.read_bytes())
    assert build.digest(tmp_path) == build.digest()
    for name in ("vector.h", "library.cpp", "build.py"):
        before = build.digest(tmp_path)
        with (tmp_path / name).open("a") as file:
            file.write("\n")
        assert build.digest(tmp_path) != before


# Threads.

LARGE = torch.eye(3).expand(100_000, 3, 3) + torch.arange(3.0)


@needs_native
def test_little_work_is_done_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    assert team.threads(team.WORTHWHILE / 2) == 1
    assert team.threads(team.WORTHWHILE * 2) == (1 if team._openmp() is None else 7)


@needs_native
def test_many_threads_of_python_at_once() -> None:
    expected, found = native.eigh(LARGE), []
    workers = [threading.Thread(target=lambda: found.append(native.eigh(LARGE))) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(found) == 4
    assert all(same_bits(x.w, expected.w) for x in found)


@needs_native
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_works_alone() -> None:
    """OpenMP's threads are not in it: waiting for them would be for ever."""
    code = """if True:
    import os, torch
    from spectralgrad.kernels.cpu import eigh, team
    M = torch.eye(3).expand(100_000, 3, 3) + torch.arange(3.0)
    torch.set_num_threads(2)
    w = eigh.eigh(M).w
    child = os.fork()
    if child == 0:
        ok = team.threads(1e9) == 1 and torch.equal(eigh.eigh(M).w, w)
        os._exit(0 if ok else 1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), torch.equal(eigh.eigh(M).w, w))
    """
    assert in_a_process(code) == "0 True"


@needs_native
def test_inside_a_parallel_region_there_is_one_thread() -> None:
    """A worker of torch's team: work of its own for each, no teams within the team."""
    from spectralgrad.linalg.solvers import team as regions

    if not regions.is_available():
        pytest.skip("no GNU OpenMP")
    expected, found = native.eigh(LARGE), []
    regions.run(lambda: found.append(native.eigh(LARGE)), 2)
    assert len(found) == 2
    assert all(same_bits(x.w, expected.w) for x in found)
