"""Least squares of the smallest norm, and the projector onto a null space, at any rank.

Both follow from P = pinv(A), whose derivatives are exact while the rank stays the same: x = P b and N = I - P A. In
x + P (b - A x) the second term is zero but for rounding, and takes away what rounding in P has left.
"""

from functools import partial

import torch
from torch import Tensor

from spectralgrad.errors import DtypeError, OptionError, ShapeError
from spectralgrad.validation import (
    as_given,
    as_matrix,
    is_whole,
    require_one_device,
)

from .homogeneous import Scales, homogeneous
from .pinv import pinv
from .precision import hermitian_part, matmul
from .svd import svd

__all__ = ["lstsq", "nullspace"]


def lstsq(A: Tensor, b: Tensor, rtol: float | None = None) -> Tensor:
    """The x with the least |A x - b|, of these the smallest, pinv(A) b, with its exact gradient while the rank stays.

    `torch.linalg.lstsq` has no gradient where A does not have full column rank. Singular values up to rtol s_1 count as 0.

    Args:
        A: (*B, m, n), real or complex, any shape and rank. Half precision is computed in float32.
        b: (*B, m, k), or (*B, m) for one right-hand side, as `torch.linalg.solve` takes them: (*B, m) if b has one
            dimension, or exactly the shape of A without its last one.
        rtol: as in `pinv`; None for max(m, n) eps.

    Returns:
        (*B, n, k), or (*B, n).

    Raises:
        ShapeError: batches that do not broadcast, or another m.
        OptionError, DtypeError, DeviceError, NonFiniteError, ConvergenceError.

    >>> import torch, spectralgrad as sg
    >>> sg.lstsq(torch.tensor([[1.0, 1.0], [1.0, 1.0]]), torch.tensor([1.0, 3.0]))
    tensor([1., 1.])
    """
    X = as_matrix("lstsq", A, square=False, name="A")
    vector = isinstance(b, Tensor) and b.ndim > 0 and (b.ndim == 1 or b.shape == A.shape[:-1])
    B = as_matrix("lstsq", b.unsqueeze(-1) if vector else b, square=False, name="b")
    require_one_device("lstsq", (X, B), ("A", "b"))
    if X.dtype != B.dtype:
        raise DtypeError(f"`lstsq`: `A` and `b` must have one dtype, got {A.dtype} and {b.dtype}. Convert one of them.")
    try:
        fits = X.shape[-2] == B.shape[-2]
        torch.broadcast_shapes(X.shape[:-2], B.shape[:-2])
    except RuntimeError:
        fits = False
    if not fits:
        raise ShapeError(
            f"`lstsq`: `b` must be (*batch, {X.shape[-2]}, k), with a batch that broadcasts with that of `A`, "
            f"{tuple(A.shape)}, got {tuple(b.shape)}. One right-hand side for each matrix is b.unsqueeze(-1)."
        )
    (x,) = homogeneous(partial(_solved, rtol), [(X, 2), (B, 2)], _quotient_scale, out=2)
    return as_given(x.squeeze(-1) if vector else x, A)


def nullspace(A: Tensor, rank: int | None = None, rtol: float | None = None) -> Tensor:
    """The projector onto the null space of A, I - pinv(A) A, with its exact gradient while the rank stays.

    A basis of that space has no derivative, its projector has. With ``rank`` the smallest n - rank singular values count as
    zero, whatever they are: then the gap between kept and dropped ones is bounded by `Lorentzian`.

    Args:
        A: (*B, m, n), real or complex, any shape. Half precision is computed in float32.
        rank: of A, 0 to n; None: singular values up to rtol s_1 count as zero.
        rtol: as in `pinv`; None for max(m, n) eps. Not with ``rank``.

    Returns:
        (*B, n, n), Hermitian: N N = N, A N = 0.

    Raises:
        OptionError: rank and rtol, or one that is no such number.
        ShapeError, DtypeError, NonFiniteError, ConvergenceError.

    >>> import torch, spectralgrad as sg
    >>> sg.nullspace(torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 2.0]]))
    tensor([[0., 0., 0.],
            [0., 1., 0.],
            [0., 0., 0.]])
    """
    X = as_matrix("nullspace", A, square=False, name="A")
    n = X.shape[-1]
    if rank is not None and rtol is not None:
        raise OptionError(f"`nullspace`: takes either rank= or rtol=, got rank={rank!r} and rtol={rtol!r}. Leave one out.")
    if rank is not None and (not is_whole(rank, 0) or rank > n):
        raise OptionError(f"`nullspace`: rank must be a whole number from 0 to {n}, or None, got {rank!r}.")
    (N,) = homogeneous(partial(_dropped, rank, rtol), [(X, 2)], _no_scale, out=2)
    return as_given(N, A)


def _solved(rtol: float | None, A: Tensor, b: Tensor) -> tuple[Tensor]:
    P = pinv(A, rtol=rtol)
    x = matmul(P, b)
    return (x + matmul(P, b - matmul(A, x)),)


def _quotient_scale(a: Tensor, b: Tensor) -> Scales:
    return Scales((a, b), (b - a,))


def _dropped(rank: int | None, rtol: float | None, A: Tensor) -> tuple[Tensor]:
    if rank is None:
        row_space = matmul(pinv(A, rtol=rtol), A)
    else:
        kept = svd(A, full_matrices=A.shape[-2] < rank).Vh[..., :rank, :]
        row_space = matmul(kept.mH, kept)
    return (hermitian_part(torch.eye(A.shape[-1], dtype=A.dtype, device=A.device) - row_space),)


def _no_scale(a: Tensor) -> Scales:
    return Scales((a,), (torch.zeros_like(a),))
