"""A training step of ResNet-18 with spectral layers or treatments inside, beside the same step without them.

In four ways: eager float32, and eager, compiled by torch or captured as one CUDA graph in bfloat16, channels_last. A step is
forward, loss, backward and the optimizer's step.
"""

from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache

import torch
from torch.nn import Module
from torch.nn.functional import cross_entropy

from spectralgrad.nn import DecorrelatedBatchNorm2d
from spectralgrad_lab.models.build import build
from spectralgrad_lab.records.trial import Trial
from spectralgrad_lab.training.treatments import treat_step, treat_weight

from .case import Case
from .device import captured
from .inputs import normal
from .layers import BATCH_NORM, CLASSES
from .measure import SETS, Call, Effort, Times, measure, timed_row
from .rows import Row, quartiles

ADDS = {"SVD-PI": "svd-pi", "PI": "pi"}  # what is said of these is the milliseconds that they add
BASE = Trial(data="cifar10", model="resnet18")
UNTREATED = "whitening alone"
WARM = "warm start"


def time_networks(case: Case, device: torch.device, effort: Effort) -> list[Row]:
    """Time of a step with what ``case.kind`` names over that without, or the milliseconds that it adds."""
    trial = _trial(case)
    plain, name = (replace(trial, treatments=()), UNTREATED) if trial.treatments else (BASE, BATCH_NORM)
    warm = WARM in case.kind
    ours = _step(trial, case.function, case.shape, case.width, device, warm)
    baseline = _step(plain, case.function, case.shape, case.width, device)
    times = measure(ours, (name, baseline), {}, device, effort)
    row = timed_row(case, times, name, at_least=False)
    if case.kind in ADDS:
        row = _added(row, times, name)
    return [replace(row, case=f"{case.kind}, {case.function}", function="")]


def _added(row: Row, times: Times, baseline: str) -> Row:
    ours = times.seconds[row.method]
    first, figure, third = quartiles([1e3 * (a - b) for a, b in zip(ours, times.seconds[baseline], strict=True)])
    return replace(row, kind="milliseconds", figure=figure, spread=(first, third))


def _trial(case: Case) -> Trial:
    if case.kind in ADDS:
        return replace(BASE, layer="zca", method=ADDS[case.kind], d=case.d, iterations=19, eps=1e-4)
    where = {"one": "first", "all": "all"}.get(case.kind.removesuffix(f", {WARM}"))
    if where is not None:
        return replace(BASE, layer="zca", method="exact", d=case.d, where=where)
    return replace(BASE, layer="zca", method="exact", d=case.d, treatments=tuple(case.kind.split(" + ")))


@lru_cache(maxsize=2)  # the baseline of the next case, mostly
def _step(trial: Trial, way: str, shape: tuple[int, ...], width: int, device: torch.device, warm: bool = False) -> Call:
    images = [normal(*shape, device=device, seed=seed) for seed in range(SETS)]
    labels = torch.arange(shape[0], device=device) % CLASSES
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = build(replace(trial, width=width), CLASSES, *shape[1:3]).to(device)
    if warm:
        _start_warm(net)
    treat_weight(net, trial)
    half = way != "eager float32"
    if half:
        net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        images = [image.contiguous(memory_format=torch.channels_last) for image in images]
    optimizer = torch.optim.SGD(
        net.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4, nesterov=True, fused=device.type == "cuda"
    )
    treat_step(optimizer, net, trial)
    forward = torch.compile(net) if way == "compile" else net

    def step(i: int) -> None:
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16) if half else nullcontext():
            loss = cross_entropy(forward(images[i]), labels)
        loss.backward()
        optimizer.step()

    return _captured(step, images) if way == "graph" else step


def _start_warm(net: Module) -> None:
    for layer in net.modules():
        if isinstance(layer, DecorrelatedBatchNorm2d):
            layer.warm_start = True


def _captured(step: Call, images: list[torch.Tensor]) -> Call:
    """The step on its first images as a graph, which finds those of a call there."""
    sets = [image.clone() for image in images]
    again = captured(lambda: step(0))

    def replay(i: int) -> None:
        images[0].copy_(sets[i])
        again()

    return replay
