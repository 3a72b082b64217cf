"""Image files as one uint8 tensor, decoded by several threads."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from .dataset import DataError, memory_of

SUFFIXES = (".jpeg", ".jpg", ".png", ".webp", ".bmp")


def list_images(folder: Path) -> list[Path]:
    """The image files of a folder, sorted by name."""
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)


def read_images(who: str, paths: Sequence[Path], size: int) -> Tensor:
    """Images (N, 3, size, size): colour, whatever the file has; the middle square, scaled where it is not of that size.

    Raises:
        DataError: a file that is no image, or is truncated; or all of them do not fit into memory.
    """
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise DataError(f"`{who}`: needs Pillow. Install it with pip install spectralgrad-lab.") from error
    try:
        result = torch.empty(len(paths), 3, size, size, dtype=torch.uint8)
    except RuntimeError as error:
        raise DataError(
            f"`{who}`: {len(paths)} images of {size} x {size} take {memory_of(len(paths), 3, size)}, more than there is. "
            "Take a part of them: train_samples and test_samples of a trial."
        ) from error

    def decode(index: int) -> None:
        path = paths[index]
        try:
            with Image.open(path) as file:
                image = file.convert("RGB")  # greyscale, CMYK and palettes too
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise DataError(f"`{who}`: {path} must be a whole image file: {error}. Unpack the archive again.") from error
        width, height = image.size
        if (width, height) != (size, size):
            side = min(width, height)
            left, top = (width - side) // 2, (height - side) // 2
            image = image.resize((size, size), Image.Resampling.BILINEAR, (left, top, left + side, top + side))
        flat = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
        result[index] = flat.view(size, size, 3).permute(2, 0, 1)

    with ThreadPoolExecutor(max(1, min(32, os.cpu_count() or 1))) as pool:
        for _ in pool.map(decode, range(len(paths))):
            pass
    return result
