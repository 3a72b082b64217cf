"""Image files as one uint8 tensor, decoded by several processes."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .dataset import DataError, memory_of
from .stream import Decoder, listed, stream

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".jpeg", ".jpg", ".png", ".webp", ".bmp")
BATCH = 128  # images that a process decodes at a time


def list_images(folder: Path) -> list[Path]:
    """The image files of a folder, sorted by name; hidden ones are none."""
    return sorted(path for path in folder.iterdir() if is_image(path.name))


def is_image(name: str) -> bool:
    """Whether a file of that name is an image, and not a hidden one.

    >>> is_image("a.JPEG"), is_image("._a.JPEG"), is_image("a.txt")
    (True, False, False)
    """
    return name.lower().endswith(SUFFIXES) and not name.startswith(".")


class _Squares(Decoder):
    """The middle square of each picture, scaled where it is not of that size."""

    def square(self, image: "Image", *_: int) -> "Image":
        from PIL.Image import Resampling

        width, height = image.size
        if (width, height) == (self.size, self.size):
            return image
        side = min(width, height)
        left, top = (width - side) // 2, (height - side) // 2
        return image.resize((self.size, self.size), Resampling.BILINEAR, (left, top, left + side, top + side))


def read_images(who: str, paths: Sequence[Path], size: int) -> Tensor:
    """Images (N, 3, size, size): colour, whatever the file has; the middle square, scaled where it is not of that size.

    Raises:
        DataError: a file that is no image, or is truncated; or all of them do not fit into memory.
    """
    try:
        result = torch.empty(len(paths), 3, size, size, dtype=torch.uint8)
    except RuntimeError as error:
        raise DataError(
            f"`{who}`: {len(paths)} images of {size} x {size} take {memory_of(len(paths), 3, size)}, more than there is. "
            "Take a part of them: train_samples and test_samples of a trial."
        ) from error
    decoder = _Squares(who, listed(Path(), map(str, paths), [0] * len(paths)), size, size)
    rows = torch.zeros(len(paths), 4, dtype=torch.int64)
    rows[:, 0] = torch.arange(len(paths))
    done = 0
    for read in stream(decoder, rows.split(BATCH)):
        result[done : done + len(read.x)] = read.x
        done += len(read.x)
    return result
