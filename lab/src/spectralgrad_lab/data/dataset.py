"""What a data set is: images and labels as tensors, and the numbers that standardise them."""

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from spectralgrad.errors import SpectralError

VARIABLE = "SPECTRALGRAD_DATA"
SUBSET_SEED = 0  # of the order from which a part of a set is taken: the same part for every trial
LEVELS = 256  # of a uint8


class DataError(SpectralError, OSError):
    """A data set is missing, truncated or corrupt."""


class Dataset(NamedTuple):
    """Images and labels for training and test, in memory: a `Source`.

    train_x, test_x: (N, channels, size, size), uint8. train_y, test_y: (N,), int64. classes: how many.
    mean, std: of the training images by channel, in the units of the images. flip: whether a mirrored image keeps its label.
    """

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    classes: int
    mean: Tensor
    std: Tensor
    flip: bool = True

    @property
    def channels(self) -> int:
        return self.train_x.shape[1]

    @property
    def size(self) -> int:
        return self.train_x.shape[-1]

    @property
    def train_count(self) -> int:
        return len(self.train_y)

    @property
    def test_count(self) -> int:
        return len(self.test_y)

    @property
    def broken(self) -> tuple[str, ...]:
        """None: a broken file is refused when the set is read."""
        return ()

    def on(self, device: torch.device) -> "Dataset":
        """The data set on the device; the images stay behind where they would take most of its memory."""
        from .batches import placed  # which needs this file

        return placed(self, device)

    def train_batches(
        self,
        batch: int,
        *,
        seed: int,
        epoch: int,
        augment: bool = True,
        rank: int = 0,
        world: int = 1,
        drop_last: bool = False,
    ) -> Iterator[tuple[Tensor, Tensor, int]]:
        """One `Epoch`; see `Source`."""
        from .batches import Epoch

        order = Epoch(self.train_x, self.train_y, seed=seed, epoch=epoch, augment=augment, flip=self.flip)
        return order.batches(batch, rank, world, drop_last=drop_last)

    def test_batches(self, batch: int, *, rank: int = 0, world: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
        """The test images of this rank; see `Source`."""
        stop = self.test_count * (rank + 1) // world
        for start in range(self.test_count * rank // world, stop, batch):
            part = slice(start, min(start + batch, stop))
            yield self.test_x[part].to(self.test_y.device, non_blocking=True), self.test_y[part]


def assemble(
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    classes: int,
    *,
    train_samples: int | None = None,
    test_samples: int | None = None,
    flip: bool = True,
) -> Dataset:
    """A data set from its two halves, or from a fixed random part of each; mean and std are those of what is kept.

    >>> x, y = torch.tensor([0, 4], dtype=torch.uint8).view(2, 1, 1, 1), torch.tensor([0, 1])
    >>> assemble((x, y), (x, y), 2).mean, assemble((x, y), (x, y), 2).std
    (tensor([2.], dtype=torch.float64), tensor([2.], dtype=torch.float64))
    """
    train_x, train_y = subset(*train, train_samples)
    test_x, test_y = subset(*test, test_samples)
    return Dataset(train_x, train_y, test_x, test_y, classes, *mean_and_std(train_x), flip)


def subset(x: Tensor, y: Tensor, samples: int | None) -> tuple[Tensor, Tensor]:
    """A fixed random part of the images; all of them for None, or where there are no more."""
    if samples is None or samples >= len(y):
        return x, y
    chosen = torch.randperm(len(y), generator=torch.Generator().manual_seed(SUBSET_SEED))[:samples]
    return x[chosen], y[chosen]


def mean_and_std(x: Tensor) -> tuple[Tensor, Tensor]:
    """By channel (C,), in float64, of uint8 images (N, C, H, W): from histograms, so exact and without a wide copy."""
    level = torch.arange(LEVELS, dtype=torch.float64)
    means, stds = [], []
    for channel in x.unbind(1):
        share = torch.bincount(channel.flatten(), minlength=LEVELS).double() / max(channel.numel(), 1)
        mean = share @ level
        means.append(mean)
        stds.append((share @ (level - mean).square()).sqrt())
    std = torch.stack(stds)
    return torch.stack(means), torch.where(std > 0, std, 1)


def find_folder(who: str, data: Path | None, names: tuple[str, ...], holds: str) -> Path:
    """The folder of a data set: ``names`` under the directory of the user, or that directory itself.

    Args:
        who: the data set.
        data: from the user; None is the environment variable.
        names: how its folder is called.
        holds: what belongs in it, for the error.
    """
    came = data or (Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None)
    if came is None:
        raise DataError(
            f"`{who}`: needs a directory with {names[0]}/, which holds {holds}. Pass --data DIR (to train: --data-folder "
            f"DIR), or set {VARIABLE}=DIR. Scale smoke needs no data."
        )
    for folder in (*(came / name for name in names), came):
        if folder.is_dir() and (folder is not came or came.name in names):
            return folder
    raise DataError(
        f"`{who}`: {came} must hold {names[0]}/, with {holds}; there is none. Put it there, pass another --data DIR (to "
        f"train: --data-folder DIR), or set {VARIABLE}. Scale smoke needs no data."
    )


def memory_of(images: int, channels: int, size: int) -> str:
    """The memory that uint8 images take, in words.

    >>> memory_of(50_000, 3, 32)
    '0.1 GiB'
    """
    return f"{math.prod((images, channels, size, size)) / 2**30:.1f} GiB"
