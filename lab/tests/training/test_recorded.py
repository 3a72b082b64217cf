"""`go_on` against a clock that a test moves: which parts are begun, and where a training stops."""

from types import SimpleNamespace
from typing import Any

import pytest

from spectralgrad_lab.deadline import Deadline
from spectralgrad_lab.records.recording import Line
from spectralgrad_lab.training import recorded
from spectralgrad_lab.training.recorded import go_on
from spectralgrad_lab.training.watch import Diverged


class Clocked:
    """A training whose parts take what they are told to, and nothing else."""

    key, is_due = "clocked", False

    def __init__(self, seconds: list[float]) -> None:
        self.seconds, self.step, self.now = seconds, 0, 0.0

    @property
    def is_done(self) -> bool:
        return self.step == len(self.seconds)

    def part(self) -> Line:
        self.now += self.seconds[self.step]
        self.step += 1
        return {}

    def opening(self) -> Line:
        return {}

    def ending(self, failure: Diverged | None) -> Line:
        return {}

    def leave(self) -> None: ...

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None: ...


@pytest.mark.parametrize(
    ("seconds", "limit", "parts"),
    [
        ([1, 1, 1, 6, 1, 1, 1, 6], 16.0, 5),  # every fourth part tests the network: the sixth might be one
        ([1, 1, 1, 6, 1, 1, 1, 6], 99.0, 8),
        ([9, 1, 1, 1, 1, 1], 18.5, 6),  # the first compiles: once there is another one it says nothing of the rest
        ([9, 1, 1, 1, 1, 1], 5.0, 1),  # one part is trained at least
    ],
)
def test_no_part_is_begun_that_would_end_too_late(
    seconds: list[float], limit: float, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Clocked(seconds)
    monkeypatch.setattr(recorded, "time", SimpleNamespace(monotonic=lambda: training.now))
    monkeypatch.setattr(Deadline, "is_nearer_than", lambda self, more: training.now + more >= self.at)
    ending = go_on(training, None, deadline=Deadline(at=limit))
    assert ending is not None
    assert (training.step, ending.status) == (parts, "finished" if parts == len(seconds) else "stopped")
