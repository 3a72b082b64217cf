"""The door of `spd`: which matrices, metrics, weights and positions may enter. Inside, code trusts and looks no more."""

from typing import Literal

import torch
from torch import Tensor

from spectralgrad.context import may_look
from spectralgrad.errors import DtypeError, LinAlgError, OptionError, ShapeError
from spectralgrad.linalg.homogeneous import Scales, homogeneous
from spectralgrad.linalg.moves import cast
from spectralgrad.linalg.precision import hermitian_part
from spectralgrad.linalg.products.iteration import product_dtype
from spectralgrad.linalg.scalars import require_not_negative, require_positive
from spectralgrad.validation import (
    as_given,
    as_matrix,
    asymmetry_tolerance,
    is_number,
    require_dense,
    require_finite,
    require_hermitian,
    require_one_device,
    require_one_of,
)

from .spectra import near_1, times_power

Metric = Literal["affine", "logeuclid", "bures"]
METRICS = ("affine", "logeuclid", "bures")
_FAR = 100  # bits of a scale from which eigenvalues are computed at scale 1
_ADVICE = "Add eps * identity to `{}`."


def require_metric(who: str, metric: object) -> None:
    """Raise unless ``metric`` is one of the three."""
    require_one_of(who, "metric", metric, METRICS)


def as_hermitian(who: str, X: Tensor, name: str) -> Tensor:
    """The Hermitian part of ``X`` in a dtype that can be decomposed, or the error that says why not."""
    Y = as_matrix(who, X, square=True, name=name)
    H = hermitian_part(Y)
    if may_look(Y) and Y.numel():
        tolerance = asymmetry_tolerance(X)
        assert tolerance is not None
        require_hermitian(who, Y.detach(), H.detach(), tolerance, name)
    return H


def as_definite(who: str, X: Tensor, name: str, *, semi: bool = False) -> Tensor:
    """`as_hermitian`, and positive definite; with ``semi`` semi-definite is enough."""
    H = as_hermitian(who, X, name)
    if may_look(H) and H.numel():
        near, k = near_1(H.detach(), keep=_FAR)  # since an eigenvalue may be n times the largest number
        try:
            w = times_power(torch.linalg.eigvalsh(near), k)
        except LinAlgError:  # the function's own chain of solvers will know better
            return H
        if semi:
            require_not_negative(who, w, _ADVICE.format(name), name, eps=float(torch.finfo(X.dtype).eps))
        else:
            require_positive(who, w, _ADVICE.format(name), name)
    return H


def widened(*matrices: Tensor) -> tuple[Tensor, ...]:
    """In float64 where that costs no more than float32 (CPU, some GPUs).

    A^(-1/2) B A^(-1/2) has up to the product of both condition numbers: with 1e4 each the affine distance would have one
    digit in float32. The matrices themselves are taken as they are, to the last bit.
    """
    return tuple(cast(x, product_dtype(x)) for x in matrices)


def is_widened(x: Tensor) -> bool:
    """Whether `widened` changes the dtype, so that every scale of ``x`` is an ordinary one."""
    return product_dtype(x) != x.dtype


def returned(x: Tensor, given: Tensor) -> Tensor:
    """A result in the precision of what was given; what overflows there becomes the largest number."""
    dtype = given.dtype if x.is_complex() else given.real.dtype
    return as_given(cast(x, torch.promote_types(dtype, torch.float32)), given)  # half precision counts as float32 till here


def as_pair(who: str, A: Tensor, B: Tensor, *, semi: bool = False) -> tuple[Tensor, Tensor]:
    """Two definite matrices of one size and dtype, with as many dimensions; batches broadcast, but are not expanded."""
    X, Y = as_definite(who, A, "A", semi=semi), as_definite(who, B, "B", semi=semi)
    require_fit(who, X, Y, ("A", "B"))
    X, Y = aligned(X, Y)
    return X, Y


def require_fit(who: str, X: Tensor, Y: Tensor, names: tuple[str, str]) -> None:
    """Raise unless matrices have one dtype and size, and batches that broadcast."""
    one, other = names
    require_one_device(who, (X, Y), names)
    if X.dtype != Y.dtype:
        raise DtypeError(
            f"`{who}`: `{one}` and `{other}` must have one dtype, got {X.dtype} and {Y.dtype}. Convert one of them."
        )
    fit = X.shape[-1] == Y.shape[-1]
    try:
        torch.broadcast_shapes(X.shape[:-2], Y.shape[:-2])
    except RuntimeError:
        fit = False
    if not fit:
        raise ShapeError(
            f"`{who}`: `{one}` and `{other}` must have one size and batches that broadcast, got {tuple(X.shape)} and "
            f"{tuple(Y.shape)}. Use unsqueeze to say which dimensions of the batches belong together."
        )


def aligned(*matrices: Tensor) -> tuple[Tensor, ...]:
    """All with as many dimensions, new ones in front."""
    most = max(x.ndim for x in matrices)
    return tuple(x[(None,) * (most - x.ndim)] for x in matrices)


def as_position(who: str, t: object, like: Tensor, batch: torch.Size) -> Tensor:
    """A place on a geodesic as a tensor that broadcasts with the batch, real and in the precision of ``like``."""
    dtype = like.real.dtype
    if is_number(t):
        return torch.full((), float(t), dtype=dtype, device=like.device)  # type: ignore[arg-type]
    if not isinstance(t, Tensor) or not t.is_floating_point():
        came = t.dtype if isinstance(t, Tensor) else repr(t)
        raise OptionError(f"`{who}`: t must be a finite number or a tensor of real floating-point numbers, got {came}.")
    require_dense(who, t, "t")
    try:
        torch.broadcast_shapes(t.shape, batch)
    except RuntimeError:
        raise ShapeError(
            f"`{who}`: t must broadcast with the batch of the matrices, {tuple(batch)}, got shape {tuple(t.shape)}."
        ) from None
    if may_look(t):
        require_finite(who, t.detach(), "t")
    return cast(t.to(like.device), dtype)


def as_weights(who: str, weights: Tensor | None, X: Tensor) -> Tensor:
    """Weights (*B, K) that sum to 1 for matrices ``X`` (*B, K, n, n); NaN for a mean whose weights cannot be used."""
    shape, dtype = X.shape[:-2], X.real.dtype
    if weights is None:
        return torch.full(shape, 1 / max(shape[-1], 1), dtype=dtype, device=X.device)
    if not isinstance(weights, Tensor) or weights.is_complex() or weights.dtype == torch.bool:
        came = weights.dtype if isinstance(weights, Tensor) else type(weights).__name__
        raise DtypeError(f"`{who}`: weights must be a tensor of real numbers, got {came}. Convert it with torch.as_tensor.")
    require_dense(who, weights, "weights")
    try:
        fits = weights.ndim >= 1 and torch.broadcast_shapes(weights.shape, shape) == shape and weights.shape[-1] == shape[-1]
    except RuntimeError:
        fits = False
    if not fits:
        raise ShapeError(
            f"`{who}`: weights must have shape {tuple(shape)}, (*batch, K), or ({shape[-1]},) for all of the batch, got "
            f"{tuple(weights.shape)}."
        )
    w = weights.to(device=X.device)
    w = cast(w, dtype) if w.is_floating_point() else w.to(dtype)
    if may_look(w) and w.numel():
        require_finite(who, w.detach(), "weights")
        if bool((w < 0).any()):
            raise OptionError(
                f"`{who}`: weights must not be negative, got {int((w < 0).sum())} negative ones, the lowest "
                f"{float(weights.min()):.3g}. Clamp them at 0, or pass logits.softmax(-1)."
            )
        empty = ~(w > 0).any(-1)
        if bool(empty.any()):
            raise OptionError(
                f"`{who}`: weights must have a positive sum over the K matrices, got 0 for {int(empty.sum())} of "
                f"{empty.numel()} means. Give at least one matrix a positive weight, or leave that mean out."
            )
    w = torch.where(w >= 0, w, torch.nan)  # where nobody looked
    (shares,) = homogeneous(_shares, [(w, 1)], _share_scales, out=1)
    return shares.expand(shape)


def _shares(w: Tensor) -> tuple[Tensor]:
    return (w / w.sum(-1, keepdim=True),)


def _share_scales(k: Tensor) -> Scales:
    return Scales((k,), (torch.zeros_like(k),))
