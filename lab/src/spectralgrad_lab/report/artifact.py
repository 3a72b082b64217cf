"""One artifact: what its records say, as the paper's tables beside ours, its figure, and the files beside the page."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field

from spectralgrad.errors import SpectralError
from spectralgrad_lab.artifacts.spec import Entry, Spec, trials_of
from spectralgrad_lab.records.machine import slug
from spectralgrad_lab.records.results import Computed, Printed, Scale
from spectralgrad_lab.records.store import Store

from .figures import describe, draw, is_empty, left_out
from .gallery import gallery, sheet
from .markup import Markup, element, join
from .panels import POINT_COLUMNS, Panel, epochs_of, panels_of_computed, panels_of_training
from .tables import Cell, arrange, cell_lines, group_failures, measure, printed_lines, to_csv

FEW = 8  # failures; more are folded away
STATISTICS = (
    "Success rate: trainings that finished, of those that were run. Errors are test errors in percent after the last epoch, "
    "over the trainings that finished; ± is the sample standard deviation over seeds."
)


@dataclass
class Findings:
    """What there is of an artifact at one scale."""

    spec: Spec
    scale: Scale
    entries: tuple[Entry, ...] = ()
    cells: tuple[Cell, ...] = ()
    result: Computed | None = None
    panels: list[Panel] = field(default_factory=list)
    planned: int = 0  # trials, each counted once: cells may share theirs
    run: int = 0  # of them to an end
    finished: int = 0
    begun: int = 0  # with epochs, but no end
    problem: str = ""  # why the records cannot be read

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
            failed = self.run - self.finished
            parts.append(f"{self.run} of {self.planned} trainings run: {self.finished} finished, {failed} failed")
            parts += [f"{self.begun} not at their end"] if self.begun else []
        return "; ".join(parts) or "no records"


def gather(spec: Spec, scale: Scale, store: Store) -> Findings:
    """Read the records of an artifact. Nothing is trained or computed."""
    found = Findings(spec, scale)
    try:
        if spec.entries is not None:
            found.entries = spec.entries(scale)
            found.cells = tuple(measure(entry, store) for entry in found.entries)
            trials = trials_of(found.entries)
            outcomes = [store.outcome(trial) for trial in trials]
            found.planned, found.run = len(trials), sum(outcome is not None for outcome in outcomes)
            found.finished = sum(outcome is not None and outcome.status == "finished" for outcome in outcomes)
            unfinished = [trial for trial, outcome in zip(trials, outcomes, strict=True) if outcome is None]
            found.begun = sum(bool(epochs_of(trial, store)) for trial in unfinished)
            found.panels += panels_of_training(spec, found.entries, found.cells, store)
        if spec.is_computed:
            found.result = store.load_computed(spec.id, scale)
            found.panels += [] if found.result is None else panels_of_computed(spec, found.result)
    except SpectralError as error:  # one damaged record does not cost the other artifacts their page
        found.problem = str(error)
    return found


def pictures_of(found: Findings) -> list[bytes]:
    """A PNG for each panel of the page; empty where there is nothing to see."""
    return [b"" if is_empty(panel) else draw([panel]) for panel in found.panels]


def files_of(found: Findings, pictures: Sequence[bytes]) -> dict[str, bytes]:
    """Name -> content of what stands beside the page: our numbers, and the figure."""
    if not found.has_records or found.problem:
        return {}
    stem = slug(found.spec.id)
    sheets: list[list[list[str]]] = []
    if any(cell.run for cell in found.cells):
        sheets.append(cell_lines(found.cells))
    if found.result is not None:
        sheets += [printed_lines(table) for table in found.result.tables]
    if found.panels and (found.result is not None or any(not panel.ticks for panel in found.panels)):
        points = [line for panel in found.panels if panel.kind != "contour" for line in panel.points()]
        sheets.append([POINT_COLUMNS, *points])
    files = {f"{stem}{f'-{i}' if i > 1 else ''}.csv": to_csv(sheet).encode() for i, sheet in enumerate(sheets, 1)}
    drawn = [(panel, picture) for panel, picture in zip(found.panels, pictures, strict=True) if picture]
    if drawn:
        files[f"{stem}.png"] = drawn[0][1] if len(drawn) == 1 else draw([panel for panel, _ in drawn])
    if found.result is not None and found.result.pictures:
        files[f"{stem}-pictures.jpg"] = sheet(found.result.pictures)
    return files


def section(found: Findings, pictures: Sequence[bytes], files: Sequence[str]) -> Markup:
    """The artifact's part of the page.

    Args:
        found: what there is of it.
        pictures: from `pictures_of`.
        files: names of what stands beside the page.
    """
    spec = found.spec
    title = element("h3", element("code", spec.id), ": ", spec.shows)
    if found.problem or not found.has_records:
        line = f"At scale {found.scale}: {found.problem or found.state}."
        return element("section", title, element("p", line, class_="soft"), id=slug(spec.id), class_="artifact empty")
    says = spec.says.get(found.scale, "")
    parts = [
        title,
        element("p", f"{spec.paper}, scale {found.scale}: {found.state}.{_seeds(found)}", class_="soft"),
        element("p", element("b", "The paper: "), spec.claim, class_="claim") if spec.claim else "",
        element("p", element("b", f"Scale {found.scale}: "), says) if says else "",
        _tables(found),
        _failures(found),
        _remarks(found),
        _figure(found.panels, pictures),
        gallery(found.result.pictures if found.result is not None else (), f"{spec.id}: our pictures"),
        _links(files),
    ]
    return element("section", join(*parts), id=slug(spec.id), class_="artifact")


def table(printed: Printed, caption: str, label: str) -> Markup:
    """A table in a box that scrolls by itself, its caption outside so that it does not; lost cells say so.

    Rows that are called «SVD: min», «SVD: mean» stand under a heading, «SVD», as in the papers.
    """
    groups: dict[str, list[str]] = {}
    for name in printed.rows:
        groups.setdefault(name.rpartition(": ")[0] or name, []).append(name)
    bodies = []
    for group, some in groups.items():
        rows = []
        if len(some) > 1:
            rows.append(element("tr", element("th", group, scope="rowgroup", colspan=len(printed.columns) + 1)))
        for name in some:
            title = name.rpartition(": ")[2] if len(some) > 1 else name
            inner = "inner" if len(some) > 1 else None
            rows.append(element("tr", element("th", title, scope="row", class_=inner), *map(_cell, printed.rows[name])))
        bodies.append(element("tbody", *rows))
    head = element("tr", element("td"), *(element("th", name, scope="col", class_=_two(name)) for name in printed.columns))
    drawn = element("table", element("thead", head), *bodies, aria_label=label)
    box = element("div", drawn, class_="scroll", tabindex=0, role="region", aria_label=f"{label}, scrolls sideways")
    return element("figure", element("figcaption", caption, class_="soft"), box)


def _two(name: str) -> str | None:
    """The class of a column's name of two parts, «Monet: Acc.», that may stand in two lines."""
    return "two" if ": " in name else None


def _cell(text: str | None) -> Markup:
    return element("td", "illegible", class_="lost") if text is None else element("td", text)


def _turned(printed: Printed) -> Printed:
    """A table with one column whose rows are «BN: min», «BN: mean», ...: these become columns, as in ours."""
    split = {name: name.rpartition(": ") for name in printed.rows}
    columns = tuple(dict.fromkeys(what for _, _, what in split.values()))
    groups = list(dict.fromkeys(group for group, _, _ in split.values()))
    if len(printed.columns) != 1 or "" in groups or len(printed.rows) != len(columns) * len(groups):
        return printed
    rows = {group: tuple(printed.rows[f"{group}: {what}"][0] for what in columns) for group in groups}
    return Printed(columns, rows, f"{printed.caption} {printed.columns[0]}.".strip(), printed.misprints)


def _seeds(found: Findings) -> str:
    counts = sorted({cell.planned for cell in found.cells})
    if not counts:
        return ""
    return f" {' or '.join(str(n) for n in counts)} seed{'' if counts == [1] else 's'} for each cell."


def _tables(found: Findings) -> Markup:
    spec = found.spec
    theirs = []
    for printed in spec.printed:
        turned = _turned(printed)
        caption = turned.caption or f"{spec.id}, as {spec.paper} prints it"
        theirs.append(table(turned, caption, f"{spec.id}: the paper's table"))
        theirs += [element("p", element("span", "Misprint", class_="misprint"), f" {text}") for text in printed.misprints]
    ours = []
    for printed in arrange(found.cells) if found.cells else []:
        caption = f"{printed.caption or spec.id}, scale {found.scale}.{_seeds(found)}"
        ours.append(table(printed, caption, f"{spec.id}: our table"))
    for printed in () if found.result is None else found.result.tables:
        caption = printed.caption or f"Ours, scale {found.scale}"
        ours.append(table(printed, caption, f"{spec.id}: our table"))
        ours += [element("p", element("span", "Misprint", class_="misprint"), f" {text}") for text in printed.misprints]
    if not theirs and not ours:
        return Markup("")
    boxes = [(title, some) for title, some in (("In the paper", theirs), ("Ours", ours)) if some]
    return element("div", *(element("div", element("h4", title), *some) for title, some in boxes), class_="pair")


def _failures(found: Findings) -> Markup:
    lines = group_failures(found.cells)
    if not lines:
        return Markup("")
    listed = element("ul", *(element("li", line) for line in lines), class_="notes")
    count = sum(len(cell.failures) for cell in found.cells)
    title = f"{count} training{'' if count == 1 else 's'} failed"
    return element("details", element("summary", title, class_="bad"), listed, open=len(lines) <= FEW)


def _remarks(found: Findings) -> Markup:
    if found.result is None:
        return Markup("")
    agrees = {
        True: element("p", "Equal to the paper's own numbers.", class_="good"),
        False: element("p", "Differs from the paper's own numbers.", class_="bad"),
        None: Markup(""),
    }[found.result.agrees]
    listed = element("ul", *(element("li", text) for text in found.result.remarks), class_="notes")
    return join(agrees, listed if found.result.remarks else "")


def _figure(panels: Sequence[Panel], pictures: Sequence[bytes]) -> Markup:
    if not panels:
        return Markup("")
    shown = []
    for panel, picture in zip(panels, pictures, strict=True):
        if picture:
            source = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
            shown.append(element("div", element("img", src=source, alt=describe(panel))))
    if not shown:
        return element("p", _caption(panels), class_="soft")
    return element("figure", *shown, element("figcaption", _caption(panels), class_="soft"), class_="figures")


def _caption(panels: Sequence[Panel]) -> str:
    said = ["Our figure."]
    if any(line.low for panel in panels for line in panel.lines if not panel.ticks):
        said.append("Lines are means over the seeds that reached the epoch, bands their range.")
    if any(panel.ticks and len(panel.lines) > 1 for panel in panels):
        said.append("Methods stand a little apart from each other; vertical lines are the range over seeds.")
    if any(line.companion for panel in panels for line in panel.lines):
        said.append("Dotted: training error.")
    if any(line.failed for panel in panels for line in panel.lines):
        said.append("A cross ends a line of which a training failed.")
    missing = sum(left_out(panel) for panel in panels)
    if missing:
        said.append(
            f"{missing} point{'' if missing == 1 else 's'} not drawn: not finite, or not positive on a logarithmic axis."
        )
    return " ".join(said)


def _links(files: Sequence[str]) -> Markup:
    if not files:
        return Markup("")
    links = [element("a", name, href=name) for name in files]
    return element("p", "Beside this page: ", join(*links, between=", "), class_="soft")
