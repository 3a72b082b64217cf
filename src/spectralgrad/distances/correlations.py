"""Canonical correlations of two views as a loss."""

from functools import partial

import torch
from torch import Tensor

from spectralgrad.errors import OptionError
from spectralgrad.linalg.homogeneous import Scales
from spectralgrad.linalg.norms import norm_of
from spectralgrad.linalg.precision import hermitian_part, matmul
from spectralgrad.validation import is_whole, require_number

from .covariances import inverse_root, singular_values
from .samples import as_samples, centred, computed, squares

_CONSTANT = 8  # times eps times the largest entry: less is what the rounding of a mean leaves of features that do not vary
_BITS = 100  # of ordinary scales: whitening divides by the fifth power in second derivatives
_WHO = "cca_loss"


def cca_loss(x: Tensor, y: Tensor, k: int | None = None, eps: float = 1e-4) -> Tensor:
    """Minus the sum of the k largest canonical correlations of two views of the same samples, for deep CCA.

    With the centred samples X, Y and their covariances, the correlations are the singular values of

        T = (Cxx + ex I)^(-1/2) Cxy (Cyy + ey I)^(-1/2),     ex = eps tr(Cxx)/p,   ey = eps tr(Cyy)/q.

    The shift is relative to the mean variance of each view, so that units do not matter: 1e8 x has the loss of x. The
    gradient is exact where the k-th and the next correlation differ, ties among the others included (k=None: wherever
    the rank of T does not change), and bounded where they tie: |dloss/dT|_F <= k^(1/2). Batches smaller than the dimension
    are welcome; there N - 1 correlations are near 1 whatever the data, and a shift is needed. Computed in float64.

    Args:
        x: (*B, N, p), real or complex. A view that does not vary has the correlations 0.
        y: (*B, N, q), the same samples in the same order. Batches broadcast.
        k: how many correlations, 1 to min(p, q); None for all.
        eps: the shift, >= 0, relative to the mean variance. 0 is classical CCA and needs covariances of full rank.

    Returns:
        (*B,), from -k to 0.

    Raises:
        ShapeError: no samples, or not the same number of them.
        OptionError: k or eps out of range.
        DefinitenessError: a covariance is singular to rounding for this eps.
        DtypeError, DeviceError, NonFiniteError, ConvergenceError.

    >>> import torch, spectralgrad as sg
    >>> x = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    >>> sg.cca_loss(x, 3 * x.flip(-1), eps=0.0)
    tensor(-2.)
    """
    who = _WHO
    X, Y, dtype = as_samples(who, x, y, same="samples")
    p, q = X.shape[-1], Y.shape[-1]
    require_number(who, "eps", eps, least=0)
    if k is not None and not (is_whole(k) and k <= min(p, q)):
        raise OptionError(
            f"`{who}`: k must be None or a whole number from 1 to {min(p, q)}, the smaller number of features, got {k!r}."
        )
    return computed(partial(_correlated, k, eps), [(X, 2), (Y, 2)], _scales, dtype, _BITS)


def _scales(a: Tensor, b: Tensor) -> Scales:
    return Scales((a, b), (torch.zeros_like(a),))


def _correlated(k: int | None, eps: float, x: Tensor, y: Tensor) -> tuple[Tensor]:
    # Of whitened samples, which are of size 1: in W C W rounding is multiplied by 1/eps, and zeros would not count as zero.
    X, Y = (_whitened(Z, eps, name) for Z, name in ((x, "x"), (y, "y")))
    T = matmul(X.mH, Y)  # (*B, p, q)
    if k is None or k == min(T.shape[-2:]):
        return (-norm_of(_WHO, T, 1.0),)
    S = singular_values(_WHO, T)
    zero = max(T.shape[-2:]) * torch.finfo(S.dtype).eps * S[..., :1].detach() >= S
    return (-torch.where(zero, 0, S)[..., :k].sum(-1),)


def _whitened(X: Tensor, eps: float, name: str) -> Tensor:
    """Samples (*B, N, p), centred, over (N - 1)^(1/2), times (C + eps tr(C)/p I)^(-1/2) of their covariance C."""
    largest, p = X.detach().abs().amax((-2, -1)), X.shape[-1]
    _, X = centred(X)
    variance = squares(X).sum((-2, -1)) / max(p, 1)
    constant = (variance.detach() <= (_CONSTANT * torch.finfo(variance.dtype).eps * largest).square())[..., None, None]
    X = torch.where(constant, 0, X)
    shift = torch.where(constant, 1, eps * variance[..., None, None])
    C = hermitian_part(matmul(X.mH, X)) + shift * torch.eye(p, dtype=X.dtype, device=X.device)
    return matmul(X, inverse_root(_WHO, C, name))
