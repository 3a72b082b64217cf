"""Whether training with whitening always finishes: a small ResNet on the 8 x 8 digits, every rule, d, eps and seed.

A run has finished if its loss and weights stayed finite. The unguarded gradient is run beside the others, for comparison.
"""

import itertools
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import torch
from torch import Tensor, nn

import spectralgrad as sg
from spectralgrad_lab.records.machine import cores

from .case import Case
from .measure import Effort
from .rows import Row

RULES = {"Exact": sg.Exact(), "Taylor(9)": sg.Taylor(9), "Analytic": sg.Analytic()}
CHANNELS = 64  # of the first convolution: it sees 3 x 3 x 1 inputs, so its covariance has rank 9 at most
TRAINED_ON = 1500  # of 1797; the accuracy is that of the rest

Job = tuple[str, int, float, int, int, int]  # rule, d, eps, seed, steps, batch


class Block(nn.Module):
    """Two 3 x 3 convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def network(norm: nn.Module) -> nn.Module:
    """A ResNet whose first normalisation is the one under test, as in the papers."""
    return nn.Sequential(
        nn.Conv2d(1, CHANNELS, 3, 1, 1, bias=False),
        norm,
        nn.ReLU(),
        Block(CHANNELS, 16, 2),
        Block(16, 32, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


def digits() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    data = load_digits()
    return torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16, torch.tensor(data.target)


def train(job: Job) -> tuple[str, float]:
    """What became of a run, "finite" if all went well, and its accuracy on the last 297 digits. For a process of its own."""
    torch.set_num_threads(1)
    rule, d, eps, seed, steps, batch = job
    torch.manual_seed(seed)
    x, y = digits()
    model = network(sg.nn.DecorrelatedBatchNorm2d(CHANNELS, d, eps=eps, gradient=RULES[rule]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    for step in range(steps):
        index = torch.randint(0, TRAINED_ON, (batch,))
        try:
            loss = nn.functional.cross_entropy(model(x[index]), y[index])
        except sg.errors.SpectralError as error:
            return f"{type(error).__name__} at step {step}", float("nan")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not (bool(loss.isfinite()) and all(bool(p.isfinite().all()) for p in model.parameters())):
            return f"not finite at step {step}", float("nan")
    model.eval()
    with torch.no_grad():
        return "finite", float((model(x[TRAINED_ON:]).argmax(1) == y[TRAINED_ON:]).float().mean())


def count_finished(case: Case, device: torch.device, effort: Effort) -> list[Row]:
    """A row for each eps: the share of the seeds that finished, their mean accuracy, the first failure."""
    jobs = [(case.kind, case.d, eps, seed, case.steps, case.batch) for eps in case.eps for seed in range(case.seeds)]
    with ProcessPoolExecutor(min(cores(), len(jobs)), multiprocessing.get_context("spawn")) as pool:
        outcomes = dict(zip(jobs, pool.map(train, jobs), strict=True))
    rows = []
    for eps, some in itertools.groupby(jobs, key=lambda job: job[2]):
        results = [outcomes[job] for job in some]
        good = [accuracy for outcome, accuracy in results if outcome == "finite"]
        bad = [outcome for outcome, _ in results if outcome != "finite"]
        note = f"{len(good)} of {len(results)} finished"
        note += f", accuracy {sum(good) / len(good):.3f}" if good else ""
        note += f"; first failure: {bad[0]}" if bad else ""
        name, share = f"{case.kind}, eps {eps:.0e}", len(good) / len(results)
        rows.append(Row(case.section, name, case.d, case.batch, "share", share, target=case.target, note=note))
    return rows
