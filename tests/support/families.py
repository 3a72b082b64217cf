"""LAPACK's families of symmetric test matrices, and its measures of an eigendecomposition."""

import torch
from torch import Tensor

import spectralgrad as sg
from support import cases

LIMIT = 30.0  # LAPACK's own threshold for its test ratios
SCALES = ["plain", "near overflow", "near underflow"]


# LAPACK's families (the types of its symmetric eigenvalue tests), rotated at random.


def spectra(n: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """Eigenvalues (n,) from 1 down to eps in float64."""
    ulp = torch.tensor(cases.eps(dtype), dtype=torch.float64)
    clustered = ulp.repeat(n)
    clustered[0] = 1
    positive = {
        "evenly spaced": torch.linspace(1, float(ulp), n, dtype=torch.float64),
        "geometric": torch.logspace(0, float(ulp.log10()), n, dtype=torch.float64),
        "clustered": clustered,
    }
    signs = torch.where(cases.random(n, seed=n) > 0, 1.0, -1.0).to(torch.float64)
    indefinite = {f"{name}, random signs": w * signs for name, w in positive.items()}
    half = torch.linspace(0.1, 1, n // 2, dtype=torch.float64)  # +l and -l share a singular value
    indefinite["pairs of both signs"] = torch.cat([-half, half, torch.zeros(n % 2, dtype=torch.float64)])
    return positive | indefinite


def families(n: int, dtype: torch.dtype, scales: list[str], *, semidefinite: bool = False) -> tuple[list[str], Tensor]:
    """Names and matrices (families, n, n)."""
    wide = torch.complex128 if dtype.is_complex else torch.float64
    matrices = {"zero": torch.zeros(n, n, dtype=wide), "identity": torch.eye(n, dtype=wide)}
    matrices["equal"] = cases.with_spectrum(cases.equal(n), dtype=wide, seed=n)
    for seed, (name, w) in enumerate(spectra(n, dtype).items()):
        matrices[name] = cases.with_spectrum(w, dtype=wide, seed=n + seed)
    entries = cases.random(n, n, dtype=wide, seed=3 * n)
    matrices["random entries"] = entries + entries.mH
    if semidefinite:
        matrices = {name: M for name, M in matrices.items() if not name.endswith(("signs", "random entries"))}
    info = torch.finfo(dtype)
    sizes = {"plain": 1.0, "near overflow": 0.1 * info.max, "near underflow": 10 * info.tiny}
    names, scaled = [], []
    for name, M in matrices.items():
        for scale in scales:
            unit = M / M.abs().sum(-1).max().clamp(min=1.0)
            names.append(f"{name}, {scale}")
            scaled.append((unit * sizes[scale]).to(dtype))
    return names, torch.stack(scaled)


def unit_scale(M: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """M, w and |M|_1 in double precision, with largest entry 1, so that the check itself neither over- nor underflows."""
    size = M.abs().amax((-2, -1)).to(torch.float64)
    size = torch.where(size > 0, size, 1)
    parts = (torch.view_as_real(M) if M.is_complex() else M.unsqueeze(-1)).to(torch.float64) / size[..., None, None, None]
    A = torch.view_as_complex(parts) if M.is_complex() else parts[..., 0]
    return A, w.to(torch.float64) / size[..., None], torch.linalg.matrix_norm(A, 1)


def too_large(names: list[str], what: str, error: Tensor, unit: Tensor) -> list[str]:
    """The families in which error > LIMIT * unit; NaN counts."""
    bad = ~(error <= LIMIT * unit)
    ratio = error / unit
    return [f"{what} {float(ratio[i]):.3g} in {name}" for i, name in enumerate(names) if bad[i]]


def faults(names: list[str], M: Tensor, w: Tensor, V: Tensor) -> list[str]:
    """What LAPACK would complain about: |M V - V w| / (n eps |M|) and |V^H V - I| / (n eps) in the 1-norm, and the order."""
    n, ulp = M.shape[-1], cases.eps(M.dtype)
    A, x, norm = unit_scale(M, w)
    U = V.to(A.dtype)
    residual = torch.linalg.matrix_norm(A @ U - U * x.unsqueeze(-2), 1)
    orthogonality = torch.linalg.matrix_norm(U.mH @ U - torch.eye(n, dtype=A.dtype), 1)
    found = too_large(names, "residual", residual, n * ulp * norm)
    found += too_large(names, "orthogonality", orthogonality, torch.full_like(norm, n * ulp))
    return found + [f"order in {name}" for i, name in enumerate(names) if not bool((w[i].diff() >= 0).all())]


def disagreements(names: list[str], M: Tensor, w: Tensor, reference: Tensor) -> list[str]:
    _, x, norm = unit_scale(M, w)
    _, y, _ = unit_scale(M, reference)
    return too_large(names, "eigenvalue", (x - y).abs().amax(-1), M.shape[-1] * cases.eps(M.dtype) * norm)


def assert_solves(solver: sg.Solver, names: list[str], M: Tensor) -> None:
    """The solver passes by itself: nothing was retried."""
    sg.reset_counts()
    w, V = sg.eigh(M, solver=solver)
    assert sg.counts() == {}
    assert faults(names, M, w, V) + disagreements(names, M, w, sg.eigh(M, solver=sg.Lapack())[0]) == []
