"""Families of rectangular matrices, and LAPACK's measures of a singular value decomposition."""

import torch
from torch import Tensor

from support import cases
from support.families import too_large, unit_scale

SCALES = ["plain", "near overflow", "near underflow", "denormal"]


def with_singular_values(s: Tensor, m: int, n: int, seed: int = 0) -> Tensor:
    """(m, n) with singular values ``s`` (min(m, n),), in float64."""
    k = min(m, n)
    U, V = (torch.linalg.qr(cases.random(size, k, seed=seed + side))[0] for side, size in ((11, m), (29, n)))
    return (U * s) @ V.mT


def families(m: int, n: int, dtype: torch.dtype, scales: list[str]) -> tuple[list[str], Tensor]:
    """Names and matrices (families, m, n), the largest entry of each near the scale."""
    k = min(m, n)
    spectra = {"separated": cases.separated, "tied": cases.repeated, "graded": cases.graded, "rank": cases.rank_deficient}
    matrices = {name: with_singular_values(f(k), m, n, seed=k) for name, f in spectra.items()}
    matrices["zero"] = torch.zeros(m, n, dtype=torch.float64)
    matrices["identity"] = torch.eye(m, n, dtype=torch.float64)
    matrices["ones"] = torch.ones(m, n, dtype=torch.float64)
    matrices["one entry"] = torch.zeros(m, n, dtype=torch.float64)
    matrices["one entry"][-1, n // 2] = -1.0
    matrices["random"] = cases.random(m, n, seed=k)
    matrices["equal columns"] = matrices["random"][:, :1].repeat(1, n)
    matrices["a zero column"] = matrices["random"].clone()
    matrices["a zero column"][:, 0] = 0
    matrices["whole numbers"] = torch.arange(m * n, dtype=torch.float64).reshape(m, n) % 7 - 3
    info = torch.finfo(dtype)
    largest, least = info.max, info.tiny
    sizes = {"plain": 1.0, "near overflow": 0.9 * largest, "near underflow": 10 * least, "denormal": 100 * least * info.eps}
    names, scaled = [], []
    for name, A in matrices.items():
        for scale in scales:
            names.append(f"{name}, {scale}")
            scaled.append((A / A.abs().max().clamp(min=1.0) * sizes[scale]).to(dtype))
    return names, torch.stack(scaled)


def faults(names: list[str], A: Tensor, U: Tensor, S: Tensor, Vh: Tensor) -> list[str]:
    """Residual and orthogonality beyond max(m, n) eps, singular values beyond it of those in float64, and the order.

    A largest singular value beyond the largest number counts as that number.
    """
    m, n = A.shape[-2:]
    ulp, k = max(m, n) * cases.eps(A.dtype), min(m, n)
    X, s, _ = unit_scale(A, S)
    u, v = U.to(X.dtype), Vh.to(X.dtype)
    exact = torch.linalg.svdvals(X)
    norm = exact[..., 0].clamp(min=1e-300)
    cut = s[..., :1] < exact[..., :1] * (1 - 1e-3)  # it overflowed
    cut = cut & (S[..., :1] == torch.finfo(S.dtype).max)
    s = torch.where(cut & (exact > s), exact, s)
    identity, flat = torch.eye(k, dtype=X.dtype), torch.full_like(norm, ulp)
    # What is lost below the smallest number is lost in A itself: its unit is part of the allowance for S.
    lost = torch.finfo(S.dtype).tiny * cases.eps(S.dtype) / A.abs().amax((-2, -1)).double().clamp(min=1e-320)
    lost = torch.where(A.abs().amax((-2, -1)) > 0, lost, 0)
    allowed = ulp * norm + lost
    found = too_large(names, "residual", torch.linalg.matrix_norm((u * s.unsqueeze(-2)) @ v - X, 2), allowed)
    found += too_large(names, "U", torch.linalg.matrix_norm(u.mT @ u - identity, 2), flat)
    found += too_large(names, "V", torch.linalg.matrix_norm(v @ v.mT - identity, 2), flat)
    found += too_large(names, "S", (s - exact).abs().amax(-1), allowed)
    return found + [
        f"order in {name}" for i, name in enumerate(names) if not bool((S[i].diff() <= 0).all() and S[i, -1] >= 0)
    ]
