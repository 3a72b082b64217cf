"""The thirty-second tour: where eigendecomposition gradients break, and what each rule does there.

Three measurements of d/dM <G, M^(-1/2)>, the gradient of ZCA whitening, in float32 against an exact reference: at
matrices that layers really meet at their first step; as two eigenvalues approach each other; and as a covariance
outgrows its rank, which is what the first convolution of a network gives (3 x 3 x 3 = 27 inputs, 64 channels).
"""

import base64
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import spectralgrad as sg

GAPS = [1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 0.0]
DIMENSIONS = [4, 8, 16, 32, 64]
SAMPLES = 27
EPS = 1e-3


CASES = ["distinct", "identity", "dead channels"]


def _torch(M: Tensor) -> Tensor:
    w, V = torch.linalg.eigh(M)
    return torch.matmul(V * w.rsqrt().unsqueeze(-2), V.mT)


METHODS: dict[str, Callable[[Tensor], Tensor]] = {
    "torch.linalg.eigh": _torch,
    "Clip(100)": lambda M: sg.inv_sqrtm(M, gradient=sg.Clip(100.0)),
    "PowerIteration(19)": lambda M: sg.inv_sqrtm(M, gradient=sg.PowerIteration(19)),
    "Taylor(9)": lambda M: sg.inv_sqrtm(M, gradient=sg.Taylor(9)),
    "Lorentzian": lambda M: sg.inv_sqrtm(M, gradient=sg.Lorentzian()),
    "Exact (the default)": sg.inv_sqrtm,
}


def _symmetric(n: int, seed: int) -> Tensor:
    G = torch.randn(n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return (G + G.mT) / 2


def _error(f: Callable[[Tensor], Tensor], M: Tensor, G: Tensor, reference: Tensor) -> float:
    """Relative error of the gradient in float32; infinite if it is not finite."""
    X = M.float().requires_grad_()
    (f(X) * G.float()).sum().backward()
    assert X.grad is not None
    error = torch.linalg.norm(X.grad.double() - reference) / torch.linalg.norm(reference)
    return float(error) if bool(error.isfinite()) else float("inf")


def _reference(w: Tensor, V: Tensor, G: Tensor) -> Tensor:
    """The exact gradient from known eigenpairs: V (F * V^T G V) V^T, F = -1/(ab(a + b))."""
    a = w.sqrt()
    F = -1 / (a[:, None] * a * (a[:, None] + a))
    return V @ (F * (V.mT @ G @ V)) @ V.mT


def errors_by_case() -> dict[str, list[float]]:
    """Diagonal covariances of 8 channels: of distinct variances, all alike, and half of them dead, with eps left alone."""
    G = _symmetric(8, 2)
    distinct = torch.arange(1, 9, dtype=torch.float64) / 4
    spectra = [distinct, torch.ones_like(distinct), torch.where(distinct > 1, distinct, EPS)]
    table: dict[str, list[float]] = {name: [] for name in METHODS}
    for w in spectra:
        reference = _reference(w, torch.eye(8, dtype=torch.float64), G)
        for name, f in METHODS.items():
            table[name].append(_error(f, torch.diag(w), G, reference))
    return table


def errors_by_gap() -> dict[str, list[float]]:
    """Two of eight eigenvalues approach each other."""
    V, G = torch.linalg.qr(_symmetric(8, 0))[0], _symmetric(8, 1)
    table: dict[str, list[float]] = {name: [] for name in METHODS}
    for gap in GAPS:
        w = torch.tensor([0.2, 0.5, 1.0, 1.0 + gap, 1.5, 2.0, 2.5, 3.0], dtype=torch.float64)
        M, reference = (V * w) @ V.mT, _reference(w, V, G)
        for name, f in METHODS.items():
            table[name].append(_error(f, M, G, reference))
    return table


def errors_by_dimension() -> dict[str, list[float]]:
    """Covariances of d channels that only 27 inputs drive, plus eps: from d = 32 on, equal eigenvalues by construction."""
    table: dict[str, list[float]] = {name: [] for name in METHODS}
    for d in DIMENSIONS:
        X = torch.randn(d, SAMPLES, dtype=torch.float64, generator=torch.Generator().manual_seed(d))
        U, s, _ = torch.linalg.svd(X, full_matrices=True)
        w = EPS + torch.nn.functional.pad(s.square() / SAMPLES, (0, d - len(s)))
        G = _symmetric(d, d)
        M, reference = (U * w) @ U.mT, _reference(w, U, G)
        for name, f in METHODS.items():
            table[name].append(_error(f, M, G, reference))
    return table


def _figure(by_case: dict[str, list[float]], by_gap: dict[str, list[float]], by_dimension: dict[str, list[float]]) -> bytes:
    """A PNG of the measurements; what is not finite is drawn as a cross at the top."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    first, left, right = figure.subplots(1, 3, sharey=True, width_ratios=[3, 5, 4])
    top = 1e4
    panels: list[tuple[Any, dict[str, list[float]], list[Any]]] = [
        (first, by_case, CASES),
        (left, by_gap, GAPS),
        (right, by_dimension, DIMENSIONS),
    ]
    for axes, table, labels in panels:
        for name, errors in table.items():
            shown = [min(e, top) for e in errors]
            ours = name.startswith("Exact")
            (line,) = axes.plot(
                range(len(labels)), shown, marker="o", ms=4, lw=2.5 if ours else 1.3, label=name, zorder=3 if ours else 2
            )
            broken = [i for i, e in enumerate(errors) if e > top]
            axes.plot(broken, [top] * len(broken), "x", ms=12, mew=3, color=line.get_color(), zorder=4)
        axes.set_yscale("log")
        axes.set_ylim(1e-8, 4 * top)
        axes.set_xticks(range(len(labels)), [x if isinstance(x, str) else f"{x:g}" for x in labels], fontsize=8)
        axes.grid(alpha=0.3)
    left.set_xlabel("gap between two eigenvalues")
    first.set_ylabel("relative error of the gradient (cross: NaN, Inf or > 1e4)")
    first.set_title("at a layer's first step")
    left.set_title("as two eigenvalues meet")
    right.set_xlabel(f"channels d of a covariance of rank <= {SAMPLES}, plus {EPS:g}")
    right.set_title("as a covariance outgrows its rank")
    right.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=110)
    return buffer.getvalue()


def format_table(title: str, labels: Sequence[float | str], table: dict[str, list[float]]) -> str:
    """A plain text table."""
    lines = [title, " " * 21 + "".join(f"{x:>15}" if isinstance(x, str) else f"{x:>10g}" for x in labels)]
    width = 15 if isinstance(labels[0], str) else 10
    for name, errors in table.items():
        lines.append(f"{name:<21}" + "".join(f"{'NaN/Inf' if e == float('inf') else f'{e:.1e}':>{width}}" for e in errors))
    return "\n".join(lines)


def run_tour(folder: Path) -> tuple[str, Path]:
    """Measure, and leave tour.png and report.html in ``folder``; returns the tables as text and the path of the page."""
    by_case, by_gap, by_dimension = errors_by_case(), errors_by_gap(), errors_by_dimension()
    text = "\n\n".join(
        [
            format_table("gradient error at diagonal covariances of 8 channels", CASES, by_case),
            format_table("gradient error by gap between two eigenvalues", GAPS, by_gap),
            format_table(f"gradient error by channels, rank <= {SAMPLES}, eps = {EPS:g}", DIMENSIONS, by_dimension),
        ]
    )
    picture = _figure(by_case, by_gap, by_dimension)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tour.png").write_bytes(picture)
    page = folder / "report.html"
    page.write_text(
        "<!doctype html><html lang='en'><meta charset='utf-8'><meta name='viewport' content='width=device-width'>"
        "<title>spectralgrad: the tour</title><style>body{font:16px/1.5 sans-serif;max-width:72rem;margin:2rem auto;"
        "padding:0 1rem}img{max-width:100%}pre{overflow-x:auto;background:#f5f5f5;padding:1rem}</style>"
        "<h1>Gradients through eigendecompositions</h1><p>The gradient of ZCA whitening, M<sup>-1/2</sup>, in float32, "
        "against the exact one. Every line but the last of each table goes through eigenvectors.</p>"
        f"<img alt='error by gap and by channels' src='data:image/png;base64,{base64.b64encode(picture).decode()}'>"
        f"<pre>{text}</pre><p>torch {torch.__version__}, spectralgrad {sg.__version__}</p></html>\n",
        encoding="utf-8",
    )
    return text, page
