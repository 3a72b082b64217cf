"""Compiled kernels on disk: found again, never believed when damaged, never in the way."""

import os
from pathlib import Path

import pytest

from spectralgrad.kernels import cubins

PARTS = [b"NVRTC 13.0", b"-DN=3", b"source"]


class Compiler:
    """Counts how often it was asked."""

    def __init__(self, cubin: bytes = b"machine code") -> None:
        self.cubin, self.calls = cubin, 0

    def __call__(self) -> bytes:
        self.calls += 1
        return self.cubin


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECTRALGRAD_CACHE", str(tmp_path / "kernels"))
    return tmp_path / "kernels"


def test_compiled_once(place: Path) -> None:
    first, second = Compiler(), Compiler()
    assert cubins.kept(PARTS, first) == cubins.kept(PARTS, second) == b"machine code"
    assert (first.calls, second.calls) == (1, 0)
    assert [path.suffix for path in place.iterdir()] == [".cubin"]  # and no .part
    if os.name == "posix":
        assert place.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("other", [[b"NVRTC 13.1", *PARTS[1:]], [PARTS[0] + PARTS[1], PARTS[2]], PARTS[:2], PARTS[::-1]])
def test_anything_else_is_another_kernel(place: Path, other: list[bytes]) -> None:
    cubins.kept(PARTS, Compiler(b"one"))
    assert cubins.kept(other, Compiler(b"two")) == b"two"


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "digest alone"])
def test_a_damaged_file_is_compiled_again(place: Path, damage: str) -> None:
    cubins.kept(PARTS, Compiler())
    (path,) = place.iterdir()
    whole = path.read_bytes()
    path.write_bytes({"cut": whole[:-1], "flipped": whole[:-1] + b"?", "empty": b"", "digest alone": whole[:32]}[damage])
    again = Compiler()
    assert cubins.kept(PARTS, again) == b"machine code"
    assert again.calls == 1
    assert path.read_bytes() == whole


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="users have no numbers here")
def test_a_file_of_somebody_else_is_not_loaded(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cubins.kept(PARTS, Compiler())
    mine = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: mine + 1)
    again = Compiler()
    cubins.kept(PARTS, again)
    assert again.calls == 1


def test_a_folder_that_cannot_be_written(place: Path) -> None:
    place.write_text("a file where the folder should be")
    for compiler in (Compiler(), Compiler()):
        assert cubins.kept(PARTS, compiler) == b"machine code"
        assert compiler.calls == 1
    assert place.read_text() == "a file where the folder should be"


def test_where_they_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPECTRALGRAD_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cubins.folder() == tmp_path / "spectralgrad"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda _: str(tmp_path))
    assert cubins.folder() == tmp_path / ".cache" / "spectralgrad"
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # nobody's home
    assert cubins.folder() is None


def test_none_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECTRALGRAD_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for compiler in (Compiler(), Compiler()):
        cubins.kept(PARTS, compiler)
        assert compiler.calls == 1
    assert not list(tmp_path.iterdir())
