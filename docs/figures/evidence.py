"""Draw evidence.svg from the records: differences of docs/evidence.md, and their intervals. python docs/figures/evidence.py

A line is one cell of an artifact less another one, paired by seed; left of zero the first one has the lower error. A hollow
diamond is the difference that the papers print.
"""

from pathlib import Path
from typing import NamedTuple

from spectralgrad_lab.records.store import Store
from spectralgrad_lab.report.paired import Difference
from spectralgrad_lab.report.verdict import Cell, difference, seen

RECORDS = Path(__file__).resolve().parents[2] / "results" / "laboratory-h200"


class Line(NamedTuple):
    said: str
    one: Cell
    other: Cell
    printed: float | None = None  # by the papers


def _table4(row: str, d: int) -> Cell:
    return Cell("pami-table4", row, f"d = {d}")


def _denoised(table: str, row: str) -> Cell:
    return Cell(f"nips19-table4{table}", row, "Error (%)")


def _cifar100(row: str, column: str = "d = 64") -> Cell:
    return Cell("pami-table5", f"ResNet18 {row}", column)


PLAIN, NORM, NORM100 = _denoised("a", "100"), "BN", _cifar100("BN", "Batch Norm")
GROUPS: dict[str, tuple[Line, ...]] = {
    "whitening, or denoising, less batch norm": (
        *(
            Line(f"Taylor, d = {d}", _table4("SVD-Taylor", d), _table4(NORM, d), p)
            for d, p in ((4, None), (16, None), (64, -0.31))
        ),
        *(Line(f"Exact, d = {d}", _table4("Exact", d), _table4(NORM, d)) for d in (16, 64)),
        *(Line(f"SVD-PI, d = {d}", _table4("SVD-PI", d), _table4(NORM, d)) for d in (4, 16, 64)),
        Line("Taylor, d = 64, CIFAR-100, 24 epochs", _cifar100("SVD-Taylor"), NORM100, -0.71),
        Line("99 % of the energy kept", _denoised("a", "99"), PLAIN, -0.18),
        Line("85 % of the energy kept", _denoised("a", "85"), PLAIN, 0.79),
        Line("2 eigenvectors kept", _denoised("b", "2"), PLAIN, 0.28),
    ),
    "one gradient less another, d = 64": (
        Line("Taylor less clipping", _table4("SVD-Taylor", 64), _table4("SVD-Clip", 64), -0.33),
        Line("Taylor less SVD-PI", _table4("SVD-Taylor", 64), _table4("SVD-PI", 64), -0.09),
        Line("Exact less Taylor", _table4("Exact", 64), _table4("SVD-Taylor", 64)),
        Line("Exact less clipping", _table4("Exact", 64), _table4("SVD-Clip", 64)),
        Line("Exact less SVD-PI", _table4("Exact", 64), _table4("SVD-PI", 64)),
    ),
    "with NOG, OW and OLR, less without": (
        Line(
            "16 epochs; printed for ResNet-50",
            Cell("eccv22-table4", "SVD + NOG + OW + OLR", "CIFAR-10"),
            Cell("eccv22-table4", "SVD", "CIFAR-10"),
            -0.42,
        ),
    ),
}


def measured(line: Line, store: Store) -> Difference:
    return difference(seen(line.one, store), seen(line.other, store))


# The drawing. One file for light and dark: it brings its own ground, and follows the reader's setting.
WIDTH, LEFT, RIGHT, TOP, STEP = 800, 256, 218, 78, 22
LOWEST, HIGHEST = -1.5, 1.5  # percentage points
STYLE = """
.ground{fill:#fff} text{font:13px system-ui,sans-serif;fill:#222} .grid{stroke:#ddd} .zero{stroke:#888}
.title{font-weight:600;font-size:16px} .group{font-weight:600}
.ours{stroke:#008060;fill:#008060} .papers{stroke:#d55e00;fill:none}
@media (prefers-color-scheme:dark){.ground{fill:#131416} text{fill:#ddd} .grid{stroke:#3a3d42} .zero{stroke:#888}
.ours{stroke:#2fd6a4;fill:#2fd6a4} .papers{stroke:#ff8a3d;fill:none}}
"""


def _x(value: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * (min(max(value, LOWEST), HIGHEST) - LOWEST) / (HIGHEST - LOWEST)


def _text(x: float, y: float, words: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{words}</text>'


def _diamond(x: float, y: float) -> str:
    return f'<path class="papers" stroke-width="1.8" d="M{x - 5:.1f},{y:.1f}l5,-5l5,5l-5,5z"/>'


def _interval(found: Difference, y: float) -> list[str]:
    low, high = _x(found.mean - found.half), _x(found.mean + found.half)
    return [
        f'<line class="ours" stroke-width="2" x1="{low:.1f}" x2="{high:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>',
        f'<circle class="ours" cx="{_x(found.mean):.1f}" cy="{y:.1f}" r="4"/>',
    ]


def drawn(store: Store) -> str:
    """The picture."""
    parts, y = [], float(TOP)
    for group, lines in GROUPS.items():
        y += STEP if y == TOP else 1.5 * STEP
        parts.append(_text(16, y + 5, group, 'class="group"'))
        for line in lines:
            y += STEP
            found = measured(line, store)
            parts.append(_text(16, y + 5, line.said))
            parts += _interval(found, y)
            parts += [] if line.printed is None else [_diamond(_x(line.printed), y)]
            parts.append(_text(WIDTH - 62, y + 5, found.shown().replace("-", "−"), 'text-anchor="end"'))
            parts.append(_text(WIDTH - 16, y + 5, str(len(found.values)), 'text-anchor="end"'))
    bottom = y + STEP
    grid = []
    for half in range(int(2 * LOWEST), int(2 * HIGHEST) + 1):
        x = _x(half / 2)
        grid.append(f'<line class="{"grid" if half else "zero"}" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom:.1f}"/>')
        grid.append(_text(x, bottom + 17, f"{half / 2:+.1f}".replace("-", "−") if half else "0", 'text-anchor="middle"'))
    height = bottom + 50
    key = height - 13
    head = [
        _text(16, 26, "Test error on real data, difference in percentage points", 'class="title"'),
        _text(16, 48, "ResNet-18 on CIFAR-10, 8 epochs, where nothing else is said. Left of 0 is less error."),
        _text(WIDTH - 62, TOP - 4, "95 % interval", 'text-anchor="end"'),
        _text(WIDTH - 16, TOP - 4, "seeds", 'text-anchor="end"'),
        f'<line class="ours" stroke-width="2" x1="16" x2="42" y1="{key:.1f}" y2="{key:.1f}"/>',
        _text(50, key + 5, "95 % interval over seeds"),
        _diamond(242, key),
        _text(254, key + 5, "what the papers print, with their longer trainings"),
    ]
    words = (
        "Differences of test errors with 95 % intervals, beside what the papers print: docs/evidence.md has them as a table."
    )
    box = f'viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" height="{height:.0f}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {box} role="img"><title>{words}</title><style>{STYLE}</style>'
        f'<rect class="ground" width="{WIDTH}" height="{height:.0f}" rx="8"/>\n'
        + "\n".join([*grid, *head, *parts])
        + "\n</svg>\n"
    )


def main() -> None:
    file = Path(__file__).with_suffix(".svg")
    file.write_text(drawn(Store(RECORDS)), encoding="utf-8")
    print(f"wrote {file.name}")


if __name__ == "__main__":
    main()
