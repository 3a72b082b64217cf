"""Parallel transport of tangent vectors, Hermitian matrices, along geodesics of positive definite matrices.

    affine      E T E^H,  E = (B A^-1)^(1/2) = A^(1/2) (A^(-1/2) B A^(-1/2))^(1/2) A^(-1/2)
    logeuclid   Dexp(log B)[Dlog(A)[T]] = V_B ((V_B^H Dlog(A)[T] V_B) / F_B) V_B^H,  F_B the Loewner matrix of log at B

Bures has no closed form: its transport is the solution of a differential equation.
"""

from torch import Tensor

from spectralgrad.errors import OptionError
from spectralgrad.linalg.homogeneous import Scales, homogeneous
from spectralgrad.linalg.precision import matmul

from .inputs import Metric, aligned, as_hermitian, as_pair, is_widened, require_fit, require_metric, returned, widened
from .spectra import congruent, exp_along, expanded, log, log_along, near_1, sqrt, times_power, whitener


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
    inputs = [(each, 2) for each in widened(*aligned(Z, X, Y))]
    along = _affine if metric == "affine" else _logeuclid
    (result,) = homogeneous(along, inputs, _scales, out=2, known=is_widened(Z))
    return returned(result, T)


def _scales(k: Tensor, a: Tensor, b: Tensor) -> Scales:
    return Scales((k, a, b), (k - a + b,))


def _affine(T: Tensor, A: Tensor, B: Tensor) -> tuple[Tensor]:
    P, _ = whitener(A)  # of a zero matrix that nobody saw all is zero anyway
    E = matmul(sqrt(A), matmul(sqrt(congruent(P, B)), P))
    return (congruent(E.mH, T),)


def _logeuclid(T: Tensor, A: Tensor, B: Tensor) -> tuple[Tensor]:
    # B at scale 1, for the digits of its logarithm: log(cB) = log B + log c makes Dexp c times as large.
    B, b = near_1(B)
    A, B = expanded(A, T, B), expanded(B, T, A)
    result = exp_along(log(B), log_along(A, expanded(T, A)))
    return (times_power(result, b.expand(result.shape[:-2])),)
