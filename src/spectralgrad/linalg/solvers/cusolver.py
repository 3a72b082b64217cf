"""What cuSOLVER's Jacobi kernels need, which torch calls on CUDA for small or complex eigenpairs and for singular values.

They multiply entries with each other, and what underflows there makes a result NaN or 1 % wrong: in single precision
entries below 1e-19 of the largest do (H200, CUDA 13; `make fuzz DEVICE=cuda` found it). So small matrices in single
precision go there in double, and entries whose squares would underflow even so become zero, far below rounding.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ..precision import WIDE
from ..scaling import exponent

JACOBI = 128  # n up to which double precision costs little beside the call; beyond it other methods are chosen there


def carefully(solve: Callable[[Tensor], tuple[Tensor, ...]], H: Tensor) -> tuple[Tensor, ...]:
    """``solve(H)`` for ``H`` (*B, m, n) on CUDA, safe from underflow."""
    X = H.to(WIDE.get(H.dtype, H.dtype)) if min(H.shape[-2:]) <= JACOBI else H
    factors = solve(_without_tiny(X))
    return tuple(x.to(H.dtype if x.is_complex() else H.real.dtype) for x in factors)


def _without_tiny(X: Tensor) -> Tensor:
    """``X`` with entries below tiny^(1/2) times its scale, tiny the smallest normal number, set to zero."""
    bound = torch.finfo(X.dtype).tiny ** 0.5 * torch.exp2(exponent(X).to(X.real.dtype))
    return torch.where(X.abs() < bound[..., None, None], 0, X)
