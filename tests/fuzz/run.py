"""The run: batches one after another, in one process or several, and the table at the end."""

import multiprocessing
import random
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

import spectralgrad

from . import families
from .catalogue import TARGETS, by_name
from .examine import examine
from .minimise import Failure, minimised, snippet

BATCH = 400
PER_MATRIX = 2  # targets that each batch goes to
_KEPT = 2  # failing matrices of one batch that are kept, for each target and promise
_SNIPPETS = 40  # distinct failures that are minimised
_AHEAD = 4  # batches waiting for each worker
_EVERY = 2.0  # seconds between two lines of progress


@dataclass(frozen=True)
class Plan:
    """What to run; everything random follows from the seed."""

    seed: int
    matrices: int = 1_000_000
    only: str = ""
    device: str = "cpu"
    workers: int = 2
    targets: tuple[str, ...] = ()  # by their full names, instead of ``only``
    ordinary: bool = False  # scale 1 alone

    def chosen(self) -> list[Any]:
        names = self.targets or [target.name for target in TARGETS if self.only in target.name]
        if not names:
            raise SystemExit(
                f"fuzz: no target has ONLY={self.only} in its name; there are {', '.join(t.name for t in TARGETS)}"
            )
        return [by_name(name) for name in names]


@dataclass
class Tally:
    """What became of the matrices, by target."""

    matrices: int = 0
    tried: Counter[str] = field(default_factory=Counter)
    failed: Counter[tuple[str, str, str, str]] = field(default_factory=Counter)  # target, promise, dtype, family
    worst: dict[tuple[str, str], float] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)

    def add(self, other: "Tally") -> None:
        self.matrices += other.matrices
        self.tried.update(other.tried)
        self.failed.update(other.failed)
        for key, value in other.worst.items():
            self.worst[key] = max(self.worst.get(key, 0.0), value)
        self.failures.extend(other.failures)


def batch(plan: Plan, index: int, library: Any = spectralgrad) -> Tally:
    """Batch number ``index``: drawn, given to some of the targets, judged."""
    targets, tally = plan.chosen(), Tally()
    kinds = tuple(kind for kind in families.KINDS if any(kind in target.kinds for target in targets))
    drawn = families.draw(plan.seed, index, min(BATCH, plan.matrices), kinds, plan.ordinary)
    r = random.Random(f"{plan.seed}/{index}/targets")
    fitting = [target for target in targets if drawn.kind in target.kinds]
    X = drawn.X.to(plan.device)
    tally.matrices = len(X)
    for target in r.sample(fitting, min(PER_MATRIX, len(fitting))):
        options = target.options(X, drawn.scale, r)
        findings = examine(target, options, X, library)
        tally.tried[target.name] += findings.tried
        for name, size in findings.worst().items():
            tally.worst[target.name, name] = size
        kept: Counter[str] = Counter()
        for name, place, size, _, _ in findings.failures():
            tally.failed[target.name, name, str(X.dtype).removeprefix("torch."), drawn.family] += 1
            kept[name] += 1
            if kept[name] <= _KEPT:
                one = X[place : place + 1].clone()
                tally.failures.append(Failure(target.name, options, name, one, drawn.family, size, plan.seed, index))
    return tally


def _worker_starts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends the run
    torch.set_num_threads(1)


def _work(task: tuple[Plan, int]) -> Tally:
    return batch(*task)


def _shrink(failure: Failure) -> str:
    return snippet(minimised(failure))


def distinct(failures: list[Failure]) -> list[Failure]:
    """One failure for each target, promise and dtype: the smallest matrix."""
    first: dict[tuple[str, str, str], Failure] = {}
    for failure in sorted(failures, key=lambda f: f.X.numel()):
        first.setdefault((failure.target, failure.check, str(failure.X.dtype)), failure)
    return list(first.values())


class Run:
    """A plan at work: `tally` and `snippets` hold what there is, also after an interruption."""

    def __init__(self, plan: Plan, library: Any = spectralgrad) -> None:
        self.plan, self.library = plan, library
        self.tally, self.snippets = Tally(), list[str]()
        self.started = time.monotonic()

    def go(self) -> None:
        if self.plan.workers == 0:
            self._collect(batch(self.plan, i, self.library) for i in self._indices())
            self.snippets += [
                snippet(minimised(f, self.library), self.library) for f in distinct(self.tally.failures)[:_SNIPPETS]
            ]
            return
        with multiprocessing.get_context("spawn").Pool(self.plan.workers, _worker_starts) as pool:
            self._collect(self._ahead(pool))
            for text in pool.imap(_shrink, distinct(self.tally.failures)[:_SNIPPETS]):
                self.snippets.append(text)

    def _indices(self) -> Iterator[int]:
        """Batch after batch until there are enough matrices."""
        index = 0
        while self.tally.matrices < self.plan.matrices:
            yield index
            index += 1

    def _ahead(self, pool: Any) -> Iterator[Tally]:
        """The same, some batches ahead; in order, so that the result does not depend on who was faster."""
        waiting: deque[Any] = deque()
        for index in self._indices():
            waiting.append(pool.apply_async(_work, ((self.plan, index),)))
            if len(waiting) >= _AHEAD * self.plan.workers:
                yield waiting.popleft().get()

    def _collect(self, tallies: Any) -> None:
        last = self.started
        for each in tallies:
            self.tally.add(each)
            if time.monotonic() - last > _EVERY:
                last = time.monotonic()
                self._progress(last - self.started)
        self._progress(time.monotonic() - self.started, end="\n")

    def _progress(self, seconds: float, end: str = "") -> None:
        done, failed = self.tally.matrices, sum(self.tally.failed.values())
        rest = seconds * max(self.plan.matrices - done, 0) / max(done, 1)
        line = f"{done:,} of {self.plan.matrices:,} matrices, {failed:,} failures, {seconds:.0f} s, about {rest:.0f} s left"
        print(f"\r{line}   ", end=end, file=sys.stderr, flush=True)
