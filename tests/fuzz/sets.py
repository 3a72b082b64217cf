"""Families of what comes in pairs, each packed into one tensor (B, rows, columns), since a target has one input X.

clouds      (B, N, 2 d + 1)      points x, points y, weights          real
pairs       (B, 2 n, n)          A above B, positive definite
statistics  (B, 2 n + 2, n)      covariances C1, C2, means m1, m2
samples     (B, N1 + N2, d)      rows of x above rows of y, N1 = ceil(rows / 2)
views       (B, N, p + q)        x beside y, p = ceil(columns / 2)
square      (B, n, n)            real
"""

import random
from collections.abc import Callable

import torch
from torch import Generator, Tensor

from .scales import rounded, scale_of
from .spectra import SPECTRA, VECTORS, tiny, uniform, vectors

KINDS = ("clouds", "pairs", "statistics", "samples", "views", "square")
_POINTS = 12  # of a cloud, and samples of a set, at most
_SIZE = 6  # of matrices, at most
_DIGITS = {torch.float32: 5.0, torch.float64: 11.0}  # decades of a condition number that leaves digits


def real(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float32, torch.complex64) else torch.float64


def draw(kind: str, dtype: torch.dtype, B: int, g: Generator, r: random.Random, ordinary: bool) -> tuple[str, Tensor]:
    """The name of the family, and its members (B, rows, columns). ``ordinary``: of scale 1."""
    if kind in ("clouds", "square"):
        dtype = real(dtype)
    build: Callable[..., tuple[str, list[Tensor]]] = globals()[f"_{kind}"]
    name, parts = build(B, g, r, dtype)
    apart = not ordinary and r.random() < 0.4  # each at a scale of its own
    words = [("", 1.0) if ordinary else scale_of(dtype, r)] * len(parts)
    words = [scale_of(dtype, r) for _ in parts] if apart else words
    scaled = [rounded(dtype, part, scale) for part, (_, scale) in zip(parts, words, strict=True)]
    if kind == "clouds":  # weights that underflowed, all of them
        scaled[-1] = torch.where((scaled[-1] > 0).any(1, keepdim=True), scaled[-1], 1)
    along = -1 if kind in ("clouds", "views") else -2
    return name + (", scales apart" if apart else words[0][0]), torch.cat(scaled, along)


def _randn(g: Generator, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=torch.complex128 if dtype.is_complex else torch.float64, generator=g)


def _rotation(B: int, d: int, g: Generator) -> Tensor:
    return torch.linalg.qr(_randn(g, B, d, d))[0]


# Clouds.


def _points(B: int, N: int, d: int, g: Generator, r: random.Random) -> tuple[str, Tensor]:
    name = r.choice(["random", "planar", "collinear", "thin", "one place", "lattice", "cross", "far away"])
    x = _randn(g, B, N, d)
    if name == "planar":
        x[..., -1] = 0
    elif name == "collinear":
        x[..., 1:] = 0
    elif name == "thin":
        x[..., 1:] *= tiny(g, B, 1, 1, decades=9)
    elif name == "one place":
        x = x[:, :1].expand(B, N, d).clone()
    elif name == "lattice":
        return name, torch.randint(-2, 3, (B, N, d), generator=g).double()
    elif name == "cross":  # equal widths in all directions: all singular values tie
        x = torch.eye(d, dtype=torch.float64).repeat(2 * (N // (2 * d) + 1), 1)[:N].expand(B, N, d).clone()
        x[:, 1::2] *= -1
        return name, x
    elif name == "far away":
        x = x + _randn(g, B, 1, d) / tiny(g, B, 1, 1, decades=5)
    return name, x @ _rotation(B, d, g).mT if r.random() < 0.7 else x


def _clouds(B: int, g: Generator, r: random.Random, dtype: torch.dtype) -> tuple[str, list[Tensor]]:
    d, N = r.choice([1, 2, 2, 3, 3, 3, 4]), r.randint(1, _POINTS)
    name, x = _points(B, N, d, g, r)
    match = r.choice(["turned", "mirrored", "nearly", "unrelated", "same"])
    R = _rotation(B, d, g)
    R[..., 0] *= (torch.linalg.det(R).sign() * (-1 if match == "mirrored" else 1)).unsqueeze(-1)
    y = x @ R.mT + _randn(g, B, 1, d)
    if match == "nearly":
        y = y + tiny(g, B, 1, 1) * _randn(g, B, N, d)
    elif match == "unrelated":
        other, y = _points(B, N, d, g, r)
        name = f"{name} and {other}"
    elif match == "same":
        y = x.clone()
    weighed = r.choice(["equal", "random", "some zero", "one alone", "decades"])
    w = torch.ones(B, N, 1, dtype=torch.float64)
    if weighed == "random":
        w = uniform(g, B, N, 1, low=0.1)
    elif weighed == "some zero":
        w = (uniform(g, B, N, 1) < 0.6).double()
        w[:, 0] = 1
    elif weighed == "one alone":
        w[:, 1:] = 0
    elif weighed == "decades":
        w = tiny(g, B, N, 1, decades=12)
    return f"{name}, {match}, weights {weighed}", [x, y, w]


# Definite matrices and statistics.


def _with(w: Tensor, g: Generator, r: random.Random, dtype: torch.dtype) -> Tensor:
    V = vectors(r.choice(VECTORS), *w.shape, g, dtype.is_complex)
    M = (V * w.unsqueeze(-2)) @ V.mH
    return (M + M.mH) / 2


def _hermitian(B: int, n: int, g: Generator, r: random.Random, dtype: torch.dtype, hostile: float) -> tuple[str, Tensor]:
    """Positive semi-definite; with the probability ``hostile`` as singular as they come."""
    name = r.choice(list(SPECTRA))
    w = SPECTRA[name](B, n, g)
    if r.random() >= hostile:
        decades = _DIGITS[real(dtype)]
        w = w.clamp(min=0) + w.amax(-1, keepdim=True).clamp(min=1e-30) * 10 ** -uniform(g, B, 1, high=decades)
        w = torch.where(w > 1e-20, w, 1)
        name += ", lifted"
    return name, _with(w, g, r, dtype)


def _pairs(B: int, g: Generator, r: random.Random, dtype: torch.dtype) -> tuple[str, list[Tensor]]:
    n = r.randint(1, _SIZE)
    name, A = _hermitian(B, n, g, r, dtype, hostile=0.15)
    match = r.choice(["unrelated", "unrelated", "same", "nearly", "a multiple", "inverse"])
    if match == "unrelated":
        other, C = _hermitian(B, n, g, r, dtype, hostile=0.15)
        return f"{name} and {other}", [A, C]
    C = A.clone()
    if match == "nearly":
        half = torch.eye(n) + tiny(g, B, 1, 1) * _randn(g, B, n, n, dtype=dtype)
        C = half @ A @ half.mH
    elif match == "a multiple":
        C = A / tiny(g, B, 1, 1)
    elif match == "inverse":
        w, V = torch.linalg.eigh(A)
        C = (V / w.clamp(min=1e-12 * float(w.max())).unsqueeze(-2)) @ V.mH
    return f"{name}, {match}", [A, (C + C.mH) / 2]


def _statistics(B: int, g: Generator, r: random.Random, dtype: torch.dtype) -> tuple[str, list[Tensor]]:
    n = r.randint(1, _SIZE)
    (first, C1), (second, C2) = (_hermitian(B, n, g, r, dtype, hostile=0.6) for _ in range(2))
    if r.random() < 0.25:
        second, C2 = "same", C1.clone()
    m = [_randn(g, B, 1, n, dtype=dtype) * r.choice([0.0, 1.0, 1e3]) for _ in range(2)]
    return f"{first} and {second}", [C1, C2, *m]


# Samples.


def _features(B: int, N: int, d: int, g: Generator, r: random.Random, dtype: torch.dtype) -> tuple[str, Tensor]:
    name = r.choice(["random", "low rank", "graded", "repeated", "constant", "far away", "integers"])
    x = _randn(g, B, N, d, dtype=dtype)
    if name == "low rank":
        k = r.randint(1, d)
        x = _randn(g, B, N, k, dtype=dtype) @ _randn(g, B, k, d, dtype=dtype)
    elif name == "graded":
        x = x * 10 ** -(torch.linspace(0, r.uniform(1, 8), d, dtype=torch.float64))
    elif name == "repeated":
        x = x[:, torch.arange(N) // 2]
    elif name == "constant":
        x[..., : r.randint(1, d)] = 1
    elif name == "far away":
        x = x + _randn(g, B, 1, d, dtype=dtype) * 10 ** r.uniform(0, 4)
    elif name == "integers":
        x = torch.randint(-1, 2, (B, N, d), generator=g).to(x.dtype)
    return name, x


def _samples(B: int, g: Generator, r: random.Random, dtype: torch.dtype) -> tuple[str, list[Tensor]]:
    d, rows = r.randint(1, _SIZE), r.randint(2, 2 * _POINTS)
    N1 = (rows + 1) // 2
    (first, x), (second, y) = _features(B, N1, d, g, r, dtype), _features(B, rows - N1, d, g, r, dtype)
    if r.random() < 0.2:
        second, y = "the same samples", x[:, : rows - N1].clone()
    return f"{first} and {second}", [x, y]


def _views(B: int, g: Generator, r: random.Random, dtype: torch.dtype) -> tuple[str, list[Tensor]]:
    columns, N = r.randint(2, 2 * _SIZE - 2), r.randint(1, _POINTS)
    p = (columns + 1) // 2
    first, x = _features(B, N, p, g, r, dtype)
    second, y = _features(B, N, columns - p, g, r, dtype)
    if r.random() < 0.6:
        second = "a map of it"
        y = x @ _randn(g, B, p, columns - p, dtype=dtype) + (tiny(g, B, 1, 1, decades=9) if r.random() < 0.7 else 0) * y
    return f"{first} and {second}", [x, y]


def _square(B: int, g: Generator, r: random.Random, dtype: torch.dtype) -> tuple[str, list[Tensor]]:
    n, name = r.randint(1, _SIZE), r.choice(list(SPECTRA))
    U, V = (vectors(r.choice(VECTORS), B, n, g, False) for _ in range(2))
    return name, [(U * SPECTRA[name](B, n, g).unsqueeze(-2)) @ V.mT]
