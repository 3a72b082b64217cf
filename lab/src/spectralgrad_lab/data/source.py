"""What a training needs of a data set, whether its images lie in memory or are decoded on the way."""

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor
from typing_extensions import Self


class Source(Protocol):
    """Images and labels for training and test, in batches: a `Dataset`, or a folder that is `Streamed`."""

    @property
    def classes(self) -> int: ...

    @property
    def channels(self) -> int: ...

    @property
    def size(self) -> int:
        """Pixels a side."""

    @property
    def mean(self) -> Tensor:
        """By channel, in the units of the images."""

    @property
    def std(self) -> Tensor:
        """By channel, in the units of the images."""

    @property
    def train_count(self) -> int:
        """Images of an epoch, before `drop_last`."""

    @property
    def test_count(self) -> int:
        """Images of the test set; broken ones that are skipped are among them, but in no batch."""

    @property
    def broken(self) -> tuple[str, ...]:
        """The files that were skipped so far, as this process found them."""

    def on(self, device: torch.device) -> Self:
        """The same, with batches, mean and std on a device."""

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
        """One epoch in batches: images (B, channels, size, size) uint8 and labels (B,), this rank's share; the whole size.

        Order, crops and mirrors depend on (seed, epoch) and on nothing else.
        """

    def test_batches(self, batch: int, *, rank: int = 0, world: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
        """The test images and labels of this rank, in their order, as they are."""
