"""Residual networks whose first normalisation is a parameter: that is the one the papers replace.

The papers' networks for CIFAR differ from ImageNet's in the stem alone: a 3 x 3 convolution of stride 1 and no pooling, so
that a 32 x 32 image enters the stages at full size. Its 64 channels come from 3 x 3 x 3 = 27 inputs, which is why their
covariance is singular (see docs/layers/decorrelation.md).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.nn import AdaptiveAvgPool2d, BatchNorm2d, Conv2d, Identity, Linear, MaxPool2d, Module, ReLU, Sequential, init

from spectralgrad.errors import OptionError
from spectralgrad.validation import is_whole

__all__ = ["DEPTHS", "DIGITS_STEM", "BasicBlock", "Bottleneck", "ResNet", "resnet18", "resnet50", "resnet_digits"]

Norm = Callable[[int], Module]  # channels -> a layer for maps (N, channels, H, W)
Stem = Literal["cifar", "imagenet"]


def _shortcut(inputs: int, outputs: int, stride: int, norm: Norm) -> Module:
    """The identity where it fits, else a 1 x 1 convolution."""
    if stride == 1 and inputs == outputs:
        return Identity()
    return Sequential(Conv2d(inputs, outputs, 1, stride, bias=False), norm(outputs))


class BasicBlock(Module):
    """Two 3 x 3 convolutions around a shortcut: relu(body(x) + shortcut(x)).

    Args:
        inputs, width: channels that come in, and of both convolutions.
        stride: of the first one.
        norm: makes every normalisation of the block.

    >>> BasicBlock(4, 8, stride=2, norm=BatchNorm2d)(torch.zeros(1, 4, 6, 6)).shape
    torch.Size([1, 8, 3, 3])
    """

    expansion = 1  # channels that leave, over `width`

    def __init__(self, inputs: int, width: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.body = Sequential(
            Conv2d(inputs, width, 3, stride, 1, bias=False),
            norm(width),
            ReLU(inplace=True),
            Conv2d(width, width, 3, 1, 1, bias=False),
            norm(width),
        )
        self.shortcut = _shortcut(inputs, width, stride, norm)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


class Bottleneck(Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions around a shortcut; the stride is the middle one's.

    Args: as in `BasicBlock`; 4 ``width`` channels leave.

    >>> Bottleneck(4, 8, stride=1, norm=BatchNorm2d)(torch.zeros(1, 4, 6, 6)).shape
    torch.Size([1, 32, 6, 6])
    """

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.body = Sequential(
            Conv2d(inputs, width, 1, bias=False),
            norm(width),
            ReLU(inplace=True),
            Conv2d(width, width, 3, stride, 1, bias=False),
            norm(width),
            ReLU(inplace=True),
            Conv2d(width, 4 * width, 1, bias=False),
            norm(4 * width),
        )
        self.shortcut = _shortcut(inputs, 4 * width, stride, norm)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


class ResNet(Module):
    """A residual network: stem, stages of blocks, mean over positions, linear classifier.

    The stages have width, 2 width, 4 width, ... channels; each but the first halves the map. Convolutions start from
    Kaiming's normal distribution by fan-out, normalisations from 1 and 0.

    Args:
        block: `BasicBlock` or `Bottleneck`.
        depths: blocks of each stage.
        num_classes: outputs.
        in_channels: of the images.
        width: channels of the first stage, before a bottleneck's expansion.
        stem_channels: of the first convolution; None is ``width``.
        stem: "cifar", 3 x 3 at stride 1; or "imagenet", 7 x 7 at stride 2 and a max pooling.
        first_stride: of the first stage.
        norm: makes the normalisation after the first convolution, from its number of channels.
        block_norm: makes every normalisation of the first ``blocks`` residual blocks (DRAFT's «1 block»).
        blocks: how many, from the first one on.

    Raises:
        OptionError: a size that is no whole number >= 1, or an unknown stem.

    >>> import spectralgrad as sg
    >>> whiten = lambda channels: sg.nn.DecorrelatedBatchNorm2d(channels, group_size=4)
    >>> net = ResNet(BasicBlock, [1, 1], width=8, norm=whiten)
    >>> net(torch.zeros(2, 3, 8, 8)).shape
    torch.Size([2, 10])
    >>> sum(p.numel() for p in resnet18().parameters())
    11173962
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: Sequence[int],
        *,
        num_classes: int = 10,
        in_channels: int = 3,
        width: int = 64,
        stem_channels: int | None = None,
        stem: Stem = "cifar",
        first_stride: int = 1,
        norm: Norm = BatchNorm2d,
        block_norm: Norm = BatchNorm2d,
        blocks: int = 1,
    ) -> None:
        channels = width if stem_channels is None else stem_channels
        sizes = {"num_classes": num_classes, "in_channels": in_channels, "width": width, "stem_channels": channels}
        for name, value in {**sizes, "first_stride": first_stride}.items():
            if not is_whole(value):
                raise OptionError(f"`ResNet`: {name} must be a whole number >= 1, got {value!r}.")
        if not depths or not all(is_whole(depth) for depth in depths):
            raise OptionError(f"`ResNet`: depths must be whole numbers >= 1, one for each stage, got {depths!r}.")
        if stem not in ("cifar", "imagenet"):
            raise OptionError(f'`ResNet`: stem must be "cifar" or "imagenet", got {stem!r}.')
        super().__init__()
        small = stem == "cifar"
        self.conv1 = Conv2d(in_channels, channels, 3 if small else 7, 1 if small else 2, 1 if small else 3, bias=False)
        self.norm1 = norm(channels)
        self.pool = Identity() if small else MaxPool2d(3, 2, 1)
        self.stages = Sequential()
        for stage, depth in enumerate(depths):
            residual = Sequential()
            for index in range(depth):
                stride = 1 if index else 2 if stage else first_stride
                inside = block_norm if sum(depths[:stage]) + index < blocks else BatchNorm2d
                residual.append(block(channels, width * 2**stage, stride, inside))
                channels = width * 2**stage * block.expansion
            self.stages.append(residual)
        self.mean = AdaptiveAvgPool2d(1)
        self.classifier = Linear(channels, num_classes)
        for module in self.modules():
            if isinstance(module, Conv2d):
                init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def features(self, x: Tensor) -> Tensor:
        """The last map, (N, C, H, W), of images (N, in_channels, H, W): what a pooling head takes."""
        with torch.autocast(x.device.type, enabled=False):
            # Rounding conv1's output to bfloat16 would break the ties of its covariance, which has rank 27 at most.
            x = torch.relu(self.norm1(self.conv1(x)))
        return self.stages(self.pool(x))  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.mean(self.features(x)).flatten(1))  # type: ignore[no-any-return]


# The networks of the trials; options of `ResNet` over these.
DEPTHS = {"resnet18": (2, 2, 2, 2), "resnet50": (3, 4, 6, 3), "digits": (1, 1)}
DIGITS_STEM = 64  # channels after conv1, as the papers have: of 9 inputs, so that their covariance has rank 9 at most
resnet18 = partial(ResNet, BasicBlock, DEPTHS["resnet18"])
resnet50 = partial(ResNet, Bottleneck, DEPTHS["resnet50"])
resnet_digits = partial(  # two cheap blocks, for 8 x 8 grey images
    ResNet, BasicBlock, DEPTHS["digits"], in_channels=1, width=16, stem_channels=DIGITS_STEM, first_stride=2
)
