"""The colours of a style: whitening and colouring of pixels (PAMI fig. 2 d), in strips, for pictures of any size."""

import torch
from torch import Tensor

from spectralgrad.linalg.covariance import Moments, merge_moments

from .clock import Clock
from .matching import gathered, matching
from .options import TransferOptions
from .tiles import strips

__all__ = ["EPS", "STRIP", "PixelTransfer"]

EPS = 1e-7  # as in `color_transfer`: a thirteenth of what rounding to 8 bits causes
STRIP = 2**18  # pixels at a time: the largest copy takes 6 MiB


class PixelTransfer:
    """`color_transfer` from a style whose statistics are taken once. Where a picture is transparent nothing counts."""

    def __init__(self, style: Tensor, visible: Tensor | None, *, options: TransferOptions, clock: Clock) -> None:
        self.strength, self.groups, self.device = options.amount, options.groups or 1, options.on
        self.clock = clock
        with clock("statistics"):
            self.style = self._moments(style, visible)

    def __call__(self, content: Tensor, visible: Tensor | None) -> Tensor:
        """The colours (3, H, W) of the result, not clipped, on the device of ``content``."""
        with self.clock("statistics"):
            found = self._moments(content, visible)
        with self.clock("decomposition"):
            move = matching(found, self.style, EPS, self.strength)
        result = torch.empty_like(content)
        with self.clock("map"):
            for where, strip in strips(content, STRIP):
                result[:, where] = move(strip.to(self.device)).to(content.device)
        return result

    def _moments(self, picture: Tensor, visible: Tensor | None) -> Moments:
        def samples(where: slice, strip: Tensor) -> Tensor:
            seen = strip.flatten(1) if visible is None else strip[:, visible[where].to(strip.device)]
            return seen.to(self.device)

        return merge_moments([gathered(samples(where, strip), self.groups) for where, strip in strips(picture, STRIP)])
