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


# Files that are read. Pillow knows more, and some of those are programs: for EPS it starts Ghostscript.
FORMATS = ("PNG", "JPEG", "MPO", "WEBP", "BMP", "GIF", "TIFF", "PPM", "TGA", "JPEG2000", "AVIF")
BYTES_OF_A_PIXEL = 32  # that reading takes at its worst, as numbers in [0, 1]; measured: 22 to 32, by the mode
MOST_BYTES = 2**31
MOST_PIXELS = MOST_BYTES // BYTES_OF_A_PIXEL  # 67 million: 8192 x 8192


class BrokenFile(DataError):
    """A file that is no picture, or no whole one."""


def decode(who: str, path: Path) -> "Image":
    """A picture of mode RGB: grey, palette, CMYK, 16 bits and transparency (which is dropped) too; turned as it was taken.

    Raises:
        BrokenFile: no picture, a truncated one, or one with more than MOST_PIXELS pixels.
        DataError: missing, or cannot be read.
    """
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise DataError(f"`{who}`: needs Pillow. Install it with pip install spectralgrad-lab.") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a camera's bad notes, or of many pixels: the picture is whole
            with Image.open(path, formats=known_formats()) as file:
                require_pixels(*file.size)
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


def known_formats() -> list[str]:
    """Those of FORMATS that this Pillow can read."""
    from PIL import Image

    Image.init()
    return [name for name in FORMATS if name in Image.OPEN]


def require_pixels(width: int, height: int) -> None:
    """Raise `ValueError` for a picture that would take too much memory, by its header alone: nothing was decoded yet.

    >>> require_pixels(13000, 13000)
    Traceback (most recent call last):
    ValueError: it has 169 million pixels, and at most 67 million, 2 GiB of memory, are read; make it smaller first
    """
    if width * height > MOST_PIXELS:
        raise ValueError(
            f"it has {width * height / 1e6:.0f} million pixels, and at most {MOST_PIXELS / 1e6:.0f} million, "
            f"{MOST_BYTES // 2**30} GiB of memory, are read; make it smaller first"
        )


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
