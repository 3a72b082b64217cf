"""CIFAR as lossless WebP sheets in part1.npz, part2.npz, ...: half the size of the official files.

Each part holds ``train``, the bytes of sheets of 10 x 10 images one after the other, ``train_off``, where each begins and
the last ends, and ``y_train``, a label for each image; the last part ``test``, ``test_off`` and ``y_test`` too.
"""

import io
import zipfile
import zlib
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .dataset import DataError
from .decode import as_tensor

SIDE = 10  # images along a sheet
PIXELS = 32


def read_sheets(name: str, folder: Path, parts: int, classes: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Images (N, 3, 32, 32) uint8 and labels (N,) for training and for test.

    Raises:
        DataError: a part is missing or damaged.
    """
    advice = f"Pack the set again: {folder} must hold {', '.join(f'part{i}.npz' for i in range(1, parts + 1))}."
    train = [_half(name, folder / f"part{i}.npz", "train", classes, advice) for i in range(1, parts + 1)]
    test = _half(name, folder / f"part{parts}.npz", "test", classes, advice)
    return (torch.cat([x for x, _ in train]), torch.cat([y for _, y in train])), test


def _half(name: str, path: Path, half: str, classes: int, advice: str) -> tuple[Tensor, Tensor]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as held:
            blob, ends, labels = (held[key] for key in (half, f"{half}_off", f"y_{half}"))
    except FileNotFoundError as error:
        raise DataError(f"`{name}`: {path} is missing. {advice}") from error
    except KeyError as error:
        raise DataError(f"`{name}`: {path} must hold {half}, {half}_off and y_{half}. {advice}") from error
    except (OSError, ValueError, EOFError, TypeError, AttributeError, zlib.error, zipfile.BadZipFile) as error:
        why = "" if isinstance(error, ValueError) else f": {error}"  # numpy's word for damage is to load it unsafely
        raise DataError(f"`{name}`: {path} must be a whole .npz file{why}. {advice}") from error
    if any(x.ndim != 1 for x in (blob, ends, labels)) or blob.dtype != np.uint8 or len(ends) < 2:
        raise DataError(f"`{name}`: {path} must hold bytes, offsets and labels of {half} as lists. {advice}")
    y = torch.from_numpy(labels.astype(np.int64))
    if len(y) != (len(ends) - 1) * SIDE * SIDE or int(y.min()) < 0 or int(y.max()) >= classes:
        raise DataError(
            f"`{name}`: {path} must hold {(len(ends) - 1) * SIDE * SIDE} labels of {half} from 0 to {classes - 1}, one for "
            f"each image, got {len(y)} from {int(y.min())} to {int(y.max())}. {advice}"
        )
    return torch.cat([_images(name, path, blob[a:b].tobytes(), advice) for a, b in pairwise(ends)]), y


def _images(name: str, path: Path, raw: bytes, advice: str) -> Tensor:
    """The images (100, 3, 32, 32) of a sheet, row by row."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(raw)) as file:
            sheet = as_tensor(file.convert("RGB"))  # (3, 320, 320)
        return sheet.reshape(3, SIDE, PIXELS, SIDE, PIXELS).permute(1, 3, 0, 2, 4).reshape(-1, 3, PIXELS, PIXELS)
    except (OSError, ValueError, RuntimeError) as error:
        size = SIDE * PIXELS
        raise DataError(f"`{name}`: {path} must hold sheets of {size} x {size} pixels: {error}. {advice}") from error
