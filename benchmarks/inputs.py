"""The matrices of the benchmarks: by name, size and batch, from a fixed seed."""

import math

import torch
from torch import Tensor

SEED = 0
SCALES = ("1e-8", "1e8")
GRADED = ("1e4", "1e8", "1e12")  # condition numbers


def cases(dtype: torch.dtype) -> list[str]:
    """The names that `matrices` knows. Graded spectra need float64; float32 has no room for them."""
    names = ["covariance", "identity", "repeated diagonal", "repeated rotated", "gaps 1e-12", "rank-deficient + 1e-5"]
    if dtype == torch.float64:
        names += [f"graded {kappa}" for kappa in GRADED]
    scaled = ["covariance", "repeated rotated", "rank-deficient + 1e-5"]
    return names + [f"{name}, x {scale}" for name in scaled for scale in SCALES]


def matrices(case: str, d: int, batch: int, dtype: torch.dtype) -> Tensor:
    """Symmetric positive definite matrices (batch, d, d), exactly symmetric, built in float64 and rounded to ``dtype``."""
    name, _, scale = case.partition(", x ")
    M = _build(name, d, batch, torch.Generator().manual_seed(SEED)) * float(scale or 1)
    return ((M + M.mT) / 2).to(dtype)


def cotangents(d: int, batch: int, dtype: torch.dtype) -> Tensor:
    """Random symmetric G (batch, d, d): <G, f(M)> depends on every eigenvector and, at ties, on no choice of basis."""
    G = torch.randn(batch, d, d, dtype=torch.float64, generator=torch.Generator().manual_seed(SEED + 1))
    return ((G + G.mT) / 2).to(dtype)


def samples(d: int, n: int, dtype: torch.dtype) -> Tensor:
    """X (d, n) of standard normal samples, each beside its negative: the mean is zero."""
    A = torch.randn(d, n // 2, dtype=torch.float64, generator=torch.Generator().manual_seed(SEED))
    return torch.cat([A, -A], dim=-1).to(dtype)


def orthogonal_samples(d: int, n: int, dtype: torch.dtype) -> Tensor:
    """X (d, n) with X X^T / n = I to rounding, and mean zero."""
    Q = torch.linalg.qr(samples(d, n, torch.float64)[:, : n // 2].mT)[0].mT  # (d, n/2)
    return (torch.cat([Q, -Q], dim=-1) * (n / 2) ** 0.5).to(dtype)


def _build(name: str, d: int, batch: int, generator: torch.Generator) -> Tensor:
    if name == "covariance":
        return _covariance(d, 4 * d, batch, generator)
    if name == "rank-deficient + 1e-5":
        return _covariance(d, d // 2, batch, generator) + 1e-5 * torch.eye(d, dtype=torch.float64)
    if name in ("identity", "repeated diagonal"):
        w = torch.ones(d, dtype=torch.float64) if name == "identity" else _repeated(d)
        return torch.diag(w).repeat(batch, 1, 1)
    if name == "repeated rotated":
        w = _repeated(d)
    elif name == "gaps 1e-12":  # pairs
        w = torch.linspace(1, 2, d // 2, dtype=torch.float64).repeat_interleave(2) * (1 + 1e-12 * (torch.arange(d) % 2))
    else:
        w = torch.logspace(-math.log10(float(name.removeprefix("graded "))), 0, d, dtype=torch.float64)
    V = torch.linalg.qr(torch.randn(batch, d, d, dtype=torch.float64, generator=generator))[0]
    return (V * w) @ V.mT


def _covariance(d: int, n: int, batch: int, generator: torch.Generator) -> Tensor:
    X = torch.randn(batch, d, n, dtype=torch.float64, generator=generator)
    return X @ X.mT / n


def _repeated(d: int) -> Tensor:
    """Five different values at most: 1, 1.5, 2, 2.5, 3; at d = 4 two, twice each."""
    return torch.tensor([1.0, 3.0]).repeat_interleave(2).double() if d == 4 else torch.linspace(2, 6, d).round().double() / 2
