"""LAPACK's (on CUDA: cuSOLVER's) divide and conquer."""

from dataclasses import dataclass

import torch
from torch import Tensor

from .base import Solver
from .threads import spread, worth_spreading


def _eigh_into(H: Tensor, out: tuple[Tensor, Tensor], inference: bool) -> None:
    with torch.inference_mode(inference), torch.no_grad():
        torch.linalg.eigh(H, out=out)


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
            return spread(_eigh_into, H)
        w, V = torch.linalg.eigh(H)
        return w, V
