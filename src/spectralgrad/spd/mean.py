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
from spectralgrad.errors import OptionError, ShapeError
from spectralgrad.linalg.homogeneous import Scales, homogeneous
from spectralgrad.linalg.precision import hermitian_part, matmul, sandwich
from spectralgrad.validation import is_whole, require_number, require_one_device

from .inputs import Metric, as_definite, as_weights, is_widened, require_metric, returned, widened
from .means import EQUATIONS
from .newton import USUAL, Until, solve, solve_hessian
from .spectra import exp, log, near_1, sqrt

_BITS = 100  # of ordinary scales, so that the squares of conjugate gradients are too


def mean(
    X: Tensor,
    weights: Tensor | None = None,
    metric: Metric = "affine",
    *,
    tol: float | None = None,
    steps: int | None = None,
    start: Tensor | None = None,
) -> Tensor:
    """The mean of K positive definite matrices: the one with the least weighted sum of squared distances to them.

    "affine" solves sum_k w_k log(M^(-1/2) X_k M^(-1/2)) = 0, "bures" M = sum_k w_k (M^(1/2) X_k M^(1/2))^(1/2), both by
    Newton's method to rounding; "logeuclid" is exp(sum_k w_k log X_k). The gradient comes from the implicit function
    theorem, not from the iterations, and is exact at ties; so are second derivatives. Error below about 10 eps k |M|,
    k the largest condition number. The iteration makes the host of a GPU wait.

    Args:
        X: (*B, K, n, n), positive definite, real or complex.
        weights: (*B, K) or (K,), not negative; divided by their sum. None: all equal.
        metric: "affine", "logeuclid" or "bures".
        tol: how small a residual of the equation, relative to the mean, is enough; mean and gradient are as good. None:
            that of rounding.
        steps: of Newton's method, four to six are usual; more are an error. None: 300.
        start: (*B, n, n), positive definite, where to start: a constant. None: near the log-Euclidean mean.

    Returns:
        (*B, n, n), Hermitian positive definite.

    Raises:
        ShapeError: no matrices (K = 0), or weights that do not fit.
        OptionError: an unknown metric, weights that are negative or sum to zero (the latter on CUDA and in vmap: NaN), a
            tol, steps or start that is no such thing, or with "logeuclid", which has no iteration.
        ConvergenceError: the iteration did not come down to ``tol`` in so many steps.
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
    until = _as_until(who, metric, tol, steps, start)
    return returned(mean_of(who, H, weights, metric, until, None if start is None else _as_start(who, start, H)), X)


def _as_until(who: str, metric: Metric, tol: float | None, steps: int | None, start: Tensor | None) -> Until:
    """When to stop, or the error that says why that cannot be."""
    given = {"tol": tol, "steps": steps, "start": start}
    if metric == "logeuclid" and (named := [name for name, value in given.items() if value is not None]):
        raise OptionError(
            f'`{who}`: {named[0]} belongs to an iteration; metric "logeuclid" has none, got {given[named[0]]!r}. '
            "Leave it out."
        )
    if tol is not None:
        require_number(who, "tol", tol, above=0)
    if steps is not None and not is_whole(steps):
        raise OptionError(f"`{who}`: steps must be a whole number >= 1, or None, got {steps!r}.")
    return Until(USUAL.tol if tol is None else tol, USUAL.steps if steps is None else steps)


def _as_start(who: str, start: Tensor, X: Tensor) -> Tensor:
    """(*B, n, n), a constant."""
    M = as_definite(who, start, "start").detach()
    require_one_device(who, (X, M), ("X", "start"))
    shape = (*X.shape[:-3], *X.shape[-2:])
    if M.shape != shape or M.dtype != X.dtype:
        raise ShapeError(
            f"`{who}`: `start` must be one matrix for each mean, {tuple(shape)} of {X.dtype}, got {tuple(M.shape)} of "
            f"{M.dtype}. Use expand, or convert it."
        )
    return M


def mean_of(
    who: str,
    X: Tensor,
    weights: Tensor | None,
    metric: Metric,
    until: Until = USUAL,
    start: Tensor | None = None,
) -> Tensor:
    """`mean` of matrices that are known to be definite, in the dtype it is computed in."""
    (H,) = widened(X)
    w = as_weights(who, weights, H)
    if metric == "bures":
        f, scales = partial(_bures, until), _common_scales
    else:
        f, scales = partial(_of_any_scales, metric, until), partial(_scales, w)
    inputs = [(H, 2)]
    if start is not None:  # one for each matrix, so that it has their batch
        inputs.append((widened(start)[0].unsqueeze(-3).expand_as(H), 2))
    (M,) = homogeneous(f, inputs, scales, others=(w,), out=2, bits=_BITS, known=is_widened(X))
    return M


def _scales(w: Tensor, k: Tensor, *start: Tensor) -> Scales:
    whole = (w.detach() * k).sum(-1).floor()
    return Scales((k, *(whole.unsqueeze(-1).expand_as(k) for _ in start)), (whole,), (k, whole))


def _common_scales(k: Tensor, *start: Tensor) -> Scales:
    """Of the mean, which is the sum of what all matrices give to it, and of the root of each beside it."""
    half = torch.ceil(k / 2)
    whole = half.amax(-1)
    down = (2 * half, *(2 * whole.unsqueeze(-1).expand_as(k) for _ in start))
    return Scales(down, (2 * whole,), (half - whole.unsqueeze(-1),))


Split = tuple[Tensor | None, Tensor, list[Tensor]]


def _split(X: Tensor, more: tuple[Tensor, ...]) -> Split:
    """The start (*B, n, n) or None, the weights, and what scales have to say, of what follows X."""
    if more[0].ndim == X.ndim:
        return more[0][..., 0, :, :], more[1], list(more[2:])
    return None, more[0], list(more[1:])


def _of_any_scales(metric: Metric, until: Until, X: Tensor, *more: Tensor) -> tuple[Tensor]:
    """The means for which that of c_k X_k is prod_k c_k^(w_k) times that of X_k, so that each X_k comes to scale 1.

    Of 2^far X_k, divided by 2^whole.
    """
    start, w, scales = _split(X, more)
    X, k = near_1(X)  # k (*B, K)
    q = (w * (k + scales[0])).sum(-1) - scales[1] if scales else (w * k).sum(-1)
    size = torch.exp2(q)[..., None, None]
    start = None if start is None else start / size.detach()
    M = _log_euclidean(X, w) if metric == "logeuclid" else _implicit(X, w, metric, until, start)
    return (M * size,)


def _bures(until: Until, X: Tensor, *more: Tensor) -> tuple[Tensor]:
    """For roots times 2^k (*B, K)."""
    start, w, scales = _split(X, more)
    roots = sqrt(X)
    return (_implicit(roots * torch.exp2(scales[0])[..., None, None] if scales else roots, w, "bures", until, start),)


def _log_euclidean(X: Tensor, w: Tensor) -> Tensor:
    return hermitian_part(exp((w[..., None, None] * log(X)).sum(-3)))


def _implicit(given: Tensor, w: Tensor, metric: Metric, until: Until, start: Tensor | None) -> Tensor:
    """The mean of X ("affine"), or of the squares of the roots X^(1/2) ("bures") that are given."""
    equation, found = EQUATIONS[metric], solve(given, w, metric, until, start)
    R = found.R
    if is_constant(given) and is_constant(w):
        return hermitian_part(matmul(R, R.mH))
    Y = equation.seen(R, found.W, given)
    m = (R.conj() * R).real.sum(-2)  # (*B, n)
    less = torch.diag_embed(equation.subtracted(m)).to(given.dtype)

    def F(S: "Tensor | None") -> Tensor:
        return (w[..., None, None] * equation.terms(S, Y)).sum(-3) - less

    # What a loose tolerance leaves is a constant: with a gradient the mean is the same as without one.
    left = F(None).detach() if until.tol else 0
    S = solve_hessian(found, w, F(None) - left)
    S = S + solve_hessian(found, w, F(S) - left)
    return hermitian_part(sandwich(R, exp(S)))
