"""Where the time of a small CUDA step goes when the host, not the device, is what one waits for.

autograd's own floor, a training step of batch norm and of whitening, the same replayed as a CUDA graph, which is the
device's time alone, and the host time of each part of the whitening step.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from spectralgrad.kernels import jacobi, launches, spectral, whitening
from spectralgrad.nn import DecorrelatedBatchNorm2d

from .case import Case
from .device import WARM_UP, captured, wall_ms
from .inputs import normal
from .layers import whitening_of
from .measure import Effort
from .rows import Row

STEPS = 100
PARTS: list[tuple[Any, str]] = [
    (launches.Launch, "__call__"),
    (jacobi, "launch"),
    (spectral, "launch_value"),
    (spectral, "launch_derivative"),
    (whitening, "forward"),
    (whitening, "backward"),
    (DecorrelatedBatchNorm2d, "forward"),
]


def floor_ms(device: torch.device) -> float:
    """torch.autograd.grad of one multiplication by 2."""
    x = torch.ones(4, device=device, requires_grad=True)
    y, g = 2 * x, torch.ones(4, device=device)
    return wall_ms(lambda: torch.autograd.grad(y, x, g, retain_graph=True), STEPS)


def parts_of(step: Callable[[], object], parts: list[tuple[Any, str]] | None = None) -> dict[str, list[float]]:
    """Host milliseconds of every call of the functions in ``parts`` (default: `PARTS`) while ``step`` is called once."""
    spent: dict[str, list[float]] = {}

    def timed(label: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            start = time.perf_counter()
            result = function(*args, **options)
            spent.setdefault(label, []).append((time.perf_counter() - start) * 1e3)
            return result

        return call

    kept = [(owner, name, getattr(owner, name)) for owner, name in parts or PARTS]
    for owner, name, function in kept:
        setattr(owner, name, timed(f"{owner.__name__.split('.')[-1]}.{name}", function))
    try:
        step()
    finally:
        for owner, name, function in kept:
            setattr(owner, name, function)
    return spent


def time_host(case: Case, device: torch.device, effort: Effort) -> list[Row]:
    """Milliseconds, no targets."""

    def row(name: str, milliseconds: float, note: str = "") -> Row:
        return Row(case.section, name, case.d, case.batch, "milliseconds", milliseconds, at_least=False, note=note)

    rows = [row("autograd.grad of a multiplication", floor_ms(device))]
    x = normal(*case.shape, device=device).requires_grad_()
    g = normal(*case.shape, device=device, seed=1)
    for layer in (nn.BatchNorm2d(case.shape[1]).to(device), whitening_of(case.d)(case.shape[1]).to(device)):

        def step(layer: nn.Module = layer) -> None:
            torch.autograd.grad(layer(x), [x, *layer.parameters()], g)

        name = type(layer).__name__
        rows += [
            row(f"{name}, eager", wall_ms(step, STEPS)),
            row(f"{name}, as a CUDA graph", wall_ms(captured(step), STEPS)),
        ]
    for part, times in parts_of(lambda: wall_ms(step, STEPS)).items():  # of the last layer, which is whitening
        rows.append(row(part, statistics.median(times), f"{len(times) / (STEPS + WARM_UP):.0f} times a step"))
    return rows
