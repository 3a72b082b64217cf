"""A data set is the public one, by its numbers of images, mean and deviation; or it is refused."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from lab_support.tiny_imagenet import write_tiny
from spectralgrad_lab.data import DataError, load
from spectralgrad_lab.data.dataset import mean_and_std
from spectralgrad_lab.data.known import KNOWN, Known, require_known

Y = torch.arange(12) % 3
X = (torch.rand(12, 3, 8, 8, generator=torch.Generator().manual_seed(0)) * torch.tensor([255, 180, 90]).view(3, 1, 1)).byte()


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A public set of three classes."""
    mean, std = ((value / 255).tolist() for value in mean_and_std(X))
    monkeypatch.setitem(KNOWN, "small", Known(3, 4, 2, tuple(mean), tuple(std)))


def test_the_public_set_passes() -> None:
    require_known("small", "train", X, Y, "")
    require_known("small", "train", X.flip(0), Y.flip(0), "")  # in any order


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (X[:9], Y[:9], "must have 12 images, got 9. Unpack. For a part of the set give train_samples"),
        (X, Y.clamp(max=1), "must have 4 images of each of 3 classes, got 8 of class 1"),
        (X.flip(1), Y, "mean .* by channel .*packed in another order or scale"),
        (X // 2, Y, "mean"),
        ((X.double() * 0.5 + 60).byte(), Y, "mean"),
        (
            ((X.double() - X.double().mean((0, 2, 3), True)) * 0.5 + X.double().mean((0, 2, 3), True)).round().byte(),
            Y,
            "dev",
        ),
    ],
    ids=["too few", "wrong labels", "blue first", "half", "other scale", "contrast"],
)
def test_another_set_is_refused(x: Tensor, y: Tensor, words: str) -> None:
    with pytest.raises(DataError, match=words):
        require_known("small", "train", x, y, "Unpack.")


def test_the_test_images_need_not_be_as_close() -> None:
    x = (X[:6].int() + 1).byte()  # 0.004 brighter
    shift = KNOWN["small"]._replace(mean=tuple((mean_and_std(X[:6])[0] / 255).tolist()), train=2)
    shift = shift._replace(std=tuple((mean_and_std(X[:6])[1] / 255).tolist()))
    KNOWN["small"] = shift
    require_known("small", "test", x, Y[:6], "")
    with pytest.raises(DataError, match="mean"):
        require_known("small", "train", x, Y[:6], "")


def test_only_whole_halves_are_compared(tmp_path: Path) -> None:
    write_tiny(tmp_path)
    load("tinyimagenet", tmp_path, train_samples=4, test_samples=2)
    with pytest.raises(DataError, match="`tinyimagenet`: train must have 100000 images, got 6"):
        load("tinyimagenet", tmp_path, test_samples=2)
    with pytest.raises(DataError, match="`tinyimagenet`: test must have 10000 images, got 3"):
        load("tinyimagenet", tmp_path, train_samples=4)
