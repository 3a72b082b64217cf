"""Batches of images that lie on a device: shuffled, cropped, mirrored and standardised there, without a loop over images."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from .dataset import Dataset
from .source import Source

BORDER = 8  # a crop moves by up to 1/8 of the size: 4 pixels at 32, as the papers' protocol has it
SHARE = 0.25  # of a GPU's free memory that images may take
_STRIDE = 1_000_003  # between the seeds: more than any number of epochs


class Epoch:
    """One pass over the training images, in an order and with crops that depend on (seed, epoch) and on nothing else.

    All random numbers are drawn on the CPU before the pass: the same on every device, for every rank, and for a run that
    is taken up again.

    Args:
        x, y: images (N, C, S, S) uint8 and labels (N,), on one device.
        seed, epoch: they fix the order.
        augment: crop from a border of zeros, S/8 wide.
        flip: mirror half of the images; only with ``augment``.

    >>> x, y = torch.arange(6, dtype=torch.uint8).view(6, 1, 1, 1), torch.arange(6)
    >>> parts = [labels.tolist() for _, labels, _ in Epoch(x, y, seed=0, epoch=0, augment=False).batches(4)]
    >>> [len(part) for part in parts], sorted(sum(parts, []))
    ([4, 2], [0, 1, 2, 3, 4, 5])
    """

    def __init__(self, x: Tensor, y: Tensor, *, seed: int, epoch: int, augment: bool, flip: bool = True) -> None:
        source = torch.Generator().manual_seed((seed * _STRIDE + epoch) % 2**63)
        n, size = len(y), x.shape[-1]
        self.x, self.y = x, y
        self.augment = augment
        self.border = size // BORDER
        self.order = torch.randperm(n, generator=source).to(y.device)
        self.shift = torch.randint(2 * self.border + 1, (2, n), generator=source).to(y.device)  # down, right
        self.mirrored = ((torch.rand(n, generator=source) < 0.5) & flip).to(y.device)

    def batches(
        self, size: int, rank: int = 0, world: int = 1, *, drop_last: bool = False
    ) -> Iterator[tuple[Tensor, Tensor, int]]:
        """Images (B, C, S, S) uint8 and labels (B,), this rank's share of a batch, and the size of the whole batch.

        Images that do not lie where the labels are (too many for the device) are brought there batch by batch.
        ``drop_last`` leaves out the images that do not fill a batch.
        """
        for start in range(0, len(self.order) - (size - 1 if drop_last else 0), size):
            stop = min(start + size, len(self.order))
            mine = slice(start + (stop - start) * rank // world, start + (stop - start) * (rank + 1) // world)
            index = self.order[mine]
            x = self.x[index.to(self.x.device)].to(self.y.device, non_blocking=True)
            if self.augment:
                x = augmented(x, self.border, self.shift[:, mine], self.mirrored[mine])
            yield x, self.y[index], stop - start


def augmented(x: Tensor, border: int, shift: Tensor, mirrored: Tensor) -> Tensor:
    """Images (B, C, S, S) cropped from a border of zeros by shifts (2, B), some mirrored (B,)."""
    return crop(pad(x, [border] * 4), x.shape[-1], shift, mirrored)


def crop(x: Tensor, size: int, shift: Tensor, mirrored: Tensor) -> Tensor:
    """Squares (B, C, size, size) of images (B, C, S, S), each from its own corner, some mirrored.

    >>> x = torch.arange(9).view(1, 1, 3, 3)
    >>> crop(x, 2, torch.tensor([[0], [1]]), torch.tensor([False])).flatten(), crop(
    ...     x, 2, torch.tensor([[0], [1]]), torch.tensor([True])
    ... ).flatten()
    (tensor([1, 2, 4, 5]), tensor([2, 1, 5, 4]))
    """
    along = torch.arange(size, device=x.device)
    rows = shift[0].unsqueeze(1) + along  # (B, size)
    columns = shift[1].unsqueeze(1) + torch.where(mirrored.unsqueeze(1), size - 1 - along, along)
    image = torch.arange(len(x), device=x.device).view(-1, 1, 1)
    return x[image, :, rows.unsqueeze(2), columns.unsqueeze(1)].permute(0, 3, 1, 2)


def standardised(x: Tensor, data: Source, dtype: torch.dtype) -> Tensor:
    """(x - mean) / std by channel, in ``dtype``; mean and std lie where x does."""
    mean, std = (value.to(dtype).view(-1, 1, 1) for value in (data.mean, data.std))
    return (x.to(dtype) - mean) / std


def placed(data: Dataset, device: torch.device) -> Dataset:
    """The data set on the device; the images stay behind where they would take most of its memory."""
    images = data.train_x.numel() + data.test_x.numel()
    fits = device.type != "cuda" or images < SHARE * torch.cuda.mem_get_info(device)[0]
    stay = () if fits else ("train_x", "test_x")
    moved: dict[str, Any] = {
        name: x.to(device) for name, x in data._asdict().items() if isinstance(x, Tensor) and name not in stay
    }
    return data._replace(**moved)
