"""From positive definite matrices to tangent vectors at one of them, and back.

    affine      log_A(B) = A^(1/2) log(A^(-1/2) B A^(-1/2)) A^(1/2)      exp_A(T) = A^(1/2) exp(A^(-1/2) T A^(-1/2)) A^(1/2)
    logeuclid   log_A(B) = Dexp(log A)[log B - log A]                    exp_A(T) = exp(log A + Dlog(A)[T])

geodesic(A, B, t) is exp_A(t log_A(B)). With A / 2^a and T / 2^a both are 2^a times as large; B has a scale of its own.
"""

import torch
from torch import Tensor

from spectralgrad.errors import OptionError
from spectralgrad.linalg.homogeneous import Scales, homogeneous
from spectralgrad.linalg.precision import hermitian_part

from .geodesic import exp_apart, require_in_range
from .inputs import Metric, aligned, as_definite, as_hermitian, as_pair, is_widened, require_fit, returned, widened
from .spectra import (
    LOG_2,
    congruent,
    exp_along,
    expanded,
    identity_like,
    inverse_sqrt,
    log,
    log_along,
    near_1,
    sqrt,
    steps,
    times_power,
)


def log_map(A: Tensor, B: Tensor, metric: Metric = "affine") -> Tensor:
    """The tangent vector at A that points to B and is as long as their distance, with its exact gradient.

    "affine" is A^(1/2) log(A^(-1/2) B A^(-1/2)) A^(1/2), "logeuclid" Dexp(log A)[log B - log A]. `exp_map` is its inverse.
    "affine" has two derivatives, "logeuclid" one.

    Args:
        A, B: (*B, n, n), positive definite; batches broadcast.
        metric: "affine" or "logeuclid".

    Returns:
        (*B, n, n), Hermitian.

    Raises:
        OptionError: an unknown metric, or "bures".
        Others as in `distance`.

    >>> import torch, spectralgrad as sg
    >>> sg.spd.log_map(torch.eye(2), torch.diag(torch.tensor([4.0, 1.0]))).round(decimals=4)
    tensor([[1.3863, 0.0000],
            [0.0000, 0.0000]])
    """
    who = "spd.log_map"
    _require_metric(who, metric)
    inputs = widened(*as_pair(who, A, B))
    f = _affine_log if metric == "affine" else _logeuclid_log
    (result,) = homogeneous(f, [(X, 2) for X in inputs], _log_scales, out=2, known=is_widened(A))
    return returned(result, A)


def exp_map(A: Tensor, T: Tensor, metric: Metric = "affine") -> Tensor:
    """The end of the geodesic that starts at A with the velocity T, after a time of 1, with its exact gradient.

    "affine" is A^(1/2) exp(A^(-1/2) T A^(-1/2)) A^(1/2), "logeuclid" exp(log A + Dlog(A)[T]). `log_map` is its inverse.
    "affine" has two derivatives, "logeuclid" one.

    Args:
        A: (*B, n, n), positive definite.
        T: (*B, n, n), Hermitian; only (T + T^H)/2 counts. Batches broadcast.
        metric: "affine" or "logeuclid".

    Returns:
        (*B, n, n), Hermitian positive definite.

    Raises:
        OptionError: an unknown metric, or "bures".
        NonFiniteError: the point is beyond the range of the dtype.
        Others as in `distance`.

    >>> import torch, spectralgrad as sg
    >>> sg.spd.exp_map(torch.eye(2), torch.diag(torch.tensor([0.0, 1.0]))).round(decimals=4)
    tensor([[1.0000, 0.0000],
            [0.0000, 2.7183]])
    """
    who = "spd.exp_map"
    _require_metric(who, metric)
    X, Z = as_definite(who, A, "A"), as_hermitian(who, T, "T")
    require_fit(who, X, Z, ("A", "T"))
    inputs = widened(*aligned(X, Z))
    f = _affine_exp if metric == "affine" else _logeuclid_exp
    (result,) = homogeneous(f, [(Y, 2) for Y in inputs], _exp_scales, out=2, known=is_widened(A))
    require_in_range(who, result)
    return returned(result, A)


def _require_metric(who: str, metric: object) -> None:
    if not (isinstance(metric, str) and metric in ("affine", "logeuclid")):
        raise OptionError(f'`{who}`: metric must be "affine" or "logeuclid", got {metric!r}. For "bures" take geodesic.')


def _log_scales(a: Tensor, b: Tensor) -> Scales:
    m = steps(b - a)
    return Scales((a, a + m), (a,), (m,))


def _exp_scales(a: Tensor, t: Tensor) -> Scales:
    return Scales((a, a), (a,))


def _shifted_log(N: Tensor, m: Tensor | None) -> Tensor:
    """Of a matrix that was divided by 2^m."""
    return N if m is None else N + m[..., None, None] * LOG_2 * identity_like(N)


def _affine_log(A: Tensor, B: Tensor, m: Tensor | None = None) -> tuple[Tensor]:
    """For B / 2^m."""
    return (congruent(sqrt(A), _shifted_log(log(congruent(inverse_sqrt(A), B)), m)),)


def _logeuclid_log(A: Tensor, B: Tensor, m: Tensor | None = None) -> tuple[Tensor]:
    """For B / 2^m; with A at scale 1, for the digits of its logarithm."""
    A, a = near_1(A)
    N = _shifted_log(log(B) - log(A), m) - a[..., None, None] * LOG_2 * identity_like(A)
    return (times_power(hermitian_part(exp_along(expanded(log(A), N), N)), a.expand(N.shape[:-2])),)


def _affine_exp(A: Tensor, T: Tensor) -> tuple[Tensor]:
    inner, k = _exp(congruent(inverse_sqrt(A), T))
    return (times_power(congruent(sqrt(A), inner), k),)


def _logeuclid_exp(A: Tensor, T: Tensor) -> tuple[Tensor]:
    A, a = near_1(A)
    T = times_power(expanded(T, A), -a.expand(expanded(T, A).shape[:-2]))
    inner, k = _exp(log(A) + log_along(expanded(A, T), T))
    return (times_power(hermitian_part(inner), k + a),)


def _exp(L: Tensor) -> tuple[Tensor, Tensor]:
    return exp_apart(L, torch.zeros(L.shape[:-2], dtype=L.real.dtype, device=L.device), "spd.exp_map")
