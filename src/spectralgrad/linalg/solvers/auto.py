"""The default choice of solver."""

from dataclasses import dataclass

import torch
from torch import Tensor

from .base import Solver
from .jacobi import Jacobi
from .lapack import Lapack

_CUSOLVER_BATCHES = 32  # the largest n for which cuSOLVER has a batched kernel
_MANY = 768
_LAPACK, _JACOBI = Lapack(), Jacobi()


@dataclass(frozen=True)
class Auto(Solver):
    """Chooses a solver by device, dtype and size.

    CPU: `Lapack` at every size and dtype. It is the most accurate, and with the batch spread over threads the
    fastest: plain-torch `Jacobi` needs about n sweeps' worth of small operations, each dearer than LAPACK's whole n = 16.

    CUDA: `Lapack`, which is cuSOLVER there, but `Jacobi` for 768 or more float32 matrices of n > 32. There cuSOLVER takes
    them one after the other, while the time of plain-torch `Jacobi` hardly depends on the batch (measured on an H200,
    n = 64, 2048 matrices: 1407 ms against 416 ms; 256 matrices: 186 ms against 454 ms).

    >>> import spectralgrad as sg
    >>> sg.Auto().choose(torch.eye(3))
    Lapack()
    """

    def choose(self, H: Tensor) -> Solver:
        """The solver that `solve` will use for this matrix."""
        large_batch = H.ndim > 2 and H.numel() >= _MANY * H.shape[-1] ** 2
        if H.device.type == "cuda" and H.dtype == torch.float32 and H.shape[-1] > _CUSOLVER_BATCHES and large_batch:
            return _JACOBI
        return _LAPACK

    def solve(self, H: Tensor) -> tuple[Tensor, Tensor]:
        return self.choose(H).solve(H)
