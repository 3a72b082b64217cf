"""The rows of `gradients` and `roots` as Markdown: one column a method, ours by rule and solver among them."""

from spectralgrad_lab.records import machine as record

from . import on_request, peers
from .rows import Quartiles, Row

ERRORS, TIMES = "gradients", ("roots", "roots64")
SECTIONS = (ERRORS, *TIMES)


def names() -> list[str]:
    """Who has roots, or would have if it were installed."""
    return [*(method.name for method in peers.methods()), peers.KORNIA]


def all_names() -> list[str]:
    """Everybody who is in some row of `gradients`, us first."""
    ours = [peers.OURS, peers.EXACT, peers.NEWTON, peers.POLAR, peers.PROJECTOR]
    others = [peers.TORCH, peers.TORCH_SVD, peers.TORCH_OWN, peers.TORCHSPD, peers.SCIPY]
    return list(dict.fromkeys([*ours, *others, *names()]))


def _shown(function: str, rows: list[Row]) -> list[str]:
    """The columns of a table: who answered, and beside roots who is not installed."""
    present = {name for row in rows for name in (*row.errors, *row.failed)}
    if function not in on_request.OF_ROOTS:
        return [name for name in all_names() if name in present]
    return [name for name in names() if name != peers.KORNIA or name in present]


def _required(row: Row) -> str:
    """The requirement, and in brackets that of the default rule where it is another."""
    if row.target is None:
        return "-"
    own = row.also.get(peers.OURS, row.target)
    return f"{row.target:.1e}" + (f" ({own:.1e})" if f"{own:.1e}" != f"{row.target:.1e}" else "")


def report(rows: list[Row]) -> list[str]:
    """Paragraphs and tables for the rows of these sections; none for none."""
    errors, times = [row for row in rows if row.section == ERRORS], [row for row in rows if row.section in TIMES]
    return [*(_errors(errors) if errors else []), *(_times(times) if times else [])]


def _cell(row: Row, method: str) -> str:
    if method in row.failed:
        return f"{row.failed[method]} !" if row.missed_by(method) else row.failed[method]
    if method not in row.errors:
        return "-"
    error = row.errors[method]
    return ("NaN" if error != error else f"{error:.1e}") + (" !" if row.missed_by(method) else "")


def _errors(rows: list[Row]) -> list[str]:
    """A summary, one table for each function and dtype, and what is missed."""
    counted = [row for row in rows if row.target is not None]
    summary = []
    for name in all_names():
        tried = [row for row in counted if name in row.errors or name in row.failed]
        within = len(tried) - sum(row.missed_by(name) for row in tried)
        nan = sum(row.errors.get(name, 0.0) != row.errors.get(name, 0.0) for row in tried)
        summary.append([name, *map(str, (len(tried), within, nan, sum(name in row.failed for row in tried)))])
    parts = [
        "`!`: misses the requirement. NaN: the gradient holds NaN or Inf. `-`: not installed, or has no such function. "
        "A column without a package's name is spectralgrad's. Required: of `Exact` and of `spectralgrad`, the default rule, "
        "whose own requirement stands in brackets where it differs.",
        record.table(["method", "rows", "within the requirement", "NaN", "raises"], summary),
    ]
    for function, dtype in dict.fromkeys((row.function, row.dtype) for row in rows):
        some = [row for row in rows if (row.function, row.dtype) == (function, dtype)]
        shown = _shown(function, some)
        lines = [
            [row.case, str(row.d), str(row.batch), _required(row)] + [_cell(row, name) for name in shown] for row in some
        ]
        parts += [f"## {function}, {dtype}", record.table(["case", "d", "B", "required", *map(peers.label, shown)], lines)]
    missed = [row for row in counted if row.verdict != "met"]
    parts += [
        f"MISSED by {name}: {_where(row)}: {_cell(row, name)} > {row.also.get(name, row.target):.1e}"
        for row in missed
        for name in (row.method, *row.also)
        if row.missed_by(name)
    ]
    parts += [f"FAILED: {_where(row)}: {row.failed[peers.OURS]}" for row in rows if peers.OURS in row.failed]
    held = ", ".join(dict.fromkeys(name for row in counted for name in (row.method, *row.also))) or peers.EXACT
    return [*parts, f"{held}: {len(missed)} of {len(counted)} requirements missed."]


def _where(row: Row) -> str:
    return f"{row.function}, {row.dtype}, {row.case}, d = {row.d}, B = {row.batch}"


def _spread(values: Quartiles, unit: float = 1.0) -> str:
    first, median, third = (f"{value * unit:.3g}" for value in values)
    return f"{median} ({first} to {third})"


def _times(rows: list[Row]) -> list[str]:
    """Us against torch with the requirement, then every method's ratio."""
    parts = [
        f"Times in ms: median (quartiles). Ratio: time / time of {peers.TORCH}, above 1 is slower. "
        "`!`: misses the requirement. `-`: not installed, or has no such function; required `-`: none is set."
    ]
    for function, dtype in dict.fromkeys((row.function, row.dtype) for row in rows):
        some = [row for row in rows if (row.function, row.dtype) == (function, dtype)]
        others = [name for name in names() if name not in (peers.EXACT, peers.TORCH)]
        shown = [name for name in others if name != peers.KORNIA or function != "inv_sqrtm"]
        header = ["d", "B", "rounds", f"{peers.TORCH} [ms]", f"{peers.EXACT} [ms]", "ratio", "required"]
        lines = [[*_ours(row), *(_ratio(row, name) for name in shown)] for row in some]
        parts += [f"## {function}, {dtype}", record.table(header + [f"{name}, ratio" for name in shown], lines)]
    required = [row for row in rows if row.target is not None]
    return [*parts, f"{sum(row.verdict == 'met' for row in required)} of {len(required)} requirements met."]


def _ours(row: Row) -> list[str]:
    what = [str(row.d), str(row.batch), str(row.rounds)]
    if row.verdict == "failed":
        return [*what, "-", "-", "; ".join(f"{name} {text}" for name, text in row.failed.items()), "-"]
    ratio = _spread(row.ratios[peers.EXACT]) + (" !" if row.verdict == "missed" else "")
    required = "-" if row.target is None else f"{row.target:g}"
    return [*what, _spread(row.seconds[peers.TORCH], 1e3), _spread(row.seconds[peers.EXACT], 1e3), ratio, required]


def _ratio(row: Row, name: str) -> str:
    return f"{row.ratios[name][1]:.3g}" if name in row.ratios else row.failed.get(name, "-")
