"""One picture file as colours of 8 bits, whatever it holds; what is broken is named."""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from .dataset import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

WIDE_MODES = ("I", "I;16", "I;16B", "I;16L", "I;16N", "F")  # grey of 16 bits or of floats
_WIDE = 65535


class BrokenFile(DataError):
    """A file that is no picture, or no whole one."""


def decode(who: str, path: Path) -> "Image":
    """A picture of mode RGB: grey, palette, CMYK, 16 bits and transparency (which is dropped) too; turned as it was taken.

    Raises:
        BrokenFile: no picture, a truncated one, or one with more pixels than Pillow's limit.
        DataError: missing, or cannot be read.
    """
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise DataError(f"`{who}`: needs Pillow. Install it with pip install spectralgrad-lab.") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a camera's bad notes, or of many pixels: the picture is whole
            with Image.open(path) as file:
                file.load()
                return _in_colour(_turned(file))
    except MemoryError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"`{who}`: {path} is missing. Unpack the archive again.") from error
    except Exception as error:  # Pillow's readers raise whatever a broken file leads them to
        if isinstance(error, OSError) and error.errno is not None:  # of the disk, not of the file
            raise DataError(f"`{who}`: {path} cannot be read: {error.strerror}.") from error
        words = str(error).replace(str(path), "it") or type(error).__name__
        raise BrokenFile(f"`{who}`: {path} must be a whole image file: {words}. Unpack the archive again.") from error


def _turned(image: "Image") -> "Image":
    from PIL import ImageOps

    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # broken notes of a camera, in a picture that is whole
        return image


def _in_colour(image: "Image") -> "Image":
    if image.mode in WIDE_MODES:
        from PIL import Image

        image = Image.fromarray(wide_grey(image).mul(255).round().to(torch.uint8).numpy())
    return image.convert("RGB")


def wide_grey(image: "Image") -> Tensor:
    """Grey (H, W) of 16 bits or of floats, in [0, 1]. Floats that go above 1 are taken to end at their largest value.

    >>> from PIL import Image
    >>> wide_grey(Image.fromarray(np.array([[0, 13107, 65535]], np.uint16)))
    tensor([[0.0000, 0.2000, 1.0000]])
    """
    grey = torch.from_numpy(np.array(image).astype(np.float32)).nan_to_num(0.0, 0.0, 0.0).clamp(min=0)
    return grey / max(float(grey.max()), 1.0 if image.mode == "F" else _WIDE)


def as_tensor(image: "Image") -> Tensor:
    """The pixels of an image of mode RGB: uint8 (3, H, W)."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)
