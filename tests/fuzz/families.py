"""Families of hostile matrices, and of sets of them: a kind, a dtype, a scale. All follow from one seed."""

import math
import random
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from . import sets
from .scales import rounded, scale_of
from .spectra import SIGNED, SPECTRA, VECTORS, tiny, uniform, vectors

DTYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128)
KINDS = {"psd": 0.45, "hermitian": 0.25, "general": 0.3, **dict.fromkeys(sets.KINDS, 0.08)}
_ORDINARY, _LARGE = 12, 48  # sizes: mostly up to the first, some up to the second
_LARGE_SHARE = 0.03
_ENTRIES = 40_000  # of a batch of large matrices, at most


@dataclass(frozen=True)
class Batch:
    """Matrices (B, m, n) of one family, size, dtype and scale."""

    family: str
    kind: str  # psd, hermitian, general, or one of sets.KINDS
    scale: float
    X: Tensor


# Matrices given by their entries, (B, m, n).


def entries(family: str, B: int, m: int, n: int, g: Generator, is_complex: bool) -> Tensor:
    dtype = torch.complex128 if is_complex else torch.float64
    if family == "random entries":
        return torch.randn(B, m, n, dtype=dtype, generator=g)
    if family == "integers":
        whole = torch.randint(-2, 3, (B, m, n), generator=g).to(dtype)
        return whole + 1j * torch.randint(-2, 3, (B, m, n), generator=g) if is_complex else whole
    if family == "sparse":
        return torch.randn(B, m, n, dtype=dtype, generator=g) * (uniform(g, B, m, n) < 0.25)
    if family == "constant":
        return torch.ones(B, m, n, dtype=dtype) * (1 + tiny(g, B, m, n) * (uniform(g, B, 1, 1) < 0.5))
    if family == "permutation":
        places = uniform(g, B, max(m, n)).argsort(-1)
        return torch.nn.functional.one_hot(places, max(m, n))[:, :m, :n].to(dtype)
    assert family == "orders apart", family
    return torch.randn(B, m, n, dtype=dtype, generator=g) * tiny(g, B, m, n, decades=30)


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


def draw(seed: int, index: int, size: int = 400, kinds: tuple[str, ...] = tuple(KINDS), ordinary: bool = False) -> Batch:
    """Batch number ``index`` of the run with this seed. ``ordinary``: of scale 1."""
    r = random.Random(f"{seed}/{index}")
    g = Generator().manual_seed(r.getrandbits(62))
    dtype = r.choice(DTYPES)
    kind = r.choices(kinds, [KINDS[each] for each in kinds])[0]
    if kind in sets.KINDS:
        family, X = sets.draw(kind, dtype, size, g, r, ordinary)
        return Batch(family, kind, 1.0, X)
    large = r.random() < _LARGE_SHARE
    n = r.randint(_ORDINARY + 1, _LARGE) if large else r.choice([*range(1, _ORDINARY + 1), 2, 3, 3, 4])
    m = n if kind != "general" or r.random() < 0.4 else r.randint(1, n if large else _ORDINARY)
    if r.random() < 0.5:
        m, n = n, m
    B = max(1, min(size, _ENTRIES // (m * n)))
    family, A = _built(kind, m, n, B, g, r, dtype.is_complex)
    word, scale = ("", 1.0) if ordinary else scale_of(dtype, r)
    X = rounded(dtype, A, scale)
    return Batch(family + word, kind, float(torch.finfo(dtype).max) if math.isinf(scale) else scale, X)
