"""Distances of sets of samples: Frechet's, and the canonical correlations of two views.

Both come down to a sum of singular values, whose gradient U V^H needs no gap. Samples are rows, (*B, N, d). All is computed
in float64, since both lose half of the digits in small directions; docs/distances.md has the derivation.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from spectralgrad.errors import DefinitenessError, OptionError, ShapeError
from spectralgrad.kernels.spectral import GIVEN, ScalarFunction
from spectralgrad.linalg.choices import AUTO, for_svd
from spectralgrad.linalg.functions import apply
from spectralgrad.linalg.norms import norm_of
from spectralgrad.linalg.precision import hermitian_part, matmul
from spectralgrad.linalg.scalars import InverseSqrt, Sqrt, require_positive, spectral_radius, zero_tolerance
from spectralgrad.linalg.scaling import cast, exponent, held, moved, moved_last
from spectralgrad.linalg.svd import singular_triplets
from spectralgrad.validation import (
    as_matrix,
    asymmetry_tolerance,
    checking,
    is_transformed,
    is_whole,
    require_finite,
    require_hermitian,
    require_number,
)

__all__ = ["cca_loss", "frechet_distance", "frechet_distance_of"]

_ABOVE = 2  # times the lowest eigenvalue below zero: what rounding pushed so far down, it pushed others as far up
_NEGATIVE = 10  # times n eps l_max of the dtype given: further below zero is no covariance
_CONSTANT = 8  # times eps times the largest entry: less is what the rounding of a mean leaves of features that do not vary
_OVERFLOW = 1010  # the exponent of squared distances of float64 near the end of the range
# Time with gradients, in multiplications; measured on a CPU, n = 22 to 5000, d = 32 to 512.
_PASSES = 3  # a product and its two gradients
_TALL, _SVD = 3, 12  # of an SVD: times m n^2, and times n^3
_ROOTS = 50  # of two roots and an SVD: times d^3


def frechet_distance(mean1: Tensor, cov1: Tensor, mean2: Tensor, cov2: Tensor) -> Tensor:
    """Frechet's distance of two Gaussians, squared as in FID, with its exact gradient.

        |m1 - m2|^2 + tr(C1 + C2 - 2 (C1 C2)^(1/2)),     tr (C1 C2)^(1/2) = |C1^(1/2) C2^(1/2)|_*

    the nuclear norm, not the root of the eigenvalues s^2 of C1^(1/2) C2 C1^(1/2): those resolve s to eps^(1/2) s_1 only,
    and what they lose is eps^(1/4) of the gradient. Computed in float64, so that float32 covariances give value and
    gradient to 1e-6 of what float64 makes of the same numbers. Eigenvalues that are zero to rounding (in float32: no further
    above zero than others are below) count as zero, and pairs of them get no gradient. Never negative.

    Args:
        mean1, mean2: (*B, d), real or complex.
        cov1, cov2: (*B, d, d), positive semi-definite, rank-deficient ones too; only (C + C^H)/2 counts. Batches broadcast.

    Returns:
        (*B,), real. Its absolute error is a few eps of the traces, in float64, times (|C| / l)^(1/2) for the smallest
        eigenvalue l of a covariance C that does not count as zero.

    Raises:
        ShapeError: means and covariances that do not fit.
        SymmetryError, DefinitenessError: a covariance is not symmetric, or has an eigenvalue below zero beyond rounding.
        DtypeError, NonFiniteError, ConvergenceError.

    >>> zero, one = torch.zeros(2), torch.eye(2)
    >>> frechet_distance(zero, one, zero + 1, 4 * one)
    tensor(4.)
    """
    who = "frechet_distance"
    means = [_as_vector(who, m, name) for m, name in ((mean1, "mean1"), (mean2, "mean2"))]
    covs = [as_matrix(who, C, square=False, name=name) for C, name in ((cov1, "cov1"), (cov2, "cov2"))]
    shapes = [tuple(x.shape) for x in (mean1, cov1, mean2, cov2)]
    d = means[0].shape[-1]
    batch = _broadcast([*(m.shape[:-1] for m in means), *(C.shape[:-2] for C in covs)])
    if batch is None or means[1].shape[-1] != d or any(C.shape[-2:] != (d, d) for C in covs):
        raise ShapeError(
            f"`{who}`: means (*B, d) and covariances (*B, d, d) must fit, got mean1 {shapes[0]}, cov1 {shapes[1]}, mean2 "
            f"{shapes[2]}, cov2 {shapes[3]}. For samples use `frechet_distance_of`."
        )
    given = _promoted(mean1, cov1, mean2, cov2)
    dtype = _real(given)
    for M, name in ((mean1, "mean1"), (mean2, "mean2")):
        if checking(M) and not is_transformed(M):
            require_finite(who, M.detach(), name)
    for C, X, name in ((cov1, covs[0], "cov1"), (cov2, covs[1], "cov2")):
        tolerance = asymmetry_tolerance(C)
        if tolerance is not None and not is_transformed(C) and C.numel():
            require_hermitian(who, X.detach(), hermitian_part(X.detach()), tolerance, name)

    m1, m2 = (_widened(m, given).expand(*batch, d) for m in means)
    C1, C2 = (hermitian_part(_widened(C, given)).expand(*batch, d, d) for C in covs)
    scales = None
    if dtype == torch.float64:
        a, b = (torch.ceil(exponent(C.detach()) / 2) for C in (C1, C2))
        k = torch.maximum(exponent(m1.detach(), 1), exponent(m2.detach(), 1))
        scales = _Scales(a, b, torch.maximum(k, torch.maximum(a, b)))
        m1, m2, C1, C2 = moved(m1, -scales.k), moved(m2, -scales.k), moved(C1, -2 * a), moved(C2, -2 * b)

    roots = (_Root(name=name, eps=float(torch.finfo(C.dtype).eps)) for C, name in ((cov1, "cov1"), (cov2, "cov2")))
    F1, F2 = (apply(who, C, root, None, AUTO) for C, root in zip((C1, C2), roots, strict=True))
    traces = [C.diagonal(dim1=-2, dim2=-1).real.sum(-1) for C in (C1, C2)]
    return _distance(m1 - m2, traces, norm_of(who, matmul(F1, F2), 1.0), scales, dtype)


def frechet_distance_of(x: Tensor, y: Tensor) -> Tensor:
    """Frechet's distance of two sets of samples, squared as in FID, with its exact gradient, by the smaller side.

    With X, Y the centred samples, divided by (N1 - 1)^(1/2) and (N2 - 1)^(1/2), C1 = X^H X and C2 = Y^H Y,

        |m1 - m2|^2 + tr(C1 + C2) - 2 |X Y^H|_*    or    ... - 2 |C1^(1/2) C2^(1/2)|_*,

    whichever of the N1 x N2 and the d x d matrices takes less time. Computed in float64, see `frechet_distance`; the
    covariances are too, so that float32 samples of any rank give value and gradient within 1e-4, in fact 1e-6, of float64.

    Args:
        x: (*B, N1, d), real or complex. One sample has the covariance 0.
        y: (*B, N2, d). Batches broadcast.

    Returns:
        (*B,), real, never negative.

    Raises:
        ShapeError: no samples, or not one number of features.
        DtypeError, NonFiniteError, ConvergenceError.

    >>> x = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    >>> frechet_distance_of(x, x + 2)
    tensor(8.)
    """
    who = "frechet_distance_of"
    X, Y, dtype = _samples(who, x, y, same="features")
    scales = None
    if dtype == torch.float64:
        a, b = exponent(X.detach()), exponent(Y.detach())
        scales = _Scales(a, b, torch.maximum(a, b))
        X, Y = moved(X, -a), moved(Y, -b)
    (m1, X), (m2, Y) = _centred(X), _centred(Y)
    traces = [_squares(Z).sum((-2, -1)) for Z in (X, Y)]
    if _samples_are_cheaper(X.shape[-2], Y.shape[-2], X.shape[-1]):
        overlap = norm_of(who, matmul(X, Y.mH), 1.0)
    else:
        F1, F2 = (apply(who, hermitian_part(matmul(Z.mH, Z)), _Root(name="x"), None, AUTO) for Z in (X, Y))
        overlap = norm_of(who, matmul(F1, F2), 1.0)
    if scales is not None:
        m1, m2 = moved(m1, scales.a - scales.k), moved(m2, scales.b - scales.k)
    return _distance(m1 - m2, traces, overlap, scales, dtype)


def _samples_are_cheaper(n1: int, n2: int, d: int) -> bool:
    """Whether the SVD of an n1 x n2 matrix takes less time than two roots and the SVD of d x d ones."""
    n, m = min(n1, n2), max(n1, n2)
    by_samples = _PASSES * n1 * n2 * d + _TALL * m * n**2 + _SVD * n**3
    return by_samples <= _PASSES * (n1 + n2) * d**2 + _ROOTS * d**3


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
        DtypeError, NonFiniteError, ConvergenceError.

    >>> x = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    >>> cca_loss(x, 3 * x.flip(-1), eps=0.0)
    tensor(-2.)
    """
    who = "cca_loss"
    X, Y, dtype = _samples(who, x, y, same="samples")
    p, q = X.shape[-1], Y.shape[-1]
    require_number(who, "eps", eps, least=0)
    if k is not None and not (is_whole(k) and k <= min(p, q)):
        raise OptionError(
            f"`{who}`: k must be None or a whole number from 1 to {min(p, q)}, the smaller number of features, got {k!r}."
        )
    # Of whitened samples, which are of size 1: in W C W rounding is multiplied by 1/eps, and zeros would not count as zero.
    X, Y = (_whitened(who, Z, eps, name) for Z, name in ((X, "x"), (Y, "y")))
    T = matmul(X.mH, Y)  # (*B, p, q)
    if k is None or k == min(p, q):
        return cast(-norm_of(who, T, 1.0), dtype)
    _, S, _ = singular_triplets(who, T, for_svd(who, None, AUTO), checking(x))
    zero = max(p, q) * torch.finfo(S.dtype).eps * S[..., :1].detach() >= S
    return cast(-torch.where(zero, 0, S)[..., :k].sum(-1), dtype)


# What the three share.


def _as_vector(who: str, mean: Tensor, name: str) -> Tensor:
    if isinstance(mean, Tensor) and mean.ndim == 0:
        raise ShapeError(f"`{who}`: `{name}` must have at least one dimension, (*batch, d), got a number. Use reshape(1).")
    return as_matrix(who, mean.unsqueeze(-1) if isinstance(mean, Tensor) else mean, square=False, name=name)[..., 0]


def _broadcast(shapes: list[torch.Size]) -> torch.Size | None:
    """The common batch shape; None if there is none."""
    try:
        return torch.Size(torch.broadcast_shapes(*shapes))
    except RuntimeError:
        return None


def _promoted(*tensors: Tensor) -> torch.dtype:
    """The common dtype: under autocast a mean may be in float32 and a covariance in bfloat16."""
    dtype = tensors[0].dtype
    for x in tensors[1:]:
        dtype = torch.promote_types(dtype, x.dtype)
    return dtype


def _real(dtype: torch.dtype) -> torch.dtype:
    return dtype.to_real() if dtype.is_complex else dtype


def _widened(x: Tensor, dtype: torch.dtype) -> Tensor:
    """In float64, or complex128; gradients that overflow on the way back become the largest number."""
    return cast(x, torch.complex128 if dtype.is_complex else torch.float64)


def _samples(who: str, x: Tensor, y: Tensor, same: str) -> tuple[Tensor, Tensor, torch.dtype]:
    """Two sets (*B, N, d) in float64 and of one batch shape, and the dtype of the result."""
    X, Y = as_matrix(who, x, square=False, name="x"), as_matrix(who, y, square=False, name="y")
    dtype = _promoted(x, y)
    axis = -1 if same == "features" else -2
    batch = _broadcast([X.shape[:-2], Y.shape[:-2]])
    came = f"got {tuple(x.shape)} and {tuple(y.shape)}"
    if X.shape[-2] == 0 or Y.shape[-2] == 0:
        raise ShapeError(f"`{who}`: `x` and `y` must hold at least one sample each, (*batch, samples, features), {came}.")
    if batch is None or X.shape[axis] != Y.shape[axis]:
        raise ShapeError(f"`{who}`: `x` and `y`, (*batch, samples, features), must have the same number of {same}, {came}.")
    for Z, name in ((x, "x"), (y, "y")):
        if checking(Z) and not is_transformed(Z):
            require_finite(who, Z.detach(), name)
    X, Y = (_widened(Z, dtype).expand(*batch, *Z.shape[-2:]) for Z in (X, Y))
    return X, Y, _real(dtype)


def _squares(x: Tensor) -> Tensor:
    """|x|^2, twice differentiable at zero."""
    return x.real.square() + x.imag.square() if x.is_complex() else x.square()


def _centred(X: Tensor) -> tuple[Tensor, Tensor]:
    """The mean (*B, d), and X less it, divided by (N - 1)^(1/2), or by 1 if there is but one sample."""
    mean = X.mean(-2)
    return mean, (X - mean.unsqueeze(-2)) / max(X.shape[-2] - 1, 1) ** 0.5


class _Scales(NamedTuple):
    """Exponents (*B,): the covariances are divided by 4^a and 4^b, the means by 2^k, the largest of all."""

    a: Tensor
    b: Tensor
    k: Tensor


def _distance(gap: Tensor, traces: list[Tensor], overlap: Tensor, scales: _Scales | None, dtype: torch.dtype) -> Tensor:
    """|gap|^2 + tr C1 + tr C2 - 2 overlap. What is below zero is rounding: it counts as zero, and keeps its gradient.

    There are no scales for what came in float32: its squares are ordinary numbers of float64.
    """
    if scales is not None:
        a, b = scales.a - scales.k, scales.b - scales.k
        traces = [moved(traces[0], 2 * a), moved(traces[1], 2 * b)]
        overlap = moved(overlap, a + b)
    square = _squares(gap).sum(-1) + traces[0] + traces[1] - 2 * overlap
    square = square - square.detach().clamp(max=0)
    if scales is None:
        return cast(square, dtype)
    return moved_last(square, 2 * scales.k, _OVERFLOW)


def _whitened(who: str, X: Tensor, eps: float, name: str) -> Tensor:
    """Samples (*B, N, p), centred, over (N - 1)^(1/2), times (C + eps tr(C)/p I)^(-1/2) of their covariance C."""
    X = held(moved(X, -exponent(X.detach())))
    _, X = _centred(X)
    p = X.shape[-1]
    variance = _squares(X).sum((-2, -1)) / max(p, 1)
    constant = (variance.detach() <= (_CONSTANT * torch.finfo(variance.dtype).eps) ** 2)[..., None, None]
    X = torch.where(constant, 0, X)
    shift = torch.where(constant, 1, eps * variance[..., None, None])
    C = hermitian_part(matmul(X.mH, X)) + shift * torch.eye(p, dtype=X.dtype, device=X.device)
    return matmul(X, apply(who, C, _Whitening(name=name), None, AUTO))


@dataclass(frozen=True)
class _Root(Sqrt):
    """x^(1/2) of a covariance that came in a dtype with this eps, and so with eigenvalues that rounding put below zero.

    The lowest of those says how far rounding goes: up to twice that above zero counts as zero too. A definite matrix keeps
    all of its eigenvalues.
    """

    name: str = "M"
    eps: float = float(torch.finfo(torch.float64).eps)

    root = None  # matrix products would need a regular matrix

    def border(self, w: Tensor) -> tuple[Tensor, Tensor] | None:
        tolerance = torch.maximum(zero_tolerance(w), -_ABOVE * w[..., :1])
        return tolerance, torch.zeros_like(tolerance)

    def in_kernel(self) -> ScalarFunction:
        return GIVEN  # which knows no eps but its own

    def require(self, who: str, w: Tensor) -> None:
        if w.numel() == 0:
            return
        negative = w[..., :1] < -max(_NEGATIVE * w.shape[-1], 100) * self.eps * spectral_radius(w)
        if bool(negative.any()):
            lowest = float((w / spectral_radius(w).clamp(min=torch.finfo(w.dtype).tiny)).min())
            raise DefinitenessError(
                f"`{who}`: `{self.name}` must be positive semi-definite, but {int(negative.sum())} of {negative.numel()} "
                f"matrices have a negative eigenvalue, the lowest {lowest:.3e} of the largest. Is it a covariance?"
            )


@dataclass(frozen=True)
class _Whitening(InverseSqrt):
    """x^(-1/2) of a shifted covariance."""

    name: str = "x"

    def require(self, who: str, w: Tensor) -> None:
        require_positive(who, w, "Raise eps.", name=f"covariance of {self.name}")
