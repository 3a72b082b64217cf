"""The native kernels of the CPU: many small real matrices at once, one in each lane of a vector."""

from dataclasses import dataclass

import torch
from torch import Tensor

from spectralgrad.counters import count_on_device
from spectralgrad.errors import LinAlgError
from spectralgrad.kernels.cpu import eigh as kernel

from .base import Solver


@dataclass(frozen=True)
class Native(Solver):
    """Householder's reduction and implicit QL for n >= 4, Jacobi in registers below; kernels/cpu/eigh.h.

    Residual and orthogonality are a small multiple of ``n * eps``, as LAPACK's.
    """

    def solve(self, H: Tensor) -> tuple[Tensor, Tensor]:
        w, V, status = kernel.eigh(H)
        if status & kernel.NOT_CONVERGED:
            raise LinAlgError("the native kernel did not converge")
        return w, V

    def solve_if_hermitian(self, M: Tensor) -> tuple[Tensor, Tensor] | None:
        w, V, status = kernel.eigh(M)
        return None if status else (w, V)

    def values_if_hermitian(self, M: Tensor) -> Tensor | None:
        w, status = kernel.eigvalsh(M)
        return None if status else w

    def solve_anything(self, M: Tensor, start: Tensor | None = None) -> tuple[Tensor, Tensor] | None:
        w, V, status = kernel.eigh(M)
        if status & kernel.NOT_CONVERGED:
            return None
        if status & kernel.NOT_FINITE:
            count_on_device("nonfinite_input", ~torch.isfinite(M).all(-1).all(-1))
        return w, V
