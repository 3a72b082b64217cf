"""What an artifact of the papers is: its printed figures, and what to train or compute for ours."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from spectralgrad_lab.records.results import Computed, Printed, Scale
from spectralgrad_lab.records.trial import Trial
from spectralgrad_lab.style_network.workplace import Workplace

# Of the test, in percent, after the last epoch or the best one; failures of the solver in all epochs; of the spectrum after
# the first convolution, in the last epoch or the first one.
Figure = Literal[
    "test_error", "top5_error", "accuracy", "top5_accuracy", "solver_failures",
    "mean_ratio", "tied_ratio", "at_floor", "kept_rank", "condition_range",
]  # fmt: skip
BETWEEN = (8, 32)  # group sizes that are tried last
LEAST = ("pi",)  # the method that says least: it is expected to fail
ArtifactKind = Literal["training", "computed", "timing", "style"]
Form = Literal[
    "table", "loss", "error", "condition", "success", "survival",
    "time", "contour", "probability", "direction", "points", "pictures",
]  # fmt: skip


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
class Spec:
    """One artifact.

    Args:
        id: the paper and the number of its table or figure.
        paper: DRAFT, NIPS19, POSTER, PAMI or ECCV22; OURS for what no paper has.
        shows: one line for `list`.
        kind: training (entries), computed or timing (compute), style (make).
        form: how the page draws it.
        printed: the paper's own figures.
        entries: scale -> the cells to train.
        compute: scale -> the result.
        make: scale and workplace -> the result, of the style-transfer networks.
        says: what a scale does differently from the paper, by scale.
        claim: what the paper concludes from it, in one sentence; the page sets ours beside it.
        judged: whether a training must converge to be a success even at smoke, which is too short for that elsewhere.
    """

    id: str
    paper: str
    shows: str
    kind: ArtifactKind
    form: Form = "table"
    printed: tuple[Printed, ...] = ()
    entries: Callable[[Scale], tuple[Entry, ...]] | None = None
    compute: Callable[[Scale], Computed] | None = None
    make: Callable[[Scale, Workplace], Computed] | None = None
    says: dict[str, str] = field(default_factory=dict)
    claim: str = ""
    judged: bool = False

    def is_judged(self, scale: Scale) -> bool:
        """Whether a success must have converged, beside being finite; not where it is asked how long trainings last."""
        return self.form != "survival" and (self.judged or scale != "smoke")

    @property
    def is_computed(self) -> bool:
        """Whether its result is one record, in the place of trials."""
        return self.compute is not None or self.make is not None

    def trials(self, scale: Scale) -> list[Trial]:
        """The trials of its cells, each once; none for an artifact that is computed."""
        return trials_of(self.entries(scale)) if self.entries is not None else []


def narrowed(spec: Spec, rows: Sequence[str] = (), columns: Sequence[str] = (), seeds: int | None = None) -> Spec:
    """The artifact with these rows and columns alone (none: all), and the first ``seeds`` trials of each cell."""

    def entries(scale: Scale) -> tuple[Entry, ...]:
        return tuple(
            replace(entry, trials=entry.trials[:seeds])
            for entry in (spec.entries(scale) if spec.entries is not None else ())
            if (not rows or entry.row in rows) and (not columns or entry.column in columns)
        )

    return spec if spec.entries is None else replace(spec, entries=entries)


def trials_of(entries: Iterable[Entry]) -> list[Trial]:
    """Every trial once, for cells may share theirs; in an order of which every beginning is worth having.

    The first seed of all cells, then the second, ...; then PI; groups of 8 and 32 channels, which lie between others, come
    last.
    """
    found = dict.fromkeys(trial for entry in entries for trial in entry.trials)
    return sorted(found, key=lambda trial: (trial.d in BETWEEN, trial.method in LEAST, trial.seed))
