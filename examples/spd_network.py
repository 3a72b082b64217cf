"""A small SPD network: which band noise was filtered with, told from the covariance of what twelve sensors saw of it.

What one learns: `BiMap`, `ReEig`, `LogEig` and `SPDBatchNorm` make a network on covariances. The same network is trained
beside it on torch.linalg.eigh and autograd. As in real recordings a few sensors are off: their rows and columns of the
covariance are zero, and these eigenvalues tie.

python examples/spd_network.py [PICTURE]
"""

import sys
from typing import Any

import torch
from torch import Tensor, nn

import spectralgrad as sg

BANDS = ((0.02, 0.12), (0.08, 0.18), (0.14, 0.24))  # in cycles per sample: they overlap
SENSORS, LENGTH = 12, 64


class PlainReEig(nn.Module):
    """ReEig as one writes it by hand."""

    def forward(self, X: Tensor) -> Tensor:
        w, V = torch.linalg.eigh(X)
        return (V * w.clamp(min=1e-4).unsqueeze(-2)) @ V.mT


class PlainLogEig(nn.Module):
    """LogEig as one writes it by hand."""

    def forward(self, X: Tensor) -> Tensor:
        w, V = torch.linalg.eigh(X)
        return (V * w.log().unsqueeze(-2)) @ V.mT


class Covariance(nn.Module):
    """(N, C, T) -> (N, C, C)."""

    def forward(self, x: Tensor) -> Tensor:
        return sg.covariance(x)


def network(rectify: type[nn.Module], logarithm: type[nn.Module]) -> nn.Sequential:
    """A filter for each sensor, their covariance, 12 x 12 -> 8 x 8, three classes."""
    return nn.Sequential(
        *(nn.Conv1d(SENSORS, SENSORS, 9, groups=SENSORS, bias=False), Covariance(), rectify()),
        *(sg.nn.BiMap(SENSORS, 8), rectify(), sg.nn.SPDBatchNorm(8), logarithm()),
        *(nn.Flatten(), nn.Linear(64, len(BANDS))),
    )


def batch(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Band-passed noise (n, 12, 64), late by a sample from sensor to sensor, and its bands; one to three sensors are off."""
    label = torch.randint(len(BANDS), (n,), generator=generator)
    low, high = torch.tensor(BANDS)[label].mT
    frequency = torch.fft.rfftfreq(LENGTH + SENSORS - 1)
    passed = (frequency >= low[:, None]) & (frequency <= high[:, None])
    noise = torch.randn(n, LENGTH + SENSORS - 1, generator=generator)
    signal = torch.fft.irfft(torch.fft.rfft(noise) * passed, noise.shape[-1]).unfold(-1, LENGTH, 1)
    signal = signal + 0.1 * torch.randn(signal.shape, generator=generator)  # of the sensors themselves
    off = torch.randint(SENSORS, (n, 3), generator=generator)
    on = torch.ones(n, SENSORS).scatter(1, off, 0.0)
    return signal * on.unsqueeze(-1), label


def train(model: nn.Module, steps: int, seed: int) -> dict[str, Any]:
    """A few steps of Adam; the step of the first NaN (-1: none), the gradients' norms, the accuracy on new signals."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    norms: list[float] = []
    for step in range(steps):
        x, label = batch(32, generator)
        loss = nn.functional.cross_entropy(model(x), label)
        optimizer.zero_grad()
        loss.backward()
        norm = float(nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]))
        if not norm < float("inf"):
            return {"nan": step, "gradient": max(norms, default=0.0), "norms": norms, "accuracy": float("nan")}
        norms.append(norm)
        optimizer.step()
    x, label = batch(200, generator)
    with torch.no_grad():
        accuracy = float((model.eval()(x).argmax(1) == label).float().mean())
    return {"nan": -1, "gradient": max(norms), "norms": norms, "accuracy": accuracy}


def attempt(model: nn.Module, steps: int, seed: int) -> dict[str, Any]:
    """`train`, where an eigensolver or a check that gives up counts as a failure in its step too."""
    try:
        return train(model, steps, seed)
    except (torch.linalg.LinAlgError, sg.errors.SpectralError):
        return {"nan": -2, "gradient": float("nan"), "norms": [], "accuracy": float("nan")}


def main(steps: int = 60, seeds: int = 3, picture: str | None = None) -> dict[str, list[dict[str, Any]]]:
    """Train both on the same signals; print and return what happened."""
    kinds = {"spectralgrad": (sg.nn.ReEig, sg.nn.LogEig), "torch.linalg.eigh": (PlainReEig, PlainLogEig)}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in kinds}
    for seed in range(seeds):
        for name, layers in kinds.items():
            torch.manual_seed(seed)
            result = attempt(network(*layers), steps, seed)
            found[name].append(result)
            ended = {-1: f"accuracy {result['accuracy']:.3f}", -2: "refused by a solver or a check"}
            what = ended.get(int(result["nan"]), f"NaN or Inf in the gradient of step {int(result['nan'])}")
            print(f"seed {seed}, {name}: {what}; largest gradient before {result['gradient']:.2g}")
    if picture:
        draw(found, picture)
    return found


def draw(found: dict[str, list[dict[str, Any]]], picture: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.4), layout="constrained")
    axes = figure.subplots()
    for (name, results), color in zip(found.items(), ("tab:blue", "tab:red"), strict=True):
        for seed, result in enumerate(results):
            axes.semilogy(result["norms"], color=color, linewidth=1, label=None if seed else name)
            if result["nan"] != -1:  # where it ended, at the last finite gradient
                axes.plot(len(result["norms"]), (result["norms"] or [1.0])[-1], "x", color=color, markersize=9)
    axes.set(xlabel="step", ylabel="norm of the gradient", title="Three seeds; a cross: the gradient is not finite")
    axes.legend()
    figure.savefig(picture)


if __name__ == "__main__":
    main(picture=sys.argv[1] if sys.argv[1:] else None)
