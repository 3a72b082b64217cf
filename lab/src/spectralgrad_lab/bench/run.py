"""Run the cases one after the other. An error is a row that says so; Ctrl-C keeps what is done."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from spectralgrad.errors import OptionError
from spectralgrad_lab.records import machine as record

from . import accuracy, graph, layers, matrices, on_request
from .case import Case
from .cases import SECTIONS, cases
from .measure import FULL_CPU, FULL_GPU, QUICK, Effort
from .peers import OURS
from .progress import Progress
from .rows import Row
from .table import report

Task = Callable[[Case, torch.device, Effort], list[Row]]


def _later(module: str, name: str) -> Task:
    """A task whose module is imported when it is first called."""

    def task(case: Case, device: torch.device, effort: Effort) -> list[Row]:
        rows: list[Row] = getattr(import_module(f"{__package__}.{module}"), name)(case, device, effort)
        return rows

    return task


TASKS: dict[str, Task] = {
    "eigh": matrices.time_eigh,
    "eigh64": matrices.time_eigh,
    "eigh_complex": matrices.time_eigh,
    "accuracy": accuracy.check_eigh,
    "backward": matrices.time_root,
    "inv_sqrtm": matrices.time_root,
    "whitening": layers.time_whitening,
    "resnet": layers.time_resnet,
    "pooling": layers.time_pooling,
    "graph": graph.check_graph,
    # On request; imported when asked: they need more than torch, or a GPU.
    "gradients": _later("gradients", "check_gradients"),
    "roots": _later("roots", "time_roots"),
    "roots64": _later("roots", "time_roots"),
    "digits": _later("digits", "count_finished"),
    "style": _later("style", "time_style"),
    "host": _later("host", "time_host"),
    "kernels": _later("kernels", "time_kernels"),
    "layouts": _later("kernels", "time_layouts"),
    "newton": _later("newton", "time_newton"),
    "power": _later("power", "time_power"),
    "svd": _later("triplets", "time_svd"),
    "polar": _later("triplets", "time_polar"),
    "networks": _later("networks", "time_networks"),
    "uses": _later("uses", "time_uses"),
    "cpu": _later("native", "time_native"),
    "settings": _later("kernels", "time_settings"),
}
MESSAGE = 160  # characters of an error that a row keeps


@dataclass
class Options:
    """What the command line asked for, validated."""

    gpu: bool = False
    quick: bool = False
    only: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        unknown = [name for name in self.only if name not in TASKS]
        if unknown:
            raise OptionError(f"bench: --only takes {', '.join(TASKS)}; got {', '.join(unknown)}.")
        if self.gpu and not torch.cuda.is_available():
            raise OptionError("bench: --gpu needs a CUDA device, and torch finds none. Leave --gpu out to measure the CPU.")
        if not self.cases():
            place = "GPU" if self.gpu else "CPU"
            raise OptionError(
                f"bench: {', '.join(self.only)} has no case for the {place}{' with --quick' if self.quick else ''}. "
                "`spectralgrad bench --help` says what there is."
            )

    def cases(self) -> list[Case]:
        return cases(self.gpu, self.quick, self.only)

    @property
    def command(self) -> str:
        words = ["spectralgrad bench", *["--gpu"] * self.gpu, *["--quick"] * self.quick]
        return " ".join([*words, *(["--only", *self.only] if self.only else [])])


@dataclass
class Measured:
    """The finished rows, and whether they are all."""

    rows: list[Row] = field(default_factory=list)
    partial: bool = False
    seconds: float = 0.0

    @property
    def broken(self) -> list[Row]:
        """Rows that break a promise: missed or failed, in a section where that is a failure."""
        return [row for row in self.rows if row.section in on_request.PROMISES and row.verdict in ("missed", "failed")]


def run(options: Options, progress: Progress) -> Measured:
    """Measure every case. KeyboardInterrupt ends it and marks the outcome partial."""
    device = torch.device("cuda", torch.cuda.current_device()) if options.gpu else torch.device("cpu")
    effort = QUICK if options.quick else FULL_GPU if options.gpu else FULL_CPU
    outcome, start = Measured(), time.perf_counter()
    chosen = options.cases()
    try:
        for done, case in enumerate(chosen):
            progress.show(done, len(chosen), f"{case.section} d = {case.d}, B = {case.batch}")
            outcome.rows += _guarded(case, device, replace(effort, seconds=effort.seconds * case.patience))
            if device.type == "cuda":
                torch.cuda.empty_cache()
    except KeyboardInterrupt:
        outcome.partial = True
    finally:
        progress.clear()
    outcome.seconds = time.perf_counter() - start
    return outcome


def _guarded(case: Case, device: torch.device, effort: Effort) -> list[Row]:
    try:
        rows = TASKS[case.section](case, device, effort)
    except Exception as error:  # the rest goes on, and the table says it
        what = case.label or case.kind
        failed = Row(case.section, what, case.d, case.batch, "error", failed={OURS: _message(error)})
        return [replace(failed, function=case.function, dtype=case.dtype if case.function else "")]
    # The targets of times are for two threads or more, but for those of sections that know better.
    if device.type == "cpu" and torch.get_num_threads() < 2 and case.section in SECTIONS:
        rows = [row if row.kind == "error" else replace(row, target=None) for row in rows]
    return rows


def _message(error: Exception) -> str:
    """Its name and first line, with no folder of this machine in it and nothing that would end a cell."""
    line = re.sub(r"(?<![^\s'\"(=:])(?:/[^/\s]+)+/", "", next(iter(str(error).splitlines()), ""))
    return f"{type(error).__name__}: {line}".replace("|", "/")[:MESSAGE]


def bench(options: Options, progress: Progress) -> tuple[dict[str, Any], Measured]:
    """Measure; returns the circumstances, for the record, and the outcome."""
    about = record.circumstances(options.command, options.gpu)
    outcome = run(options, progress)
    return {**about, "partial": outcome.partial, "quick": options.quick, "seconds": round(outcome.seconds, 1)}, outcome


def markdown(about: dict[str, Any], rows: list[Row]) -> str:
    """What is printed, and kept beside the record."""
    parts = ["# Speed and accuracy", f"{record.describe(about)}; {about['seconds']} s in all", record.disturbance(about)]
    parts += ["**Partial**: stopped before the end." if about["partial"] else "", report(rows)]
    return "\n\n".join(part for part in parts if part)


def write(folder: Path, options: Options, about: dict[str, Any], rows: list[Row]) -> list[str]:
    """Leave bench-<machine>.json and .md; returns their names. A part has its own name: it never replaces the whole."""
    kept = (
        on_request.STEMS.get(options.only[0]) if len(options.only) == 1 else None
    )  # such a section has a record of its own
    sections = [] if kept else options.only
    parts = [*["quick"] * options.quick, *sections, *["partial"] * about["partial"]]
    stem = "-".join([kept or "bench", record.slug(record.machine_name(about)), *parts])
    return record.write(folder, stem, about, [row.for_record() for row in rows], markdown(about, rows))
