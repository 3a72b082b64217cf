"""Digits, and Tiny ImageNet's layout with its grey JPEGs; what is missing or damaged is named."""

import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

from lab_support.tiny_imagenet import CLASSES, save, write_tiny
from spectralgrad.errors import OptionError
from spectralgrad_lab.data import NAMES, DataError, load, open_source
from spectralgrad_lab.data.images import read_images

RED, BLUE = (255, 0, 0), (0, 0, 255)
ALL = {"train_samples": 10**6, "test_samples": 10**6}  # all there are: these sets are not the public ones


def test_digits_are_split_once_and_for_all() -> None:
    data = load("digits")
    assert data.train_x.shape == (1437, 1, 8, 8)
    assert data.test_x.shape == (360, 1, 8, 8)
    assert data.train_x.dtype == torch.uint8
    assert int(data.train_x.max()) == 16
    assert set(data.test_y.tolist()) == set(range(10))
    assert not data.flip
    again = load("digits")
    assert torch.equal(data.train_x, again.train_x)
    both = torch.cat([data.train_x, data.test_x]).flatten(1)
    assert len(torch.unique(both, dim=0)) == 1797  # scikit-learn's have no duplicates: none is in both halves


def test_tiny_imagenet_is_read_with_its_grey_images(tmp_path: Path) -> None:
    write_tiny(tmp_path)
    data = load("tinyimagenet", tmp_path, **ALL)
    assert data.train_x.shape == (6, 3, 64, 64)
    assert data.train_y.tolist() == [0, 0, 1, 1, 2, 2]  # in the order of wnids.txt
    assert data.test_y.tolist() == [2, 1, 0]
    assert (data.classes, data.size) == (3, 64)
    middle = data.train_x[:, :, 32, 32].int()
    assert (middle[0] - torch.tensor([160, 0, 0])).abs().max() <= 3  # JPEG
    assert (middle[1] - 80).abs().max() <= 2  # grey: three equal channels
    assert (data.test_x[1, :, 32, 32].int() - torch.tensor([0, 80, 0])).abs().max() <= 3


def test_a_part_of_tiny_imagenet_reads_only_that(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path)
    part = load("tinyimagenet", tmp_path, train_samples=2, test_samples=1)
    whole = load("tinyimagenet", tmp_path, **ALL)
    assert (len(part.train_y), len(part.test_y)) == (2, 1)
    for image, label in zip(part.train_x, part.train_y, strict=True):
        where = (whole.train_x == image).flatten(1).all(1).nonzero()[:, 0].tolist()
        assert int(label) in whole.train_y[where].tolist()
    assert folder.is_dir()


def spoil_image(folder: Path) -> None:
    path = next((folder / "train" / CLASSES[1] / "images").iterdir())
    path.write_bytes(path.read_bytes()[:200])


SPOILT = {
    "a truncated image": (spoil_image, "must be a whole image file"),
    "no image": (lambda f: (f / "val/images/val_1.JPEG").write_text("<html>"), "val_1.JPEG must be a whole image file"),
    "a missing image": (lambda f: (f / "val/images/val_1.JPEG").unlink(), "val_1.JPEG is missing"),
    "a missing class": (lambda f: shutil.rmtree(f / "train" / CLASSES[0]), "must hold the images of a class"),
    "no list": (lambda f: (f / "wnids.txt").unlink(), "wnids.txt is missing"),
    "an empty list": (lambda f: (f / "wnids.txt").write_text("\n"), "wnids.txt is empty"),
    "another class": (
        lambda f: (f / "val/val_annotations.txt").write_text("val_0.JPEG\tn00000000\t0\n"),
        "a class of wnids.txt in each line, got 'val_0.JPEG",
    ),
    "a path outside": (
        lambda f: (f / "val/val_annotations.txt").write_text(f"../../secret.JPEG\t{CLASSES[0]}\t0\n"),
        "in each line, got '../../secret",
    ),
}


@pytest.mark.parametrize("name", SPOILT)
def test_what_is_wrong_with_tiny_imagenet_is_named(name: str, tmp_path: Path) -> None:
    spoil, words = SPOILT[name]
    spoil(write_tiny(tmp_path))
    with pytest.raises(DataError, match=words) as caught:
        load("tinyimagenet", tmp_path, **ALL)
    assert "Unpack" in str(caught.value)


def test_the_middle_square_is_taken_and_scaled(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    image = Image.new("RGB", (12, 4), RED)
    image.paste(BLUE, (4, 0, 8, 4))
    image.save(path)
    assert read_images("test", [path], 4)[0, 2].unique().tolist() == [255]  # all of it is the blue middle
    assert read_images("test", [path], 8).shape == (1, 3, 8, 8)


@pytest.mark.parametrize("mode", ["L", "P", "CMYK", "RGBA", "1"])
def test_images_of_every_mode_become_colour(mode: str, tmp_path: Path) -> None:
    path = tmp_path / ("a.jpg" if mode == "CMYK" else "a.png")
    save(path, 1 if mode in ("1", "P", "L") else tuple([0] * len(mode)), mode=mode)
    assert read_images("test", [path], 64).shape == (1, 3, 64, 64)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("cifar", {}, "got 'cifar'. Did you mean cifar10"),
        ("digits", {"train_samples": 0}, "train_samples must be a whole number >= 1"),
        ("digits", {"test_samples": 2.5}, "test_samples"),
    ],
)
def test_wrong_options_are_named(name: str, options: dict[str, int], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        load(name, **options)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "digits"])
def test_missing_data_says_what_to_put_where(name: str, tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"must hold .*/, with .*Put it there, pass another --data DIR .*, or set .*smoke needs no data"
    ):
        open_source(name, tmp_path)
