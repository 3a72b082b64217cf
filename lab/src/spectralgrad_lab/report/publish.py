"""What may be published of a result: its tables, and its pictures without the originals."""

from pathlib import Path
from typing import Any

from spectralgrad_lab.files import write_whole
from spectralgrad_lab.records.machine import describe, table, write
from spectralgrad_lab.records.results import Computed, Scale

from .gallery import sheet


def publish(id: str, scale: Scale, found: Computed, out: Path, about: dict[str, Any]) -> None:
    """Write <id>-<scale>.md and .json, and <id>-<scale>.jpg, a sheet of results; what is empty is not written.

    Args:
        id, scale: whose result it is.
        found: the result.
        out: folder of what is published, made if it is not there.
        about: the circumstances under which it was found.
    """
    out.mkdir(parents=True, exist_ok=True)
    stem = f"{id}-{scale}"
    if found.tables or found.remarks:
        rows = [
            {"table": printed.caption, "row": row, **dict(zip(printed.columns, cells, strict=True))}
            for printed in found.tables
            for row, cells in printed.rows.items()
        ]
        write(out, stem, about, rows, _markdown(f"{id}, scale {scale}", found, about))
    picture = sheet(found.pictures, originals=False)
    if picture:
        write_whole(out / f"{stem}.jpg", picture)


def _markdown(title: str, found: Computed, about: dict[str, Any]) -> str:
    parts = [f"# {title}", describe(about)]
    for printed in found.tables:
        lines = [[name, *(cell or "" for cell in cells)] for name, cells in printed.rows.items()]
        parts += [printed.caption, table(["", *printed.columns], lines)]
    parts.append("\n".join(f"- {text}" for text in found.remarks))
    return "\n\n".join(part for part in parts if part)
