"""Files that are whole or not there."""

import os
import stat
from pathlib import Path

import pytest

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
