"""LAPACK's (on CUDA: cuSOLVER's) divide and conquer."""

import cmath
from dataclasses import dataclass

import torch
from torch import Tensor

from spectralgrad.errors import LinAlgError

from .base import Solver
from .threads import spread, worth_spreading


def _eigh_into(H: Tensor, out: tuple[Tensor, Tensor]) -> bool:
    torch.linalg.eigh(H, out=out)
    return True


def _checked_eigh_into(M: Tensor, out: tuple[Tensor, Tensor]) -> bool:
    if not torch.equal(M, M.mH):
        return False
    torch.linalg.eigh(M, out=out)
    return cmath.isfinite((out[0].sum() + out[1].sum()).item())  # not finite if one entry is not


@dataclass(frozen=True)
class Lapack(Solver):
    """`torch.linalg.eigh`, with a CPU batch spread over threads.

    The most accurate and the default on the CPU. Residual and orthogonality are a small multiple of ``n * eps``;
    small eigenvalues are accurate relative to the largest one, not to themselves.

    >>> import spectralgrad as sg
    >>> w, V = sg.eigh(torch.diag(torch.tensor([2.0, 1.0])), solver=sg.Lapack())
    >>> w
    tensor([1., 2.])
    """

    def solve(self, H: Tensor) -> tuple[Tensor, Tensor]:
        if worth_spreading(H):
            w, V, _ = spread(_eigh_into, H)
            return w, V
        w, V = torch.linalg.eigh(H)
        return w, V

    def solve_if_hermitian(self, M: Tensor) -> tuple[Tensor, Tensor] | None:
        if not worth_spreading(M):
            return None
        try:
            w, V, good = spread(_checked_eigh_into, M)
        except LinAlgError:  # the caller's chain says what to do
            return None
        return (w, V) if good else None
