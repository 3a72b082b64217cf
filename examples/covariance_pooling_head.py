"""A covariance pooling head on any backbone: textures that average pooling cannot tell apart.

python examples/covariance_pooling_head.py
"""

import torch
from torch import Tensor, nn

from spectralgrad.nn import CovariancePool2d

CLASSES, SIZE, REDUCED = 4, 28, 32


def with_covariance_pooling(backbone: nn.Module, channels: int, classes: int, reduced: int = 256) -> nn.Sequential:
    """``backbone`` gives maps (N, channels, H, W) of any size; what it ended in, average pooling and all, is left out."""
    pool = CovariancePool2d(channels, reduced=reduced, normalize="frobenius")
    return nn.Sequential(backbone, pool, nn.BatchNorm1d(pool.out_features), nn.Linear(pool.out_features, classes))


def with_average_pooling(backbone: nn.Module, channels: int, classes: int) -> nn.Sequential:
    return nn.Sequential(
        backbone, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.BatchNorm1d(channels), nn.Linear(channels, classes)
    )


def random_backbone(channels: int = 64) -> nn.Module:
    """A tiny random and frozen one, here for a pretrained one: 28 x 28 pixels become 7 x 7 positions."""
    backbone = nn.Sequential(nn.Conv2d(3, 16, 5, 2, 2), nn.Tanh(), nn.Conv2d(16, channels, 3, 2, 1))
    return backbone.requires_grad_(False)


def batch(n: int) -> tuple[Tensor, Tensor]:
    """Noise whose colours are mixed in the class's own way: all classes have the same mean."""
    mixes = torch.randn(CLASSES, 3, 3, generator=torch.Generator().manual_seed(1))
    label = torch.randint(CLASSES, (n,))
    return torch.einsum("nij,njhw->nihw", mixes[label], torch.randn(n, 3, SIZE, SIZE)), label


def train(model: nn.Module, steps: int) -> float:
    """A few steps of SGD; the accuracy on new images."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.02, momentum=0.9)
    for _ in range(steps):
        x, label = batch(64)
        loss = nn.functional.cross_entropy(model(x), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    x, label = batch(500)
    return float((model.eval()(x).argmax(1) == label).float().mean())


def main(steps: int = 30) -> dict[str, float]:
    """Train either head on the same frozen backbone; print and return the accuracies."""
    accuracy = {}
    for name in ("covariance pooling", "average pooling"):
        torch.manual_seed(0)
        backbone = random_backbone()
        covariance = name == "covariance pooling"
        head = (
            with_covariance_pooling(backbone, 64, CLASSES, REDUCED)
            if covariance
            else with_average_pooling(backbone, 64, CLASSES)
        )
        accuracy[name] = train(head, steps)
        print(f"{name}: accuracy {accuracy[name]:.3f} after {steps} steps")
    return accuracy


if __name__ == "__main__":
    main()
