"""Frechet's distance as a measure of images, and as the loss that trains a generator of them.

What one learns: `frechet_distance_of` is FID on any features, here the 64 pixels of digits. Some pixels are always empty,
so that both covariances are singular; the gradient exists all the same, and a generator trained on this distance alone
makes images with the mean and the covariance of digits. (That is not yet digits: FID sees two moments and no more.)

python examples/fid.py [PICTURE]     # needs spectralgrad-lab for the digits
"""

import sys

import torch
from torch import Tensor, nn

import spectralgrad as sg
from spectralgrad_lab.data.digits import load_digits

NOISE = 48  # numbers that a sample is made of


def measured(real: Tensor) -> dict[str, float]:
    """The distance of one half of the images to the other half, as they are and worse and worse."""
    first, second = real[::2], real[1::2]
    blurred = nn.functional.avg_pool2d(second.view(-1, 1, 8, 8), 3, 1, 1, count_include_pad=False).flatten(1)
    worse = {
        "the other half": second,
        "with a little noise": second + 0.1 * torch.randn(second.shape),
        "with more noise": second + 0.3 * torch.randn(second.shape),
        "blurred": blurred,
        "noise alone": torch.rand(second.shape),
    }
    return {name: float(sg.frechet_distance_of(first, images)) for name, images in worse.items()}


def train(generator: nn.Module, real: Tensor, steps: int) -> list[float]:
    """Descend on the distance between a batch of fakes and all real images."""
    optimizer = torch.optim.Adam(generator.parameters(), lr=3e-3)
    mean, covariance = real.mean(0), torch.cov(real.T)
    losses = []
    for _ in range(steps):
        fake = generator(torch.randn(256, NOISE))
        loss = sg.frechet_distance(fake.mean(0), torch.cov(fake.T), mean, covariance)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def main(steps: int = 300, picture: str | None = None) -> dict[str, float]:
    """Measure, train, print and return the distances."""
    torch.manual_seed(0)
    real = load_digits().train_x.float().flatten(1) / 16
    distances = measured(real)
    for name, distance in distances.items():
        print(f"distance of {name}: {distance:.3f}")
    generator = nn.Sequential(nn.Linear(NOISE, 128), nn.ReLU(), nn.Linear(128, 64), nn.Sigmoid())
    losses = train(generator, real, steps)
    distances["generated"] = losses[-1]
    print(f"distance of generated images: {losses[0]:.3f} before, {losses[-1]:.3f} after {steps} steps")
    if picture:
        with torch.no_grad():
            draw(losses, distances, real[:24], generator(torch.randn(24, NOISE)), picture)
    return distances


def draw(losses: list[float], marks: dict[str, float], real: Tensor, fake: Tensor, picture: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    curve, first, second = figure.subplots(1, 3, width_ratios=(2, 1, 1))
    curve.semilogy(losses, color="tab:blue")
    for name in ("the other half", "with a little noise", "blurred", "noise alone"):
        curve.axhline(marks[name], color="tab:gray", linewidth=0.8)
        curve.text(len(losses), marks[name], name, ha="right", va="bottom", fontsize="small")
    curve.set(xlabel="step", ylabel="distance to digits", title="FID on pixels, descended")
    for axes, title, images in ((first, "digits", real), (second, "generated", fake)):
        framed = nn.functional.pad(images.view(6, 4, 8, 8), (1, 1, 1, 1), value=0.4)
        sheet = framed.permute(0, 2, 1, 3).reshape(60, 40)
        axes.imshow(sheet.numpy(), cmap="gray_r", vmin=0, vmax=1)
        axes.set(title=title, xticks=[], yticks=[])
    figure.savefig(picture)


if __name__ == "__main__":
    main(picture=sys.argv[1] if sys.argv[1:] else None)
