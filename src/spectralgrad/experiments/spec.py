"""What an artifact of the papers is: its printed figures, and what to train or compute for ours."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from .trial import Trial

SCALES = ("smoke", "short", "paper")
Scale = Literal["smoke", "short", "paper"]
Figure = Literal["test_error", "top5_error", "solver_failures"]  # errors in percent after the last epoch; failures in all
Kind = Literal["training", "computed", "timing", "style"]
Form = Literal[
    "table", "loss", "error", "condition", "success", "time", "contour", "probability", "direction", "points", "pictures"
]


@dataclass(frozen=True)
class Printed:
    """A table as the paper prints it; None where the text lost the cell, which is never filled in."""

    columns: tuple[str, ...]
    rows: dict[str, tuple[str | None, ...]]  # label -> one cell for each column
    caption: str = ""
    misprints: tuple[str, ...] = ()  # what is wrong in it, in words


@dataclass(frozen=True)
class Entry:
    """One cell of our table, or one curve of our figure: the same trial with several seeds, and which figure of it counts.

    Cells of one row may share their trials: top-1 and top-5 errors, and how often the solver failed.
    """

    row: str
    column: str
    trials: tuple[Trial, ...]
    figure: Figure = "test_error"


@dataclass(frozen=True)
class Curve:
    """Numbers to draw."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]


@dataclass(frozen=True)
class Surface:
    """Numbers z[i][j] over y[i] and x[j], with contours at levels and marked points (name, x, y)."""

    x: tuple[float, ...]
    y: tuple[float, ...]
    z: tuple[tuple[float, ...], ...]
    levels: tuple[float, ...] = ()
    points: tuple[tuple[str, float, float], ...] = ()
    x_label: str = ""
    y_label: str = ""


@dataclass(frozen=True)
class Picture:
    """One picture of a gallery.

    Args:
        row, column: its place.
        data: a whole JPEG or PNG file.
        alt: what it shows, for those who do not see it.
        original: it is of the user's data: never published, and not missed where it is not there.
    """

    row: str
    column: str
    data: bytes = field(repr=False)
    alt: str = ""
    original: bool = False


@dataclass(frozen=True)
class Computed:
    """What an artifact without trials of its own gives; a point cloud is a curve whose points are not joined."""

    tables: tuple[Printed, ...] = ()
    curves: tuple[Curve, ...] = ()
    surfaces: tuple[Surface, ...] = ()
    x_label: str = ""
    y_label: str = ""
    log: str = ""  # axes in logarithms: "", "x", "y" or "xy"
    agrees: bool | None = None  # with the paper's own numbers, where it has exact ones
    remarks: tuple[str, ...] = ()
    pictures: tuple[Picture, ...] = ()  # row by row


def _silence(text: str) -> None:
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
    """

    folder: Path
    data: Path | None = None
    device: str = "auto"
    say: Callable[[str], None] = field(default=_silence, compare=False)
    encoder: Path | None = None
    changes: tuple[tuple[str, Any], ...] = ()
    as_is: bool = False


@dataclass(frozen=True)
class Spec:
    """One artifact.

    Args:
        id: as PAPERS.md names it.
        paper: DRAFT, NIPS19, POSTER, PAMI or ECCV22.
        shows: one line for `list`.
        kind: training (entries), computed or timing (compute), style (make).
        form: how the page draws it.
        printed: the paper's own figures.
        entries: scale -> the cells to train.
        compute: scale -> the result.
        make: scale and workplace -> the result, of the style-transfer networks.
        says: what a scale does differently from the paper, by scale.
        claim: what the paper concludes from it, in one sentence; the page sets ours beside it.
    """

    id: str
    paper: str
    shows: str
    kind: Kind
    form: Form = "table"
    printed: tuple[Printed, ...] = ()
    entries: Callable[[Scale], tuple[Entry, ...]] | None = None
    compute: Callable[[Scale], Computed] | None = None
    make: Callable[[Scale, Workplace], Computed] | None = None
    says: dict[str, str] = field(default_factory=dict)
    claim: str = ""

    @property
    def is_computed(self) -> bool:
        """Whether its result is one record, in the place of trials."""
        return self.compute is not None or self.make is not None

    def trials(self, scale: Scale) -> list[Trial]:
        """The trials of its cells, each once; none for an artifact that is computed."""
        return trials_of(self.entries(scale)) if self.entries is not None else []


def trials_of(entries: Iterable[Entry]) -> list[Trial]:
    """Every trial once: cells may share theirs."""
    return list(dict.fromkeys(trial for entry in entries for trial in entry.trials))
