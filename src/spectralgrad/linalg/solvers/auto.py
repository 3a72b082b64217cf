"""The solver that chooses another one by device, dtype and size."""

from dataclasses import dataclass

import torch
from torch import Tensor

from spectralgrad.counters import device_counter
from spectralgrad.kernels import jacobi, svd, syev
from spectralgrad.kernels.cpu import eigh as native_eigh
from spectralgrad.kernels.cpu import svd as native_svd

from .base import Solver, compilable
from .jacobi import Jacobi
from .lapack import Lapack
from .native import Native

# On CUDA: from how many matrices on the Jacobi kernel is faster than cuSOLVER's XsyevBatched, for n up to the number in
# front; beyond the last n it never is. Measured on an H200; docs/speed.md has the times.
_KERNEL_FROM = {torch.float32: ((128, 1), (192, 8)), torch.float64: ((64, 1), (96, 64))}
_CUSOLVER_BATCHES = 32  # the largest n for which a cuSOLVER without XsyevBatched has a batched kernel
_TRIANGLE = 128  # up to this many columns, or rows, the kernels of the SVD beat cuSOLVER for a single matrix too
_SEVERAL = 16  # beyond it, from so many matrices on
_TALL = 8192  # rows from which one matrix is better off with all multiprocessors
_MANY = 768
# On the CPU: the largest n of which a single matrix is better off in native kernels; beyond it, from how many on, and up to
# which n. Measured: docs/speed.md.
_ALONE, _SOME, _LARGEST = 16, 4, 64
_LAPACK, _JACOBI, _NATIVE = Lapack(), Jacobi(), Native()


@compilable
@dataclass(frozen=True)
class Auto(Solver):
    """Chooses a solver by device, dtype and size.

    CPU: our native kernels for real matrices of n up to 16, and up to 64 from four matrices on; `Lapack` for others, and
    where the library of kernels is not there, with the batch spread over threads. The plain `Jacobi` is many small
    operations of torch.

    CUDA, real matrices: the kernel of `Jacobi` wherever it is faster than cuSOLVER's batched routine, XsyevBatched: in
    float32 for n up to 128, and up to 192 from eight matrices on; in float64 for n up to 64, and up to 96 from 64 matrices
    on. Elsewhere, and for complex matrices, `Lapack`, which is that routine there. docs/speed.md has the times of both.

    Inverse square roots of n > 128 on CUDA need no eigenvectors: `inv_sqrtm` takes them by products (H200, 256 matrices of
    n = 256, forward and backward: 19 ms), as `NewtonSchulz` does. So do inverse fourth roots, `inv_root(M, 4)`.

    CUDA without XsyevBatched (before 12.6): the same, but plain `Jacobi` where the kernel does not run, for 768 or more
    matrices in single precision of n > 32, which torch takes one after the other.

    Singular values, CUDA and real: our kernels, for min(m, n) up to 128, and up to 512 x 512 from 16 matrices on. A single
    matrix of more than 8192 rows is torch's, as are complex ones, and so is what the native kernels of the CPU
    do not take there, with the batch spread over threads.

    >>> import torch, spectralgrad as sg
    >>> sg.Auto().choose(torch.eye(100))
    Lapack()
    """

    def choose(self, H: Tensor) -> Solver:
        if not H.is_cuda:
            n = H.shape[-1]
            few = n > _ALONE and (n > _LARGEST or H.numel() < _SOME * n * n)
            return _LAPACK if few or not native_eigh.runs_on(H) else _NATIVE
        n = H.shape[-1]
        batch = H.numel() // (n * n)
        in_kernel = jacobi.runs_on(H)
        if in_kernel and _is_kernels(n, batch, H.dtype):
            return _JACOBI
        if syev.runs_on(H):
            return _LAPACK
        if in_kernel:
            return _JACOBI
        single = H.dtype in (torch.float32, torch.complex64)
        return _JACOBI if single and n > _CUSOLVER_BATCHES and batch >= _MANY else _LAPACK

    def solve(self, H: Tensor) -> tuple[Tensor, Tensor]:
        return self.choose(H).solve(H)

    def solve_if_hermitian(self, M: Tensor) -> tuple[Tensor, Tensor] | None:
        return self.choose(M).solve_if_hermitian(M)

    def values_if_hermitian(self, M: Tensor) -> Tensor | None:
        return self.choose(M).values_if_hermitian(M)

    def triplets(self, A: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        if not A.is_cuda and _wins_triplets(A):
            U, S, Vh, status = native_svd.svd(A)
            return None if status else (U, S, Vh)
        if not svd.runs_on(A):
            return None
        m, n = A.shape[-2:]
        if A.numel() // (m * n) < _SEVERAL and (min(m, n) > _TRIANGLE or max(m, n) > _TALL):
            return None
        return svd.svd(A, device_counter("nonfinite_input", A.device))


def _wins_triplets(A: Tensor) -> bool:
    """Whether the native kernels take matrices (*B, m, n) like ``A``, and faster than LAPACK."""
    m, n = A.shape[-2:]
    k = min(m, n)
    few = k > _ALONE and (k > _LARGEST or A.numel() < _SOME * m * n)
    return not few and native_svd.runs_on(A)


def _is_kernels(n: int, batch: int, dtype: torch.dtype) -> bool:
    """Whether so many real matrices are decomposed faster by the Jacobi kernel than by XsyevBatched."""
    return any(n <= largest and batch >= least for largest, least in _KERNEL_FROM[dtype])


AUTO = Auto()
