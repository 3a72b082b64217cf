"""The page: every artifact of the papers, the paper's figures beside ours, in one HTML file that needs nothing else.

It reads records and never trains. What users name is escaped (`markup`); a policy in the page forbids scripts and every
request to the network.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from functools import lru_cache
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import spectralgrad as sg
from spectralgrad.errors import OptionError
from spectralgrad_lab.artifacts.spec import Spec, trials_of
from spectralgrad_lab.files import write_whole
from spectralgrad_lab.records.described import Described
from spectralgrad_lab.records.machine import slug
from spectralgrad_lab.records.results import SCALES, Scale
from spectralgrad_lab.records.store import Store, StoreError

from .answer import answer
from .artifact import section
from .findings import Findings, files_of, gather, pictures_of
from .legend import legend
from .markup import Markup, element
from .origin import starts_of

TITLE = "spectralgrad: the papers' results and ours"
SCALE_SAYS = {
    "smoke": "digits on the CPU, to see that everything runs; none of it is a result on the papers' data.",
    "short": "the papers' networks with far fewer epochs and seeds; compare methods with each other, not with print.",
    "paper": "the printed protocol, but for images that fill no batch and for bfloat16, which each artifact names.",
}
RECENT = 512  # records that are kept in memory: more than one artifact has
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


class Snapshot(Store):
    """A store whose records are read once: a trial that goes on meanwhile is the same in table and figure."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._read = lru_cache(RECENT)(super().lines)

    def lines(self, trial: Described) -> list[dict[str, Any]]:
        return self._read(trial)


def write_page(
    folder: Path,
    store: Store,
    specs: Mapping[str, Spec],
    scale: Scale,
    *,
    progress: Callable[[str], None] | None = None,
    tell: Callable[[Sequence[str]], None] | None = None,
) -> Path:
    """Write index.html, and the figure (PNG) and numbers (CSV) of every artifact beside it.

    Args:
        folder: made if it is not there; files of the same names are replaced.
        store: the records.
        specs: id -> artifact, in the order of the page.
        scale: smoke, short or paper.
        progress: called with the id of each artifact, before it is drawn.
        tell: called at the end with a line for each damaged record, and each figure that cannot be drawn: they are left out.

    Returns:
        The path of index.html.

    Raises:
        OptionError: an unknown scale.
        StoreError: the folder cannot be written.

    >>> import tempfile
    >>> from spectralgrad_lab.artifacts.spec import Spec
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = Store(Path(folder, "records"))
    ...     page = write_page(Path(folder, "page"), store, {"x": Spec("x", "PAMI", "nothing yet", "computed")}, "smoke")
    ...     page.name, "no records" in page.read_text(encoding="utf-8")
    ('index.html', True)
    """
    if scale not in SCALES:
        raise OptionError(f"`write_page`: scale must be one of {', '.join(SCALES)}, got {scale!r}.")
    records = Snapshot(store.folder)
    everything, sections = [], []
    _require_own(folder / "index.html")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for spec in specs.values():
            if progress is not None:
                progress(spec.id)
            found = gather(spec, scale, records)
            pictures = pictures_of(found)
            files = files_of(found, pictures)
            for name, content in files.items():
                write_whole(folder / name, content)
            everything.append(found)
            sections.append(section(found, pictures, list(files)))
        page = folder / "index.html"
        write_whole(page, _html(everything, sections, scale, records).encode())
    except OSError as error:
        raise StoreError(f"`write_page`: {folder} cannot be written: {error.strerror or error}. Choose another.") from error
    if tell is not None:
        tell([*records.damaged.values(), *(line for found in everything for line in found.undrawn)])
    return page


def _require_own(page: Path) -> None:
    """Raise where there is a page that is not one of ours."""
    if page.is_file() and "This page was written on" not in page.read_text(encoding="utf-8", errors="replace"):
        raise StoreError(f"`write_page`: {page} is another page, and would be lost. Choose another folder.")


def _html(everything: Sequence[Findings], sections: Sequence[Markup], scale: Scale, store: Store) -> str:
    style = Markup(resources.files(__package__).joinpath("style.css").read_text(encoding="utf-8"))
    head = [
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("link", rel="icon", href="data:,"),
        element("title", TITLE),
        element("style", style),
    ]
    top = element("header", element("h1", TITLE), *_lead(everything, scale), legend(), _contents(everything))
    order = [[found for found in everything if found.has_records == recorded] for recorded in (True, False)]
    parts = {found.spec.id: part for found, part in zip(everything, sections, strict=True)}
    body = [element("h2", "Summary", id="summary"), _summary([*order[0], *order[1]])]
    for paper in dict.fromkeys(found.spec.paper for found in order[0]):
        body.append(element("h2", paper, id=f"paper-{slug(paper)}"))
        body += [parts[found.spec.id] for found in order[0] if found.spec.paper == paper]
    if order[1]:
        body.append(element("h2", f"Without records at scale {scale}", id="without-records"))
        body += [parts[found.spec.id] for found in order[1]]
    end = element("footer", element("h2", "Machines and versions", id="machines"), *_machines(everything, store))
    page = element("html", element("head", *head), element("body", top, element("main", *body), end), lang="en")
    return f"<!doctype html>\n{page}\n"


def _lead(everything: Sequence[Findings], scale: Scale) -> list[Markup]:
    """The first minute: what this page is, at which scale, and how much there is."""
    recorded = sum(found.has_records for found in everything)
    what = (
        "Networks with an eigendecomposition inside (whitening, PCA, covariance pooling) are trained with its gradient "
        "taken in different ways. The papers ask which of them train at all, and which train best; each table and figure of "
        "theirs stands here with our run of it. A table says first what was trained, on what, and what came out."
    )
    state = f"Scale {scale}: {SCALE_SAYS[scale]} {recorded} of {len(everything)} tables and figures have records at it."
    return [element("p", what), element("p", state)]


def _contents(everything: Sequence[Findings]) -> Markup:
    """Links to every artifact: those with records first, by paper, and then the others."""
    groups: dict[tuple[str, str], list[str]] = {}
    for found in everything:
        key = (
            (found.spec.paper, f"paper-{slug(found.spec.paper)}")
            if found.has_records
            else ("Without records", "without-records")
        )
        groups.setdefault(key, []).append(found.spec.id)
    parts = []
    for (title, target), ids in sorted(groups.items(), key=lambda group: group[0][1] == "without-records"):
        parts.append(element("p", element("a", title, href=f"#{target}")))
        parts.append(element("ul", *(element("li", element("a", id, href=f"#{slug(id)}")) for id in ids)))
    parts.append(element("p", element("a", "Machines and versions", href="#machines")))
    return element("nav", element("h2", "Contents"), *parts, aria_label="Contents")


def _summary(everything: Sequence[Findings]) -> Markup:
    head = element("tr", *(element("th", name, scope="col") for name in ("id", "shows", "state", "answer")))
    rows = []
    for found in everything:
        link = element("a", found.spec.id, href=f"#{slug(found.spec.id)}")
        soft = None if found.has_records else "lost"
        came = answer(found) if found.has_records and not found.problem else ""
        words = [(found.spec.shows, "wide"), (found.state, soft or "wide"), (came, "wide")]
        cells = [element("td", text, class_=kind) for text, kind in words]
        rows.append(element("tr", element("th", link, scope="row"), *cells))
    drawn = element("table", element("thead", head), element("tbody", *rows), class_="words")
    return element("div", drawn, class_="scroll", tabindex=0, role="region", aria_label="Summary")


def _machines(everything: Sequence[Findings], store: Store) -> list[Markup]:
    """Where the records come from: each machine with its versions once, and how many records it gave."""
    seen: Counter[tuple[str, str]] = Counter()
    dates: list[str] = []
    for about in _origins(everything, store):
        machine = {key: value for key, value in about.get("machine", {}).items() if key != "load_average_1min"}
        versions = {**about.get("versions", {}), "source": about.get("source")}
        seen[_words(machine), _words(versions)] += 1
        dates += [str(about["date"])] if about.get("date") else []
    parts = [
        element("p", f"{count} record{'' if count == 1 else 's'}: {machine}. {versions}.")
        for (machine, versions), count in seen.most_common()
    ]
    if dates:
        parts.append(element("p", f"Recorded from {min(dates)} to {max(dates)}."))
    now = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    written = (
        f"This page was written on {now} by spectralgrad {sg.__version__}, matplotlib {metadata.version('matplotlib')}."
    )
    return [*(parts or [element("p", "No records.")]), element("p", written, class_="soft")]


def _origins(everything: Sequence[Findings], store: Store) -> list[dict[str, Any]]:
    """The last start line of every trial, and the head of every computed result."""
    origins: list[dict[str, Any]] = []
    readable = [found for found in everything if not found.problem]
    origins += starts_of(trials_of(entry for found in readable for entry in found.entries), store)
    heads = [store.head_of_computed(found.spec.id, found.scale) for found in readable if found.result is not None]
    return origins + [head for head in heads if head is not None]


def _words(values: Mapping[str, Any]) -> str:
    """A dictionary in words; what is not there is left out.

    >>> _words({"cpu": "EPYC", "torch_threads": 2, "gpu": None})
    'cpu EPYC, torch threads 2'
    """
    return ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in values.items() if value is not None)
