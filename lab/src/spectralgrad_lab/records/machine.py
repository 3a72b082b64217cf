"""What a measurement leaves behind: a JSON file that says on which machine and with which versions, and its tables.

Nothing in a record names a host, a user or a path.
"""

import os
import platform
import re
import subprocess
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

import spectralgrad as sg
from spectralgrad_lab.files import write_whole

from .strict_json import to_json

BUSY = 0.25  # load per core, before a measurement begins, from which its times are not to be trusted
VERSIONS = ("torch", "triton", "numpy", "scipy", "mpmath", "torchspd", "xitorch", "kornia", "roma", "cupy", "jax")


def circumstances(command: str, gpu: bool = False) -> dict[str, Any]:
    """Machine, versions, source, date and command, of a measurement that starts now.

    >>> sorted(circumstances("spectralgrad bench"))
    ['command', 'date', 'machine', 'source', 'versions']
    """
    machine: dict[str, Any] = {
        "cpu": _cpu_model(),
        "cores": cores(),
        "architecture": platform.machine(),
        "system": platform.system(),
        "torch_threads": torch.get_num_threads(),
        "load_average_1min": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }
    if gpu:
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        machine["gpu"] = properties.name
        machine["gpu_memory_gib"] = round(properties.total_memory / 2**30, 1)
        machine["cuda"] = torch.version.cuda
    return {
        "machine": machine,
        "versions": {
            "spectralgrad": sg.__version__,
            "python": platform.python_version(),
            **{name: _version(name) for name in VERSIONS},
        },
        "source": _source(),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "command": command,
    }


def describe(about: dict[str, Any]) -> str:
    """The circumstances as two lines of Markdown."""
    machine = about["machine"]
    versions = ", ".join(f"{name} {version or 'not installed'}" for name, version in about["versions"].items())
    gpu = f"{machine['gpu']} ({machine['gpu_memory_gib']} GiB, CUDA {machine['cuda']}), " if "gpu" in machine else ""
    load = machine["load_average_1min"]
    return (
        f"{gpu}{machine['cpu']}, {machine['cores']} cores, {machine['torch_threads']} torch threads, "
        f"{machine['architecture']} {machine['system']}{'' if load is None else f', load {load} at the start'}; "
        f"{about['date']}; `{about['command']}`\n\n{versions}; source {about['source'] or 'not under git'}"
    )


def disturbance(about: dict[str, Any]) -> str:
    """A warning if the machine was busy before the measurement began, else nothing.

    >>> disturbance({"machine": {"cores": 2, "load_average_1min": 2.3}})
    'The machine was busy with other work (load 2.3 on 2 cores before the start): take these times as rough.'
    """
    load, cores = about["machine"].get("load_average_1min") or 0.0, about["machine"]["cores"]
    if load <= BUSY * cores:
        return ""
    return (
        f"The machine was busy with other work (load {load} on {cores} cores before the start): take these times as rough."
    )


def machine_name(about: dict[str, Any]) -> str:
    """The machine in a few words: its GPU if that was measured, else its CPU and cores.

    >>> machine_name({"machine": {"cpu": "AMD EPYC", "cores": 2}})
    'AMD EPYC, 2 cores'
    """
    machine = about["machine"]
    return str(machine.get("gpu") or f"{machine['cpu']}, {machine['cores']} cores")


def slug(words: str) -> str:
    """Words as a part of a file name.

    >>> slug("AMD EPYC, 2 cores")
    'amd-epyc-2-cores'
    """
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, padded so that it reads well as plain text too.

    >>> print(table(["d", "ratio"], [["4", "2.5"]]))
    | d | ratio |
    | - | ----- |
    | 4 | 2.5   |
    """
    widths = [max(len(line[i]) for line in [header, *rows]) for i in range(len(header))]
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    )


def write(folder: Path, stem: str, about: dict[str, Any], rows: list[dict[str, Any]], markdown: str) -> list[str]:
    """Write <stem>.json and <stem>.md into the folder, which is made if need be; returns their names."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(to_json(row) for row in rows)  # one row a line, for diffs
    head = to_json(about, indent=1).removesuffix("\n}")
    write_whole(folder / f"{stem}.json", f'{head},\n "rows": [\n{lines}\n]\n}}\n'.encode())
    write_whole(folder / f"{stem}.md", f"{markdown}\n".encode())
    return [f"{stem}.json", f"{stem}.md"]


def _source() -> str | None:
    """The commit that was measured, and whether the library differed from it: a version alone does not say that.

    None for an installed copy: the repository around it, if any, is somebody else's.
    """
    git = ["git", "-C", str(Path(sg.__file__).resolve().parent)]
    try:
        subprocess.run([*git, "ls-files", "--error-unmatch", "__init__.py"], capture_output=True, check=True)
        commit = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True).stdout
        changed = subprocess.run([*git, "status", "--porcelain", "."], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{commit.strip()}, modified" if changed else commit.strip()


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:  # a folder on the path, or, as cupy's, a distribution of another name
        return "of unknown version" if find_spec(name) else None


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        found = re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE)
        if found:
            return re.sub(r"\((R|TM)\)|\s+CPU|\s+@.*|\s+Processor", "", found[1]).strip()
    return platform.processor() or platform.machine()
