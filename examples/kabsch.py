"""Superpose two clouds of points, and learn which points to trust by going back through the superposition.

What one learns: `kabsch` gives the best rotation and translation for given weights, and its gradient is exact, also where
singular values tie. Here a third of the points has moved elsewhere. With equal weights they turn the answer by many
degrees. The weights are learned: a robust loss of what remains after the superposition goes down as they leave the moved
points.

python examples/kabsch.py [PICTURE]
"""

import sys

import torch
from torch import Tensor

import spectralgrad as sg

POINTS, MOVED, NOISE = 60, 20, 0.03


def clouds() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A helix x (N, 3); the same turned, shifted and noisy, with its last third elsewhere, y; the true R and t."""
    generator = torch.Generator().manual_seed(4)
    angle = torch.linspace(0, 4 * torch.pi, POINTS)
    x = torch.stack([angle.cos(), angle.sin(), angle / 6], 1)
    R = sg.procrustes(torch.randn(3, 3, generator=generator), special=True)
    t = torch.randn(3, generator=generator)
    y = x @ R.T + t + NOISE * torch.randn(POINTS, 3, generator=generator)
    y[-MOVED:] += torch.tensor([2.0, -1.5, 1.0]) + 0.6 * torch.randn(MOVED, 3, generator=generator)
    return x, y, R, t


def degrees(R: Tensor, S: Tensor) -> float:
    """The angle between two rotations."""
    return float(torch.rad2deg(torch.acos((((R.T @ S).trace() - 1) / 2).clamp(-1, 1))))


def robust(x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """Cauchy's loss of what remains, of all points alike: moved ones cost little more the further they are."""
    R, t = sg.kabsch(x, y, weights=weights)
    return torch.log1p((x @ R.T + t - y).square().sum(1) / (3 * NOISE) ** 2).mean()


def main(steps: int = 150, picture: str | None = None) -> dict[str, float]:
    """Superpose with equal and with learned weights; print and return the angles to the truth."""
    x, y, R, _ = clouds()
    logits = torch.zeros(POINTS, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.2)
    for _ in range(steps):
        optimizer.zero_grad()
        robust(x, y, logits.sigmoid()).backward()
        optimizer.step()
    weights = logits.detach().sigmoid()
    fits = {"equal weights": sg.kabsch(x, y), "learned weights": sg.kabsch(x, y, weights=weights)}
    angles = {name: degrees(found.R, R) for name, found in fits.items()}
    for name, angle in angles.items():
        print(f"{name}: the rotation is off by {angle:.2f} degrees")
    moved, stayed = weights[-MOVED:].mean(), weights[:-MOVED].mean()
    print(f"mean weight of the points that moved {moved:.2f}, of the others {stayed:.2f}")
    if picture:
        draw(x, y, {f"{name}: off by {angles[name]:.1f}°": x @ fit.R.T + fit.t for name, fit in fits.items()}, picture)
    return {**angles, "moved": float(moved), "stayed": float(stayed)}


def draw(x: Tensor, y: Tensor, fitted: dict[str, Tensor], picture: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2), layout="constrained")
    panels = figure.subplots(1, 3, sharex=True, sharey=True)
    for axes, (title, points) in zip(panels, {"two clouds": x, **fitted}.items(), strict=True):
        axes.plot(y[:-MOVED, 0], y[:-MOVED, 2], "o", color="tab:gray", markersize=4, label="y")
        axes.plot(y[-MOVED:, 0], y[-MOVED:, 2], "x", color="tab:gray", markersize=5, label="y, moved elsewhere")
        axes.plot(points[:, 0], points[:, 2], "-", color="tab:blue", label="x, and R x + t")
        axes.set(title=title, aspect="equal", xticks=[], yticks=[])
    figure.legend(*panels[-1].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    figure.savefig(picture)


if __name__ == "__main__":
    main(picture=sys.argv[1] if sys.argv[1:] else None)
