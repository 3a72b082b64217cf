"""What cuSOLVER's routines need: eigenpairs by its batched routine, and care for entries that underflow when squared.

Its kernels multiply entries with each other, and what underflows there makes a result NaN, 1 % wrong, or vectors that are
not orthogonal: in single precision entries below 1e-19 of the largest do (H200, CUDA 13; `make fuzz DEVICE=cuda` found it).
They are far below rounding, so they become zero.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import hardshrink

from spectralgrad.counters import count_on_device
from spectralgrad.kernels import syev

from ..precision import WIDE, hermitian_part
from ..scaling import exponent, shifted

JACOBI = 128  # n up to which torch chooses Jacobi's method there, which needs more than that: double precision


def eigh(H: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenpairs of Hermitian matrices (*B, n, n) on CUDA, whose values may be looked at."""
    if syev.runs_on(H):
        return eigh_of_anything(H)
    w, V = carefully(torch.linalg.eigh, H) if H.is_complex() or H.shape[-1] <= JACOBI else torch.linalg.eigh(H)
    return w, V


def eigh_of_anything(M: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenpairs of the Hermitian part of any ``M`` (*B, n, n) that `syev` takes; the host does not wait.

    NaN where a matrix is not finite, which is counted, and where the routine failed, which is counted too.
    """
    H = hermitian_part(M).contiguous()
    size = torch.linalg.vector_norm(H, torch.inf, dim=(-2, -1))  # (*B,), NaN and Inf show
    broken = ~torch.isfinite(size)
    count_on_device("nonfinite_input", broken)
    k = torch.frexp(size.masked_fill_(broken, 0)).exponent.to(size.dtype)
    half = torch.floor(k / 2)  # in two steps: 2^-k itself may be out of range
    for factor in (half, k - half):
        H = H.mul_(torch.exp2(-factor)[..., None, None])
    parts = torch.view_as_real(H) if H.is_complex() else H
    parts.copy_(hardshrink(parts, torch.finfo(H.dtype).tiny ** 0.5)).masked_fill_(_beside(broken, parts), 0)
    w, V, failed = syev.eigh(H)
    count_on_device("solver_failed", failed.ne_(0))
    unusable = broken | failed.bool()
    H.masked_fill_(_beside(unusable, H), torch.nan)  # V lies in it
    return shifted(w, k).masked_fill_(unusable.unsqueeze(-1), torch.nan), V


def _beside(flags: Tensor, x: Tensor) -> Tensor:
    """``flags`` (*B,) for the entries of ``x`` (*B, ...)."""
    return flags.reshape(*flags.shape, *(1,) * (x.ndim - flags.ndim))


def carefully(solve: Callable[[Tensor], tuple[Tensor, ...]], H: Tensor) -> tuple[Tensor, ...]:
    """``solve(H)`` for ``H`` (*B, m, n) on CUDA, safe from underflow: small matrices in double precision."""
    X = H.to(WIDE.get(H.dtype, H.dtype)) if min(H.shape[-2:]) <= JACOBI else H
    factors = solve(_without_tiny(X))
    return tuple(x.to(H.dtype if x.is_complex() else H.real.dtype) for x in factors)


def _without_tiny(X: Tensor) -> Tensor:
    """``X`` with entries below tiny^(1/2) times its scale, tiny the smallest normal number, set to zero."""
    bound = torch.finfo(X.dtype).tiny ** 0.5 * torch.exp2(exponent(X).to(X.real.dtype))
    return torch.where(X.abs() < bound[..., None, None], 0, X)
