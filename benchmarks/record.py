"""What a benchmark leaves behind: tables in Markdown, and a JSON file that says on which machine and with which versions."""

import argparse
import json
import math
import os
import platform
import re
import subprocess
import sys
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import spectralgrad

RESULTS = Path(__file__).resolve().parent.parent / "results"
VERSIONS = ("torch", "numpy", "mpmath", "torchspd", "xitorch", "kornia")


def arguments(description: str) -> argparse.ArgumentParser:
    """The options that both scripts share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="a small part, in seconds")
    parser.add_argument(
        "--write",
        nargs="?",
        type=Path,
        const=RESULTS,
        metavar="FOLDER",
        help="also write a JSON record and its Markdown table (into results/ if no folder is given)",
    )
    return parser


def circumstances() -> dict[str, Any]:
    """Machine, versions, date and command. Nothing here names a host, a user or a path."""
    return {
        "machine": {
            "cpu": _cpu_model(),
            "cores": _cores(),
            "architecture": platform.machine(),
            "system": platform.system(),
            "torch_threads": torch.get_num_threads(),
            "load_average_1min": round(os.getloadavg()[0], 2),
        },
        "versions": {
            "spectralgrad": spectralgrad.__version__,
            "python": platform.python_version(),
            **{name: _version(name) for name in VERSIONS},
        },
        "source": _source(),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "command": " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *_public_arguments()]),
    }


def describe(about: dict[str, Any]) -> str:
    """The circumstances as two lines of Markdown."""
    machine = about["machine"]
    versions = ", ".join(f"{name} {version or 'not installed'}" for name, version in about["versions"].items())
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['torch_threads']} torch threads, {machine['architecture']} "
        f"{machine['system']}, load {machine['load_average_1min']} at the start; {about['date']}; `{about['command']}`\n\n"
        f"{versions}; source {about['source'] or 'not under git'}"
    )


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table, padded so that it reads well as plain text too."""
    widths = [max(len(line[i]) for line in [header, *rows]) for i in range(len(header))]
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    )


def write(folder: Path, kind: str, about: dict[str, Any], rows: list[dict[str, Any]], markdown: str) -> list[str]:
    """Write core-<kind>-<machine>.json and .md; returns their names."""
    machine = about["machine"]
    slug = re.sub(r"[^a-z0-9]+", "-", f"{machine['cpu']} {machine['cores']} cores".lower()).strip("-")
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"core-{kind}-{slug}"
    lines = ",\n".join(json.dumps(_finite(row), allow_nan=False) for row in rows)  # one row a line, for diffs
    head = json.dumps(about, indent=1, allow_nan=False).removesuffix("\n}")
    (folder / f"{stem}.json").write_text(f'{head},\n "rows": [\n{lines}\n]\n}}\n')
    (folder / f"{stem}.md").write_text(markdown + "\n")
    return [f"{stem}.json", f"{stem}.md"]


def _finite(x: Any) -> Any:
    """JSON knows neither NaN nor Inf: they become strings."""
    if isinstance(x, dict):
        return {key: _finite(value) for key, value in x.items()}
    if isinstance(x, list):
        return [_finite(value) for value in x]
    return str(x) if isinstance(x, float) and not math.isfinite(x) else x


def _public_arguments() -> list[str]:
    """The options as given, without the folder after --write, which is the machine's own business."""
    return [argument for argument in sys.argv[1:] if argument.startswith("--")]


def _source() -> str | None:
    """The commit that was measured, and whether the library differed from it: a version alone does not say that."""
    git = ["git", "-C", str(RESULTS.parent)]
    try:
        commit = subprocess.run(
            [*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
        changed = subprocess.run([*git, "status", "--porcelain", "src"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{commit}, modified" if changed else commit


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        found = re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE)
        if found:
            return re.sub(r"\((R|TM)\)|\s+CPU|\s+@.*|\s+Processor", "", found[1]).strip()
    return platform.processor() or platform.machine()
