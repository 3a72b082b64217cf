"""Watch the condition number of a whitening layer while a network trains, and what a treatment of its weight does to it.

What one learns: `ConditionMonitor` records the spectrum of every covariance that a layer whitens, and changes nothing in
the training. The convolution before the layer decides how far the eigenvalues of that covariance are apart.
`orthogonal_weight` keeps the convolution orthogonal, `NearestOrthogonalGradient` makes each of its steps so (ECCV 2022):
the ratio of the largest eigenvalue to the smallest comes out lower.

python examples/condition_number.py [PICTURE]     # needs spectralgrad-lab for the digits
"""

import sys

import torch
from torch import Tensor, nn

import spectralgrad as sg
from spectralgrad_lab.data.digits import load_digits

CHANNELS = 8  # fewer than the nine numbers that the convolution sees: the covariance can be inverted


def network() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(1, CHANNELS, 3, bias=False), sg.nn.DecorrelatedBatchNorm2d(CHANNELS), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(36 * CHANNELS, 10)),
    )


def watched(treatment: str, images: Tensor, labels: Tensor, steps: int) -> list[float]:
    """Train with a treatment; the condition number in every recorded step."""
    torch.manual_seed(0)
    model = network()
    if treatment == "orthogonal weight":
        sg.orthogonal.orthogonal_weight(model[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if treatment == "nearest orthogonal gradient":
        sg.orthogonal.NearestOrthogonalGradient(optimizer, [model[0].weight])
    with sg.diagnostics.ConditionMonitor(model, every=2) as monitor:
        monitor.attach(optimizer)
        for _ in range(steps):
            chosen = torch.randint(len(images), (128,))
            loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return [record["condition"] for record in monitor.records]


def main(steps: int = 200, picture: str | None = None) -> dict[str, list[float]]:
    """Train three times; print and return the condition numbers."""
    digits = load_digits()
    images = digits.train_x.float() / 16
    found = {}
    for treatment in ("no treatment", "orthogonal weight", "nearest orthogonal gradient"):
        found[treatment] = watched(treatment, images, digits.train_y, steps)
        first, last = found[treatment][0], found[treatment][-1]
        print(f"{treatment}: condition number {first:.0f} at first, {last:.0f} after {steps} steps")
    if picture:
        draw(found, picture)
    return found


def draw(found: dict[str, list[float]], picture: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.4), layout="constrained")
    axes = figure.subplots()
    for treatment, values in found.items():
        axes.semilogy(range(0, 2 * len(values), 2), values, label=treatment)
    axes.set(xlabel="step", ylabel="largest over smallest eigenvalue", title="Covariance before whitening")
    axes.legend()
    figure.savefig(picture)


if __name__ == "__main__":
    main(picture=sys.argv[1] if sys.argv[1:] else None)
