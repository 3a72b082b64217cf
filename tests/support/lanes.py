"""What feeds the tests of the native kernels: batches of hostile matrices, all in one so that each lane has another."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from spectralgrad.kernels.cpu import load
from support import cases

NATIVE = ("eigh", "functions", "polar", "pullback", "svd")  # modules of spectralgrad.kernels.cpu
DTYPES = [torch.float32, torch.float64]
LIMIT = 10.0  # times n eps: residuals and orthogonality
needs_native = pytest.mark.skipif(load.obstacle() is not None, reason=f"no native kernels: {load.obstacle()}")


@pytest.fixture(params=load.levels() or ["none"])
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each instruction set that the processor has."""
    with load.at_level(request.param):
        yield request.param


def _scales(dtype: torch.dtype) -> list[float]:
    limits = torch.finfo(dtype)
    tiny = float(limits.tiny)
    return [1.0, 1e-8, 1e8, tiny * float(limits.eps) * 40, tiny, 1 / tiny**0.5, float(limits.max) / 256]


def _spectra(n: int) -> list[Tensor]:
    signs = torch.where(cases.random(n, seed=7) > 0, 1.0, -1.0)
    clustered = 1 + 1e-7 * cases.random(n, seed=8)
    found = [f(n) for f in cases.SPECTRA]
    return [*found, *(w * signs for w in found), clustered, torch.randint(0, 2, (n,), generator=cases.generator(9)).double()]


def symmetric(n: int, dtype: torch.dtype) -> Tensor:
    """Symmetric matrices (B, n, n): ties, near ties, rank deficiency, graded, structured, of zeros and ones, all scales."""
    eye, ones = torch.eye(n, dtype=torch.float64), torch.ones(n, n, dtype=torch.float64)
    spread = torch.logspace(0, -6, n, dtype=torch.float64)
    gram = cases.random(2, n, n, seed=n)
    gram = gram @ gram.mT
    second = torch.diag(torch.ones(n - 1, dtype=torch.float64), 1) if n > 1 else 0 * eye
    middle = torch.diag((torch.arange(n) - (n - 1) / 2).abs().double())
    single = [
        *(cases.with_spectrum(w, 2, seed=i + n) for i, w in enumerate(_spectra(n))),
        *(torch.diag(w).unsqueeze(0) for w in _spectra(n)),
        torch.stack([0 * eye, eye, -eye, ones, eye.flip(0), 2 * eye - second - second.mT, middle + second + second.mT]),
        gram * spread * spread.unsqueeze(-1),
        gram * spread.flip(0) * spread.flip(0).unsqueeze(-1),
    ]
    whole = torch.cat(single)
    size = whole.abs().amax((-2, -1), keepdim=True)
    whole = whole / torch.where(size > 0, size, 1)
    scaled = torch.cat([(whole * scale).to(dtype) for scale in _scales(dtype)])
    binary = torch.randint(0, 2, (300, n, n), generator=cases.generator(n)).to(dtype)
    order = torch.randperm(len(scaled) + 300, generator=cases.generator(1))
    return torch.cat([scaled.tril() + scaled.tril(-1).mT, binary.tril() + binary.tril(-1).mT])[order]


def at_scale_1(M: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """Matrices in float64, divided by their largest entries, and what has the same scale; the last one is the rounding of
    numbers below the ordinary ones, relative to that entry."""
    size = M.abs().amax((-2, -1)).double()
    size = torch.where(size > 0, size, 1)
    limits = torch.finfo(M.dtype)
    least = limits.tiny * limits.eps / size
    return M.double() / size[:, None, None], *(x.double() / size.view(-1, *[1] * (x.ndim - 1)) for x in others), least


def norm(X: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(X)


def worst_pairs(M: Tensor, w: Tensor, V: Tensor) -> tuple[float, float, float]:
    """Residual, loss of orthogonality and error of the values against LAPACK in float64, in units of n eps |M|."""
    n, unit = M.shape[-1], M.shape[-1] * cases.eps(M.dtype)
    A, x, least = at_scale_1(M, w)
    U, rounding = V.double(), n * least
    size = norm(A).clamp(min=1e-300)
    residual = (norm(A @ U - U * x.unsqueeze(-2)) - rounding) / size
    orthogonality = (U.mT @ U - torch.eye(n, dtype=torch.float64)).abs().amax((-2, -1))
    values = ((x - torch.linalg.eigvalsh(A)).abs().amax(-1) - rounding) / size
    return tuple(float(e.nan_to_num(nan=torch.inf).max()) / unit for e in (residual, orthogonality, values))  # type: ignore[return-value]


def bits(x: Tensor) -> Tensor:
    """The numbers as they lie in memory: -0 is not 0, NaN is NaN."""
    return x.contiguous().view(torch.int32 if x.dtype == torch.float32 else torch.int64)


def same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(bits(a), bits(b))


def general(m: int, n: int, dtype: torch.dtype) -> Tensor:
    """Matrices (B, m, n) of every kind: ties, rank deficiency, graded by rows and columns, structured, of zeros and ones."""
    k = min(m, n)
    eye, ones = torch.eye(m, n, dtype=torch.float64), torch.ones(m, n, dtype=torch.float64)
    rows, columns = (torch.logspace(0, -9, size, dtype=torch.float64) for size in (m, n))
    plain = cases.random(4, m, n, seed=m)
    upper = torch.triu(ones, 1)

    def left(seed: int) -> Tensor:
        return cases.rotation(m, 2, seed=seed)[..., :k]

    def right(seed: int) -> Tensor:
        return cases.rotation(n, 2, seed=seed + 1)[..., :k]

    single = [
        *(left(i) * w.abs() @ right(i).mT for i, w in enumerate(_spectra(k))),
        torch.stack([0 * eye, eye, -eye, ones, eye.flip(0), eye - upper, eye + upper.tril(1)]),
        plain,
        plain * columns,
        plain * rows.unsqueeze(-1),
        plain * columns.flip(0),
        plain * rows.flip(0).unsqueeze(-1),
        plain * (torch.arange(n) != n // 2),
        plain * (torch.arange(m) != 0).unsqueeze(-1),
        cases.random(3, m, 1, seed=n) @ cases.random(3, 1, n, seed=m),
    ]  # fmt: skip
    whole = torch.cat(single)
    size = whole.abs().amax((-2, -1), keepdim=True)
    whole = whole / torch.where(size > 0, size, 1)
    scaled = torch.cat([(whole * scale).to(dtype) for scale in _scales(dtype)])
    binary = torch.randint(0, 2, (200, m, n), generator=cases.generator(n)).to(dtype)
    return torch.cat([scaled, binary])[torch.randperm(len(scaled) + 200, generator=cases.generator(1))]
