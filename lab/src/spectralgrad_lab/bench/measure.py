"""Times, side by side: every method in every round, in an order that turns round, on inputs that rotate.

So a change of clock or a disturbance meets all methods alike. On the GPU a sample is one call, from a quiet device to its
completion, by CUDA events: what a user waits. On the CPU a sample repeats short calls until it lasts a millisecond.
"""

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from .case import Case
from .peers import OURS
from .rows import Kind, Row, quartiles, raised

SETS = 3  # inputs to rotate among: what a call left in the caches is not the next one's
SLOW = 0.3  # seconds: where the baseline takes longer, peers are left out; they call the same solver

Call = Callable[[int], object]  # with the number of the input set
Build = Callable[[], Call]


@dataclass(frozen=True)
class Effort:
    """How long to measure a case: rounds go on for ``seconds``, but not beyond ``most`` nor below `fewest`."""

    seconds: float
    most: int = 101
    least: int = 2
    sample_seconds: float = 1e-3  # CPU: a sample is at least so long
    peers_up_to: float = SLOW

    def fewest(self, round_seconds: float) -> int:
        """Rounds that are taken in any case: enough for quartiles where they are cheap."""
        return max(self.least, 7 if round_seconds < 0.1 else 5 if round_seconds < 0.3 else 3 if round_seconds < 2 else 2)

    def warm_up(self, call_seconds: float) -> int:
        """Calls before the first sample, after one that may have compiled something."""
        return SETS if call_seconds < 0.1 else 1 if call_seconds < 1 else 0


FULL_CPU = Effort(3.0, least=5)  # a CPU is easily disturbed
FULL_GPU = Effort(0.5, most=51)
QUICK = Effort(0.2, most=9)


@dataclass
class Times:
    """Seconds of every round, by method; and what peers raised."""

    seconds: dict[str, list[float]]
    failed: dict[str, str] = field(default_factory=dict)


def seconds_of(call: Call, index: int, device: torch.device, repeats: int = 1) -> float:
    """Seconds of one call, averaged over ``repeats``."""
    if device.type == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize(device)
        start.record()
        for _ in range(repeats):
            call(index)
        end.record()
        end.synchronize()
        return 1e-3 * float(start.elapsed_time(end)) / repeats
    begin = time.perf_counter()
    for _ in range(repeats):
        call(index)
    return (time.perf_counter() - begin) / repeats


def _prepare(call: Call, device: torch.device, effort: Effort) -> tuple[float, int]:
    """Warm up; returns the seconds of a call and how many of them make a sample."""
    first = seconds_of(call, 0, device)
    for index in range(effort.warm_up(first)):
        first = seconds_of(call, index, device)
    if device.type == "cuda":
        return first, 1
    repeats = max(1, round(effort.sample_seconds / max(first, 1e-9)))
    while first < effort.sample_seconds:  # a process's first calls are slow, and would be taken for what a call costs
        first = seconds_of(call, 0, device, repeats)
        if first * repeats > effort.sample_seconds / 2:
            break
        repeats *= 2
    return first, repeats


def measure(
    ours: Call,
    baseline: tuple[str, Call],
    peers: Mapping[str, Build],
    device: torch.device,
    effort: Effort,
    name_of_ours: str = OURS,
) -> Times:
    """Time ours, the baseline and the peers. What one of the others raises is noted; what ours raises goes up."""
    calls, prepared = {name_of_ours: ours}, {name_of_ours: _prepare(ours, device, effort)}
    failed: dict[str, str] = {}
    others: dict[str, Build] = {baseline[0]: lambda: baseline[1], **peers}
    for name, build in others.items():
        if name in peers and prepared.get(baseline[0], (0.0, 1))[0] > effort.peers_up_to:
            continue
        try:
            call = build()
            prepared[name] = _prepare(call, device, effort)
            calls[name] = call
        except Exception as error:  # whatever it raises is its result
            failed[name] = raised(error)
    seconds: dict[str, list[float]] = {method: [] for method in calls}
    order = list(calls)
    fewest = effort.fewest(sum(once * repeats for once, repeats in prepared.values()))
    gc.collect()
    gc.disable()
    end = time.perf_counter() + effort.seconds
    try:
        for done in range(effort.most):
            if done >= fewest and time.perf_counter() > end:
                break
            for method in order:
                seconds[method].append(seconds_of(calls[method], done % SETS, device, prepared[method][1]))
            order.reverse()
    finally:
        gc.enable()
    return Times(seconds, failed)


def timed_row(case: Case, times: Times, baseline: str, at_least: bool, kind: Kind = "ratio", method: str = OURS) -> Row:
    """The row of measured times: the figure is the median over rounds of the ratio in a round, or our milliseconds.

    Without a baseline, which may have raised, there are no ratios, and a figure that is one is missing.
    """
    base = times.seconds.get(baseline)
    ratios = {
        name: quartiles([b / a if at_least else a / b for a, b in zip(values, base, strict=True)])
        for name, values in times.seconds.items()
        if base is not None
    }
    seconds = {name: quartiles(values) for name, values in times.seconds.items()}
    first, figure, third = [1e3 * value for value in seconds[method]] if kind != "ratio" else ratios.get(method, [None] * 3)
    return Row(
        case.section,
        case.label,
        case.d,
        case.batch,
        kind,
        figure,
        None if first is None or third is None else (first, third),
        case.target,
        at_least if kind == "ratio" else False,
        baseline,
        len(times.seconds[method]),
        seconds,
        ratios,
        failed=times.failed,
        function=case.function,
        method=method,
    )
