"""Tables as HTML: the paper's numbers and ours in one, or the two beside each other."""

from collections.abc import Sequence

from spectralgrad_lab.records.results import Printed

from .compare import compare
from .findings import Findings
from .markup import Markup, element, join
from .paired import differences

NOTHING = Markup("")


def tables(found: Findings) -> Markup:
    """All tables of an artifact. At smoke nothing of ours stands in one table with what is printed."""
    alike = found.cells and found.scale != "smoke" and not found.lives
    merged = compare(found.spec.printed, found.cells) if alike else []
    theirs = _theirs(found)
    if merged:
        head = element("h4", "Printed and ours, side by side")
        whole = element("details", element("summary", "The paper's whole table"), *theirs)
        return join(head, *_ours(found, merged), whole, _differences(found))
    ours = _ours(found, found.tables) + _computed(found)
    boxes = [(title, some) for title, some in (("In the paper", theirs), ("Ours", ours)) if some]
    if not boxes:
        return Markup("")
    pair = element("div", *(element("div", element("h4", title), *some) for title, some in boxes), class_="pair")
    return join(pair, _differences(found))


def banner(found: Findings) -> Markup:
    """The label of results that are none of the paper's; empty if there is no need."""
    return element("span", found.banner, class_="banner") if found.banner else Markup("")


def _theirs(found: Findings) -> list[Markup]:
    spec, parts = found.spec, []
    for printed in spec.printed:
        turned = _turned(printed)
        caption = turned.caption or f"{spec.id}, as {spec.paper} prints it"
        parts.append(table(turned, caption, f"{spec.id}: the paper's table"))
        parts += _misprints(printed)
    return parts


def _ours(found: Findings, printed: Sequence[Printed]) -> list[Markup]:
    id = found.spec.id
    words = "min and mean are after the last epoch."
    return [
        table(each, f"{each.caption or id}, scale {found.scale}.{seeds(found)} {words}", f"{id}: our table", banner(found))
        for each in printed
    ]


def _computed(found: Findings) -> list[Markup]:
    parts = []
    for printed in () if found.result is None else found.result.tables:
        caption = printed.caption or f"Ours, scale {found.scale}"
        parts.append(table(printed, caption, f"{found.spec.id}: our table", banner(found)))
        parts += _misprints(printed)
    return parts


def _misprints(printed: Printed) -> list[Markup]:
    return [element("p", element("span", "Misprint", class_="misprint"), f" {text}") for text in printed.misprints]


def _differences(found: Findings) -> Markup:
    """Paired differences, where there are seeds enough."""
    some = differences(found.entries, found.cells)
    if not some:
        return Markup("")
    columns = tuple(dict.fromkeys(x.column for x in some))
    by_row: dict[str, dict[str, str]] = {}
    for x in some:
        by_row.setdefault(f"{x.row} less {x.reference}", {})[x.column] = x.shown()
    rows: dict[str, tuple[str | None, ...]] = {
        row: tuple(cells.get(column, "") for column in columns) for row, cells in by_row.items()
    }
    caption = (
        "Differences seed by seed, in points after the last epoch: mean [95 % interval of Student's t, each by itself]."
    )
    return table(Printed(columns, rows), caption, f"{found.spec.id}: paired differences", banner(found))


def seeds(found: Findings) -> str:
    """How many seeds the cells have, in words."""
    counts = sorted({cell.planned for cell in found.cells})
    if not counts:
        return ""
    return f" {' or '.join(str(n) for n in counts)} seed{'' if counts == [1] else 's'} for each cell."


def table(printed: Printed, caption: str, label: str, over: Markup = NOTHING) -> Markup:
    """A table in a box that scrolls by itself, its caption outside so that it does not; lost cells say so.

    Rows that are called «SVD: min», «SVD: mean» stand under a heading, «SVD», as in the papers. ``over`` is a label
    above it.
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
    return element("figure", element("figcaption", over, " " if over else "", caption, class_="soft"), box)


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
