"""`spectralgrad transfer`: files in, one whole file out, and one line where something is wrong."""

import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
import torch
from PIL import Image

from spectralgrad_lab.cli import main
from spectralgrad_lab.data.artworks import embedded_artworks
from spectralgrad_lab.models.decoders import Decoder
from spectralgrad_lab.models.vgg import LEVELS, Encoder
from spectralgrad_lab.transfer.deep import Networks
from spectralgrad_lab.transfer.pictures import Picture, read_picture, write_picture

Captured = pytest.CaptureFixture[str]
PIXELS = ["--level", "pixels"]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with content.png and style.png."""
    pictures = embedded_artworks(32, 2).train
    write_picture(tmp_path / "content.png", pictures["photo"][0] / 255)
    write_picture(tmp_path / "style.png", pictures["vangogh"][0] / 255)
    return tmp_path


@pytest.fixture
def networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random ones instead of those of the package."""
    made = {level: Networks(Encoder(level), Decoder(level)) for level in LEVELS}
    monkeypatch.setattr(import_module("spectralgrad_lab.transfer.transfer"), "load_networks", lambda *_: made)


def run(
    place: Path, *arguments: object, out: str = "out.png", style: str = "style.png", content: str = "content.png"
) -> int:
    return main(["transfer", str(place / content), str(place / style), "-o", str(place / out), *map(str, arguments)])


def test_colours(place: Path, capsys: Captured) -> None:
    assert run(place, *PIXELS) == 0
    assert capsys.readouterr().out == f"{place / 'out.png'}\n"
    result, style, content = (read_picture(place / name).colors for name in ("out.png", "style.png", "content.png"))
    assert (result.mean((1, 2)) - style.mean((1, 2))).abs().max() < 0.05  # clipped
    assert (content.mean((1, 2)) - style.mean((1, 2))).abs().max() > 0.05


def test_deep_with_every_option(place: Path, networks: None, capsys: Captured) -> None:
    sheet = place / "sheet.png"
    options = [
        "--strength",
        0.7,
        "--size",
        24,
        "--style-size",
        40,
        "--groups",
        4,
        "--depth",
        3,
        "--tile",
        64,
        "--device",
        "cpu",
    ]
    assert run(place, *options, "--sheet", sheet, "--times") == 0
    assert read_picture(place / "out.png").colors.shape == (3, 24, 24)
    words = capsys.readouterr().err
    assert all(part in words for part in ("encode", "statistics", "decomposition", "map", "decode"))
    height, width = read_picture(sheet).colors.shape[1:]
    assert width > 3 * 300
    assert height > 300


def test_the_sheet_shows_the_three(place: Path) -> None:
    assert run(place, *PIXELS, "--sheet", place / "sheet.png") == 0
    sheet = read_picture(place / "sheet.png").colors
    middle = [sheet[:, 12:332, left : left + 320].mean((1, 2)) for left in (12, 344, 676)]
    for mean, name in zip(middle, ("content.png", "style.png", "out.png"), strict=True):
        assert (mean - read_picture(place / name).colors.mean((1, 2))).abs().max() < 0.01


def test_a_turned_transparent_picture_stays_both(place: Path) -> None:
    colors, alpha = torch.rand(3, 6, 10), torch.ones(6, 10)
    alpha[:2] = 0
    write_picture(place / "content.png", Picture(colors, alpha))
    with Image.open(place / "content.png") as file:
        exif = Image.Exif()
        exif[274] = 6
        file.save(place / "turned.png", exif=exif)
    assert run(place, *PIXELS, content="turned.png") == 0
    result = read_picture(place / "out.png")
    assert result.alpha is not None
    assert torch.equal(result.alpha, torch.rot90(alpha, -1))
    assert run(place, *PIXELS, content="turned.png", out="out.jpg") == 2


MEASURE = """
import resource, sys
from spectralgrad_lab.cli import main
import spectralgrad_lab.cli.app
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert main(sys.argv[1:]) == 0
print("KIB", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB on Linux")
def test_twelve_megapixels_of_colour_take_no_gigabyte(place: Path) -> None:
    """36 MB as bytes and 144 MB as float32: a few copies of that, and no float64 of the whole."""
    with Image.open(place / "content.png") as file:
        file.resize((4000, 3000)).save(place / "large.jpg")
    arguments = ["transfer", str(place / "large.jpg"), str(place / "style.png"), "-o", str(place / "out.jpg"), *PIXELS]
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, *arguments], capture_output=True, text=True, timeout=300, check=True
    )
    assert int(done.stdout.split("KIB")[1]) < 1e6


# Frames.


@pytest.fixture
def film(place: Path) -> Path:
    (place / "film").mkdir()
    for i in range(3):
        write_picture(place / "film" / f"{i}.png", torch.rand(3, 12, 16))
    (place / "film" / "notes.txt").write_text("no frame")
    return place


def test_a_folder_of_frames(film: Path, capsys: Captured) -> None:
    assert run(film, *PIXELS, "--sheet", film / "sheet.png", content="film", out="made") == 0
    assert sorted(path.name for path in (film / "made").iterdir()) == ["0.png", "1.png", "2.png"]
    assert "3 frames made" in capsys.readouterr().out
    assert (film / "sheet.png").exists()


def test_a_frame_that_is_there_is_kept_unless_told(film: Path, capsys: Captured) -> None:
    (film / "made").mkdir()
    kept = write_picture(film / "made" / "1.png", torch.zeros(3, 2, 2))
    assert run(film, *PIXELS, content="film", out="made") == 0
    assert "2 frames made" in capsys.readouterr().out
    assert read_picture(kept).colors.shape == (3, 2, 2)
    assert run(film, *PIXELS, "--overwrite", content="film", out="made") == 0
    assert read_picture(kept).colors.shape == (3, 12, 16)


@pytest.mark.parametrize("lost", ["style", "frame"])
def test_no_frame_takes_the_place_of_what_it_is_made_from(lost: str, film: Path, capsys: Captured) -> None:
    (film / "made").mkdir()
    source = write_picture(film / "made" / "1.png", torch.rand(3, 8, 8))
    if lost == "frame":
        source.unlink()
        source.symlink_to(film / "film" / "1.png")
    before = source.read_bytes()
    assert run(film, *PIXELS, "--overwrite", content="film", out="made", style="made/1.png") == 2
    assert "would be lost" in capsys.readouterr().err
    assert source.read_bytes() == before
    assert len(list((film / "made").iterdir())) == 1


def test_a_broken_frame_does_not_stop_the_others(film: Path, capsys: Captured) -> None:
    (film / "film" / "1.png").write_bytes(b"broken")
    assert run(film, *PIXELS, "--sheet", film / "sheet.png", content="film", out="made") == 1
    assert (film / "sheet.png").exists()
    assert sorted(path.name for path in (film / "made").iterdir()) == ["0.png", "2.png"]
    assert "1 of 3 frames" in capsys.readouterr().err


def test_a_frame_that_its_suffix_cannot_hold_does_not_stop_the_others(film: Path, capsys: Captured) -> None:
    write_picture(film / "film" / "1.png", Picture(torch.rand(3, 4, 4), torch.zeros(4, 4)))
    (film / "film" / "1.png").rename(film / "film" / "1.jpg")  # a PNG by its content
    assert run(film, *PIXELS, content="film", out="made") == 1
    assert sorted(path.name for path in (film / "made").iterdir()) == ["0.png", "2.png"]
    error = capsys.readouterr().err
    assert "1 of 3 frames" in error
    assert "no transparency" in error


# What is wrong is said in one line, with the exit code, and changes nothing.


def constant(place: Path) -> None:
    write_picture(place / "content.png", torch.full((3, 8, 8), 0.5))


def one_pixel(place: Path) -> None:
    write_picture(place / "content.png", torch.full((3, 1, 1), 0.5))
    write_picture(place / "style.png", torch.full((3, 1, 1), 0.2))


@pytest.mark.parametrize("change", [constant, one_pixel])
@pytest.mark.parametrize("level", ["pixels", "deep"])
def test_odd_pictures_pass(change: Callable[[Path], None], level: str, place: Path, networks: None) -> None:
    change(place)
    assert run(place, "--level", level) == 0
    assert read_picture(place / "out.png").colors.shape == read_picture(place / "content.png").colors.shape


def long_exif() -> bytes:
    exif = Image.Exif()
    exif[37500] = b"a" * 2**16  # a note of the maker's; JPEG holds 65533 bytes of all
    return exif.tobytes()


WRONG: dict[str, tuple[list[str], dict[str, str], int, str]] = {
    "strength": (["--strength", "2"], {}, 2, "strength must be"),
    "size": (["--size", "999999"], {}, 2, "million pixels"),
    "size of the style": (["--style-size", "99999"], {}, 2, "million pixels"),
    "suffix": ([], {"out": "out.xyz"}, 2, "must end in"),
    "no suffix": ([], {"out": "out"}, 2, "must end in"),
    "out is content": ([], {"out": "content.png"}, 2, "would be lost"),
    "out is style": ([], {"out": "style.png"}, 2, "would be lost"),
    "sheet is out": (["--sheet", "OUT"], {}, 2, "another file"),
    "no place for the sheet": (["--sheet", "none/sheet.png"], {}, 1, "cannot be written"),
    "out is a folder": ([], {"out": "folder.png"}, 2, "is a folder"),
    "no place": ([], {"out": "none/out.png"}, 1, "cannot be written"),
    "too wide for WebP": (["--size", "16384"], {"content": "wide.png", "out": "out.webp"}, 2, "16383 pixels a side"),
    "too much EXIF data": ([], {"content": "exif.png", "out": "out.jpg"}, 1, "too long"),
    "missing content": ([], {"content": "none.png"}, 1, "does not exist"),
    "missing style": ([], {"style": "none.png"}, 1, "does not exist"),
    "style is a folder": ([], {"style": "folder.png"}, 1, "is a folder"),
    "no frames": ([], {"content": "folder.png", "out": "made"}, 1, "must hold pictures"),
    "frames to a file": ([], {"content": "folder.png"}, 2, "must be a folder too"),
    "frames to themselves": ([], {"content": "folder.png", "out": "folder.png"}, 2, "folder"),
    "corrupt": ([], {"content": "corrupt.png"}, 1, "whole picture file"),
    "truncated": ([], {"content": "truncated.png"}, 1, "whole picture file"),
    "no weights": (["--level", "deep", "--weights", "none.pth"], {}, 1, "load_encoder"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_one_line_and_changes_nothing(what: str, place: Path, capsys: Captured) -> None:
    options, names, code, words = WRONG[what]
    (place / "folder.png").mkdir()
    (place / "corrupt.png").write_bytes(b"nothing")
    (place / "truncated.png").write_bytes((place / "content.png").read_bytes()[:600])
    write_picture(place / "wide.png", torch.rand(3, 1, 64))
    write_picture(place / "exif.png", Picture(torch.rand(3, 4, 4), exif=long_exif()))
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    options = [str(place / "out.png") if option == "OUT" else option for option in options]
    assert run(place, *PIXELS, *options, **names) == code
    error = capsys.readouterr().err
    assert words in error
    assert error.startswith("spectralgrad `")
    assert error.count("\n") == 1
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before


def test_unknown_level_is_wrong_use(place: Path, capsys: Captured) -> None:
    assert run(place, "--level", "shallow") == 2
    assert "Usage: spectralgrad transfer" in capsys.readouterr().err


def test_ctrl_c_leaves_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Image.Image, "save", stop)
    assert run(place, *PIXELS) == 130
    assert sorted(path.name for path in place.iterdir()) == ["content.png", "style.png"]


def test_without_pillow_one_line_says_what_to_install(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert run(place, *PIXELS) == 2
    assert "pip install" in capsys.readouterr().err
