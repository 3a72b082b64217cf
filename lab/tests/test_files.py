"""Files that are whole or not there."""

import os
import signal
import stat
from pathlib import Path

import pytest

from spectralgrad_lab import files
from spectralgrad_lab.files import replacing, write_whole


def test_the_file_and_then_its_folder_are_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[bool] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(stat.S_ISDIR(os.fstat(descriptor).st_mode))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    write_whole(tmp_path / "a", b"new")
    assert synced == [False, True]


def test_a_block_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    write_whole(tmp_path / "a", b"old")
    with pytest.raises(TypeError), replacing(tmp_path / "a") as file:
        file.writelines([b"ne", "w"])  # type: ignore[list-item]
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a", b"old")]


def test_the_next_process_sweeps_what_dead_writers_left_and_spares_the_living(tmp_path: Path) -> None:
    """A writer that was killed has lost its lock; one that writes now holds it."""
    for name in (".a.jpg.0123abcd.part", ".a [1].jpg.0123abce.part"):
        (tmp_path / name).touch()
    others = [".a.part", "b.0123abcd.part", ".a.0123ABCD.part", "a"]  # no parts of ours
    for name in others:
        (tmp_path / name).touch()
    files._swept.clear()
    with files.replacing(tmp_path / "living") as file:
        file.write(b"whole")
        files._swept.clear()
        files.write_whole(tmp_path / "c", b"x")  # as another process would
        assert len(list(tmp_path.glob(".living.*.part"))) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*others, "c", "living"])
    assert (tmp_path / "living").read_bytes() == b"whole"


def test_a_kill_while_writing_leaves_a_part_that_the_next_process_removes(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        with files.replacing(tmp_path / "a") as file:
            file.write(b"half")
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert len(list(tmp_path.glob(".a.*.part"))) == 1
    files._swept.clear()
    files.write_whole(tmp_path / "b", b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


@pytest.mark.parametrize("kind", ["a ring of links", "a pipe", "a folder"])
def test_what_is_no_file_is_refused_and_left_as_it_is(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "out"
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a folder":
        path.mkdir()
    else:
        path.symlink_to(path)
    before = os.lstat(path)
    with pytest.raises(OSError, match=r"pipe|symbolic links|Is a directory"):
        files.write_whole(path, b"x")
    assert os.path.samestat(os.lstat(path), before)
    assert len(list(tmp_path.iterdir())) == 1
