"""The run in words: a table of targets, one of failures, the snippets."""

from collections import Counter, defaultdict

from .run import Tally


def _lines(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in [head, *rows]]


def targets(tally: Tally) -> list[str]:
    """Target, matrices, failures, and the worst error in units of its bound among the promises about size."""
    failed: Counter[str] = Counter()
    for (target, *_), count in tally.failed.items():
        failed[target] += count
    worst: dict[str, tuple[float, str]] = {}
    for (target, promise), size in tally.worst.items():
        worst[target] = max(worst.get(target, (0.0, "")), (size, promise))
    rows = [
        (name, f"{count:,}", f"{failed[name]:,}", "{:.2g} ({})".format(*worst.get(name, (0.0, ""))))
        for name, count in tally.tried.items()
    ]
    return _lines(("target", "matrices", "failures", "worst error / bound"), sorted(rows))


def failures(tally: Tally) -> list[str]:
    """What failed, how often, in which dtypes and in which families most."""
    count: Counter[tuple[str, str]] = Counter()
    dtypes: dict[tuple[str, str], set[str]] = defaultdict(set)
    by_family: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for (target, promise, dtype, family), number in tally.failed.items():
        count[target, promise] += number
        dtypes[target, promise].add(dtype)
        by_family[target, promise][family] += number
    rows = []
    for key in sorted(count):
        names = ["; ".join(f"{family} ({n})" for family, n in by_family[key].most_common(3))]
        rows.append((*key, f"{count[key]:,}", " ".join(sorted(dtypes[key])), *names))
    return _lines(("target", "promise", "failures", "dtypes", "families, most first"), rows) if rows else []


def report(tally: Tally, snippets: list[str]) -> str:
    parts = [*targets(tally)]
    if tally.failed:
        parts += ["", *failures(tally)]
        for i, text in enumerate(snippets, 1):
            parts += ["", f"# ---- failure {i} of {len(snippets)} ----", text]
    return "\n".join(parts)
