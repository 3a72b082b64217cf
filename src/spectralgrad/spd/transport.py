"""Parallel transport of tangent vectors, Hermitian matrices, along geodesics of positive definite matrices.

    affine      E T E^H,  E = (B A^-1)^(1/2) = A^(1/2) (A^(-1/2) B A^(-1/2))^(1/2) A^(-1/2)
    logeuclid   Dexp(log B)[Dlog(A)[T]] = V_B ((V_B^H Dlog(A)[T] V_B) / F_B) V_B^H,  F_B the Loewner matrix of log at B

Bures has no closed form: its transport is the solution of a differential equation.
"""

from torch import Tensor

from spectralgrad.errors import OptionError
from spectralgrad.linalg.moves import moved_last
from spectralgrad.linalg.precision import matmul

from .inputs import Metric, aligned, as_hermitian, as_pair, require_fit, require_metric, returned, widened
from .spectra import (
    STEEP_END,
    congruent,
    exp_along,
    expanded,
    given_to_scale_1,
    log,
    log_along,
    near_scale,
    sqrt,
    to_scale_1,
    whitener,
)


def transport(T: Tensor, A: Tensor, B: Tensor, metric: Metric = "affine") -> Tensor:
    """Parallel transport of the tangent vector T at A to B along their geodesic, with its exact gradient.

    "affine" is E T E^H with E = (B A^-1)^(1/2); "logeuclid" is Dexp(log B)[Dlog(A)[T]]. Linear in T, it keeps the metric's
    inner product: <T, T>_A = tr(A^-1 T A^-1 T) for "affine".

    Args:
        T: (*B, n, n), Hermitian; only (T + T^H)/2 counts.
        A, B: (*B, n, n), positive definite; batches broadcast, with T's too.
        metric: "affine" or "logeuclid". "bures" is refused: there is no closed form.

    Returns:
        (*B, n, n), Hermitian.

    Raises:
        OptionError: an unknown metric, or "bures".
        Others as in `distance`.

    >>> import torch, spectralgrad as sg
    >>> T, A, B = torch.ones(2, 2), torch.eye(2), torch.diag(torch.tensor([4.0, 1.0]))
    >>> sg.spd.transport(T, A, B).round(decimals=4)
    tensor([[4., 2.],
            [2., 1.]])
    """
    who = "spd.transport"
    require_metric(who, metric)
    if metric == "bures":
        raise OptionError(
            f'`{who}`: metric must be "affine" or "logeuclid", got "bures", whose transport has no closed form. Take one of '
            "the two, or follow the geodesic in small steps."
        )
    X, Y = as_pair(who, A, B)
    Z = as_hermitian(who, T, "T")
    require_fit(who, Z, X, ("T", "A"))
    require_fit(who, Z, Y, ("T", "B"))
    Z, X, Y = widened(*aligned(Z, X, Y))
    Z, k = given_to_scale_1(expanded(Z, X, Y))
    result = _affine(Z, k, X, Y) if metric == "affine" else _logeuclid(Z, k, X, Y)
    return returned(result, T)


def _affine(T: Tensor, k: Tensor, A: Tensor, B: Tensor) -> Tensor:
    A, a = given_to_scale_1(A)
    B, m = near_scale(expanded(B, A), a)
    P, p = whitener(A)
    E = matmul(sqrt(A), matmul(sqrt(congruent(P, B)), P))
    return moved_last(congruent(E.mH, T), k + m + 4 * p, STEEP_END)


def _logeuclid(T: Tensor, k: Tensor, A: Tensor, B: Tensor) -> Tensor:
    # At scale 1 both: Dlog(cA) = Dlog(A) / c, and log(cB) = log B + log c makes Dexp c times as large.
    A, a = to_scale_1(A)
    B, b = to_scale_1(B)
    A, B = expanded(A, T), expanded(B, T)
    return moved_last(exp_along(log(B), log_along(A, T)), k - a + b, STEEP_END)
