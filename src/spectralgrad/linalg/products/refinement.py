"""One Newton correction of a square root, for what the coupled iteration leaves of M - Y Y.

The coupled iteration keeps Y and Z = Y^-1 consistent: an error dZ of Z comes back in Y as -Y dZ Y. Rounding makes dZ about
eps |Z|, so Y is off by eps |Z| |Y|^2, and |M - Y Y| / |M| is eps times the root of the condition number: 1e-10 to 1e-9 in
float64 at 1e14. As an error of Y that is no more than rounding M costs; as a residual it is far above it. Newton's step

    Y <- Y + X,   Y X + X Y = M - Y Y

leaves X^2 and the rounding of M - Y Y. The equation is the one that gradients solve. See docs/newton.md.
"""

import torch
from torch import Tensor

from spectralgrad.kernels.ops import opaque

from ..precision import hermitian_part, matmul
from .iteration import host_may_look
from .lyapunov import lyapunov

_ROUNDING = 100  # times eps |A|_F: a residual up to this is left alone where the host may look
_GAIN = 0.1  # a correction that leaves more of the residual is none: there is no root, or nothing left to gain
_DIGITS = 1e-8  # accuracy of the correction, which is itself small


def _refined_fake(A: Tensor, Y: Tensor, Z: Tensor, lower: float) -> Tensor:
    return A.new_empty(A.shape)


@opaque("newton_refined(Tensor A, Tensor Y, Tensor Z, float lower) -> Tensor", _refined_fake)
def refined(A: Tensor, Y: Tensor, Z: Tensor, lower: float) -> Tensor:
    """Y (*B, n, n), about A^(1/2), with as small a residual A - Y Y as rounding allows; Z is about its inverse.

    ``lower`` is the smallest eigenvalue of Y, relative to its norm, to be reached. Where the host may look, only matrices
    that gain from it are corrected; elsewhere all are, and a correction that hardly makes the residual smaller, as in a
    matrix that has no root, is not taken.
    """
    Y = hermitian_part(Y)
    if not host_may_look(A):
        return _corrected(A, Y, Z, lower)
    size = torch.linalg.matrix_norm(A)
    chosen = torch.linalg.matrix_norm(A - matmul(Y, Y)) > _ROUNDING * float(torch.finfo(A.dtype).eps) * size
    if bool(chosen.any()):
        Y[chosen] = _corrected(A[chosen], Y[chosen], Z[chosen], lower)
    return Y


def _corrected(A: Tensor, Y: Tensor, Z: Tensor, lower: float) -> Tensor:
    E = A - matmul(Y, Y)
    corrected = hermitian_part(Y + lyapunov(Y, hermitian_part(Z), hermitian_part(E), lower, _DIGITS, False))
    before, after = (torch.linalg.matrix_norm(x, keepdim=True) for x in (E, A - matmul(corrected, corrected)))
    return torch.where(after < _GAIN * before, corrected, Y)
