"""Where records go: a CSV file, or a writer of scalars such as TensorBoard's."""

import csv
import io
import os
import warnings
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from spectralgrad.errors import OptionError

from .record import COLUMNS, OF_GROUP, OF_LAYER, Record

_TAIL = 1 << 16  # bytes: more than any line of ours


def writer_for(to: Any) -> "CsvFile | Scalars | None":
    """What writes records to ``to``: a path, an object with add_scalar, or None for nothing."""
    if to is None:
        return None
    if isinstance(to, (str, os.PathLike)):
        return CsvFile(Path(to))
    if callable(getattr(to, "add_scalar", None)):
        return Scalars(to)
    raise OptionError(
        f"`ConditionMonitor`: to must be None, the path of a CSV file, or an object with add_scalar(tag, value, step), "
        f"got {type(to).__name__}."
    )


class Scalars:
    """Tags layer/name, or layer/group/name where there are several groups. Values that are not known are left out."""

    def __init__(self, writer: Any) -> None:
        self.writer = writer

    def write(self, records: list[Record]) -> None:
        groups = Counter(record["layer"] for record in records)
        for record in records:
            layer, group, step = record["layer"], record["group"], record["step"]
            place = layer if groups[layer] == 1 else f"{layer}/{group}"
            tags = {name: f"{place}/{name}" for name in OF_GROUP}
            if group == 0:
                tags |= {name: f"{layer}/{name}" for name in OF_LAYER}
            for name, tag in tags.items():
                if record[name] is not None:
                    self.writer.add_scalar(tag, record[name], step)


class CsvFile:
    """Appends to a file, one flush for each recorded step, so that a kill loses at most the line being written."""

    def __init__(self, path: Path) -> None:
        if path.exists():
            self._repair(path)
        self.file = path.open("a", newline="", encoding="utf-8")
        if self.file.tell() == 0:
            self._append([COLUMNS])

    def write(self, records: list[Record]) -> None:
        self._append([[record[name] for name in COLUMNS] for record in records])

    def _append(self, rows: Iterable[Iterable[Any]]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        self.file.write(text.getvalue())
        self.file.flush()

    def _repair(self, path: Path) -> None:
        """Cut off a last line that was not finished, and say so; refuse a file that is not ours."""
        expected = ",".join(COLUMNS)
        with path.open("r+b") as file:
            header = file.readline(_TAIL)
            if not header.endswith(b"\n") and expected.encode().startswith(header):  # killed in the first line
                file.truncate(0)
                return
            if header.decode("utf-8", "replace").strip() != expected:
                raise OptionError(
                    f"`ConditionMonitor`: {path} must have the columns {expected} to be appended to, but begins with "
                    f"{header[:200]!r}. It is unchanged; choose another file."
                )
            size = file.seek(0, os.SEEK_END)
            begin = file.seek(max(0, size - _TAIL))
            tail = file.read()
            whole = tail.rfind(b"\n") + 1
            if whole < len(tail):
                file.truncate(begin + whole)
                warnings.warn(
                    f"`ConditionMonitor`: the last line of {path} was not finished and is cut off: {tail[whole:]!r}.",
                    stacklevel=4,
                )
