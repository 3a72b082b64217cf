"""A covariance pooling head on any backbone, for images and for tokens: what average pooling cannot tell apart.

What one learns: `CovariancePool2d` stands where average pooling stood, for maps (N, C, H, W) and for tokens (N, T, C)
alike. The classes here differ in how features go together and not in their mean, which is all that an average sees.

python examples/covariance_pooling_head.py [PICTURE]
"""

import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn

from spectralgrad.nn import CovariancePool2d

CLASSES, SIZE, REDUCED, TOKENS = 4, 28, 32, 50
Batch = Callable[[int], tuple[Tensor, Tensor]]


def with_covariance_pooling(backbone: nn.Module, channels: int, classes: int, reduced: int = 256) -> nn.Sequential:
    """``backbone`` gives maps (N, channels, H, W) or tokens (N, T, channels), without the average that it ended in."""
    pool = CovariancePool2d(channels, reduced=reduced, normalize="frobenius")
    return nn.Sequential(backbone, pool, nn.BatchNorm1d(pool.out_features), nn.Linear(pool.out_features, classes))


class Average(nn.Module):
    """Over positions, or over tokens."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3) if x.ndim == 4 else 1)


def with_average_pooling(backbone: nn.Module, channels: int, classes: int) -> nn.Sequential:
    return nn.Sequential(backbone, Average(), nn.BatchNorm1d(channels), nn.Linear(channels, classes))


def random_backbone(channels: int = 64) -> nn.Module:
    """A tiny random and frozen one, here for a pretrained one: 28 x 28 pixels become 7 x 7 positions."""
    backbone = nn.Sequential(nn.Conv2d(3, 16, 5, 2, 2), nn.Tanh(), nn.Conv2d(16, channels, 3, 2, 1))
    return backbone.requires_grad_(False)


def random_embedding(channels: int = 64) -> nn.Module:
    """The same for tokens, in the place of a transformer; an odd function, so that the mean tells nothing."""
    embedding = nn.Sequential(nn.Linear(3, 16, bias=False), nn.Tanh(), nn.Linear(16, channels))
    return embedding.requires_grad_(False)


def images(n: int) -> tuple[Tensor, Tensor]:
    """Noise whose colours are mixed in the class's own way: all classes have the same mean."""
    mixes = torch.randn(CLASSES, 3, 3, generator=torch.Generator().manual_seed(1))
    label = torch.randint(CLASSES, (n,))
    return torch.einsum("nij,njhw->nihw", mixes[label], torch.randn(n, 3, SIZE, SIZE)), label


def tokens(n: int) -> tuple[Tensor, Tensor]:
    """The same as sequences (n, T, 3)."""
    x, label = images(n)
    return x.flatten(2)[:, :, :TOKENS].mT, label


def train(model: nn.Module, batch: Batch, steps: int) -> tuple[float, list[float]]:
    """A few steps of SGD; the accuracy on new samples, and the loss in every step."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.02, momentum=0.9)
    losses = []
    for _ in range(steps):
        x, label = batch(64)
        loss = nn.functional.cross_entropy(model(x), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    x, label = batch(500)
    return float((model.eval()(x).argmax(1) == label).float().mean()), losses


def main(steps: int = 30, picture: str | None = None) -> dict[str, float]:
    """Train either head on the same frozen backbone, for images and for tokens; print and return the accuracies."""
    accuracy, losses = {}, {}
    for kind, batch, frozen in (("images", images, random_backbone), ("tokens", tokens, random_embedding)):
        for pooling in ("covariance", "average"):
            torch.manual_seed(0)
            name = f"{pooling} pooling of {kind}"
            if pooling == "covariance":
                model = with_covariance_pooling(frozen(), 64, CLASSES, REDUCED)
            else:
                model = with_average_pooling(frozen(), 64, CLASSES)
            accuracy[name], losses[name] = train(model, batch, steps)
            print(f"{name}: accuracy {accuracy[name]:.3f} after {steps} steps")
    if picture:
        draw(losses, accuracy, picture)
    return accuracy


def draw(losses: dict[str, list[float]], accuracy: dict[str, float], picture: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    for axes, kind in zip(figure.subplots(1, 2, sharey=True), ("images", "tokens"), strict=True):
        for name in [name for name in losses if name.endswith(kind)]:
            axes.plot(losses[name], label=f"{name.partition(' of ')[0]}: accuracy {accuracy[name]:.2f}")
        axes.set(title=kind, xlabel="step", ylabel="training loss")
        axes.legend()
    figure.savefig(picture)


if __name__ == "__main__":
    main(picture=sys.argv[1] if sys.argv[1:] else None)
