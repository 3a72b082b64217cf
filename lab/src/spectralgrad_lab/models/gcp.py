"""Networks that end in the root of a covariance in place of a mean: global covariance pooling (GCP)."""

import torch
from torch import Tensor
from torch.nn import Flatten, Linear, Module, Sequential

from spectralgrad.nn import CovariancePool2d

from .resnet import ResNet

__all__ = ["PooledResNet", "pooling_head"]


def pooling_head(pool: CovariancePool2d, num_classes: int) -> Sequential:
    """The pooling and a linear classifier over the upper triangle of its matrix.

    >>> import torch
    >>> pooling_head(CovariancePool2d(8, reduced=4), 3)(torch.randn(2, 8, 5, 5)).shape
    torch.Size([2, 3])
    """
    return Sequential(pool, Flatten(), Linear(pool.out_features, num_classes))


class PooledResNet(Module):
    """A residual network whose mean over positions and classifier are replaced by a head.

    Args:
        trunk: the network; its own classifier is taken off.
        head: takes its last map, (N, C, H, W).

    >>> import torch
    >>> from spectralgrad_lab.models.resnet import resnet18
    >>> net = PooledResNet(resnet18(width=4), pooling_head(CovariancePool2d(32, reduced=4), 10))
    >>> net(torch.randn(2, 3, 16, 16)).shape
    torch.Size([2, 10])
    """

    def __init__(self, trunk: ResNet, head: Module) -> None:
        super().__init__()
        del trunk.classifier, trunk.mean  # or DistributedDataParallel would wait for their gradients
        self.trunk = trunk
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        features = self.trunk.features(x)
        with torch.autocast(x.device.type, enabled=False):
            return self.head(features.to(x.dtype))  # type: ignore[no-any-return]
