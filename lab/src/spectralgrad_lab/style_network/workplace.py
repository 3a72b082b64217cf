"""Where style networks are trained, and with what."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spectralgrad_lab.deadline import NEVER, Deadline


def silence(text: str) -> None:
    """Nobody listens."""


@dataclass(frozen=True)
class Workplace:
    """What an artifact may use that trains networks of another kind than `Trial`'s.

    Args:
        folder: of the records; trainings go into a folder of their own in it, shared by all artifacts.
        data: folder of the data sets.
        device: auto, cpu, cuda or cuda:N.
        say: told, in words, how far it is.
        encoder: file of VGG-19's weights; None for an installed one.
        changes: fields of the trainings that differ from their scale's.
        as_is: take trainings as they are, also those that were stopped, and train nothing.
        deadline: until when networks may be trained.
    """

    folder: Path
    data: Path | None = None
    device: str = "auto"
    say: Callable[[str], None] = field(default=silence, compare=False)
    encoder: Path | None = None
    changes: tuple[tuple[str, Any], ...] = ()
    as_is: bool = False
    deadline: Deadline = field(default=NEVER, compare=False)
