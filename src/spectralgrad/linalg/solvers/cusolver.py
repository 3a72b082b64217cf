"""Eigenpairs by cuSOLVER, and what its Jacobi kernels need, which torch calls for singular values and in older versions.

They multiply entries with each other, and what underflows there makes a result NaN or 1 % wrong: in single precision
entries below 1e-19 of the largest do (H200, CUDA 13; `make fuzz DEVICE=cuda` found it). So small matrices in single
precision go there in double, and entries whose squares would underflow even so become zero, far below rounding.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from spectralgrad.counters import device_counter
from spectralgrad.kernels import syev

from ..precision import WIDE
from ..scaling import exponent

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
    return syev.eigh(M, *(device_counter(event, M.device) for event in ("nonfinite_input", "solver_failed")))


def carefully(solve: Callable[[Tensor], tuple[Tensor, ...]], H: Tensor) -> tuple[Tensor, ...]:
    """``solve(H)`` for ``H`` (*B, m, n) on CUDA, safe from underflow: small matrices in double precision."""
    X = H.to(WIDE.get(H.dtype, H.dtype)) if min(H.shape[-2:]) <= JACOBI else H
    factors = solve(_without_tiny(X))
    return tuple(x.to(H.dtype if x.is_complex() else H.real.dtype) for x in factors)


def _without_tiny(X: Tensor) -> Tensor:
    """``X`` with entries below tiny^(1/2) times its scale, tiny the smallest normal number, set to zero."""
    bound = torch.finfo(X.dtype).tiny ** 0.5 * torch.exp2(exponent(X).to(X.real.dtype))
    return torch.where(X.abs() < bound[..., None, None], 0, X)
