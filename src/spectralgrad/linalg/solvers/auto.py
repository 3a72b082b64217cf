"""The default choice of solver."""

from dataclasses import dataclass

from torch import Tensor

from .base import Solver
from .lapack import Lapack


@dataclass(frozen=True)
class Auto(Solver):
    """Chooses a solver by device, dtype and size.

    CPU: `Lapack` at every size and dtype. It is the most accurate, and with the batch spread over threads the
    fastest: plain-torch `Jacobi` needs about n sweeps' worth of small operations, each dearer than LAPACK's whole n = 16.

    CUDA: `Lapack`, which is cuSOLVER there, until the Jacobi kernel of `spectralgrad.kernels` exists.

    >>> import torch, spectralgrad as sg
    >>> sg.Auto().choose(torch.eye(3))
    Lapack()
    """

    def choose(self, H: Tensor) -> Solver:
        """The solver that `solve` will use for this matrix."""
        return Lapack()

    def solve(self, H: Tensor) -> tuple[Tensor, Tensor]:
        return self.choose(H).solve(H)
