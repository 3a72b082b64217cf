"""The options that the scripts here share, and their records (see spectralgrad_lab.records.machine)."""

import argparse
import sys
from pathlib import Path
from typing import Any

from spectralgrad_lab.records import machine as record
from spectralgrad_lab.records.machine import describe, table

__all__ = ["RESULTS", "arguments", "circumstances", "describe", "table", "write"]

RESULTS = Path(__file__).resolve().parent.parent / "results"


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
    """Machine, versions, date and command, without the folder after --write, which is the machine's own business."""
    options = [argument for argument in sys.argv[1:] if argument.startswith("--")]
    return record.circumstances(" ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *options]))


def write(folder: Path, kind: str, about: dict[str, Any], rows: list[dict[str, Any]], markdown: str) -> list[str]:
    """Write core-<kind>-<machine>.json and .md; returns their names."""
    return record.write(folder, f"core-{kind}-{record.slug(record.machine_name(about))}", about, rows, markdown)
