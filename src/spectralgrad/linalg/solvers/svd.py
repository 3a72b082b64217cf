"""Eigenpairs of a positive semi-definite matrix from its SVD, as the papers do."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..scaling import exponent, shifted
from .base import Solver, compilable


@compilable
@dataclass(frozen=True)
class SVD(Solver):
    """`torch.linalg.svd` of a positive semi-definite matrix: the papers' forward pass.

    For H = U S W^H with H >= 0, the eigenpairs are (S, U). An indefinite matrix is shifted by its norm first, because
    eigenvalues l and -l share a singular value and their vectors mix; that costs a second SVD, and on CUDA, where
    looking would make the host wait, every matrix is shifted. Slower than `Lapack`; there for comparison.

    >>> import torch, spectralgrad as sg
    >>> w, V = sg.eigh(torch.diag(torch.tensor([1.0, 2.0])), solver=sg.SVD())
    >>> w
    tensor([1., 2.])
    """

    def solve(self, H: Tensor) -> tuple[Tensor, Tensor]:
        if H.device.type == "cpu":
            U, S, Wh = torch.linalg.svd(H)
            same_side = (Wh * U.mT).sum(-1).real  # w_i . u_i: +1 where l_i > 0, -1 where l_i < 0, else mixed
            floor = H.shape[-1] * torch.finfo(S.dtype).eps * S[..., :1]
            if not bool(((same_side < 0.5) & (floor < S)).any()):
                return S.flip(-1), U.flip(-1)
        scale = exponent(H)
        A = shifted(H, -scale)
        shift = torch.linalg.matrix_norm(A)[..., None]  # (*B, 1), at least |l_min|
        U, S, _ = torch.linalg.svd(A + torch.diag_embed(shift.expand(A.shape[:-1])))
        # Rayleigh quotients: subtracting the shift from S would leave the shift's rounding in every eigenvalue.
        w, order = (U.conj() * torch.matmul(A, U)).sum(-2).real.sort(-1)
        return shifted(w, scale), U.gather(-1, order.unsqueeze(-2).expand_as(U))
