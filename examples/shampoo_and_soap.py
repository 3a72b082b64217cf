"""Shampoo and SOAP: optimizers that know how the rows and the columns of a gradient go together.

What one learns: an optimizer's matrix roots and eigenbases are one call each, `inv_root` and `eigh(start=)`, and on
inputs of very unequal variance they pay.

python examples/shampoo_and_soap.py [PICTURE]

For a weight with gradients G, L and R are running means of G G^T and G^T G. Shampoo's step is L^(-1/4) G R^(-1/4) (Gupta et
al., 2018): `inv_root`. SOAP is Adam on Q_L^T G Q_R, in the eigenbases of L and R (Vyas et al., 2024): `eigh`, which starts
from the last basis, so that on a GPU Jacobi's method needs fewer sweeps. Vectors, such as biases, take Adam's step in both.
"""

import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

import spectralgrad as sg

INPUTS, HIDDEN, OUTPUTS = 32, 48, 8


class Adam(torch.optim.Optimizer):
    """Plain Adam; what the others do differently with a matrix is in `precondition`."""

    def __init__(self, params: Iterable[Tensor], lr: float = 0.01, beta1: float = 0.9, beta2: float = 0.99, every: int = 5):
        super().__init__(params, {"lr": lr, "beta1": beta1, "beta2": beta2, "every": every})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(step=0, mean=torch.zeros_like(p), square=torch.zeros_like(p))
                    state["moments"] = [torch.zeros(n, n) for n in p.shape]
                    state["sides"] = [torch.eye(n) for n in p.shape]  # bases, or roots
                self._update(p, state, **group)

    def _update(self, p: Tensor, state: dict[str, Any], lr: float, beta1: float, beta2: float, every: int, **_: Any) -> None:
        state["step"] += 1
        state["mean"].lerp_(p.grad, 1 - beta1)
        mean = state["mean"] / (1 - beta1 ** state["step"])
        if p.ndim == 2:
            for moment, outer in zip(state["moments"], (p.grad @ p.grad.T, p.grad.T @ p.grad), strict=True):
                moment.lerp_(outer, 1 - beta2)
            if (state["step"] - 1) % every == 0:
                unbiased = 1 - beta2 ** state["step"]
                pairs = zip(state["moments"], state["sides"], strict=True)
                state["sides"] = [self.side(moment / unbiased, old) for moment, old in pairs]
            p.sub_(self.precondition(p.grad, mean, state, beta2), alpha=lr)
        else:
            p.sub_(self.scaled(p.grad, mean, state, beta2), alpha=lr)

    def scaled(self, G: Tensor, mean: Tensor, state: dict[str, Any], beta2: float) -> Tensor:
        """The mean over the root of the mean square, entry by entry."""
        state["square"].lerp_(G.square(), 1 - beta2)
        return mean / ((state["square"] / (1 - beta2 ** state["step"])).sqrt() + 1e-8)

    def side(self, moment: Tensor, old: Tensor) -> Tensor:
        return old

    def precondition(self, G: Tensor, mean: Tensor, state: dict[str, Any], beta2: float) -> Tensor:
        return self.scaled(G, mean, state, beta2)


class Shampoo(Adam):
    def side(self, moment: Tensor, old: Tensor) -> Tensor:
        """M^(-1/4); eigenvalues below 1e-4 of the mean one, which the next gradients may well have, count as that."""
        return sg.inv_root(moment, 4, floor=1e-4 * float(moment.trace()) / len(moment) + 1e-30)

    def precondition(self, G: Tensor, mean: Tensor, state: dict[str, Any], beta2: float) -> Tensor:
        """Its direction with the length of Adam's step, which is known as grafting."""
        left, right = state["sides"]
        direction = left @ mean @ right
        return direction * (self.scaled(G, mean, state, beta2).norm() / (direction.norm() + 1e-30))


class Soap(Adam):
    def side(self, moment: Tensor, old: Tensor) -> Tensor:
        """Eigenvectors, from those of five steps ago; on a CPU LAPACK finds them, which needs no start."""
        return sg.eigh(moment, start=old).eigenvectors

    def precondition(self, G: Tensor, mean: Tensor, state: dict[str, Any], beta2: float) -> Tensor:
        left, right = state["sides"]
        if state["step"] == 1:  # in its own eigenbasis a gradient is diagonal, and the rest of it is rounding
            return torch.zeros_like(G)
        return left @ self.scaled(left.T @ G @ right, left.T @ mean @ right, state, beta2) @ right.T


def batch(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Regression on correlated inputs of very unequal variance; the target is a fixed random network of their sources."""
    fixed = torch.Generator().manual_seed(1)
    axes = torch.linalg.qr(torch.randn(INPUTS, INPUTS, generator=fixed))[0]
    first, second = torch.randn(INPUTS, HIDDEN, generator=fixed), torch.randn(HIDDEN, OUTPUTS, generator=fixed)
    z = torch.randn(n, INPUTS, generator=generator)
    return (z * torch.logspace(0, -2, INPUTS)) @ axes, torch.tanh(z @ first / INPUTS**0.5) @ second / HIDDEN**0.5


def train(optimize: type[Adam], steps: int) -> tuple[float, list[float]]:
    """The mean squared error on new samples, relative to the variance of the target; and on each batch of the training."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, OUTPUTS))
    optimizer = optimize(model.parameters())
    errors = []
    for _ in range(steps):
        x, y = batch(128, generator)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        errors.append(float(loss.detach() / y.var()))
    x, y = batch(2000, generator)
    return float(nn.functional.mse_loss(model(x), y).detach() / y.var()), errors


def main(steps: int = 300, picture: str | None = None) -> dict[str, float]:
    """Train the same network with each; print and return the errors."""
    errors, curves = {}, {}
    for optimize in (Adam, Shampoo, Soap):
        name = optimize.__name__
        errors[name], curves[name] = train(optimize, steps)
        print(f"{name}: error {errors[name]:.3f} of the variance after {steps} steps")
    if picture:
        draw(curves, picture)
    return errors


def draw(curves: dict[str, list[float]], picture: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.4), layout="constrained")
    axes = figure.subplots()
    for name, errors in curves.items():
        axes.semilogy(errors, label=name, linewidth=1)
    axes.set(xlabel="step", ylabel="error, of the target's variance", title="Regression on inputs of unequal variance")
    axes.legend()
    figure.savefig(picture)


if __name__ == "__main__":
    main(picture=sys.argv[1] if sys.argv[1:] else None)
