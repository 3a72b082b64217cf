"""One artifact as a part of the page: what was trained, what came out, its tables and its figure."""

import base64
from collections.abc import Sequence

from spectralgrad_lab.records.machine import slug
from spectralgrad_lab.records.outcome import LARGEST

from .answer import answer, trained
from .figures import describe, left_out
from .findings import Findings
from .gallery import gallery
from .markup import Markup, element, join
from .panel import Panel
from .table_markup import banner, seeds, tables
from .tables import group_failures

FEW = 8  # failures; more are folded away


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
        said = element("p", line, class_="soft")
        return element("section", title, said, _damaged(found), id=slug(spec.id), class_="artifact empty")
    says = spec.says.get(found.scale, "")
    came = answer(found)
    parts = [
        title,
        element("p", banner(found)) if found.banner else "",
        element("p", element("b", "Trained: " if found.entries else ""), trained(found)),
        element("p", element("b", "Answer: "), came, class_="answer") if came else "",
        element("p", element("b", "The paper: "), spec.claim, class_="claim") if spec.claim else "",
        element("p", element("b", f"Scale {found.scale}: "), says) if says else "",
        element("p", f"{spec.paper}, scale {found.scale}: {found.state}.{seeds(found)}", class_="soft"),
        element("p", f"Run on {'; '.join(found.origins)}.", class_="soft") if found.origins else "",
        _damaged(found),
        tables(found),
        _failures(found),
        _remarks(found),
        _figure(found, pictures),
        gallery(found.result.pictures if found.result is not None else (), f"{spec.id}: our pictures"),
        _links(files),
    ]
    return element("section", join(*parts), id=slug(spec.id), class_="artifact")


def _failures(found: Findings) -> Markup:
    lines = group_failures(found.cells)
    if not lines:
        return Markup("")
    listed = element("ul", *(element("li", line) for line in lines), class_="notes")
    failed, strayed = (
        sum(len(some) for some in x) for x in zip(*((c.failures, c.strays) for c in found.cells), strict=True)
    )
    title = f"No success: {failed} not finite, {strayed} finite that did not converge"
    return element("details", element("summary", title, class_="bad"), listed, open=len(lines) <= FEW)


def _damaged(found: Findings) -> Markup:
    listed = [element("li", f"{line}.") for line in (*found.damaged, *found.undrawn)]
    return element("ul", *listed, class_="notes") if listed else Markup("")


def _remarks(found: Findings) -> Markup:
    if found.result is None:
        return Markup("")
    said = [text for text in found.result.remarks if text != answer(found)]
    return element("ul", *(element("li", text) for text in said), class_="notes") if said else Markup("")


def _figure(found: Findings, pictures: Sequence[bytes]) -> Markup:
    panels = found.panels
    if not panels:
        return Markup("")
    shown = []
    for panel, picture in zip(panels, pictures, strict=True):
        if picture:
            source = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
            shown.append(element("div", element("img", src=source, alt=describe(panel))))
    if not shown:
        return element("p", _caption(panels), class_="soft")
    caption = element("figcaption", banner(found), " " if found.banner else "", _caption(panels), class_="soft")
    return element("figure", *shown, caption, class_="figures")


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
            f"{missing} point{'' if missing == 1 else 's'} not drawn: not finite, beyond {LARGEST:g}, or not positive on a "
            "logarithmic axis."
        )
    return " ".join(said)


def _links(files: Sequence[str]) -> Markup:
    if not files:
        return Markup("")
    links = [element("a", name, href=name) for name in files]
    return element("p", "Beside this page: ", join(*links, between=", "), class_="soft")
