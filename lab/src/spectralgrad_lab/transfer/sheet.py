"""A contact sheet: rows of pictures side by side, with captions."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from spectralgrad_lab.drawing import as_image, font, laid_out

from .pictures import Picture, write_image

__all__ = ["thumbnail", "write_sheet"]

HEIGHT = 320  # of a picture on the sheet
WIDEST = 3 * HEIGHT  # a panorama is scaled down further
MARGIN, CAPTION, ABOVE = 12, 24, 4  # pixels between pictures, for a caption, and of it above its letters
LETTERS, INK = 14, 51
CHECKER = (0.8, 0.95)  # behind what is transparent
SQUARE = 8


def write_sheet(path: Path, rows: Sequence[Sequence[Picture] | Sequence[Tensor]], captions: Sequence[Sequence[str]]) -> Path:
    """Write a contact sheet, whole or not at all: pictures in rows, each with a caption below it.

    Args:
        path: as for `write_picture`.
        rows: pictures (3, H, W) of any size, in rows of any length.
        captions: as many.

    Returns:
        The path.
    """
    cells = [[as_image(thumbnail(picture)) for picture in row] for row in rows]
    pictures, words, top, right = [], [], MARGIN, 0
    for row, texts in zip(cells, captions, strict=True):
        left, tallest = MARGIN, max(cell.height for cell in row)
        for cell, text in zip(row, texts, strict=True):
            pictures.append(((left, top), cell))
            words.append(((left, top + tallest + ABOVE), _shortened(text, cell.width)))
            left += cell.width + MARGIN
        top, right = top + tallest + CAPTION + MARGIN, max(right, left)
    return write_image(path, laid_out((right, top), pictures, words, letters=LETTERS, ink=INK))


def thumbnail(picture: Picture | Tensor) -> Tensor:
    """A picture at the height of a row, on a checkerboard where it is transparent."""
    picture = picture if isinstance(picture, Picture) else Picture(picture)
    height, width = picture.colors.shape[-2:]
    scale = min(HEIGHT / height, WIDEST / width)
    shape = max(1, round(height * scale)), max(1, round(width * scale))
    colors, alpha = picture.colors.clamp(0, 1), picture.alpha
    if alpha is not None:
        rows, columns = (torch.arange(length) // (SQUARE * max(1, height // HEIGHT)) for length in (height, width))
        checks = torch.tensor(CHECKER)[(rows[:, None] + columns) % 2]
        colors = torch.lerp(checks.expand_as(colors), colors, alpha)
    how: dict[str, Any] = {"mode": "bilinear", "antialias": True} if scale < 1 else {"mode": "nearest-exact"}
    return interpolate(colors[None].cpu(), shape, **how)[0].clamp(0, 1)


def _shortened(words: str, width: int) -> str:
    """A caption that is no wider than its picture."""
    letters = font(LETTERS)
    while len(words) > 1 and letters.getlength(words) > width:
        words = words[:-2] + "…" if len(words) > 2 else words[:-1]
    return words
