"""Discriminators that judge patches at several scales, with one map of verdicts for each domain."""

from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

from spectralgrad.errors import OptionError
from spectralgrad.validation import is_whole

SLOPE = 0.2  # of the leaky ReLU
DEPTH = 3  # convolutions with stride 2


class PatchDiscriminator(nn.Module):
    """Verdicts on patches: near 1 for real pictures of a domain, near 0 for painted ones.

    Args:
        domains: how many; each has its own map, the convolutions below it are common.
        width: channels after the first convolution.
        scales: each half as fine as the one before.

    Raises:
        OptionError: an option out of its range.

    >>> import torch
    >>> [tuple(maps.shape) for maps in PatchDiscriminator(3, width=4, scales=2)(torch.rand(1, 3, 32, 32))]
    [(1, 3, 4, 4), (1, 3, 2, 2)]
    """

    def __init__(self, domains: int, width: int = 64, scales: int = 2) -> None:
        for name, value in (("domains", domains), ("width", width), ("scales", scales)):
            if not is_whole(value):
                raise OptionError(f"`PatchDiscriminator`: {name} must be a whole number >= 1, got {value!r}.")
        super().__init__()
        self.judges = nn.ModuleList(_judge(domains, width) for _ in range(scales))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, a=SLOPE, nonlinearity="leaky_relu")
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]

    def forward(self, pictures: Tensor) -> list[Tensor]:
        """Maps (N, domains, h, w) by scale, the finest first, of pictures (N, 3, H, W) in [0, 1]."""
        x, found = 2 * pictures - 1, []
        for i, judge in enumerate(self.judges):
            if i:
                x = avg_pool2d(x, 3, stride=2, padding=1, count_include_pad=False)
            found.append(judge(x).float())
        return found


def _judge(domains: int, width: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    before = 3
    for depth in range(DEPTH):
        after = width << depth
        layers += [nn.Conv2d(before, after, 4, stride=2, padding=1), nn.LeakyReLU(SLOPE)]
        before = after
    return nn.Sequential(*layers, nn.Conv2d(before, domains, 1))
