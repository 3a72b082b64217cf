"""Frechet's distance of two Gaussians, or of two sets of samples."""

from functools import partial

import torch
from torch import Tensor

from spectralgrad.context import is_transformed, may_look
from spectralgrad.errors import ShapeError
from spectralgrad.linalg.homogeneous import Scales
from spectralgrad.linalg.norms import norm_of
from spectralgrad.linalg.precision import hermitian_part, matmul
from spectralgrad.validation import as_matrix, asymmetry_tolerance, require_finite, require_hermitian, require_one_device

from .covariances import root
from .samples import as_samples, centred, common_batch, computed, promoted, real_dtype, squares, widened

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
        DtypeError, DeviceError, NonFiniteError, ConvergenceError.

    >>> import torch, spectralgrad as sg
    >>> zero, one = torch.zeros(2), torch.eye(2)
    >>> sg.frechet_distance(zero, one, zero + 1, 4 * one)
    tensor(4.)
    """
    who = "frechet_distance"
    means = [_as_vector(who, m, name) for m, name in ((mean1, "mean1"), (mean2, "mean2"))]
    covs = [_as_covariance(who, C, name) for C, name in ((cov1, "cov1"), (cov2, "cov2"))]
    require_one_device(who, (mean1, cov1, mean2, cov2), ("mean1", "cov1", "mean2", "cov2"))
    shapes = [tuple(x.shape) for x in (mean1, cov1, mean2, cov2)]
    d = means[0].shape[-1]
    batch = common_batch([*(m.shape[:-1] for m in means), *(C.shape[:-2] for C in covs)])
    if batch is None or means[1].shape[-1] != d or any(C.shape[-2:] != (d, d) for C in covs):
        raise ShapeError(
            f"`{who}`: means (*B, d) and covariances (*B, d, d) must fit, got mean1 {shapes[0]}, cov1 {shapes[1]}, mean2 "
            f"{shapes[2]}, cov2 {shapes[3]}. For samples use `frechet_distance_of`."
        )
    given = promoted(mean1, cov1, mean2, cov2)
    dtype = real_dtype(given)
    for M, name in ((mean1, "mean1"), (mean2, "mean2")):
        if may_look(M):
            require_finite(who, M.detach(), name)
    for C, X, name in ((cov1, covs[0], "cov1"), (cov2, covs[1], "cov2")):
        tolerance = asymmetry_tolerance(C)
        if tolerance is not None and not is_transformed(C) and C.numel():
            require_hermitian(who, X.detach(), hermitian_part(X.detach()), tolerance, name)

    m1, m2 = (widened(m, given).expand(*batch, d) for m in means)
    C1, C2 = (hermitian_part(widened(C, given)).expand(*batch, d, d) for C in covs)
    rounded = tuple((name, float(torch.finfo(C.dtype).eps)) for C, name in ((cov1, "cov1"), (cov2, "cov2")))
    inputs = [(m1, 1), (m2, 1), (C1, 2), (C2, 2)]
    return computed(partial(_of_gaussians, rounded), inputs, _scales_of_gaussians, dtype)


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
        DtypeError, DeviceError, NonFiniteError, ConvergenceError.

    >>> import torch, spectralgrad as sg
    >>> x = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    >>> sg.frechet_distance_of(x, x + 2)
    tensor(8.)
    """
    who = "frechet_distance_of"
    X, Y, dtype = as_samples(who, x, y, same="features")
    return computed(_of_samples, [(X, 2), (Y, 2)], _scales_of_samples, dtype)


def _of_gaussians(
    rounded: tuple[tuple[str, float], ...],
    m1: Tensor,
    m2: Tensor,
    C1: Tensor,
    C2: Tensor,
    a: Tensor | None = None,
    b: Tensor | None = None,
) -> tuple[Tensor]:
    F1, F2 = (root("frechet_distance", C, *each) for C, each in zip((C1, C2), rounded, strict=True))
    traces = [C.diagonal(dim1=-2, dim2=-1).real.sum(-1) for C in (C1, C2)]
    return (_distance(m1 - m2, traces, norm_of("frechet_distance", matmul(F1, F2), 1.0), a, b),)


def _scales_of_gaussians(m1: Tensor, m2: Tensor, c1: Tensor, c2: Tensor) -> Scales:
    """Covariances are divided by 4^a and 4^b, the means by 2^k, the largest of all; a - k and b - k are left to say."""
    a, b = torch.ceil(c1 / 2), torch.ceil(c2 / 2)
    k = torch.stack([m1, m2, a, b]).amax(0)
    return Scales((k, k, 2 * a, 2 * b), (2 * k,), (a - k, b - k))


def _of_samples(X: Tensor, Y: Tensor, a: Tensor | None = None, b: Tensor | None = None) -> tuple[Tensor]:
    who = "frechet_distance_of"
    (m1, X), (m2, Y) = centred(X), centred(Y)
    traces = [squares(Z).sum((-2, -1)) for Z in (X, Y)]
    if _samples_are_cheaper(X.shape[-2], Y.shape[-2], X.shape[-1]):
        overlap = norm_of(who, matmul(X, Y.mH), 1.0)
    else:
        F1, F2 = (root(who, hermitian_part(matmul(Z.mH, Z)), "x", float(torch.finfo(Z.dtype).eps)) for Z in (X, Y))
        overlap = norm_of(who, matmul(F1, F2), 1.0)
    if a is not None and b is not None:
        m1, m2 = m1 * torch.exp2(a)[..., None], m2 * torch.exp2(b)[..., None]
    return (_distance(m1 - m2, traces, overlap, a, b),)


def _scales_of_samples(a: Tensor, b: Tensor) -> Scales:
    k = torch.maximum(a, b)
    return Scales((a, b), (2 * k,), (a - k, b - k))


def _samples_are_cheaper(n1: int, n2: int, d: int) -> bool:
    """Whether the SVD of an n1 x n2 matrix takes less time than two roots and the SVD of d x d ones."""
    n, m = min(n1, n2), max(n1, n2)
    by_samples = _PASSES * n1 * n2 * d + _TALL * m * n**2 + _SVD * n**3
    return by_samples <= _PASSES * (n1 + n2) * d**2 + _ROOTS * d**3


def _as_vector(who: str, mean: Tensor, name: str) -> Tensor:
    if isinstance(mean, Tensor) and mean.ndim == 0:
        raise ShapeError(f"`{who}`: `{name}` must have at least one dimension, (*batch, d), got a number. Use reshape(1).")
    return as_matrix(who, mean.unsqueeze(-1) if isinstance(mean, Tensor) else mean, square=False, name=name)[..., 0]


def _as_covariance(who: str, C: Tensor, name: str) -> Tensor:
    if isinstance(C, Tensor) and C.ndim < 2:
        raise ShapeError(
            f"`{who}`: `{name}` must be covariances (*batch, d, d), got shape {tuple(C.shape)}. Of variances alone make "
            f"them with torch.diag_embed({name}); one of a single feature is {name}.reshape(1, 1)."
        )
    return as_matrix(who, C, square=False, name=name)


def _distance(gap: Tensor, traces: list[Tensor], overlap: Tensor, a: Tensor | None, b: Tensor | None) -> Tensor:
    """|gap|^2 + 4^a tr C1 + 4^b tr C2 - 2 2^(a + b) overlap. What is below zero is rounding: it counts as zero, and keeps
    its gradient."""
    if a is not None and b is not None:
        traces = [traces[0] * torch.exp2(2 * a), traces[1] * torch.exp2(2 * b)]
        overlap = overlap * torch.exp2(a + b)
    square = squares(gap).sum(-1) + traces[0] + traces[1] - 2 * overlap
    return square - square.detach().clamp(max=0)
