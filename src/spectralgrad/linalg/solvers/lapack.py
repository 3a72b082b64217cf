"""LAPACK's (on CUDA: cuSOLVER's) divide and conquer, with a CPU batch spread over threads."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from spectralgrad.errors import LinAlgError
from spectralgrad.kernels import syev
from spectralgrad.kernels.cpu import svd as native_svd

from ..scaling import are_finite
from . import cusolver
from .base import Solver, compilable
from .threads import WORTHWHILE_SECONDS, may_spread, spread

# Measured: of one 16 x 16 float32 matrix on one core. They grow with about n^1.85; those of m x n with m/n to the power 0.6.
_EIGH_SECONDS, _SVD_SECONDS = 15e-6, 20e-6
_FEW = 256  # numbers, beyond which native kernels are faster with vectors than LAPACK is without


def worth_spreading(H: Tensor) -> bool:
    """Whether ``H`` (*B, n, n) is a CPU batch large enough for its eigenpairs to gain from several threads."""
    return _gains(H, _EIGH_SECONDS * (H.shape[-1] / 16) ** 1.85)


def _gains(X: Tensor, seconds: float) -> bool:
    """Whether ``X`` (*B, m, n), a matrix of which takes one core so long, is a CPU batch that gains from several threads."""
    if X.device.type != "cpu" or X.ndim < 3:
        return False
    batch = X.shape[:-2].numel()
    return batch > 1 and batch * seconds > WORTHWHILE_SECONDS and may_spread(batch * seconds)


def singular_values_alone(A: Tensor, check: bool) -> Tensor | None:
    """S of `decompose_svd` where it needs no vectors and nothing is wrong with ``A``; None leaves it to that."""
    if not check or A.device.type != "cpu" or _gains_triplets(A) or (A.numel() > _FEW and native_svd.runs_on(A)):
        return None
    return _values(torch.linalg.svdvals, A)


def _values(solve: Callable[[Tensor], Tensor], M: Tensor) -> Tensor | None:
    try:
        values = solve(M)
    except LinAlgError:  # the caller's chain says what to do
        return None
    return values if are_finite(values) else None


def _gains_triplets(A: Tensor) -> bool:
    m, n = A.shape[-2:]
    k = min(m, n)
    return k > 0 and _gains(A, _SVD_SECONDS * (k / 16) ** 1.85 * (max(m, n) / k) ** 0.6)


def triplets(A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """U (*B, m, k), S (*B, k) and Vh (*B, k, n) of ``A`` (*B, m, n), k = min(m, n): `torch.linalg.svd`, with a CPU batch
    spread over threads."""
    *batch, m, n = A.shape
    k = min(m, n)
    if not _gains_triplets(A):
        U, S, Vh = torch.linalg.svd(A, full_matrices=False)
        return U, S, Vh
    flat = A.detach().flatten(0, -3)
    U, Vh = flat.new_empty(len(flat), m, k), flat.new_empty(len(flat), k, n)
    S = flat.new_empty(len(flat), k, dtype=flat.real.dtype)
    spread(_svd_into, flat, U, S, Vh)
    return U.reshape(*batch, m, k), S.reshape(*batch, k), Vh.reshape(*batch, k, n)


def _svd_into(A: Tensor, U: Tensor, S: Tensor, Vh: Tensor) -> bool:
    torch.linalg.svd(A, full_matrices=False, out=(U, S, Vh))
    return True


def _spread_eigh(solve: Callable[[Tensor, Tensor, Tensor], bool], H: Tensor) -> tuple[Tensor, Tensor] | None:
    """w and V of a batch ``H`` (*B, n, n) by all threads; None where one says no."""
    flat = H.detach().flatten(0, -3)
    w = flat.new_empty(flat.shape[:-1], dtype=flat.real.dtype)
    V = torch.empty_like(flat, memory_format=torch.contiguous_format).mT  # LAPACK writes columns: no copy
    return (w.reshape(H.shape[:-1]), V.reshape(H.shape)) if spread(solve, flat, w, V) else None


def _eigh_into(H: Tensor, w: Tensor, V: Tensor) -> bool:
    torch.linalg.eigh(H, out=(w, V))
    return True


def _checked_eigh_into(M: Tensor, w: Tensor, V: Tensor) -> bool:
    """The same, and looks at a share of a batch while it is in the cache, in the thread that solves it."""
    if not torch.equal(M, M.mH):
        return False
    torch.linalg.eigh(M, out=(w, V))
    return are_finite(w, V)


@compilable
@dataclass(frozen=True)
class Lapack(Solver):
    """`torch.linalg.eigh`, with a CPU batch spread over threads.

    On CUDA it is cuSOLVER's batched routine XsyevBatched, the same that `torch.linalg.eigh` takes since torch 2.12, called
    without a wait. Where torch came without it (CUDA before 12.6) it is `torch.linalg.eigh`, which waits.

    The most accurate and the default on the CPU. Residual and orthogonality are a small multiple of ``n * eps``;
    small eigenvalues are accurate relative to the largest one, not to themselves.

    >>> import torch, spectralgrad as sg
    >>> w, V = sg.eigh(torch.diag(torch.tensor([2.0, 1.0])), solver=sg.Lapack())
    >>> w
    tensor([1., 2.])
    """

    def solve(self, H: Tensor) -> tuple[Tensor, Tensor]:
        if worth_spreading(H) and (pairs := _spread_eigh(_eigh_into, H)) is not None:
            return pairs
        if H.device.type == "cuda":
            return cusolver.eigh(H)
        w, V = torch.linalg.eigh(H)
        return w, V

    def solve_anything(self, M: Tensor, start: Tensor | None = None) -> tuple[Tensor, Tensor] | None:
        return cusolver.eigh_of_anything(M) if syev.runs_on(M) else None

    def solve_if_hermitian(self, M: Tensor) -> tuple[Tensor, Tensor] | None:
        try:
            if worth_spreading(M):
                return _spread_eigh(_checked_eigh_into, M)
            if M.device.type != "cpu" or not torch.equal(M, M.mH):  # NaN is not equal
                return None
            w, V = torch.linalg.eigh(M)
        except LinAlgError:  # the caller's chain says what to do
            return None
        return (w, V) if are_finite(w, V) else None

    def values_if_hermitian(self, M: Tensor) -> Tensor | None:
        if M.device.type != "cpu" or worth_spreading(M) or not torch.equal(M, M.mH):
            return None
        return _values(torch.linalg.eigvalsh, M)
