"""What clouds of points and their weights must be."""

import warnings

import torch
from torch import Tensor

from spectralgrad.context import compiling, readable
from spectralgrad.errors import DtypeError, OptionError, ShapeError
from spectralgrad.linalg.moves import cast
from spectralgrad.linalg.precision import widest
from spectralgrad.validation import as_matrix, require_dense, require_finite, require_one_device


def as_points(who: str, x: Tensor, name: str) -> Tensor:
    """``x`` in the dtype whose rounding counts, or the error that says why these are no points."""
    if isinstance(x, Tensor) and x.ndim < 2:
        raise ShapeError(
            f"`{who}`: `{name}` must be points in rows, (*batch, N, d), got shape {tuple(x.shape)}. For a single point use "
            f"{name}.reshape(1, -1)."
        )
    X = as_matrix(who, x, square=False, name=name)
    if X.is_complex():
        raise DtypeError(
            f"`{who}`: `{name}` must be real, got {x.dtype}. For complex points pass torch.view_as_real of them."
        )
    if 0 in x.shape[-2:]:
        raise ShapeError(
            f"`{who}`: `{name}` must hold at least one point with at least one coordinate, (*batch, N, d), got "
            f"{tuple(x.shape)}. Leave out clouds without points."
        )
    return X


def widened(x: Tensor) -> Tensor:
    """In float64 where the device has it; gradients that overflow on the way back become the largest number."""
    return cast(x, widest(x)) if x.is_floating_point() else x.to(widest(x))


def narrowed(x: Tensor, dtype: torch.dtype) -> Tensor:
    """In ``dtype``, where what overflows becomes the largest number."""
    return cast(x, dtype)


def common_batch(who: str, x: Tensor, y: Tensor, weights: Tensor | None) -> torch.Size:
    """The batch shape of all, or the error that says what does not fit."""
    require_one_device(who, (x, y), ("x", "y"))
    if x.dtype != y.dtype:
        raise DtypeError(f"`{who}`: `x` and `y` must have one dtype, got {x.dtype} and {y.dtype}. Convert one of them.")
    if x.shape[-2:] != y.shape[-2:]:
        raise ShapeError(
            f"`{who}`: `x` and `y` must hold the same number of points and coordinates, (*batch, N, d), got "
            f"{tuple(x.shape)} and {tuple(y.shape)}. Pair the points first, or pad both and give the padding weight 0."
        )
    if x.shape[-2] in (2, 3) and x.shape[-1] > 3 and not compiling():
        warnings.warn(
            f"`{who}`: {tuple(x.shape)} holds {x.shape[-2]} points of {x.shape[-1]} coordinates; its rotation is not "
            f"unique. Points stand in rows: for {x.shape[-1]} points pass x.mT and y.mT.",
            stacklevel=4,
        )
    batches = [x.shape[:-2], y.shape[:-2]]
    if weights is not None:
        if not isinstance(weights, Tensor):
            raise DtypeError(
                f"`{who}`: `weights` must be a torch.Tensor, got {type(weights).__name__}. Convert it with torch.as_tensor."
            )
        require_dense(who, weights, "weights")
        require_one_device(who, (x, weights), ("x", "weights"))
        if weights.is_complex():
            raise DtypeError(f"`{who}`: `weights` must be real, got {weights.dtype}. Pass weights.real or weights.abs().")
        if weights.ndim < 1 or weights.shape[-1] != x.shape[-2]:
            raise ShapeError(
                f"`{who}`: `weights` must hold one number for each point, (*batch, {x.shape[-2]}), got "
                f"{tuple(weights.shape)}. A column of them loses its last dimension with squeeze(-1)."
            )
        batches.append(weights.shape[:-1])
    if all(batch == batches[0] for batch in batches):  # torch takes 20 us to say so
        return batches[0]
    try:
        common: torch.Size = torch.broadcast_shapes(*batches)
    except RuntimeError:
        shapes = ", ".join(str(tuple(shape)) for shape in batches)
        raise ShapeError(
            f"`{who}`: the batch dimensions of `x`, `y` and `weights` must broadcast, got {shapes}. "
            "Add dimensions of size 1."
        ) from None
    return common


def require_points(who: str, x: Tensor, y: Tensor) -> None:
    """Raise unless all points are finite."""
    for points, name in ((x, "x"), (y, "y")):
        if (seen := readable(points)) is not None:
            require_finite(who, seen, name)


def usable_weights(who: str, weights: Tensor, check: bool) -> Tensor:
    """Weights (*B, N) in float64, NaN where they cannot be used. That of a point that is not looked at has gradient 0."""
    w = widened(weights)
    if check and (seen := readable(w)) is not None:
        _require_weights(who, seen.detach())
    return torch.where(w > 0, w, torch.where(w == 0, 0, torch.nan))


def _require_weights(who: str, w: Tensor) -> None:
    """Raise unless all weights (*B, N), without a graph, are finite and >= 0, and each cloud has one that is not 0."""
    bad = ~((w >= 0) & w.isfinite())
    if bool(bad.any()):
        where = tuple(int(i) for i in bad.nonzero()[0])
        raise OptionError(
            f"`{who}`: `weights` must be finite and >= 0, but {int(bad.sum())} of {w.numel()} are not, the first at index "
            f"{where}: {float(w[where]):g}. To leave a point out give it weight 0."
        )
    empty = ~(w > 0).any(-1)
    if bool(empty.any()):
        first = tuple(int(i) for i in empty.nonzero()[0])
        which = f", the first at index {first}" if first else ""
        raise OptionError(
            f"`{who}`: `weights` must not sum to zero, but those of {int(empty.sum())} of {empty.numel()} clouds do{which}. "
            "Leave out clouds without points, or give them any weight and ignore what comes out."
        )
