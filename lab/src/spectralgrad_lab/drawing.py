"""Tensors as pictures of 8 bits, and pictures side by side on one sheet."""

import io
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["as_image", "encoded", "font", "laid_out"]

QUALITY = 92  # of JPEG
SMALL = 128  # pixels a side; below that a PNG file is small, and shows every pixel
WHITE = 255
Place = tuple[int, int]  # left and top, in pixels


def as_image(layers: Tensor) -> "Image":
    """An image of layers (C, H, W): 3 for colours, 4 with transparency; values are cut to [0, 1]."""
    from PIL import Image

    values = torch.empty(*layers.shape[1:], len(layers), dtype=torch.uint8)
    for i, layer in enumerate(layers.detach()):  # one at a time: a wide copy of all would double what a large one takes
        values[..., i] = (layer.float() * WHITE).round_().clamp_(0, WHITE).to(torch.uint8)
    return Image.fromarray(values.numpy())


def encoded(image: Tensor) -> bytes:
    """A picture (3, H, W) in [0, 1] as a file: PNG where it is small, else JPEG.

    >>> encoded(torch.zeros(3, 8, 8))[:4]
    b'\\x89PNG'
    """
    small = max(image.shape[-2:]) < SMALL
    buffer = io.BytesIO()
    as_image(image).save(buffer, "PNG" if small else "JPEG", **({"optimize": True} if small else {"quality": QUALITY}))
    return buffer.getvalue()


def laid_out(
    size: tuple[int, int],
    pictures: Iterable[tuple[Place, "Image"]],
    words: Iterable[tuple[Place, str]] = (),
    *,
    letters: int = 15,
    ink: int = 0,
) -> "Image":
    """A white sheet with pictures and words at their places.

    Args:
        size: width and height.
        pictures: each with its upper left corner.
        words: each with where it begins.
        letters: their height, in pixels.
        ink: 0, black, to 255.

    >>> laid_out((9, 5), [((1, 1), as_image(torch.zeros(3, 2, 2)))]).getpixel((2, 2))
    (0, 0, 0)
    """
    from PIL import Image, ImageDraw

    sheet = Image.new("RGB", size, "white")
    for place, picture in pictures:
        sheet.paste(picture, place)
    pen = ImageDraw.Draw(sheet)
    for place, text in words:
        pen.text(place, text, fill=(ink, ink, ink), font=font(letters))
    return sheet


def font(letters: int) -> Any:
    """Pillow's own font, its letters this many pixels high."""
    from PIL import ImageFont

    return ImageFont.load_default(letters)
