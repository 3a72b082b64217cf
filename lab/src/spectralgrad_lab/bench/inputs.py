"""The matrices that are timed and checked: float32, exactly symmetric, made on the device from a fixed seed."""

import math

import torch
from torch import Tensor

SAMPLES_PER_CHANNEL = 4
CONDITION = 1e5  # of the badly scaled and the rotated ones
ROTATIONS = 64


def normal(*shape: int, device: torch.device, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, device=device, dtype=dtype, generator=torch.Generator(device).manual_seed(seed))


def covariances(d: int, batch: int, device: torch.device, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Covariances (batch, d, d) of 4d samples: condition number about 9.

    >>> covariances(4, 2, torch.device("cpu")).shape
    torch.Size([2, 4, 4])
    """
    n = SAMPLES_PER_CHANNEL * d
    X = normal(batch, d, n, device=device, seed=seed, dtype=dtype)
    return symmetric(X @ X.mT / n)


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


def symmetric(M: Tensor) -> Tensor:
    return (M + M.mT) / 2
