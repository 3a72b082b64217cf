"""The passes of a whitening layer on the device: their times, times with other settings, and the whole layer by format."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from spectralgrad.kernels import affine, launches, moments, tiles
from spectralgrad.nn import passes as layers

from .case import Case
from .device import captured, queued_ms, wall_ms
from .inputs import normal
from .layers import BATCH_NORM, whitening_of
from .measure import Effort
from .on_request import PASSES
from .peers import OURS
from .rows import Row, raised

TENSORS = dict(zip(PASSES, (1, 2, 2, 3), strict=True))  # of the size of the input, that a pass reads or writes
BEST = 3  # settings that are shown
SMALLEST_BLOCK = 16


@contextmanager
def precision(mode: str) -> Iterator[None]:
    """Products of the passes in this mode."""
    before, tiles.PRECISION = tiles.PRECISION, mode
    launches.forget_launches()
    try:
        yield
    finally:
        tiles.PRECISION = before
        launches.forget_launches()


def features(case: Case, device: torch.device, mean: float, seed: int) -> Tensor:
    """Correlated channels (N, C, H, W) in the case's dtype and memory format."""
    x = normal(*case.shape, device=device, seed=seed)
    x = (x + 0.5 * x.roll(1, 1) + mean).to(getattr(torch, case.dtype))
    return x.contiguous(memory_format=torch.channels_last) if case.kind == "channels_last" else x


def passes(x: Tensor, g: Tensor, d: int) -> dict[str, Callable[[], object]]:
    """The passes over maps x and gradients g (N, C, H, W), in groups of d."""
    groups, C = x.shape[1] // d, x.shape[1]
    A, S = (normal(groups, d, d, device=x.device, seed=seed) / d**0.5 for seed in (1, 2))
    bias, shift = (normal(C, device=x.device, seed=seed) for seed in (3, 4))
    mean, rest, _ = layers.grouped_moments(x, groups)
    return {
        "moments": lambda: layers.grouped_moments(x, groups),
        "transform": lambda: layers.transform(x, A, mean, rest, bias),
        "sums": lambda: layers.transform_sums(g, x, groups, mean, rest),
        "combine": lambda: layers.combine(g, x, A, S, mean, rest, shift),
    }


def _row(case: Case, name: str, x: Tensor, milliseconds: float, tensors: int) -> Row:
    speed = f"{tensors * x.nbytes / milliseconds / 1e6:.0f} GB/s"
    return Row(case.section, name, case.d, case.batch, "milliseconds", milliseconds, at_least=False, note=speed)


def time_kernels(case: Case, device: torch.device, effort: Effort) -> list[Row]:
    """Milliseconds on the device of each pass, without the host's: replayed from a CUDA graph."""
    x, g = features(case, device, 1.0, 0), features(case, device, 0.0, 1)
    with precision(case.function):
        times = {name: queued_ms(captured(kernel)) for name, kernel in passes(x, g, case.d).items()}
    return [_row(case, f"{name}, {case.function}, {case.kind}", x, ms, TENSORS[name]) for name, ms in times.items()]


def time_settings(case: Case, device: torch.device, effort: Effort) -> list[Row]:
    """One pass with other blocks, warps and programs than its table in kernels/ says; the best are for that table."""
    tables: dict[str, Any] = {
        "moments": moments.CONFIGS,
        "transform": affine.CONFIGS,
        "sums": affine.SUM_CONFIGS,
        "combine": affine.COMBINE_CONFIGS,
    }
    table = tables[case.kind]
    x, g = features(case, device, 1.0, 0), features(case, device, 0.0, 1)
    kernel, usual, tried = passes(x, g, case.d)[case.kind], table[case.d], []
    try:
        for config in _around(usual):
            table[case.d] = config
            launches.forget_launches()
            try:
                tried.append((queued_ms(captured(kernel), runs=20, warm_up=3), config))
            except Exception:  # out of shared memory, mostly: no candidate
                torch.cuda.synchronize()
    finally:
        table[case.d] = usual
        launches.forget_launches()
    best = sorted(tried, key=lambda pair: pair[0])[:BEST]
    return [_row(case, f"{case.kind}, {_told(config)}", x, ms, TENSORS[case.kind]) for ms, config in best]


def _around(usual: Any) -> Iterator[Any]:
    """Half and twice of each number."""
    for block in (usual.block // 2, usual.block, usual.block * 2):
        for warps in sorted({max(1, usual.warps // 2), usual.warps, usual.warps * 2}):
            for programs in sorted({max(1, usual.programs // 2), usual.programs, usual.programs * 2}):
                if block >= SMALLEST_BLOCK:
                    yield usual._replace(block=block, warps=warps, programs=programs)


def _told(config: Any) -> str:
    return f"block {config.block}, {config.warps} warps, {config.programs} programs"


def _step(layer: nn.Module, x: Tensor, g: Tensor) -> Callable[[], None]:
    """Forward + backward; half precision as autocast gives it."""

    def step() -> None:
        with torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=x.dtype == torch.bfloat16):
            y = layer(x)
        torch.autograd.grad(y, [x, *layer.parameters()], g)

    return step


def time_layouts(case: Case, device: torch.device, effort: Effort) -> list[Row]:
    """Whitening over batch norm in one dtype and memory format, by three clocks. The device alone has no target."""
    x, g = features(case, device, 1.0, 0).requires_grad_(), features(case, device, 0.0, 1)
    layers = {OURS: whitening_of(case.d)(case.shape[1]), BATCH_NORM: nn.BatchNorm2d(case.shape[1])}
    steps = {name: _step(layer.to(device), x, g) for name, layer in layers.items()}
    clocks: dict[str, tuple[Callable[[Callable[[], None]], float], float | None]] = {
        "events": (queued_ms, case.target),
        "wall clock": (wall_ms, case.target),
        "CUDA graph": (lambda step: queued_ms(captured(step)), None),
    }
    rows = []
    for clock, (time, target) in clocks.items():
        name = f"{case.dtype}, {case.kind}, {clock}"
        try:
            seconds = {method: 1e-3 * time(step) for method, step in steps.items()}
        except RuntimeError as error:  # a solver that synchronises cannot be captured
            torch.cuda.synchronize()
            rows.append(Row(case.section, name, case.d, case.batch, "ratio", failed={OURS: raised(error)}))
            continue
        rows.append(_ratio(case, name, seconds, target))
    return rows


def _ratio(case: Case, name: str, seconds: dict[str, float], target: float | None) -> Row:
    return Row(
        case.section,
        name,
        case.d,
        case.batch,
        "ratio",
        seconds[OURS] / seconds[BATCH_NORM],
        target=target,
        at_least=False,
        baseline=BATCH_NORM,
        seconds={method: (value, value, value) for method, value in seconds.items()},
        dtype=case.dtype,
    )
