"""Means of positive definite matrices, with their gradient by the implicit function theorem.

newton.py finds R with M = R R^H and F(0) = 0 (means.py) as numbers, without a graph. The derivative follows from the
equation alone, not from the way to its solution. With the constant H = -dF/dS,

    S_1 = H^-1[F(0)],      S_2 = S_1 + H^-1[F(S_1)],      M = R exp(S_2) R^H,

in which F depends on X_k and w_k. Both S are zero but for rounding. dS_1 = H^-1[dF] is the implicit function theorem, and
S_2 makes second derivatives right too: each step with a constant H adds one order. The functions in F are exact at ties, so
the gradient is as well.
"""

from functools import partial

import torch
from torch import Tensor

from spectralgrad.context import is_constant
from spectralgrad.errors import ShapeError
from spectralgrad.linalg.homogeneous import Scales, homogeneous
from spectralgrad.linalg.precision import hermitian_part, matmul, sandwich

from .inputs import Metric, as_definite, as_weights, is_widened, require_metric, returned, widened
from .means import EQUATIONS
from .newton import solve, solve_hessian
from .spectra import exp, log, near_1, sqrt

_BITS = 100  # of ordinary scales, so that the squares of conjugate gradients are too


def mean(X: Tensor, weights: Tensor | None = None, metric: Metric = "affine") -> Tensor:
    """The mean of K positive definite matrices: the one with the least weighted sum of squared distances to them.

    "affine" solves sum_k w_k log(M^(-1/2) X_k M^(-1/2)) = 0, "bures" M = sum_k w_k (M^(1/2) X_k M^(1/2))^(1/2), both by
    Newton's method to rounding; "logeuclid" is exp(sum_k w_k log X_k). The gradient comes from the implicit function
    theorem, not from the iterations, and is exact at ties; so are second derivatives. Error below about 10 eps k |M|,
    k the largest condition number. The iteration makes the host of a GPU wait.

    Args:
        X: (*B, K, n, n), positive definite, real or complex.
        weights: (*B, K) or (K,), not negative; divided by their sum. None: all equal.
        metric: "affine", "logeuclid" or "bures".

    Returns:
        (*B, n, n), Hermitian positive definite.

    Raises:
        ShapeError: no matrices (K = 0), or weights that do not fit.
        OptionError: an unknown metric, weights that are negative or sum to zero. (The latter on CUDA and in vmap: NaN.)
        ConvergenceError: the iteration did not come down to rounding.
        DefinitenessError, DtypeError, SymmetryError, NonFiniteError: as in `distance`.

    >>> import torch, spectralgrad as sg
    >>> X = torch.diag_embed(torch.tensor([[1.0, 2.0], [4.0, 8.0]]))
    >>> sg.spd.mean(X).round(decimals=4)
    tensor([[2., 0.],
            [0., 4.]])
    """
    who = "spd.mean"
    require_metric(who, metric)
    if isinstance(X, Tensor) and not X.is_nested and (X.ndim < 3 or X.shape[-3] == 0):
        raise ShapeError(
            f"`{who}`: `X` must be K >= 1 matrices, (*batch, K, n, n), got shape {tuple(X.shape)}. For a batch of means put "
            "the matrices of each in dimension -3; one matrix is X.unsqueeze(0)."
        )
    H = as_definite(who, X, "X")
    return returned(mean_of(who, H, weights, metric), X)


def mean_of(who: str, X: Tensor, weights: Tensor | None, metric: Metric) -> Tensor:
    """`mean` of matrices that are known to be definite, in the dtype it is computed in."""
    (H,) = widened(X)
    w = as_weights(who, weights, H)
    f, scales = (_bures, _common_scales) if metric == "bures" else (partial(_of_any_scales, metric), partial(_scales, w))
    (M,) = homogeneous(f, [(H, 2)], scales, others=(w,), out=2, bits=_BITS, known=is_widened(X))
    return M


def _scales(w: Tensor, k: Tensor) -> Scales:
    whole = (w.detach() * k).sum(-1).floor()
    return Scales((k,), (whole,), (k, whole))


def _common_scales(k: Tensor) -> Scales:
    """Of the mean, which is the sum of what all matrices give to it, and of the root of each beside it."""
    half = torch.ceil(k / 2)
    whole = half.amax(-1)
    return Scales((2 * half,), (2 * whole,), (half - whole.unsqueeze(-1),))


def _of_any_scales(
    metric: Metric, X: Tensor, w: Tensor, far: Tensor | None = None, whole: Tensor | None = None
) -> tuple[Tensor]:
    """The means for which that of c_k X_k is prod_k c_k^(w_k) times that of X_k, so that each X_k comes to scale 1.

    Of 2^far X_k, divided by 2^whole.
    """
    X, k = near_1(X)  # k (*B, K)
    M = _log_euclidean(X, w) if metric == "logeuclid" else _implicit(X, w, metric)
    q = (w * k).sum(-1) if far is None or whole is None else (w * (k + far)).sum(-1) - whole
    return (M * torch.exp2(q)[..., None, None],)


def _bures(X: Tensor, w: Tensor, k: Tensor | None = None) -> tuple[Tensor]:
    """For roots times 2^k (*B, K)."""
    roots = sqrt(X)
    return (_implicit(roots if k is None else roots * torch.exp2(k)[..., None, None], w, "bures"),)


def _log_euclidean(X: Tensor, w: Tensor) -> Tensor:
    return hermitian_part(exp((w[..., None, None] * log(X)).sum(-3)))


def _implicit(given: Tensor, w: Tensor, metric: Metric) -> Tensor:
    """The mean of X ("affine"), or of the squares of the roots X^(1/2) ("bures") that are given."""
    equation, found = EQUATIONS[metric], solve(given, w, metric)
    R = found.R
    if is_constant(given) and is_constant(w):
        return hermitian_part(matmul(R, R.mH))
    Y = equation.seen(R, found.W, given)
    m = (R.conj() * R).real.sum(-2)  # (*B, n)
    less = torch.diag_embed(equation.subtracted(m)).to(given.dtype)

    def F(S: "Tensor | None") -> Tensor:
        return (w[..., None, None] * equation.terms(S, Y)).sum(-3) - less

    S = solve_hessian(found, w, F(None))
    S = S + solve_hessian(found, w, F(S))
    return hermitian_part(sandwich(R, exp(S)))
