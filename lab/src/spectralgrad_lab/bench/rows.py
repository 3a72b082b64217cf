"""One line of the table: what was measured, what is asked of it, and whether it is met."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from .peers import OURS

Quartiles = tuple[float, float, float]  # first quartile, median, third quartile
Kind = Literal["ratio", "milliseconds", "error", "share"]
Verdict = Literal["met", "missed", "failed", "-"]


@dataclass(frozen=True)
class Row:
    """A measured case.

    ``figure`` is what the target speaks of: a ratio of times, milliseconds, an error or a share, of ``method``. Ratios are
    the baseline's time over the method's where more is better (``at_least``), and the method's over the baseline's where
    less is.

    >>> Row("eigh", "", 64, 16, "ratio", figure=25.0, target=20.0).verdict
    'met'
    >>> Row("whitening", "", 64, 16, "ratio", figure=2.5, target=2.0, at_least=False).verdict
    'missed'
    """

    section: str
    case: str  # what d and the batch do not say
    d: int
    batch: int
    kind: Kind
    figure: float | None = None
    spread: tuple[float, float] | None = None  # quartiles of the figure
    target: float | None = None
    at_least: bool = True
    baseline: str = ""
    rounds: int = 0
    seconds: dict[str, Quartiles] = field(default_factory=dict)
    ratios: dict[str, Quartiles] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)  # by method; ours: nothing was measured
    function: str = ""  # what was called, where the section does not say it
    dtype: str = ""
    method: str = OURS
    note: str = ""  # what else was seen
    also: dict[str, float] = field(default_factory=dict)  # targets of other methods of ours, whose errors count as well

    @property
    def verdict(self) -> Verdict:
        if OURS in self.failed or self.method in self.failed or self.figure is None:
            return "failed"
        if self.target is None:
            return "-"
        kept = self.figure >= self.target if self.at_least else self.figure <= self.target
        return "met" if kept and not any(map(self.missed_by, self.also)) else "missed"  # NaN keeps nothing

    def missed_by(self, method: str) -> bool:
        """Whether this method's error is beyond its target; what is absent misses nothing."""
        limit = self.also.get(method, self.target)
        if limit is None or method not in {**self.errors, **self.failed}:
            return False
        return method in self.failed or not self.errors[method] <= limit

    @property
    def faster(self) -> list[str]:
        """Who did the same work in less time. Batch norm, from which a ratio "at most" is counted, does less work."""
        ours = self.seconds.get(self.method)
        rivals = [name for name in self.seconds if name != self.baseline or self.at_least or self.kind != "ratio"]
        return [name for name in rivals if ours is not None and self.seconds[name][1] < ours[1]]

    @classmethod
    def from_record(cls, line: dict[str, Any]) -> "Row":
        """The row that `asdict` and JSON wrote; NaN and Inf come back from strings."""
        for name in ("figure", "target"):
            line = {**line, name: None if line[name] is None else float(line[name])}
        spread = line["spread"] and tuple(map(float, line["spread"]))
        line = {**line, "also": {k: float(v) for k, v in line.get("also", {}).items()}}
        triples = {key: {k: tuple(map(float, v)) for k, v in line[key].items()} for key in ("seconds", "ratios")}
        return cls(**{**line, **triples, "spread": spread, "errors": {k: float(v) for k, v in line["errors"].items()}})

    def for_record(self) -> dict[str, Any]:
        return asdict(self)


def raised(error: Exception) -> str:
    """What stands in the place of a figure that another method could not give.

    >>> raised(ValueError("no"))
    'raises ValueError'
    """
    return f"raises {type(error).__name__.lstrip('_')}"  # torch's LinAlgError calls itself _LinAlgError


def quartiles(values: Sequence[float]) -> Quartiles:
    """The quartiles of two values or more; of one, that value.

    >>> quartiles([3.0, 1.0, 2.0])
    (1.5, 2.0, 2.5)
    """
    if len(values) == 1:
        return values[0], values[0], values[0]
    first, median, third = statistics.quantiles(values, n=4, method="inclusive")
    return first, median, third
