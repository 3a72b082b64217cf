"""Where a record comes from, in a few words."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from spectralgrad_lab.records.machine import machine_name
from spectralgrad_lab.records.recording import Line
from spectralgrad_lab.records.store import Store
from spectralgrad_lab.records.trial import Trial

PRECISIONS = {
    "32-true": "float32",
    "64-true": "float64",
    "bf16-mixed": "bf16",
    "16-mixed": "fp16",
    "bf16-true": "bf16 throughout",
}
STEPS = {True: "one CUDA graph a step", False: "no CUDA graph"}


def origin(about: Line) -> str:
    """Machine, torch, precision, and whether a step was one CUDA graph, of a start line or the head of a result.

    >>> origin({"machine": {"gpu": "NVIDIA H200"}, "versions": {"torch": "2.11.0"}, "trial": {"precision": "bf16-mixed"},
    ...         "graph": True})
    'NVIDIA H200, torch 2.11.0, bf16, one CUDA graph a step'
    """
    trial = about.get("trial")
    precision = str(trial.get("precision", "")) if isinstance(trial, dict) else ""
    parts = [
        _machine(about),
        f"torch {about['versions']['torch']}" if about.get("versions", {}).get("torch") else "",
        PRECISIONS.get(precision, precision),
        STEPS.get(about["graph"], "") if isinstance(about.get("graph"), bool) else "",
    ]
    return ", ".join(part for part in parts if part)


def origins(trials: Iterable[Trial], store: Store) -> list[str]:
    """Each origin of the trials' records once, the most frequent first, with how many it gave and from which source."""
    seen: Counter[str] = Counter()
    for start in starts_of(trials, store):
        source = f"; source {start['source']}" if start.get("source") else ""
        seen[origin(start) + source] += 1
    return [f"{words} ({count} training{'' if count == 1 else 's'})" for words, count in seen.most_common()]


def starts_of(trials: Iterable[Trial], store: Store) -> list[Line]:
    """The last start line of every trial that has one; with what its epochs say of graphs, which are made in the first."""
    found = []
    for lines in map(store.lines, trials):
        starts = [line for line in lines if line.get("kind") == "start"]
        graphs = [line["graph"] for line in lines if line.get("kind") == "epoch" and "graph" in line]
        found += [{**starts[-1], **({"graph": graphs[-1]} if graphs else {})}] if starts else []
    return found


def cached(abouts: Iterable[dict[str, Any]]) -> str:
    """That results are there already, from when and where.

    >>> cached([{"date": "2026-11-16 02:57 UTC", "machine": {"gpu": "NVIDIA H200"}}])
    'recorded on 2026-11-16 on NVIDIA H200; not run again'
    """
    some = list(abouts)
    dates = sorted({str(about["date"]).partition(" ")[0] for about in some if about.get("date")})
    machines = list(dict.fromkeys(filter(None, (_machine(about) for about in some))))
    when = f" on {dates[0]}" if len(dates) == 1 else f" from {dates[0]} to {dates[-1]}" if dates else ""
    return f"recorded{when}{' on ' if machines else ''}{' and '.join(machines)}; not run again"


def _machine(about: dict[str, Any]) -> str:
    machine = about.get("machine", {})
    return machine_name(about) if machine.get("gpu") or {"cpu", "cores"} <= machine.keys() else ""
