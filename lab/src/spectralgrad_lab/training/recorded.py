"""A training that is recorded part by part, can be stopped at any moment, and goes on where it was."""

import copy
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

from spectralgrad.errors import OptionError
from spectralgrad_lab.data import DataError
from spectralgrad_lab.deadline import NEVER, Deadline
from spectralgrad_lab.files import set_aside
from spectralgrad_lab.records.recording import Line, Recording, refusal

from . import checkpoint
from .checkpoint import DamagedCheckpoint, State
from .watch import Diverged

REASON = 500  # characters of an error that a record keeps
T = TypeVar("T")
LineListener = Callable[[Line], None]


class Training(Protocol):
    """What is trained part by part: the epochs of a classifier, or some steps of a style network."""

    @property
    def key(self) -> str:
        """Of its trial."""

    @property
    def step(self) -> int:
        """Steps done."""

    @property
    def is_done(self) -> bool: ...

    @property
    def is_due(self) -> bool:
        """Whether a checkpoint belongs after the last part."""

    def opening(self) -> Line:
        """The fields of the start line."""

    def part(self) -> Line:
        """Train the next part: the fields of its line. An exception, `Diverged` or other, is how it failed."""

    def ending(self, failure: Diverged | None) -> Line:
        """The fields of a stop or end line, beside status and reason."""

    def leave(self) -> None:
        """Write what it leaves beside the record, before its stop or its end is told."""

    def state(self) -> State:
        """All that the next part depends on."""

    def restore(self, state: State) -> None: ...


class Ending(NamedTuple):
    """How a call of `go_on` ended: finished; failed, and how; or stopped, since the time was over."""

    status: str
    failure: Diverged | None = None


def _same(x: T) -> T:
    return x


def _silence(line: Line) -> None:
    """Nobody listens."""


def go_on(
    training: Training,
    recording: Recording | None,
    *,
    deadline: Deadline = NEVER,
    tell: LineListener = _silence,
    agree: Callable[[Any], Any] = _same,
) -> Ending | None:
    """Train all parts that are missing, from the checkpoint where there is one, and record them.

    Args:
        training: its generators, networks and data are ready.
        recording: held; None on ranks that do not record.
        deadline: looked at after each part: at least one is trained, and none is begun that would take too long.
        tell: hears every line once it is recorded.
        agree: what rank 0 has, for all ranks.

    Returns:
        How it ended; None if another process had ended it before.

    Raises:
        OptionError: a checkpoint of another version's network.
        DataError: an image cannot be read; what is recorded stands.
        StoreError, CheckpointError: the disk is full or the like; what is recorded stands.
    """
    state = _kept(recording, training.key) if recording is not None else None
    # Another process may have ended it between the caller's first look and the lock.
    over, state = agree((recording is not None and recording.has_ended, state))
    if over:
        return None
    if state is not None:
        _restore(training, state, recording)
    lines = _Lines(recording, tell)
    lines.start(training)
    is_late, parts, longest = False, 0, 0.0
    while not training.is_done and not is_late:
        start = time.monotonic()
        fields = _attempt(training)
        took, parts = time.monotonic() - start, parts + 1
        # The first compiles what the others use; some of the others test the network.
        longest = took if parts <= 2 else max(longest, took)
        if isinstance(fields, Diverged):
            lines.append("end", status="failed", reason=fields.reason, **training.ending(fields))
            return Ending("failed", fields)
        is_late = deadline.is_set and agree(deadline.is_nearer_than(longest))
        # The line first: a kill in between repeats the part, and its second line counts. The other way round the line would
        # be lost.
        lines.add_part(training, fields, keep=not training.is_done and (is_late or training.is_due))
    if recording is not None:
        training.leave()
    if not training.is_done:
        lines.append("stop", **training.ending(None))
        return Ending("stopped")
    lines.append("end", status="finished", reason="", **training.ending(None))
    return Ending("finished")


class _Lines:
    """Writes lines and tells of them; on ranks that do not record it does neither."""

    def __init__(self, recording: Recording | None, tell: LineListener) -> None:
        self.recording, self.tell = recording, tell

    def start(self, training: Training) -> None:
        if self.recording is not None:
            self.recording.start(**training.opening())
            self.tell(self.recording.lines[-1])

    def add_part(self, training: Training, fields: Line, *, keep: bool) -> None:
        if self.recording is not None:
            self.recording.append(self.recording.parts.kind, **fields)
            if keep:
                checkpoint.save(self.recording.checkpoint, {**training.state(), "key": training.key})
            self.tell(self.recording.lines[-1])

    def append(self, kind: str, **fields: Any) -> None:
        if self.recording is not None:
            self.recording.append(kind, **fields)
            self.tell(self.recording.lines[-1])


def _kept(recording: Recording, key: str) -> State | None:
    """The checkpoint; None if there is none, or a damaged one, which is set aside: the training then starts over."""
    try:
        return checkpoint.load(recording.checkpoint, key)
    except DamagedCheckpoint as error:
        _set_aside(recording, str(error))
        return None


def _restore(training: Training, state: State, recording: Recording | None) -> None:
    """Take up a state; where it is damaged, start over, as if there had been none."""
    before = copy.deepcopy(training.state())
    try:
        training.restore(state)
    except RuntimeError as error:
        where = "the checkpoint" if recording is None else recording.checkpoint
        raise OptionError(another_network("train", where, error, "Remove it")) from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:  # a part is missing, or another type
        training.restore(before)  # what was taken up before the error
        if recording is not None:
            what = f"{type(error).__name__}: {str(error)[:60]}"
            _set_aside(recording, f"`train`: the checkpoint {recording.checkpoint} is damaged ({what})")


def _set_aside(recording: Recording, why: str) -> None:
    try:
        aside = set_aside(recording.checkpoint)
    except OSError as error:
        raise refusal("set aside", recording.checkpoint, error) from error
    print(f"spectralgrad {why}. It is kept as {aside.name}, and the trial starts over.", file=sys.stderr)


def another_network(who: str, where: object, error: Exception, remedy: str) -> str:
    """What to say of a file whose weights do not fit."""
    return (
        f"`{who}`: {where} holds another network than this version of spectralgrad makes of the same trial "
        f"({next(iter(str(error).splitlines()), type(error).__name__)}). {remedy} and train again."
    )


def _attempt(training: Training) -> Line | Diverged:
    """The next part, or how it failed; Ctrl-C passes."""
    try:
        return training.part()
    except Diverged as failure:
        return failure
    except DataError:  # of the disk: no result of the training
        raise
    except Exception as error:
        raised = Diverged(f"{type(error).__name__}: {str(error)[:REASON]}", training.step + 1)
        raised.__cause__ = error
        return raised
