"""Families of hostile matrices: a spectrum, the vectors it stands in, a scale, a dtype. All follow from one seed."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

DTYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128)
KINDS = {"psd": 0.45, "hermitian": 0.25, "general": 0.3}
_ORDINARY, _LARGE = 12, 48  # sizes: mostly up to the first, some up to the second
_LARGE_SHARE = 0.03
_ENTRIES = 40_000  # of a batch of large matrices, at most

Spectrum = Callable[[int, int, Generator], Tensor]


@dataclass(frozen=True)
class Batch:
    """Matrices (B, m, n) of one family, size, dtype and scale."""

    family: str
    kind: str  # psd, hermitian or general
    scale: float
    X: Tensor


def _uniform(g: Generator, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
    return torch.rand(*shape, dtype=torch.float64, generator=g) * (high - low) + low


def _tiny(g: Generator, *shape: int, decades: float = 17.0) -> Tensor:
    """10^-u, u uniform."""
    return 10 ** -_uniform(g, *shape, high=decades)


# Spectra (B, n), not negative, largest about 1.


def separated(B: int, n: int, g: Generator) -> Tensor:
    return (torch.arange(1, n + 1) + _uniform(g, B, n, low=-0.3, high=0.3)) / n


def ties(B: int, n: int, g: Generator) -> Tensor:
    return torch.randint(1, max(n // 2, 1) + 2, (B, n), generator=g).double() / 4


def near_ties(B: int, n: int, g: Generator) -> Tensor:
    w = separated(B, n, g)
    w[:, 1::2] = w[:, : n - n % 2 : 2] * (1 + _tiny(g, B, 1))
    return w


def clusters(B: int, n: int, g: Generator) -> Tensor:
    centre = torch.randint(1, 3, (B, n), generator=g).double() / 2
    return centre * (1 + _tiny(g, B, 1) * _uniform(g, B, n))


def rank_deficient(B: int, n: int, g: Generator) -> Tensor:
    rank = torch.randint(0, n + 1, (B, 1), generator=g)
    return torch.where(torch.arange(n) < rank, separated(B, n, g), 0)


def tied_and_deficient(B: int, n: int, g: Generator) -> Tensor:
    rank = torch.randint(0, n + 1, (B, 1), generator=g)
    return torch.where(torch.arange(n) < rank, ties(B, n, g), 0)


def zero(B: int, n: int, g: Generator) -> Tensor:
    return torch.zeros(B, n, dtype=torch.float64)


def identity(B: int, n: int, g: Generator) -> Tensor:
    return torch.ones(B, n, dtype=torch.float64)


def graded(B: int, n: int, g: Generator) -> Tensor:
    decades = _uniform(g, B, 1, high=40.0)
    return 10 ** (-decades * torch.linspace(0, 1, n, dtype=torch.float64))


def one_huge(B: int, n: int, g: Generator) -> Tensor:
    w = _tiny(g, B, 1, decades=30) * _uniform(g, B, n, low=0.5)
    w[:, 0] = 1
    return w


def one_tiny(B: int, n: int, g: Generator) -> Tensor:
    w = separated(B, n, g)
    w[:, :1] = _tiny(g, B, 1, decades=30)
    return w


SPECTRA: dict[str, Spectrum] = {
    f.__name__.replace("_", " "): f
    for f in (
        separated,
        ties,
        near_ties,
        clusters,
        rank_deficient,
        tied_and_deficient,
        zero,
        identity,
        graded,
        one_huge,
        one_tiny,
    )
}


# Spectra with signs, for Hermitian matrices that need not be positive.


def plus_minus(B: int, n: int, g: Generator) -> Tensor:
    """l and -l, equal or nearly so."""
    w = near_ties(B, n, g)
    w[:, 1::2] *= -1
    return w


def exact_plus_minus(B: int, n: int, g: Generator) -> Tensor:
    return torch.randint(-2, 3, (B, n), generator=g).double()


def indefinite(B: int, n: int, g: Generator) -> Tensor:
    return torch.randn(B, n, dtype=torch.float64, generator=g)


def graded_signs(B: int, n: int, g: Generator) -> Tensor:
    return graded(B, n, g) * torch.where(_uniform(g, B, n) < 0.5, -1.0, 1.0)


SIGNED: dict[str, Spectrum] = {
    f.__name__.replace("_", " "): f for f in (plus_minus, exact_plus_minus, indefinite, graded_signs)
}


# Vectors: (B, n, n), orthonormal.


def vectors(kind: str, B: int, n: int, g: Generator, is_complex: bool) -> Tensor:
    """Random, flat (all entries of one size), those of the axes, or a small turn of these."""
    dtype = torch.complex128 if is_complex else torch.float64
    if kind == "axes":
        places = _uniform(g, B, n).argsort(-1)
        return torch.nn.functional.one_hot(places, n).to(dtype)
    if kind == "flat":
        signs = torch.where(_uniform(g, B, n) < 0.5, -1.0, 1.0).to(dtype) / math.sqrt(n)
        reflected = torch.eye(n, dtype=dtype) - 2 * signs.unsqueeze(-1) * signs.unsqueeze(-2)
        if not is_complex:
            return reflected
        angle = torch.outer(torch.arange(n), torch.arange(n)).double() * (2 * math.pi / n)
        return torch.polar(torch.full_like(angle, 1 / math.sqrt(n)), angle) * (signs * math.sqrt(n)).unsqueeze(-1)
    entries = torch.randn(B, n, n, dtype=dtype, generator=g)
    if kind == "turned":
        entries = torch.eye(n, dtype=dtype) + _tiny(g, B, 1, 1) * entries
    return torch.linalg.qr(entries)[0]


VECTORS = ("random", "flat", "axes", "turned")


# Matrices given by their entries, (B, m, n).


def entries(family: str, B: int, m: int, n: int, g: Generator, is_complex: bool) -> Tensor:
    dtype = torch.complex128 if is_complex else torch.float64
    if family == "random entries":
        return torch.randn(B, m, n, dtype=dtype, generator=g)
    if family == "integers":
        whole = torch.randint(-2, 3, (B, m, n), generator=g).to(dtype)
        return whole + 1j * torch.randint(-2, 3, (B, m, n), generator=g) if is_complex else whole
    if family == "sparse":
        return torch.randn(B, m, n, dtype=dtype, generator=g) * (_uniform(g, B, m, n) < 0.25)
    if family == "constant":
        return torch.ones(B, m, n, dtype=dtype) * (1 + _tiny(g, B, m, n) * (_uniform(g, B, 1, 1) < 0.5))
    if family == "permutation":
        places = _uniform(g, B, max(m, n)).argsort(-1)
        return torch.nn.functional.one_hot(places, max(m, n))[:, :m, :n].to(dtype)
    assert family == "orders apart", family
    return torch.randn(B, m, n, dtype=dtype, generator=g) * _tiny(g, B, m, n, decades=30)


ENTRIES = ("random entries", "integers", "sparse", "constant", "permutation", "orders apart")


def _built(kind: str, m: int, n: int, B: int, g: Generator, r: random.Random, is_complex: bool) -> tuple[str, Tensor]:
    spectra = SPECTRA | (SIGNED if kind == "hermitian" else {})
    name = r.choice([*spectra, *spectra, *ENTRIES])
    if name in ENTRIES:
        A = entries(name, B, m, n, g, is_complex)
        if kind == "general":
            return name, A
        A = A @ A.mH if kind == "psd" else A
        return name, (A + A.mH) / 2
    w = spectra[name](B, min(m, n), g)
    left, right = r.choice(VECTORS), r.choice(VECTORS)
    U = vectors(left, B, m, g, is_complex)
    if kind != "general":
        A = (U * w.unsqueeze(-2)) @ U.mH
        return f"{name}, {left} vectors", (A + A.mH) / 2
    V = vectors(right, B, n, g, is_complex)
    k = min(m, n)
    return f"{name}, {left} and {right} vectors", (U[..., :k] * w.unsqueeze(-2)) @ V[..., :k].mH


def _scale(dtype: torch.dtype, r: random.Random) -> tuple[str, float]:
    """A power of ten: ordinary, large, or anywhere in the range of the dtype; inf for the largest number itself."""
    info = torch.finfo(dtype)
    draw = r.random()
    if draw < 0.45:
        return "", 10 ** r.uniform(-1, 1) if r.random() < 0.5 else 1.0
    if draw < 0.7:
        return "", 10 ** r.uniform(-8, 8)
    if draw < 0.94:
        lowest = math.log10(info.tiny) + math.log10(info.eps)
        return "", 10 ** r.uniform(lowest, math.log10(info.max))
    return ", near the largest number", math.inf


def _as(dtype: torch.dtype, A: Tensor, scale: float) -> Tensor:
    """Scaled and rounded, with what overflows at the largest number."""
    largest = float(torch.finfo(dtype).max)
    parts = torch.view_as_real(A) if A.is_complex() else A
    if math.isinf(scale):
        size = parts.abs().flatten(1).amax(1).clamp(min=1e-300)
        parts = parts / size.reshape(-1, *([1] * (parts.ndim - 1)))
        scale = largest
    half = math.sqrt(scale)
    parts = (parts * half * (scale / half)).clamp(-largest, largest)
    real = torch.float32 if dtype in (torch.float32, torch.complex64) else torch.float64
    parts = parts.to(real).contiguous()
    return torch.view_as_complex(parts) if A.is_complex() else parts


def draw(seed: int, index: int, size: int = 400, kinds: tuple[str, ...] = tuple(KINDS), ordinary: bool = False) -> Batch:
    """Batch number ``index`` of the run with this seed. ``ordinary``: of scale 1."""
    r = random.Random(f"{seed}/{index}")
    g = Generator().manual_seed(r.getrandbits(62))
    dtype = r.choice(DTYPES)
    kind = r.choices(kinds, [KINDS[each] for each in kinds])[0]
    large = r.random() < _LARGE_SHARE
    n = r.randint(_ORDINARY + 1, _LARGE) if large else r.choice([*range(1, _ORDINARY + 1), 2, 3, 3, 4])
    m = n if kind != "general" or r.random() < 0.4 else r.randint(1, n if large else _ORDINARY)
    if r.random() < 0.5:
        m, n = n, m
    B = max(1, min(size, _ENTRIES // (m * n)))
    family, A = _built(kind, m, n, B, g, r, dtype.is_complex)
    word, scale = ("", 1.0) if ordinary else _scale(dtype, r)
    X = _as(dtype, A, scale)
    return Batch(family + word, kind, float(torch.finfo(dtype).max) if math.isinf(scale) else scale, X)
