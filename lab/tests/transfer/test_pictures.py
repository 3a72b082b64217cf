"""Pictures of every kind are read, and a file is written whole or not at all."""

import os
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageCms, ImageFile

from spectralgrad.errors import OptionError, ShapeError
from spectralgrad_lab.data import decode as module
from spectralgrad_lab.data.decode import BrokenFile, decode
from spectralgrad_lab.transfer.pictures import SUFFIXES, Picture, PictureError, read_picture, resized, write_picture

ORIENTATION = 274  # the EXIF tag
TURNED = 6  # the camera was held upright: to be turned clockwise
LEVEL = 1 / 255


def rgb(height: int = 6, width: int = 9) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


def saved(image: Image.Image, path: Path, **options: object) -> Path:
    image.save(path, **options)
    return path


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_is_written_is_read_again(suffix: str, tmp_path: Path) -> None:
    colors = torch.linspace(0, 1, 3 * 16 * 24).reshape(3, 16, 24)
    path = write_picture(tmp_path / f"a{suffix}", colors)
    exact = suffix in (".png", ".tif", ".tiff", ".bmp")
    assert (read_picture(path).colors - colors).abs().max() <= (0.51 * LEVEL if exact else 0.05)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("suffix", [".png", ".webp", ".tif"])
def test_transparency_is_kept(suffix: str, tmp_path: Path) -> None:
    alpha = torch.linspace(0, 1, 64).reshape(8, 8)
    path = write_picture(tmp_path / f"a{suffix}", Picture(torch.rand(3, 8, 8), alpha))
    again = read_picture(path)
    assert again.alpha is not None
    assert again.visible is not None
    assert (again.alpha - alpha).abs().max() <= 0.51 * LEVEL
    assert int((~again.visible).sum()) == 1
    assert read_picture(write_picture(tmp_path / f"b{suffix}", torch.rand(3, 8, 8))).alpha is None


@pytest.mark.parametrize("suffix", [".jpg", ".bmp"])
def test_transparency_that_cannot_be_kept_is_an_error(suffix: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no transparency"):
        write_picture(tmp_path / f"a{suffix}", Picture(torch.rand(3, 4, 4), torch.zeros(4, 4)))
    assert list(tmp_path.iterdir()) == []


def test_orientation_is_applied_once(tmp_path: Path) -> None:
    image = rgb()
    exif = Image.Exif()
    exif[ORIENTATION], exif[271] = TURNED, "maker"
    picture = read_picture(saved(image, tmp_path / "a.png", exif=exif))
    upright = torch.from_numpy(np.array(image.rotate(-90, expand=True))).permute(2, 0, 1) / 255
    assert torch.allclose(picture.colors, upright)
    again = read_picture(write_picture(tmp_path / "b.png", picture))
    assert torch.allclose(again.colors, upright, atol=1e-6)
    with Image.open(tmp_path / "b.png") as file:
        assert ORIENTATION not in file.getexif()
        assert file.getexif()[271] == "maker"


def test_the_profile_is_kept_where_it_still_explains_the_numbers(tmp_path: Path) -> None:
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    picture = read_picture(saved(rgb(), tmp_path / "a.png", icc_profile=profile))
    assert picture.profile == profile
    assert read_picture(write_picture(tmp_path / "b.jpg", picture)).profile == profile
    lab = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()
    assert read_picture(saved(rgb(), tmp_path / "c.png", icc_profile=lab)).profile is None


GREY = np.linspace(0, 65535, 54).reshape(6, 9).astype(np.uint16)


def test_sixteen_bits_are_read_whole(tmp_path: Path) -> None:
    for name in ("a.png", "a.tif"):
        picture = read_picture(saved(Image.fromarray(GREY), tmp_path / name))
        assert torch.allclose(picture.colors, torch.from_numpy(GREY / 65535).float().expand(3, 6, 9), atol=1e-6)
        dark = read_picture(saved(Image.fromarray(GREY.clip(0, 1)), tmp_path / name))
        assert dark.colors.max() < 1e-4  # 1 of 65535 is black, not white


MODES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "L": lambda image: image.convert("L"),
    "1": lambda image: image.convert("1"),
    "P": lambda image: image.convert("P", palette=Image.Palette.ADAPTIVE),
    "LA": lambda image: image.convert("LA"),
    "CMYK": lambda image: image.convert("CMYK"),
    "F": lambda image: image.convert("F"),
    "I": lambda image: image.convert("I"),
}


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_gives_colours(mode: str, tmp_path: Path) -> None:
    image = MODES[mode](rgb())
    picture = read_picture(saved(image, tmp_path / "a.tif"))
    assert picture.colors.shape == (3, 6, 9)
    assert 0 <= float(picture.colors.min()) < float(picture.colors.max()) <= 1
    if mode not in ("F", "I"):  # of these the range is not known
        wanted = torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1) / 255
        assert torch.allclose(picture.colors, wanted, atol=1e-6)


def test_a_transparent_colour_of_a_palette_is_transparent(tmp_path: Path) -> None:
    image = Image.new("P", (4, 2), 1)
    image.putpalette([0, 0, 0, 255, 0, 0])
    image.putpixel((0, 0), 0)
    picture = read_picture(saved(image, tmp_path / "a.png", transparency=0))
    assert picture.visible is not None
    assert picture.visible.tolist() == [[False, True, True, True], [True] * 4]
    assert picture.colors[:, 1, 1].tolist() == [1, 0, 0]


def corrupt(path: Path) -> None:
    path.write_bytes(b"not a picture")


def truncated(path: Path) -> None:
    rgb(64, 64).save(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def broken_header(path: Path) -> None:
    rgb(64, 64).save(path)
    data = bytearray(path.read_bytes())
    data[40:60] = bytes(20)
    path.write_bytes(bytes(data))


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "corrupt": (corrupt, "whole picture file"),
    "truncated": (truncated, "whole picture file"),
    "header": (broken_header, "whole picture file"),
    "empty": (lambda path: path.write_bytes(b""), "whole picture file"),
    "folder": (lambda path: path.mkdir(), "is a folder"),
    "missing": (Path, "does not exist"),
}


@pytest.mark.parametrize("what", BAD)
@pytest.mark.parametrize("suffix", [".png", ".jpg"])
def test_a_bad_file_is_one_error_that_names_it(what: str, suffix: str, tmp_path: Path) -> None:
    make, words = BAD[what]
    if (what, suffix) == ("header", ".jpg"):
        pytest.skip("a JPEG with damage in its tables may decode to something")
    path = tmp_path / f"picture{suffix}"
    make(path)
    with pytest.raises(PictureError, match=words) as caught:
        read_picture(path)
    assert path.name in str(caught.value)


def test_a_picture_that_swells_is_refused_before_it_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """169 million pixels of one bit are 21 kB in a file, and took 44 seconds and 7.8 GB."""
    path = tmp_path / "large.png"
    Image.new("1", (13000, 13000)).save(path)
    assert path.stat().st_size < 50_000
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda _: pytest.fail("it is decoded"))
    with pytest.raises(PictureError, match="169 million pixels, and at most 67 million, 2 GiB of memory, are read"):
        read_picture(path)
    with pytest.raises(BrokenFile, match="169 million pixels"):
        decode("folder", path)


def test_a_picture_below_the_limit_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(rgb(20, 20), tmp_path / "a.png")
    monkeypatch.setattr(module, "MOST_PIXELS", 400)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 250)  # Pillow only warns here
    assert read_picture(path).colors.shape == (3, 20, 20)
    monkeypatch.setattr(module, "MOST_PIXELS", 399)
    with pytest.raises(PictureError, match="million pixels"):
        read_picture(path)


def test_postscript_is_no_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow would start Ghostscript for it, a program that runs programs."""
    path = tmp_path / "a.eps"
    path.write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n")
    with Image.open(path) as image:
        assert image.format == "EPS"  # the control
    monkeypatch.setattr(subprocess, "check_call", lambda *_, **__: pytest.fail("a program was started"))
    for read in (read_picture, partial(decode, "folder")):
        with pytest.raises((PictureError, BrokenFile), match="whole"):
            read(path)


@pytest.mark.parametrize("what", ["a pipe", "a ring of links"])
def test_what_is_no_file_is_neither_read_nor_written(what: str, tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    os.mkfifo(path) if what == "a pipe" else path.symlink_to(path)
    with pytest.raises(PictureError, match=r"a\.png (is a pipe|does not exist)"):
        read_picture(path)
    with pytest.raises(PictureError, match=r"cannot be written: .* Nothing was changed"):
        write_picture(path, torch.zeros(3, 4, 4))
    assert [each.name for each in tmp_path.iterdir()] == ["a.png"]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, OSError])
def test_a_stopped_write_leaves_what_was(stop: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_picture(tmp_path / "a.png", torch.zeros(3, 4, 4))

    def half(self: Image.Image, file: object, **options: object) -> None:
        file.write(b"half")  # type: ignore[attr-defined]
        raise stop(28, "No space left on device")

    monkeypatch.setattr(Image.Image, "save", half)
    with pytest.raises(PictureError if stop is OSError else stop):
        write_picture(path, torch.ones(3, 4, 4))
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == [path]
    assert read_picture(path).colors.eq(0).all()


def test_a_name_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"must end in \.png"):
        write_picture(tmp_path / "a.xyz", torch.zeros(3, 2, 2))
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(PictureError, match="is a folder"):
        write_picture(tmp_path / "folder.png", torch.zeros(3, 2, 2))
    with pytest.raises(PictureError, match="cannot be written"):
        write_picture(tmp_path / "none" / "a.png", torch.zeros(3, 2, 2))
    with pytest.raises(ShapeError, match="shape"):
        write_picture(tmp_path / "a.png", torch.zeros(1, 2, 2))


def test_resizing_keeps_the_ratio_and_what_is_transparent_does_not_bleed() -> None:
    colors, alpha = torch.zeros(3, 40, 20), torch.zeros(40, 20)
    colors[:, 20:] = 1.0
    alpha[20:] = 1.0
    small = resized(Picture(colors, alpha), 10)
    assert small.colors.shape == (3, 10, 5)
    assert small.visible is not None
    assert (small.colors[:, small.visible] > 0.99).all()
    assert resized(small, None) is small
    assert resized(Picture(torch.rand(3, 1, 500)), 10).colors.shape == (3, 1, 10)
