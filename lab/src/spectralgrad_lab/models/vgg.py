"""VGG-19 up to relu4_1, the encoder of style transfer: its features are what is whitened and coloured.

Three choices differ from the original, and none changes what it computes in the middle of a picture:

- It takes RGB in [0, 1]. The order of the channels and the mean are folded into the first convolution.
- Its features are the original ones divided by 255. The network is positively homogeneous (convolutions, ReLU, maxima), so
  that scaling picture and biases by a number scales every feature by it. Features of order 1 suit half precision.
- It pads by reflection, not by zeros. A border of zeros is an edge that no picture has: it leaks into the covariance of the
  features and shows as a frame in what a decoder makes of them. Reflection also makes the folding exact at the border,
  since a padded pixel then has the mean in it like any other.
"""

from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import Conv2d, Module, ModuleDict
from torch.nn.functional import max_pool2d, pad, relu

from spectralgrad.errors import OptionError, ShapeError

__all__ = ["CHANNELS", "LEVELS", "STRIDE", "Encoder", "padded"]

LEVELS = ("relu1_1", "relu2_1", "relu3_1", "relu4_1")
CHANNELS = dict(zip(LEVELS, (64, 128, 256, 512), strict=True))
STRIDE = dict(zip(LEVELS, (1, 2, 4, 8), strict=True))
# Convolutions in their order, by block; a maximum over 2 x 2 stands between blocks. The first of a block makes a level.
BLOCKS = (("1_1", "1_2"), ("2_1", "2_2"), ("3_1", "3_2", "3_3", "3_4"), ("4_1",))


def convolutions(level: str) -> list[str]:
    """The names of the convolutions up to a level, in their order.

    >>> convolutions("relu2_1")
    ['1_1', '1_2', '2_1']
    """
    require_level("convolutions", level)
    names = [name for block in BLOCKS for name in block]
    return names[: names.index(level.removeprefix("relu")) + 1]


def require_level(who: str, level: str) -> None:
    if level not in LEVELS:
        raise OptionError(f"`{who}`: level must be one of {', '.join(LEVELS)}, got {level!r}.")


def padded(x: Tensor) -> Tensor:
    """One more pixel on each side of (N, C, H, W), by reflection; a side of one pixel is repeated instead.

    >>> padded(torch.tensor([[[[1.0, 2.0, 3.0]]]]))[0, 0, 0]
    tensor([2., 1., 2., 3., 2.])
    """
    if x.is_cuda:  # torch's reflection there drops channels_last, and its gradient adds atomically
        return joined(joined(x, 2), 3)
    height, width = x.shape[2:]
    x = pad(x, (0, 0, 1, 1), mode="reflect" if height > 1 else "replicate")
    return pad(x, (1, 1, 0, 0), mode="reflect" if width > 1 else "replicate")


def joined(x: Tensor, axis: int) -> Tensor:
    """The same along one axis, by concatenation."""
    last = x.shape[axis] - 1
    inner = min(1, last)
    return torch.cat([x.narrow(axis, inner, 1), x, x.narrow(axis, last - inner, 1)], axis)


class Encoder(Module):
    """VGG-19 up to a level, from pictures to the features of every level on the way.

    A level's features are (N, CHANNELS[level], H / STRIDE[level], W / STRIDE[level]), rounded down: maxima drop a last odd
    row, so H and W are best divisible by the stride.

    Args:
        level: the last one that is computed.

    Raises:
        OptionError: an unknown level.

    >>> import torch
    >>> features = Encoder("relu2_1")(torch.rand(1, 3, 8, 6))
    >>> {level: tuple(x.shape) for level, x in features.items()}
    {'relu1_1': (1, 64, 8, 6), 'relu2_1': (1, 128, 4, 3)}
    """

    def __init__(self, level: str = "relu4_1") -> None:
        super().__init__()
        require_level("Encoder", level)
        self.level = level
        names = convolutions(level)
        widths = [3, *(CHANNELS[f"relu{name[0]}_1"] for name in names)]
        self.convolutions = ModuleDict({name: Conv2d(a, b, 3) for name, (a, b) in zip(names, pairwise(widths), strict=True)})

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Features by level.

        Args:
            x: pictures (N, 3, H, W), RGB in [0, 1]; H and W at least STRIDE[level].

        Raises:
            ShapeError: not such pictures.
        """
        least = STRIDE[self.level]
        if x.ndim != 4 or x.shape[1] != 3 or min(x.shape[2:]) < least:
            raise ShapeError(
                f"`Encoder`: x must be (N, 3, H, W) with H and W at least {least} for {self.level}, got {tuple(x.shape)}. "
                "Enlarge a smaller picture first."
            )
        found: dict[str, Tensor] = {}
        for name, convolution in self.convolutions.items():
            if name.endswith("_1") and found:
                x = max_pool2d(x, 2)
            x = relu(convolution(padded(x)))
            if name.endswith("_1"):
                found[f"relu{name}"] = x
        return found

    def halo(self, level: str | None = None) -> int:
        """The pixels by which a feature looks beyond its own cell of STRIDE x STRIDE pixels; of the last level for None.

        >>> [Encoder().halo(level) for level in LEVELS]
        [1, 4, 10, 30]
        """
        level = self.level if level is None else level
        return sum(STRIDE[f"relu{name[0]}_1"] for name in convolutions(level))

    def extra_repr(self) -> str:
        return f"level={self.level!r}"
