"""LAPACK's (on CUDA: cuSOLVER's) divide and conquer."""

from dataclasses import dataclass

import torch
from torch import Tensor

from spectralgrad.errors import LinAlgError
from spectralgrad.kernels import syev

from ..scaling import are_finite
from . import cusolver
from .base import Solver, compilable
from .threads import WORTHWHILE_SECONDS, may_spread, spread

_SECONDS_AT_16 = 15e-6  # measured: one 16 x 16 float32 eigh on one core; grows with about n^1.85


def worth_spreading(H: Tensor) -> bool:
    """Whether ``H`` (*B, n, n) is a CPU batch large enough to gain from several threads."""
    if H.device.type != "cpu" or H.ndim < 3:
        return False
    n = H.shape[-1]
    batch = H.numel() // (n * n)
    seconds = batch * _SECONDS_AT_16 * (n / 16) ** 1.85
    return batch > 1 and seconds > WORTHWHILE_SECONDS and may_spread(seconds)


def _eigh_into(H: Tensor, out: tuple[Tensor, Tensor]) -> bool:
    torch.linalg.eigh(H, out=out)
    return True


def _checked_eigh_into(M: Tensor, out: tuple[Tensor, Tensor]) -> bool:
    """The same, and looks at a share of a batch while it is in the cache, in the thread that solves it."""
    if not torch.equal(M, M.mH):
        return False
    torch.linalg.eigh(M, out=out)
    return are_finite(*out)


@compilable
@dataclass(frozen=True)
class Lapack(Solver):
    """`torch.linalg.eigh`, with a CPU batch spread over threads.

    On CUDA it is cuSOLVER's batched routine XsyevBatched, the same that `torch.linalg.eigh` takes since torch 2.12, called
    without a wait. Where torch came without it (CUDA before 12.6) it is `torch.linalg.eigh`, which waits.

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
        if H.device.type == "cuda":
            return cusolver.eigh(H)
        w, V = torch.linalg.eigh(H)
        return w, V

    def solve_anything(self, M: Tensor, start: Tensor | None = None) -> tuple[Tensor, Tensor] | None:
        return cusolver.eigh_of_anything(M) if syev.runs_on(M) else None

    def solve_if_hermitian(self, M: Tensor) -> tuple[Tensor, Tensor] | None:
        try:
            if worth_spreading(M):
                w, V, good = spread(_checked_eigh_into, M)
                return (w, V) if good else None
            if M.device.type != "cpu" or not torch.equal(M, M.mH):  # NaN is not equal
                return None
            w, V = torch.linalg.eigh(M)
        except LinAlgError:  # the caller's chain says what to do
            return None
        return (w, V) if are_finite(w, V) else None
