"""Two pictures in, one out: the Python face of `spectralgrad transfer`."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from spectralgrad.errors import DtypeError, OptionError, ShapeError
from spectralgrad.validation import require_finite

from .clock import Clock
from .deep import DeepTransfer, Networks, Progress, load_networks
from .matching import Coloring
from .options import Level, TransferOptions
from .pictures import Picture, resized
from .pixels import PixelTransfer

__all__ = ["Stylist", "transfer"]

_OVERSHOOT = 0.5  # interpolation leaves [0, 1] by less than that; a picture in 0..255 leaves it by more


def transfer(
    content: Tensor | Picture,
    style: Tensor | Picture,
    *,
    level: Level = "deep",
    strength: float | None = None,
    size: int | None = None,
    style_size: int | None = None,
    groups: int | None = None,
    coloring: Coloring = "nearest",
    depth: int = 4,
    tile: int = 1024,
    half: bool = False,
    device: str = "auto",
    weights: Path | None = None,
    clip: bool = True,
    progress: Progress | None = None,
) -> Tensor:
    """A content in the style of another picture, by whitening and colouring (PAMI 5.3.1).

    level="pixels" moves the mean and covariance of the colours; level="deep" those of VGG-19's features, from coarse to
    fine, each time through a decoder back to a picture.

    Args:
        content, style: (3, H, W) in [0, 1], of any two sizes; or pictures, whose transparent pixels do not count.
        level ... weights: see `TransferOptions`.
        clip: cut the result to [0, 1].
        progress: called with (done, all) steps.

    Returns:
        (3, H, W), float32, of the size of the content, or of ``size``.

    Raises:
        OptionError: an option out of its range, or a style of which nothing is visible.
        ShapeError, DtypeError, NonFiniteError: no pictures.

    >>> content, style = torch.rand(3, 20, 30), torch.rand(3, 8, 8) ** 2
    >>> result = transfer(content, style, level="pixels", clip=False)
    >>> bool((result.mean((1, 2)) - style.mean((1, 2))).abs().max() < 1e-4)
    True
    """
    options = TransferOptions(
        level=level, strength=strength, size=size, style_size=style_size, groups=groups, coloring=coloring,
        depth=depth, tile=tile, half=half, device=device, weights=weights,
    )  # fmt: skip
    result = Stylist(style, options)(content, progress).colors
    return result.clamp(0, 1) if clip else result


class Stylist:
    """A style that was looked at once, for any number of contents: the frames of a film.

    Args:
        style: (3, H, W) in [0, 1], or a picture.
        options: how.
        networks: deep: other networks than those that come with the package, by level.
        clock: to be told where the time goes.

    >>> stylist = Stylist(torch.rand(3, 8, 8), TransferOptions(level="pixels"))
    >>> stylist(torch.rand(3, 5, 9)).colors.shape
    torch.Size([3, 5, 9])
    """

    def __init__(
        self,
        style: Tensor | Picture,
        options: TransferOptions | None = None,
        *,
        networks: Mapping[str, Networks] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.options = options = options or TransferOptions()
        clock = clock or Clock()
        picture = resized(_as_picture("style", style), options.style_size)
        if picture.visible is not None and not bool(picture.visible.any()):
            raise OptionError("`transfer`: of the style nothing is visible, so it has no colours. Take another.")
        self._pixels: PixelTransfer | None = None
        self._deep: DeepTransfer | None = None
        if options.level == "pixels":
            self._pixels = PixelTransfer(picture.colors, picture.visible, options=options, clock=clock)
        else:
            networks = networks or load_networks(options.depth, options.weights, options.on)
            self._deep = DeepTransfer(picture.colors, picture.visible, options=options, networks=networks, clock=clock)

    def __call__(self, content: Tensor | Picture, progress: Progress | None = None) -> Picture:
        """The content in the style, not clipped; its transparency, profile and EXIF data are the content's.

        Args:
            content: (3, H, W) in [0, 1], or a picture.
            progress: called with (done, all) steps.
        """
        picture = resized(_as_picture("content", content), self.options.size)
        visible = picture.visible
        if self.options.amount == 0 or (visible is not None and not bool(visible.any())):
            return picture  # nothing is wanted, or nothing is to be seen
        if self._pixels is not None:
            colors = self._pixels(picture.colors, visible)
        else:
            assert self._deep is not None
            colors = self._deep(picture.colors, visible, progress)
        return replace(picture, colors=colors)


def _as_picture(name: str, x: Tensor | Picture) -> Picture:
    """A picture of float32 numbers, or the error that says why it is none."""
    picture = x if isinstance(x, Picture) else Picture(x)
    colors = picture.colors
    if not isinstance(colors, Tensor) or not colors.dtype.is_floating_point:
        came = colors.dtype if isinstance(colors, Tensor) else type(colors).__name__
        raise DtypeError(
            f"`transfer`: `{name}` must be a floating-point tensor in [0, 1], got {came}. Divide 0..255 by 255."
        )
    if colors.ndim != 3 or colors.shape[0] != 3 or 0 in colors.shape:
        raise ShapeError(
            f"`transfer`: `{name}` must have shape (3, H, W) with at least one pixel, got {tuple(colors.shape)}. Repeat a "
            "grey channel three times; pass transparency as Picture(colors, alpha)."
        )
    require_finite("transfer", colors, name)
    low, high = (float(bound) for bound in colors.detach().aminmax())
    if low < -_OVERSHOOT or high > 1 + _OVERSHOOT:
        raise OptionError(f"`transfer`: `{name}` must lie in [0, 1], got {low:.4g} to {high:.4g}. Divide 0..255 by 255.")
    return replace(picture, colors=colors.detach().to(torch.float32))
