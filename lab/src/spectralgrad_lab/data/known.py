"""Figures of the public data sets: one that was packed wrongly is refused before anything is trained on it."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .dataset import LEVELS, DataError, mean_and_std

CLOSE = 1e-3  # to the training images' mean and deviation, in [0, 1]; decoders differ by less, swapped channels by more
NEAR = 5e-3  # of the test images' to these: other images of the same kind


class Known(NamedTuple):
    """Classes, images of each class for training and test, the training images' mean and deviation by channel, in [0, 1]."""

    classes: int
    train: int
    test: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


KNOWN = {
    "cifar10": Known(10, 5000, 1000, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": Known(100, 500, 100, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "tinyimagenet": Known(200, 500, 50, (0.4802, 0.4481, 0.3975), (0.2764, 0.2689, 0.2816)),
}


def require_known(name: str, part: str, x: Tensor, y: Tensor, advice: str) -> None:
    """Raise unless a whole half of a data set is the public one, by its numbers of images and by mean and deviation.

    Args:
        name: the data set.
        part: train or test.
        x, y: all of its images (N, 3, S, S) uint8 and labels (N,).
        advice: what to do about it.

    Raises:
        DataError: what is different, and how.
    """
    known = KNOWN[name]
    each = known.train if part == "train" else known.test
    if len(y) != known.classes * each:
        raise DataError(
            f"`{name}`: {part} must have {known.classes * each} images, got {len(y)}. {advice} For a part of the set give "
            f"{part}_samples."
        )
    counts = torch.bincount(y, minlength=known.classes)
    wrong = (counts != each).nonzero().flatten().tolist()
    if wrong:
        raise DataError(
            f"`{name}`: {part} must have {each} images of each of {known.classes} classes, got {int(counts[wrong[0]])} of "
            f"class {wrong[0]}. {advice}"
        )
    bound = CLOSE if part == "train" else NEAR
    for what, came, must in zip(("mean", "deviation"), mean_and_std(x), (known.mean, known.std), strict=True):
        came = came / (LEVELS - 1)
        if bool((came - torch.tensor(must, dtype=came.dtype)).abs().gt(bound).any()):
            raise DataError(
                f"`{name}`: {part} must have the {what} {_in_words(must)} by channel (red, green, blue) within {bound}, got "
                f"{_in_words(came.tolist())}: it was packed in another order or scale. {advice}"
            )


def _in_words(values: Sequence[float]) -> str:
    return " ".join(f"{value:.4f}" for value in values)
