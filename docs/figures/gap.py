"""Draw gap.svg: the error of the gradient of M^(-1/2), in float32, by the gap of two eigenvalues. python docs/figures/gap.py

Each point is the median over random 4 x 4 covariances, rotated, whose two smallest eigenvalues are 1 and 1 + gap: where
whitening meets ties, since features of less than full rank leave eps there. The loss is <G, M^(-1/2)> for a random symmetric
G. The reference is computed in float64 for the matrix as float32 has it, by a Sylvester equation that knows no eigenvectors:
with Y = M^(1/2), X = Y^-1 and Z Y + Y Z = G the gradient is -X Z X. The last point is an exact tie.
"""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from scipy.linalg import solve_sylvester, sqrtm
from torch import Tensor

import spectralgrad as sg

OTHERS = (4.0, 8.0)  # the other eigenvalues, well apart
TRIALS = 51
EXPONENTS = [-i / 2 for i in range(13)]  # of the gaps: 1 to 10^-6, what float32 resolves beside 8
Function = Callable[[Tensor], Tensor]


def by_torch(M: Tensor) -> Tensor:
    w, V = torch.linalg.eigh(M)
    return (V / w.sqrt()) @ V.mT


METHODS: dict[str, Function] = {
    "torch": by_torch,
    "clipping": lambda M: sg.inv_sqrtm(M, gradient=sg.Clip(100.0)),
    "Taylor": lambda M: sg.inv_sqrtm(M, gradient=sg.Taylor(9)),
    "ours": sg.inv_sqrtm,
}


def matrix(gap: float, generator: torch.Generator) -> Tensor:
    """A covariance with eigenvalues 1 and 1 + gap in float32; for a gap of 0 the two are not rotated, so that they tie."""
    n = len(OTHERS) + 2
    values = torch.tensor([1.0, 1.0 + gap, *OTHERS], dtype=torch.float64)
    Q = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64))[0]
    if gap == 0:
        Q = torch.block_diag(torch.eye(2, dtype=torch.float64), torch.linalg.qr(Q[2:, 2:])[0])
    M = (Q * values) @ Q.mT
    return ((M + M.mT) / 2).float()


def reference(M: Tensor, G: Tensor) -> Tensor:
    Y = np.real(sqrtm(M.double().numpy()))
    X = np.linalg.inv(Y)
    return torch.from_numpy(-X @ solve_sylvester(Y, Y, G.double().numpy()) @ X)


def error(function: Function, M: Tensor, G: Tensor) -> float:
    """Relative, in the Frobenius norm, of the symmetric part; infinite for NaN."""
    leaf = M.clone().requires_grad_()
    (found,) = torch.autograd.grad((G * function(leaf)).sum(), leaf)
    exact = reference(M, G)
    value = float(((found + found.mT).double() / 2 - exact).norm() / exact.norm())
    return value if math.isfinite(value) else math.inf


def measured(gap: float, trials: int = TRIALS) -> dict[str, float]:
    """Method -> median error over random matrices."""
    generator = torch.Generator().manual_seed(0)
    errors: dict[str, list[float]] = {name: [] for name in METHODS}
    for _ in range(trials):
        M = matrix(gap, generator)
        G = torch.randn(M.shape, generator=generator)
        for name, function in METHODS.items():
            errors[name].append(error(function, M, (G + G.mT) / 2))
    return {name: sorted(found)[trials // 2] for name, found in errors.items()}


# The drawing. One file for light and dark: it brings its own ground, and follows the reader's setting.
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 380, 84, 150, 48, 62
LOWEST, HIGHEST = -8.0, 1.0  # of log10 of the error
COLOURS = {
    "torch": ("#d55e00", "#ff8a3d"),
    "clipping": ("#b0558a", "#e39bc5"),
    "Taylor": ("#0072b2", "#5ab4f0"),
    "ours": ("#008060", "#2fd6a4"),
}
SAID = {
    "torch": ("torch", -2),
    "clipping": ("clipping at 100", 18),
    "Taylor": ("Taylor, degree 9", 0),
    "ours": ("spectralgrad", 5),
}
STYLE = """
.ground{{fill:#fff}} text{{font:14px system-ui,sans-serif;fill:#222}} .grid{{stroke:#ddd}}
.title{{font-weight:600;font-size:16px}}
{light}
@media (prefers-color-scheme:dark){{.ground{{fill:#131416}} text{{fill:#ddd}} .grid{{stroke:#3a3d42}}
{dark}}}
"""


def _x(place: float) -> float:
    """Of a point: 0 is the widest gap, len(EXPONENTS) the tie, after a step of its own."""
    return LEFT + (WIDTH - LEFT - RIGHT) * place / (len(EXPONENTS) + 0.5)


def _y(value: float) -> float:
    level = min(max(math.log10(value), LOWEST), HIGHEST) if value > 0 else LOWEST
    return TOP + (HEIGHT - TOP - BOTTOM) * (HIGHEST - level) / (HIGHEST - LOWEST)


def _text(x: float, y: float, words: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{words}</text>'


def _power(exponent: int) -> str:
    return f'10<tspan dy="-5" font-size="10">−{-exponent}</tspan>'


def _axes() -> list[str]:
    parts, right, low = [], _x(len(EXPONENTS) + 0.5), _y(10**LOWEST)
    for level in range(int(LOWEST), int(HIGHEST) + 1, 2):
        y = _y(10.0**level)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(LEFT - 8, y + 5, "1" if level == 0 else _power(level), 'text-anchor="end"'))
    for i, exponent in enumerate(EXPONENTS):
        if exponent == int(exponent):
            words = "1" if exponent == 0 else _power(int(exponent))
            parts.append(_text(_x(i), low + 20, words, 'text-anchor="middle"'))
    parts.append(_text(_x(len(EXPONENTS) + 0.5), low + 20, "tie", 'text-anchor="end"'))
    parts.append(_text((LEFT + right) / 2, HEIGHT - 14, "gap of two eigenvalues, relative to them", 'text-anchor="middle"'))
    middle = (_y(10**HIGHEST) + low) / 2
    parts.append(
        _text(
            0,
            0,
            "error of the gradient, relative",
            f'text-anchor="middle" transform="translate(20 {middle:.0f}) rotate(-90)"',
        )
    )
    parts.append(
        _text(
            LEFT,
            24,
            'Whitening in float32: M<tspan dy="-6" font-size="11">−1/2</tspan><tspan dy="6"> and its gradient</tspan>',
            'class="title"',
        )
    )
    return parts


def drawn(rows: list[dict[str, float]]) -> str:
    """The picture: a row of errors for each gap, the tie last."""
    parts = _axes()
    tie = _x(len(EXPONENTS) + 0.3)
    for name in METHODS:
        points = [(_x(i), _y(row[name])) for i, row in enumerate(rows[:-1])]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline class="{name}" points="{line}" fill="none" stroke-width="{3 if name == "ours" else 2}"/>')
        last, (said, down) = rows[-1][name], SAID[name]
        y = _y(last) if math.isfinite(last) else _y(10**HIGHEST)
        if math.isfinite(last):
            points.append((tie, y))
        else:
            parts.append(f'<path class="{name}" d="M{tie - 5:.1f},{y - 5:.1f}l10,10m0,-10l-10,10" stroke-width="2.5"/>')
            parts.append(_text(tie + 14, y + 5, f"{said}: NaN", f'class="{name}"'))
            y = points[-1][1]
        parts += [f'<circle class="{name}" cx="{px:.1f}" cy="{py:.1f}" r="3"/>' for px, py in points]
        parts.append(_text(points[-1][0] + 14, y + down, said, f'class="{name}"'))
    light, dark = (
        "".join(
            f".{name}{{stroke:{c[i]};fill:{c[i]}}}polyline.{name}{{fill:none}}text.{name}{{stroke:none}}"
            for name, c in COLOURS.items()
        )
        for i in (0, 1)
    )
    words = (
        "Error of the gradient by the gap of two eigenvalues: torch's grows as the gap shrinks and is NaN at a tie, "
        "clipping and Taylor lose half of it, ours stays at rounding."
    )
    box = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {box} role="img">'
        f"<title>{words}</title><style>{STYLE.format(light=light, dark=dark)}</style>"
        f'<rect class="ground" width="{WIDTH}" height="{HEIGHT}" rx="8"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def main() -> None:
    rows = [measured(10.0**exponent) for exponent in EXPONENTS] + [measured(0.0)]
    for exponent, row in zip([*EXPONENTS, -math.inf], rows, strict=True):
        print(f"gap {10.0**exponent:8.1e}: " + ", ".join(f"{name} {value:.1e}" for name, value in row.items()))
    file = Path(__file__).with_suffix(".svg")
    file.write_text(drawn(rows), encoding="utf-8")
    print(f"wrote {file.name}")


if __name__ == "__main__":
    main()
