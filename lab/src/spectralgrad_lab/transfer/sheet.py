"""A contact sheet: rows of pictures side by side, with captions."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from .pictures import Picture, write_picture

__all__ = ["contact_sheet", "thumbnail", "write_sheet"]

HEIGHT = 320  # of a picture on the sheet
WIDEST = 3 * HEIGHT  # a panorama is scaled down further
MARGIN, CAPTION = 12, 24
PAPER, INK = 1.0, 0.2
CHECKER = (0.8, 0.95)  # behind what is transparent
SQUARE = 8


def contact_sheet(rows: Sequence[Sequence[Picture] | Sequence[Tensor]], captions: Sequence[Sequence[str]]) -> Tensor:
    """Pictures in rows, each with a caption below it.

    Args:
        rows: pictures (3, H, W) of any size, in rows of any length.
        captions: as many.

    Returns:
        (3, H, W), in [0, 1].

    >>> contact_sheet([[torch.rand(3, 40, 40), torch.rand(3, 20, 40)]], [["content", "style"]]).shape
    torch.Size([3, 368, 996])
    """
    cells = [[thumbnail(picture) for picture in row] for row in rows]
    height = MARGIN + sum(max(cell.shape[1] for cell in row) + CAPTION + MARGIN for row in cells)
    width = MARGIN + max(sum(cell.shape[2] + MARGIN for cell in row) for row in cells)
    sheet = torch.full((3, height, width), PAPER)
    top = MARGIN
    for row, words in zip(cells, captions, strict=True):
        left, tallest = MARGIN, max(cell.shape[1] for cell in row)
        for cell, word in zip(row, words, strict=True):
            h, w = cell.shape[1:]
            sheet[:, top : top + h, left : left + w] = cell
            sheet[:, top + tallest : top + tallest + CAPTION, left : left + w] = _written(word, w)
            left += w + MARGIN
        top += tallest + CAPTION + MARGIN
    return sheet


def write_sheet(path: Path, rows: Sequence[Sequence[Picture] | Sequence[Tensor]], captions: Sequence[Sequence[str]]) -> Path:
    """Write a contact sheet; whole or not at all."""
    return write_picture(path, contact_sheet(rows, captions))


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


def _written(words: str, width: int) -> Tensor:
    """A caption (CAPTION, width) in Pillow's own font, shortened where it is too long."""
    import numpy as np
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(size=14)
    while len(words) > 1 and font.getlength(words) > width:
        words = words[:-2] + "…" if len(words) > 2 else words[:-1]
    image = Image.new("L", (width, CAPTION), round(255 * PAPER))
    ImageDraw.Draw(image).text((0, 4), words, fill=round(255 * INK), font=font)
    return torch.from_numpy(np.array(image)).float() / 255
