"""The matrices that are timed and checked: exactly symmetric, from a fixed seed."""

import math

import torch
from torch import Tensor

SAMPLES_PER_CHANNEL = 4
CONDITION = 1e5  # of the badly scaled and the rotated ones
ROTATIONS = 64
SCALES = ("1e-8", "1e8")
GRADED = ("1e4", "1e8", "1e12")  # condition numbers
KINDS_OF_SAMPLES = ("covariance + 2^-17", "orthogonal samples + 2^-17", "rank-deficient + 2^-17")
CPU = torch.device("cpu")


def normal(*shape: int, device: torch.device = CPU, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, device=device, dtype=dtype, generator=torch.Generator(device).manual_seed(seed))


def symmetric(M: Tensor) -> Tensor:
    return (M + M.mH) / 2


def covariances(
    d: int,
    batch: int,
    device: torch.device = CPU,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    samples: int | None = None,
) -> Tensor:
    """Covariances (batch, d, d) of 4d samples, if not told otherwise: condition number about 9.

    >>> covariances(4, 2, torch.device("cpu")).shape
    torch.Size([2, 4, 4])
    """
    n = samples or SAMPLES_PER_CHANNEL * d
    X = normal(batch, d, n, device=device, seed=seed, dtype=dtype)
    return symmetric(X @ X.mH / n)


# Float32, made on the device.


def badly_scaled(d: int, batch: int, device: torch.device, seed: int = 0) -> Tensor:
    """D C D with C a covariance and D^2 from 1 to 1e-5, in an order of its own for every matrix: features in odd units."""
    scale = torch.logspace(0, -0.5 * math.log10(CONDITION), d, dtype=torch.float64, device=device)
    order = normal(batch, d, device=device, seed=seed + 1).argsort(-1)
    s = scale[order]  # (batch, d)
    C = covariances(d, batch, device, seed, torch.float64)
    return symmetric(s.unsqueeze(-1) * C * s.unsqueeze(-2)).float()


def rotated(d: int, batch: int, device: torch.device, seed: int = 0) -> Tensor:
    """Q diag(1 ... 1e-5) Q^T with a random rotation Q: every entry is of the size of the largest eigenvalue.

    Of large batches each matrix has its own order of eigenvalues, but shares Q with others: QR is slow on a GPU.
    """
    w = torch.logspace(-math.log10(CONDITION), 0, d, dtype=torch.float64, device=device)
    order = normal(batch, d, device=device, seed=seed + 1).argsort(-1)
    Q = torch.linalg.qr(normal(min(batch, ROTATIONS), d, d, device=device, seed=seed, dtype=torch.float64))[0]
    Q = Q[torch.arange(batch, device=device) % len(Q)]
    return symmetric((Q * w[order].unsqueeze(-2)) @ Q.mT).float()


# Built in float64 on the CPU and rounded: the reference belongs to the rounded matrix.


def kinds(dtype: torch.dtype) -> list[str]:
    """The names that `matrices` knows. Graded spectra need float64; float32 has no room for them."""
    names = ["covariance", "identity", "repeated diagonal", "repeated rotated", "gaps 1e-12", "rank-deficient + 1e-5"]
    if dtype == torch.float64:
        names += [f"graded {kappa}" for kappa in GRADED]
    scaled = ["covariance", "repeated rotated", "rank-deficient + 1e-5"]
    return names + [f"{name}, x {scale}" for name in scaled for scale in SCALES]


def matrices(kind: str, d: int, batch: int, dtype: torch.dtype) -> Tensor:
    """Symmetric positive definite matrices (batch, d, d)."""
    name, _, scale = kind.partition(", x ")
    return symmetric(_build(name, d, batch) * float(scale or 1)).to(dtype)


def cotangents(d: int, batch: int, dtype: torch.dtype) -> Tensor:
    """Random symmetric G (batch, d, d): <G, f(M)> depends on every eigenvector and, at ties, on no choice of basis."""
    return symmetric(normal(batch, d, d, seed=1, dtype=torch.float64)).to(dtype)


def samples(d: int, n: int, dtype: torch.dtype) -> Tensor:
    """X (d, n) of standard normal samples, each beside its negative: the mean is zero."""
    A = normal(d, n // 2, dtype=torch.float64)
    return torch.cat([A, -A], dim=-1).to(dtype)


def orthogonal_samples(d: int, n: int, dtype: torch.dtype) -> Tensor:
    """X (d, n) with X X^T / n = I to rounding, and mean zero."""
    Q = torch.linalg.qr(samples(d, n, torch.float64)[:, : n // 2].mT)[0].mT  # (d, n/2)
    X: Tensor = torch.cat([Q, -Q], dim=-1) * (n / 2) ** 0.5
    return X.to(dtype)


def samples_of(kind: str, d: int, dtype: torch.dtype) -> Tensor:
    """X (d, n) by the names in `KINDS_OF_SAMPLES`; n is a power of two where d is."""
    if kind.startswith("orthogonal"):
        return orthogonal_samples(d, SAMPLES_PER_CHANNEL * d, dtype)
    return samples(d, d // 2 if kind.startswith("rank-deficient") else SAMPLES_PER_CHANNEL * d, dtype)


def _build(name: str, d: int, batch: int) -> Tensor:
    if name == "covariance":
        return covariances(d, batch, dtype=torch.float64)
    if name == "rank-deficient + 1e-5":
        return covariances(d, batch, dtype=torch.float64, samples=d // 2) + 1e-5 * torch.eye(d, dtype=torch.float64)
    if name in ("identity", "repeated diagonal"):
        w = torch.ones(d, dtype=torch.float64) if name == "identity" else _repeated(d)
        return torch.diag(w).repeat(batch, 1, 1)
    if name == "repeated rotated":
        w = _repeated(d)
    elif name == "gaps 1e-12":  # pairs
        w = torch.linspace(1, 2, d // 2, dtype=torch.float64).repeat_interleave(2) * (1 + 1e-12 * (torch.arange(d) % 2))
    else:
        w = torch.logspace(-math.log10(float(name.removeprefix("graded "))), 0, d, dtype=torch.float64)
    V = torch.linalg.qr(normal(batch, d, d, dtype=torch.float64))[0]
    M: Tensor = (V * w) @ V.mT
    return M


def _repeated(d: int) -> Tensor:
    """Five different values at most: 1, 1.5, 2, 2.5, 3; at d = 4 two, twice each."""
    return torch.tensor([1.0, 3.0]).repeat_interleave(2).double() if d == 4 else torch.linspace(2, 6, d).round().double() / 2
