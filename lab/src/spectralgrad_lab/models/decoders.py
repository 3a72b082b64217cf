"""From VGG-19's features back to pictures: one mirrored network for each level."""

from itertools import pairwise

from torch import Tensor
from torch.nn import Conv2d, Module, ModuleList, init
from torch.nn.functional import interpolate, relu

from spectralgrad.errors import ShapeError

from .vgg import BLOCKS, CHANNELS, LEVELS, STRIDE, convolutions, padded, require_level

__all__ = ["Decoder"]

MIDDLE = 0.5  # of the range of pixels: where an untrained decoder starts


class Decoder(Module):
    """The encoder's convolutions in reverse, with bilinear upsampling for its maxima and ReLU after all but the last.

    relu1_1 has one convolution more than its mirror image: a single one is a linear inverse of rectified features, and
    those it cannot invert. Bilinear, since where features change slowly nearest upsampling makes steps, which a decoder
    learns to smooth for features of photographs alone: those of a transfer came back as a weave. Reflection leaves no frame.

    Args:
        level: whose features it takes.

    Raises:
        OptionError: an unknown level.

    >>> import torch
    >>> Decoder("relu3_1")(torch.zeros(1, 256, 4, 5)).shape
    torch.Size([1, 3, 16, 20])
    >>> sum(p.numel() for level in LEVELS for p in Decoder(level).parameters())
    4211404
    """

    def __init__(self, level: str) -> None:
        super().__init__()
        require_level("Decoder", level)
        self.level = level
        names = convolutions(level)[::-1]
        widths = [CHANNELS[f"relu{name[0]}_1"] for name in names]
        if level == LEVELS[0]:
            names, widths = [*names, *names], [*widths, *widths]
        self.convolutions = ModuleList(Conv2d(a, b, 3) for a, b in pairwise([*widths, 3]))
        # The mirror image of a maximum stands after the first convolution of a block, seen from the encoder.
        firsts = {block[0] for block in BLOCKS[1:]}
        self.doubled = tuple(name in firsts for name in names)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Random weights for ReLU, and pictures about the middle of the range."""
        layers = [layer for layer in self.convolutions if isinstance(layer, Conv2d)]
        for layer in layers:
            assert layer.bias is not None
            init.kaiming_normal_(layer.weight, nonlinearity="relu")
            init.constant_(layer.bias, MIDDLE if layer is layers[-1] else 0.0)

    def forward(self, x: Tensor) -> Tensor:
        """Pictures (N, 3, H, W), RGB, about [0, 1] and not clipped.

        Args:
            x: features (N, CHANNELS[level], H / STRIDE[level], W / STRIDE[level]).

        Raises:
            ShapeError: not such features.
        """
        channels = CHANNELS[self.level]
        if x.ndim != 4 or x.shape[1] != channels:
            raise ShapeError(
                f"`Decoder`: x must be features (N, {channels}, h, w) of {self.level}, got {tuple(x.shape)}. Take them from "
                f"Encoder(...)(pictures)[{self.level!r}]."
            )
        last = len(self.convolutions) - 1
        for index, (convolution, doubled) in enumerate(zip(self.convolutions, self.doubled, strict=True)):
            x = convolution(padded(x))
            x = relu(x) if index < last else x
            x = interpolate(x, scale_factor=2, mode="bilinear") if doubled else x
        return x

    @property
    def halo(self) -> int:
        """The pixels by which what a pixel depends on reaches beyond its own cell of features.

        >>> [Decoder(level).halo for level in LEVELS]
        [2, 5, 13, 37]
        """
        scale, total = STRIDE[self.level], 0
        for doubled in self.doubled:
            total += scale  # a convolution looks one position further, of `scale` pixels
            if doubled:
                scale //= 2
                total += scale  # and an interpolation one of its results further
        return total

    def extra_repr(self) -> str:
        return f"level={self.level!r}"
