"""Classify points whose classes differ only where the variance is small: whitening finds that direction at once.

What one learns: `DecorrelatedBatchNorm1d` stands where `BatchNorm1d` stood. Batch norm scales each channel by itself and
leaves a direction of small variance small; whitening makes all directions alike, and the network sees the class in the
first steps.

python examples/whitening_classifier.py [PICTURE]
"""

import sys

import torch
from torch import Tensor, nn

import spectralgrad.nn as snn

CHANNELS, HIDDEN, CLASSES = 16, 32, 4


def batch(n: int) -> tuple[Tensor, Tensor]:
    """Strongly correlated features; the class moves them along the weakest two of their principal axes."""
    label = torch.randint(CLASSES, (n,))
    angle = label * (2 * torch.pi / CLASSES)
    signal = torch.zeros(n, CHANNELS)
    signal[:, -2:] = 0.1 * torch.stack([angle.cos(), angle.sin()], 1)
    axes = torch.linalg.qr(torch.randn(CHANNELS, CHANNELS, generator=torch.Generator().manual_seed(1)))[0]
    spread = torch.logspace(1, -1.7, CHANNELS)
    return (torch.randn(n, CHANNELS) * spread + signal) @ axes, label


def main(steps: int = 150, picture: str | None = None) -> dict[str, float]:
    """Train the same network with either normalisation of its input; print and return the accuracies on new points."""
    accuracy, losses = {}, {}
    for norm in (snn.DecorrelatedBatchNorm1d(CHANNELS), nn.BatchNorm1d(CHANNELS)):
        torch.manual_seed(0)
        model = nn.Sequential(norm, nn.Linear(CHANNELS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
        name = type(norm).__name__
        losses[name] = []
        for _ in range(steps):
            x, label = batch(256)
            loss = nn.functional.cross_entropy(model(x), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[name].append(float(loss.detach()))
        x, label = batch(2000)
        accuracy[name] = float((model.eval()(x).argmax(1) == label).float().mean())
        print(f"{name}: accuracy {accuracy[name]:.3f} after {steps} steps")
    if picture:
        draw(losses, picture)
    return accuracy


def draw(losses: dict[str, list[float]], picture: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.4), layout="constrained")
    axes = figure.subplots()
    for name, values in losses.items():
        axes.plot(values, label=name)
    axes.set(xlabel="step", ylabel="training loss", title="Four classes along the weakest two of sixteen axes")
    axes.legend()
    figure.savefig(picture)


if __name__ == "__main__":
    main(picture=sys.argv[1] if sys.argv[1:] else None)
