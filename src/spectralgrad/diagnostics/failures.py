"""How often a solver failed, and how many matrices were not finite, between two looks at `spectralgrad.counters`."""

from collections import Counter
from collections.abc import Iterable

from torch import Tensor

from spectralgrad import counters

from .record import Record

_FAILED_ATTEMPTS = ("solver_retry_float64", "solver_retry_jitter", "solver_failed")  # each counts one that failed before


class Failures:
    """The counts of the whole process at the last look; what was counted before the first one is not reported."""

    def __init__(self) -> None:
        self._resets = counters.snapshot().resets
        self._counted = Counter(counters.counts())

    def since_last(self, snapshot: counters.Snapshot, fetched: Iterable[Tensor]) -> Record:
        """The entries for ``snapshot``, whose device counters the caller has ``fetched`` together with other things."""
        resets, total, on_device = snapshot
        for (event, _), times in zip(on_device, fetched, strict=True):
            total[event] += int(times)
        new = total if resets != self._resets else total - self._counted
        self._resets, self._counted = resets, total
        return {
            "solver_failures": sum(new.get(event, 0) for event in _FAILED_ATTEMPTS),
            "nonfinite_inputs": new.get("nonfinite_input", 0),
        }
