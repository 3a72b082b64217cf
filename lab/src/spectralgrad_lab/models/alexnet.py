"""AlexNet in one column, with batch normalisation, for covariance pooling (PAMI Table 7).

The papers do not print their protocol for it. Ours: the five convolutions of the one-column network (64, 192, 384, 256,
256 channels), each followed by a normalisation, since without one the learning rate 0.1 of the other networks diverges;
for images below 128 pixels 3 x 3 kernels at stride 1, so that a map is left to pool.
"""

from torch import Tensor
from torch.nn import (
    AdaptiveAvgPool2d,
    BatchNorm2d,
    Conv2d,
    Dropout,
    Flatten,
    Linear,
    MaxPool2d,
    Module,
    ReLU,
    Sequential,
    init,
)

from spectralgrad.errors import OptionError
from spectralgrad.validation import is_whole

from .resnet import Norm

__all__ = ["AlexNet"]

LARGE = 128  # pixels, from which the original stem applies
GRID = 6  # positions a side that the classifier of the original network sees
HIDDEN = 64  # hidden units of the classifier, in widths: 4096


class AlexNet(Module):
    """Five convolutions, and the classifier of the original network or a head in its place.

    Args:
        num_classes: outputs.
        in_channels: of the images.
        width: channels of the first convolution; the others follow in proportion.
        size: pixels a side: the stem depends on it.
        norm: makes the normalisation after the first convolution, from its number of channels.
        head: takes the last map, (N, `channels`, H, W); None is dropout and three linear layers.

    Attributes:
        channels: of the last map, 4 ``width``.

    Raises:
        OptionError: a size that is no whole number >= 1.

    >>> import torch
    >>> AlexNet(width=4, size=32)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        num_classes: int = 10,
        *,
        in_channels: int = 3,
        width: int = 64,
        size: int = 224,
        norm: Norm = BatchNorm2d,
        head: Module | None = None,
    ) -> None:
        sizes = {"num_classes": num_classes, "in_channels": in_channels, "width": width, "size": size}
        for name, value in sizes.items():
            if not is_whole(value):
                raise OptionError(f"`AlexNet`: {name} must be a whole number >= 1, got {value!r}.")
        super().__init__()
        large = size >= LARGE
        stem = (11, 4, 2) if large else (3, 1, 1)
        shrink = MaxPool2d(3, 2) if large else MaxPool2d(3, 2, 1)
        self.channels = 4 * width
        self.conv1 = Conv2d(in_channels, width, *stem, bias=False)
        self.norm1 = norm(width)
        self.body = Sequential(
            ReLU(inplace=True),
            shrink,
            *_convolution(width, 3 * width, 5 if large else 3),
            shrink,
            *_convolution(3 * width, 6 * width, 3),
            *_convolution(6 * width, 4 * width, 3),
            *_convolution(4 * width, self.channels, 3),
        )
        for module in self.modules():
            if isinstance(module, Conv2d):
                init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        self.head = _classifier(self.channels, HIDDEN * width, num_classes) if head is None else head

    def features(self, x: Tensor) -> Tensor:
        """The last map, (N, C, H, W), of images (N, in_channels, size, size): what a pooling head takes."""
        return self.body(self.norm1(self.conv1(x)))  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))  # type: ignore[no-any-return]


def _convolution(inputs: int, outputs: int, kernel: int) -> tuple[Module, ...]:
    return Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False), BatchNorm2d(outputs), ReLU(inplace=True)


def _classifier(channels: int, hidden: int, num_classes: int) -> Module:
    return Sequential(
        AdaptiveAvgPool2d(GRID),
        Flatten(),
        Dropout(),
        Linear(channels * GRID * GRID, hidden),
        ReLU(inplace=True),
        Dropout(),
        Linear(hidden, hidden),
        ReLU(inplace=True),
        Linear(hidden, num_classes),
    )
