"""What there is of an artifact: its records as cells, panels and files."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from spectralgrad.errors import SpectralError
from spectralgrad_lab.artifacts.spec import Entry, Spec, trials_of
from spectralgrad_lab.records.machine import slug
from spectralgrad_lab.records.results import Computed, Printed, Scale
from spectralgrad_lab.records.store import Store

from .cells import Cell, measure
from .figures import draw, is_empty
from .gallery import sheet
from .origin import origin, origins
from .panel import POINT_COLUMNS, Panel
from .panels import epochs_of, panels_of_computed, panels_of_training
from .survival import Lives, all_lives, hazards
from .tables import arrange, cell_lines, printed_lines, to_csv

BANNERS = {
    "training": "SMOKE TEST on digits: not the paper's data",
    "timing": "SMOKE TEST with the digits network: not the paper's",
    "style": "SMOKE TEST on drawn pictures: not the paper's data",
}
DEMO = "Digits: not the papers' data"


@dataclass
class Findings:
    """What there is of an artifact at one scale."""

    spec: Spec
    scale: Scale
    entries: tuple[Entry, ...] = ()
    cells: tuple[Cell, ...] = ()
    result: Computed | None = None
    lives: tuple[Lives, ...] = ()  # where the artifact asks how long trainings last
    panels: list[Panel] = field(default_factory=list)
    planned: int = 0  # trials, each counted once: cells may share theirs
    run: int = 0  # of them to an end
    finite: int = 0
    converged: int = 0
    begun: int = 0  # with epochs, but no end
    problem: str = ""  # why the records cannot be read
    damaged: list[str] = field(default_factory=list)  # records that are left out, and why
    undrawn: list[str] = field(default_factory=list)  # figures that are left out, and why
    origins: list[str] = field(default_factory=list)  # machine, torch, precision, ...

    @property
    def banner(self) -> str:
        """What every table and figure says at the top, so that none is taken for the paper's; empty if there is no need."""
        if self.scale != "smoke":
            return ""
        return DEMO if self.spec.judged else BANNERS.get(self.spec.kind, "")

    @property
    def tables(self) -> list[Printed]:
        """Our tables of what was trained."""
        return [*([hazards(self.lives)] if self.lives else []), *(arrange(self.cells) if self.cells else [])]

    @property
    def has_records(self) -> bool:
        return self.result is not None or self.begun > 0 or self.run > 0

    @property
    def state(self) -> str:
        """In a few words, for the summary."""
        if self.problem:
            return "records cannot be read"
        parts = []
        if self.result is not None:
            agrees = {True: ", equal to the paper's numbers", False: ", differs from the paper's numbers", None: ""}
            parts.append(
                {"timing": "measured", "style": "evaluated"}.get(self.spec.kind, "computed") + agrees[self.result.agrees]
            )
        if self.begun or self.run:
            learned = f", {self.converged} converged" if self.spec.is_judged(self.scale) else ""
            parts.append(f"{self.run} of {self.planned} trainings run: {self.finite} finite{learned}")
            parts += [f"{self.begun} not at their end"] if self.begun else []
        if self.damaged:
            parts.append(f"{len(self.damaged)} damaged record{'' if len(self.damaged) == 1 else 's'} left out")
        return "; ".join(parts) or "no records"


def gather(spec: Spec, scale: Scale, store: Store) -> Findings:
    """Read the records of an artifact. Nothing is trained or computed."""
    found = Findings(spec, scale)
    try:
        if spec.entries is not None:
            found.entries = spec.entries(scale)
            judged = spec.is_judged(scale)
            found.cells = tuple(measure(entry, store, judged=judged) for entry in found.entries)
            trials = trials_of(found.entries)
            outcomes = [store.outcome(trial) for trial in trials]
            found.planned, found.run = len(trials), sum(outcome is not None for outcome in outcomes)
            found.finite = sum(outcome is not None and outcome.status == "finished" for outcome in outcomes)
            found.converged = sum(outcome is not None and outcome.converged is not False for outcome in outcomes)
            found.origins = origins(trials, store)
            unfinished = [trial for trial, outcome in zip(trials, outcomes, strict=True) if outcome is None]
            found.begun = sum(bool(epochs_of(trial, store)) for trial in unfinished)
            found.lives = tuple(all_lives(found.entries, store)) if spec.form == "survival" else ()
            found.panels += panels_of_training(spec, found.entries, found.cells, store)
        if spec.is_computed:
            found.result = store.load_computed(spec.id, scale)
            head = store.head_of_computed(spec.id, scale)
            found.origins += [] if head is None else [origin(head)]
            found.panels += [] if found.result is None else panels_of_computed(spec, found.result)
    except SpectralError as error:  # one damaged record does not cost the other artifacts their page
        found.problem = str(error)
    found.damaged = store.damage_of(trials_of(found.entries), *([(spec.id, scale)] if spec.is_computed else []))
    return found


def pictures_of(found: Findings) -> list[bytes]:
    """A PNG for each panel of the page; empty where there is nothing to see."""
    return [b"" if is_empty(panel) else _drawn([panel], found) for panel in found.panels]


def _drawn(panels: Sequence[Panel], found: Findings) -> bytes:
    """The panels as PNG; empty where matplotlib cannot draw them, which is told."""
    try:
        return draw(panels, found.banner)
    except Exception as error:  # of any kind: StopIteration, LinAlgError, ... out of numbers that it does not expect
        names = " and ".join(f"«{panel.title or found.spec.shows}»" for panel in panels)
        found.undrawn.append(f"{found.spec.id}: figure {names} is left out: {type(error).__name__}: {error}".rstrip(": "))
        return b""


def files_of(found: Findings, pictures: Sequence[bytes]) -> dict[str, bytes]:
    """Name -> content of what stands beside the page: our numbers, and the figure; what is smoke says so in its name."""
    if not found.has_records or found.problem:
        return {}
    stem = slug(found.spec.id) + ("-smoke" if found.banner and not found.spec.judged else "")
    sheets: list[list[list[str]]] = []
    if any(cell.run for cell in found.cells):
        sheets.append(cell_lines(found.cells))
    if found.lives:
        sheets.append(printed_lines(hazards(found.lives)))
    if found.result is not None:
        sheets += [printed_lines(table) for table in found.result.tables]
    if found.panels and (found.result is not None or any(not panel.ticks for panel in found.panels)):
        points = [line for panel in found.panels if panel.kind != "contour" for line in panel.points()]
        sheets.append([POINT_COLUMNS, *points])
    files = {f"{stem}{f'-{i}' if i > 1 else ''}.csv": to_csv(sheet).encode() for i, sheet in enumerate(sheets, 1)}
    drawn = [(panel, picture) for panel, picture in zip(found.panels, pictures, strict=True) if picture]
    together = drawn[0][1] if len(drawn) == 1 else _drawn([panel for panel, _ in drawn], found) if drawn else b""
    if together:
        files[f"{stem}.png"] = together
    if found.result is not None and found.result.pictures:
        files[f"{stem}-pictures.jpg"] = sheet(found.result.pictures)
    return files
