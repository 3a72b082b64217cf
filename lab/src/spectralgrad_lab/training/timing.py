"""Training steps of several trials, timed side by side on the machine at hand, on random images.

Every round times every contender once, in an order that turns round, so that a disturbance meets all alike. The forward pass
ends with the loss; the backward pass includes the optimizer's step, in which NOG and OLR act.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy

from spectralgrad_lab.models.build import build
from spectralgrad_lab.records.machine import circumstances, disturbance, machine_name
from spectralgrad_lab.records.results import Scale
from spectralgrad_lab.records.trial import Trial

from .treatments import penalty, treat_step, treat_weight

SHAPES = {"digits": (10, 1, 8), "cifar10": (10, 3, 32), "cifar100": (100, 3, 32)}  # classes, channels, pixels
ROUNDS = {"smoke": 7, "short": 21, "paper": 101}
SECONDS = {"smoke": 15.0, "short": 120.0, "paper": 600.0}  # no round begins later, once there are `FEWEST`
FEWEST = 3
WARM_UP = 2
LEARNING_RATE = 1e-3  # small: the weights stay where they are, and with them what is timed

TimedStep = Callable[[], tuple[float, float]]  # one training step: seconds of its forward and of its backward pass


@dataclass(frozen=True)
class StepTimes:
    """Medians, in milliseconds."""

    forward: float
    backward: float
    step: float


def measure(trials: Mapping[str, Trial], scale: Scale) -> tuple[dict[str, StepTimes], tuple[str, ...]]:
    """Time the trials' steps, on the first GPU where there is one and the scale is not smoke.

    Args:
        trials: by label; their networks, layers, treatments and batch sizes count.
        scale: how many rounds.

    Returns:
        The times by label, and remarks that state the machine.
    """
    device = torch.device("cuda" if torch.cuda.is_available() and scale != "smoke" else "cpu")
    about = circumstances("", gpu=device.type == "cuda")
    steps = {label: training_step(trial, device) for label, trial in trials.items()}
    for step in steps.values():
        for _ in range(WARM_UP):
            step()
    seconds: dict[str, list[tuple[float, float]]] = {label: [] for label in steps}
    order = list(steps)
    end = time.perf_counter() + SECONDS[scale]
    for done in range(ROUNDS[scale]):
        if done >= FEWEST and time.perf_counter() > end:
            break
        for label in order:
            seconds[label].append(steps[label]())
        order.reverse()
    machine = f"{machine_name(about)}, {torch.get_num_threads()} torch threads, torch {torch.__version__}"
    rounds = len(seconds[order[0]])
    remarks = [f"{machine}; medians of {rounds} rounds, batch {next(iter(trials.values())).batch}.", disturbance(about)]
    return {label: _medians(found) for label, found in seconds.items()}, tuple(text for text in remarks if text)


def training_step(trial: Trial, device: torch.device) -> TimedStep:
    """One step of SGD on a batch of random images, in the network and with the treatments of a trial."""
    classes, channels, size = SHAPES[trial.data]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(trial.seed)
        net = build(trial, classes, channels, size).to(device)
        images = torch.randn(trial.batch, channels, size, size).to(device)
    labels = torch.arange(trial.batch, device=device) % classes
    treat_weight(net, trial)
    optimizer = torch.optim.SGD(net.parameters(), lr=LEARNING_RATE, momentum=trial.momentum, weight_decay=trial.weight_decay)
    treat_step(optimizer, net, trial)
    added = penalty(net, trial)

    def step() -> tuple[float, float]:
        optimizer.zero_grad()
        start = now(device)
        loss = cross_entropy(net(images), labels)
        if added is not None:
            loss = loss + added()
        between = now(device)
        loss.backward()
        optimizer.step()
        return between - start, now(device) - between

    return step


def now(device: torch.device) -> float:
    """The clock in seconds, once the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _medians(seconds: list[tuple[float, float]]) -> StepTimes:
    columns = [*zip(*seconds, strict=True), [forward + backward for forward, backward in seconds]]
    return StepTimes(*(1e3 * statistics.median(column) for column in columns))
