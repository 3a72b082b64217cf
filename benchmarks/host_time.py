"""Where the time of a small CUDA step goes when the host, not the device, is what one waits for.

`python benchmarks/host_time.py` on a GPU: autograd's own floor, a training step of batch norm and of whitening with the host
time of each part, and the same step replayed as a CUDA graph, which is the device's time alone.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from check_cuda_kernels import captured, wall_time
from torch import Tensor, nn

from spectralgrad.kernels import jacobi, launches, spectral, whitening
from spectralgrad.nn import DecorrelatedBatchNorm2d

SHAPE, GROUP = (128, 64, 32, 32), 16
PARTS: list[tuple[Any, str]] = [
    (launches.Launch, "__call__"),
    (jacobi, "launch"),
    (spectral, "launch_value"),
    (spectral, "launch_derivative"),
    (whitening, "forward"),
    (whitening, "backward"),
    (DecorrelatedBatchNorm2d, "forward"),
]


def microseconds(call: Callable[[], object]) -> float:
    """Of a call in a loop with one synchronisation at its end."""
    for _ in range(10):
        call()
    return 1e3 * wall_time(call)


def floor() -> float:
    """torch.autograd.grad of one multiplication by 2."""
    x = torch.ones(4, device="cuda", requires_grad=True)
    y, g = 2 * x, torch.ones(4, device="cuda")
    return microseconds(lambda: torch.autograd.grad(y, x, g, retain_graph=True))


def step_of(layer: nn.Module, x: Tensor, g: Tensor) -> Callable[[], object]:
    return lambda: torch.autograd.grad(layer(x), [x, *layer.parameters()], g)


def parts_of(step: Callable[[], object]) -> dict[str, list[float]]:
    """Host microseconds of every call of the functions in PARTS during a hundred steps."""
    spent: dict[str, list[float]] = {}

    def timed(label: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            start = time.perf_counter()
            result = function(*args, **options)
            spent.setdefault(label, []).append((time.perf_counter() - start) * 1e6)
            return result

        return call

    kept = [(owner, name, getattr(owner, name)) for owner, name in PARTS]
    for owner, name, function in kept:
        setattr(owner, name, timed(f"{owner.__name__.split('.')[-1]}.{name}", function))
    try:
        microseconds(step)
    finally:
        for owner, name, function in kept:
            setattr(owner, name, function)
    return spent


def main() -> int:
    if not torch.cuda.is_available():
        print("needs a CUDA device", file=sys.stderr)
        return 2
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; {SHAPE}, groups of {GROUP}; microseconds")
    print(f"autograd.grad of a multiplication: {floor():.0f}")
    x = torch.randn(*SHAPE, device="cuda").requires_grad_()
    g = torch.randn(*SHAPE, device="cuda")
    for layer in (nn.BatchNorm2d(SHAPE[1]), DecorrelatedBatchNorm2d(SHAPE[1], GROUP)):
        step = step_of(layer.cuda(), x, g)
        eager, graph = microseconds(step), microseconds(captured(step))
        print(f"{type(layer).__name__}: forward + backward {eager:.0f}, as a CUDA graph {graph:.0f}")
    for name, times in parts_of(step).items():
        print(f"  {name:32} {len(times) / 110:.0f} times a step, {sorted(times)[len(times) // 2]:.0f} each")
    return 0


if __name__ == "__main__":
    sys.exit(main())
