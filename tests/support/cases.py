"""The lists that feed the tests: solvers, rules, spectra, functions, dtypes. A new one is tested by being listed."""

import math

import torch
from torch import Tensor

import spectralgrad as sg

SOLVERS = [sg.Auto(), sg.Lapack(), sg.SVD(), sg.Jacobi()]
RULES = [sg.Exact(), sg.Lorentzian(), sg.Taylor(9), sg.Clip(100.0), sg.Analytic()]
BOUNDED_RULES = [rule for rule in RULES if not isinstance(rule, sg.Analytic)]
GRADIENTS = [*RULES, sg.PowerIteration(19)]

DTYPES = [torch.float32, torch.float64, torch.complex64, torch.complex128]


def eps(dtype: torch.dtype) -> float:
    return float(torch.finfo(dtype).eps)


def ident(x: object) -> str:
    """A short test id."""
    return str(x).replace("torch.", "").replace("()", "")


# Eigenvalues (n,), ascending, in float64.


def separated(n: int) -> Tensor:
    return torch.linspace(1, 2, n, dtype=torch.float64)


def equal(n: int) -> Tensor:
    return torch.ones(n, dtype=torch.float64)


def repeated(n: int) -> Tensor:
    return torch.linspace(1, 3, n, dtype=torch.float64).mul(2).round().div(2)


def near_equal(n: int) -> Tensor:
    """Pairs with a relative gap of 1e-12."""
    base = torch.linspace(1, 2, max(n // 2, 1), dtype=torch.float64).repeat_interleave(2)
    base = torch.cat([base, base[-1:] * 2])[:n]
    return (base * (1 + 1e-12 * (torch.arange(n) % 2))).sort().values


def graded(n: int) -> Tensor:
    """Condition number 1e12."""
    return torch.logspace(-12, 0, n, dtype=torch.float64)


def rank_deficient(n: int) -> Tensor:
    """Half of the eigenvalues are zero."""
    w = torch.linspace(0, 2, n, dtype=torch.float64)
    w[: n // 2] = 0
    return w


SPECTRA = [separated, equal, repeated, near_equal, graded, rank_deficient]
POSITIVE_SPECTRA = [separated, equal, repeated, near_equal, graded]
SCALES = [1.0, 1e-8, 1e8]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=dtype, generator=generator(seed))


def rotation(n: int, *batch: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    """A random orthogonal (unitary) matrix (*batch, n, n)."""
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return torch.linalg.qr(random(*batch, n, n, dtype=wide, seed=seed))[0]


def with_spectrum(w: Tensor, *batch: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    """Random Hermitian matrices (*batch, n, n) with these eigenvalues."""
    V = rotation(len(w), *batch, dtype=dtype, seed=seed)
    M = (V * w) @ V.mH
    return ((M + M.mH) / 2).to(dtype)


def random_covariance(
    d: int, *batch: int, samples: int | None = None, dtype: torch.dtype = torch.float64, seed: int = 0
) -> Tensor:
    n = samples or 4 * d
    X = random(*batch, d, n, dtype=torch.complex128 if dtype.is_complex else torch.float64, seed=seed)
    return (X @ X.mH / n).to(dtype)


def relative_error(x: Tensor, reference: Tensor) -> float:
    wide = torch.complex128 if reference.is_complex() else torch.float64
    difference = torch.linalg.norm((x.to(wide) - reference.to(wide)).flatten())
    return float(difference / torch.linalg.norm(reference.to(wide).flatten()).clamp(min=math.ulp(0.0)))
