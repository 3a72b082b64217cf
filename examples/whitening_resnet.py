"""Whiten a ResNet: batch norm after the first convolution becomes decorrelation, in one line, and is folded away at the end.

What one learns: the first 3 x 3 convolution of a grey image sees nine numbers, so that its 64 channels have a covariance
of rank nine. 55 eigenvalues tie, whatever the data: the textbook gradient of whitening divides by their differences and
is not finite in the first steps, the exact one is. After training `fuse` folds the whitening into the convolution, and
inference costs what it did before.

python examples/whitening_resnet.py [PICTURE]     # needs spectralgrad-lab for the digits
"""

import sys

import torch
from torch import Tensor, nn

import spectralgrad as sg
from spectralgrad_lab.data.digits import load_digits

WIDE, CHANNELS = 64, 16


class Block(nn.Module):
    """Two convolutions and the way around them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            *(nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()),
            *(nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.path(x))


def resnet() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(1, WIDE, 3, padding=1, bias=False), nn.BatchNorm2d(WIDE), nn.ReLU()),
        *(nn.Conv2d(WIDE, CHANNELS, 1, bias=False), nn.BatchNorm2d(CHANNELS), Block(CHANNELS), Block(CHANNELS)),
        *(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * CHANNELS, 10)),
    )


def train(model: nn.Module, data: tuple[Tensor, Tensor], steps: int) -> list[float]:
    """The loss in every step, up to the first that is not a number."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    generator = torch.Generator().manual_seed(0)
    losses: list[float] = []
    for _ in range(steps):
        chosen = torch.randint(len(data[0]), (128,), generator=generator)
        loss = nn.functional.cross_entropy(model(data[0][chosen]), data[1][chosen])
        optimizer.zero_grad()
        loss.backward()
        if not all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None):
            break
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def main(steps: int = 150, picture: str | None = None) -> dict[str, list[float]]:
    """Train with three normalisations of the first convolution; print and return their losses."""
    digits = load_digits()
    x, test = digits.train_x.float() / 16, digits.test_x.float() / 16
    choices = {
        "batch norm": None,
        "whitening, exact gradient": sg.Exact(),
        "whitening, textbook gradient": sg.Analytic(),
    }
    found: dict[str, list[float]] = {}
    for name, gradient in choices.items():
        torch.manual_seed(0)
        model = resnet()
        if gradient is not None:
            sg.nn.convert_batchnorm(model, "1", eps=1e-3, gradient=gradient)  # the one line
        found[name] = train(model, (x, digits.train_y), steps)
        if len(found[name]) < steps:
            print(f"{name}: the gradient of step {len(found[name])} is not finite")
            continue
        model.eval()
        with torch.no_grad():
            before, after = model(test), sg.nn.fuse(model)(test)
        error = float((after.argmax(1) != digits.test_y).float().mean())
        off = float((after - before).abs().max())
        print(f"{name}: test error {100 * error:.1f} %; folded into the convolution the output is off by {off:.0e}")
    if picture:
        draw(found, picture)
    return found


def draw(losses: dict[str, list[float]], picture: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.4), layout="constrained")
    axes = figure.subplots()
    for name, values in losses.items():
        if len(values) > 1:
            axes.semilogy(values, label=name)
        else:
            axes.plot([0], [2.3], "kx", markersize=10, label=f"{name}: NaN in step {len(values)}")
    axes.set(xlabel="step", ylabel="training loss", title="A small ResNet on digits")
    axes.legend()
    figure.savefig(picture)


if __name__ == "__main__":
    main(picture=sys.argv[1] if sys.argv[1:] else None)
