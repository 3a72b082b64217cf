"""The default choice of solver."""

from dataclasses import dataclass

import torch
from torch import Tensor

from spectralgrad.kernels import jacobi

from .base import Solver
from .jacobi import Jacobi
from .lapack import Lapack

_ONE_BLOCK = 128  # up to this n the kernel beats cuSOLVER for a single matrix too
_FEW = 4  # beyond it, from so many matrices on
_CUSOLVER_BATCHES = 32  # the largest n for which cuSOLVER has a batched kernel
_MANY = 768
_LAPACK, _JACOBI = Lapack(), Jacobi()


@dataclass(frozen=True)
class Auto(Solver):
    """Chooses a solver by device, dtype and size.

    CPU: `Lapack` at every size and dtype. It is the most accurate, and with the batch spread over threads the
    fastest: plain-torch `Jacobi` needs about n sweeps' worth of small operations, each dearer than LAPACK's whole n = 16.

    CUDA, real matrices: the kernel of `Jacobi`, for n up to 128 always and up to 512 from four matrices on; results/ has
    the measured table. One large matrix is cuSOLVER's, which uses the whole device for it (H200, n = 256: 4.7 ms against
    12 ms; but 256 of them 1146 ms against 33 ms).

    Inverse square roots of n > 128 on CUDA need no eigenvectors: `inv_sqrtm` takes them by products (H200, 256 matrices of
    n = 256, forward and backward: 18 ms), as `NewtonSchulz` does.

    CUDA without that kernel, or complex: `Lapack`, which is cuSOLVER there, but plain `Jacobi` for 768 or more matrices in
    single precision of n > 32, which cuSOLVER takes one after the other (H200, n = 64, 2048 matrices: 1407 ms against
    416 ms).

    >>> import spectralgrad as sg
    >>> sg.Auto().choose(torch.eye(3))
    Lapack()
    """

    def choose(self, H: Tensor) -> Solver:
        if H.device.type != "cuda":
            return _LAPACK
        n = H.shape[-1]
        batch = H.numel() // (n * n)
        if jacobi.runs_on(H):
            return _JACOBI if n <= _ONE_BLOCK or batch >= _FEW else _LAPACK
        single = H.dtype in (torch.float32, torch.complex64)
        return _JACOBI if single and n > _CUSOLVER_BATCHES and batch >= _MANY else _LAPACK

    def solve(self, H: Tensor) -> tuple[Tensor, Tensor]:
        return self.choose(H).solve(H)
