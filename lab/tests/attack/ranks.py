"""Faults of one rank among two or three: no hang, and a clear error on every rank that lives."""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import spectralgrad.nn as snn

from .processes import start

TIMEOUT, LIFETIME = 5, 60  # seconds: of an exchange, of a rank
CHANNELS = 6
WORLDS = (2, 3)
AT_ONCE = 4  # groups of ranks: most of them wait for each other


def _samples(n: int = 4, channels: int = CHANNELS, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(n, channels, 3, 2, generator=torch.Generator().manual_seed(0)).to(dtype)


def _step(layer: Any, x: Tensor) -> None:
    layer(x.requires_grad_()).square().sum().backward()


def _plain(group: Any, bad: bool, **options: Any) -> None:
    layer = snn.DecorrelatedBatchNorm2d(CHANNELS, process_group=group, **options)
    for _ in range(2):
        _step(layer, _samples())


def _dies(group: Any, bad: bool, when: str = "forward") -> None:
    layer = snn.DecorrelatedBatchNorm2d(CHANNELS, process_group=group)
    if when == "second step":
        _step(layer, _samples())
    if bad and when != "backward":
        os._exit(0)  # no goodbye, as a crash
    y = layer(_samples().requires_grad_())
    if bad:
        os._exit(0)
    y.sum().backward()


def _late(group: Any, bad: bool, when: str = "forward") -> None:
    layer = snn.DecorrelatedBatchNorm2d(CHANNELS, process_group=group)
    if bad and when == "forward":
        time.sleep(2 * TIMEOUT)
    y = layer(_samples().requires_grad_())
    if bad:
        time.sleep(2 * TIMEOUT)
    y.sum().backward()


def _holds(value: float, step: int) -> Callable[[Any, bool], None]:
    def run(group: Any, bad: bool) -> None:
        layer = snn.DecorrelatedBatchNorm2d(CHANNELS, process_group=group)
        for i in range(step + 1):
            x = _samples()
            if bad and i == step:
                x[0, 0, 0, 0] = value
            _step(layer, x)

    return run


def _made(make: Callable[[bool, Any], tuple[Any, Tensor]]) -> Callable[[Any, bool], None]:
    return lambda group, bad: _step(*make(bad, group))


def _orders(group: Any, bad: bool) -> None:
    one = snn.DecorrelatedBatchNorm2d(CHANNELS, process_group=group), _samples()
    two = snn.DecorrelatedBatchNorm2d(CHANNELS + 2, process_group=group), _samples(channels=CHANNELS + 2)
    for layer, x in (two, one) if bad else (one, two):
        _step(layer, x)


def _evaluates(group: Any, bad: bool) -> None:
    layer = snn.DecorrelatedBatchNorm2d(CHANNELS, process_group=group).train(not bad)
    _step(layer, _samples())
    if bad:
        raise RuntimeError("in eval mode it takes part in nothing; its training ends here")


def _no_backward(group: Any, bad: bool) -> None:
    layer = snn.DecorrelatedBatchNorm2d(CHANNELS, process_group=group)
    y = layer(_samples().requires_grad_())
    if bad:
        raise RuntimeError("an error of the user's between the passes")
    y.sum().backward()


def _layer(**options: Any) -> Any:
    return snn.DecorrelatedBatchNorm2d(CHANNELS, **options)


ODD = CHANNELS + 2
FAULTS: dict[str, tuple[Callable[[Any, bool], None], str]] = {  # name -> what to run, words of the error on every other rank
    "dies before forward": (_dies, "could not be exchanged"),
    "dies before backward": (lambda g, bad: _dies(g, bad, "backward"), "could not be exchanged"),
    "dies before the second step": (lambda g, bad: _dies(g, bad, "second step"), "could not be exchanged"),
    "comes late": (_late, "could not be exchanged"),
    "comes late to backward": (lambda g, bad: _late(g, bad, "backward"), "could not be exchanged"),
    "NaN": (_holds(torch.nan, 0), "must be finite on every rank"),
    "Inf": (_holds(torch.inf, 0), "must be finite on every rank"),
    "NaN in the second step": (_holds(torch.nan, 1), "must be finite on every rank"),
    "an empty batch": (_made(lambda bad, g: (_layer(process_group=g), _samples(0 if bad else 4))), ""),
    "other channels": (
        _made(
            lambda bad, g: (snn.DecorrelatedBatchNorm2d(ODD if bad else 6, process_group=g), _samples(4, ODD if bad else 6))
        ),
        "must bring the same",
    ),
    "many more channels": (
        _made(
            lambda bad, g: (snn.DecorrelatedBatchNorm2d(64 if bad else 6, process_group=g), _samples(4, 64 if bad else 6))
        ),
        "must bring the same",
    ),
    "other groups": (
        _made(lambda bad, g: (_layer(group_size=2 if bad else 3, process_group=g), _samples())),
        "must bring the same",
    ),
    "input in float64": (
        _made(lambda bad, g: (_layer(process_group=g), _samples(dtype=torch.float64 if bad else torch.float32))),
        "must bring the same",
    ),
    "layer in float64": (
        _made(lambda bad, g: (_layer(process_group=g, dtype=torch.float64 if bad else None), _samples())),
        "must bring the same",
    ),
    "input in bfloat16": (
        _made(lambda bad, g: (_layer(process_group=g), _samples(dtype=torch.bfloat16 if bad else torch.float32))),
        "",  # computed in float32 on all ranks
    ),
    "another layer": (
        _made(
            lambda bad, g: (
                (snn.PCADenoise2d if bad else snn.DecorrelatedBatchNorm2d)(CHANNELS, process_group=g),
                _samples(),
            )
        ),
        "must bring the same",
    ),
    "another order of layers": (_orders, "must bring the same"),
    "eval mode": (_evaluates, "could not be exchanged"),
    "another device": (
        _made(
            lambda bad, g: (
                _layer(process_group=g, device="meta" if bad else "cpu"),
                _samples().to("meta" if bad else "cpu"),
            )
        ),
        "could not be exchanged",
    ),
    "no backward": (_no_backward, "could not be exchanged"),
}


def _run(rank: int, name: str, world: int, folder: str) -> None:
    limit, place = timedelta(seconds=TIMEOUT), Path(folder)
    outcome = "no error"
    try:
        dist.init_process_group("gloo", init_method=f"file://{folder}/init", rank=rank, world_size=world, timeout=limit)
        (place / f"{rank} has joined").touch()
        while len(list(place.glob("* has joined"))) < world:  # or one that dies at once spoils the start of the others
            time.sleep(0.01)
        FAULTS[name][0](dist.group.WORLD, rank == world - 1)
    except Exception as error:
        outcome = f"{type(error).__name__}: {error}"
    (place / f"{rank}").write_text(outcome)
    os._exit(0)


def ranks(count: int, draw: Random) -> Iterator[str | None]:
    """``count`` faults, each on two and on three ranks; yields ranks that hung, died or were told nothing."""
    cases = [(name, world) for name in draw.sample(list(FAULTS), count) for world in WORLDS]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for found in pool.map(lambda case: list(fault(*case)), cases):
            yield from found or [None]


def fault(name: str, world: int) -> Iterator[str]:
    """The fault on the last rank of so many, and what was wrong with what the others said."""
    words = FAULTS[name][1]
    with tempfile.TemporaryDirectory() as folder:
        processes = [start(_run, rank, name, world, folder, lifetime=LIFETIME) for rank in range(world)]
        for process in processes:
            process.join()
        # What they wrote counts, not their exit codes: a process that two threads wait for has one of the two see 255.
        for rank in range(world - 1):
            path = Path(folder, f"{rank}")
            said = path.read_text() if path.exists() else "nothing: it hung, or died"
            if (words not in said) if words else said != "no error":
                yield f"{name}, rank {rank} of {world}: {said[:300]}"
        if not name.startswith("dies") and not Path(folder, f"{world - 1}").exists():
            yield f"{name}, the last of {world} ranks hung, or died"
