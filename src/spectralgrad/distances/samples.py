"""What both distances ask of samples, and make of them."""

from collections.abc import Callable

import torch
from torch import Tensor

from spectralgrad.context import may_look
from spectralgrad.errors import ShapeError
from spectralgrad.linalg.homogeneous import Map, Scales, homogeneous
from spectralgrad.linalg.moves import REAL_DTYPE, cast
from spectralgrad.linalg.precision import widest
from spectralgrad.validation import as_matrix, require_finite, require_one_device


def as_samples(who: str, x: Tensor, y: Tensor, same: str) -> tuple[Tensor, Tensor, torch.dtype]:
    """Two sets (*B, N, d) in the widest dtype and of one batch shape, and the dtype of the result."""
    for Z, name in ((x, "x"), (y, "y")):
        if isinstance(Z, Tensor) and Z.ndim < 2:
            raise ShapeError(
                f"`{who}`: `{name}` must be samples in rows, (*batch, samples, features), got shape {tuple(Z.shape)}. For a "
                f"single sample use {name}.reshape(1, -1), for a single feature {name}.reshape(-1, 1)."
            )
    X, Y = as_matrix(who, x, square=False, name="x"), as_matrix(who, y, square=False, name="y")
    require_one_device(who, (x, y), ("x", "y"))
    dtype = promoted(x, y)
    axis = -1 if same == "features" else -2
    batch = common_batch([X.shape[:-2], Y.shape[:-2]])
    came = f"got {tuple(x.shape)} and {tuple(y.shape)}"
    if X.shape[-2] == 0 or Y.shape[-2] == 0:
        raise ShapeError(
            f"`{who}`: `x` and `y` must hold at least one sample each, (*batch, samples, features), {came}. "
            "Leave out sets without samples."
        )
    if X.shape[axis] != Y.shape[axis]:
        hint = "They are columns." if same == "features" else "Row i of both must come from one sample."
        raise ShapeError(
            f"`{who}`: `x` and `y`, (*batch, samples, features), must have the same number of {same}, {came}. {hint}"
        )
    if batch is None:
        raise ShapeError(
            f"`{who}`: the batch dimensions of `x` and `y`, (*batch, samples, features), must broadcast, {came}. "
            "Add dimensions of size 1."
        )
    for Z, name in ((x, "x"), (y, "y")):
        if may_look(Z):
            require_finite(who, Z.detach(), name)
    X, Y = (widened(Z, dtype).expand(*batch, *Z.shape[-2:]) for Z in (X, Y))
    return X, Y, real_dtype(dtype)


def common_batch(shapes: list[torch.Size]) -> torch.Size | None:
    """The common batch shape; None if there is none."""
    try:
        return torch.Size(torch.broadcast_shapes(*shapes))
    except RuntimeError:
        return None


def promoted(*tensors: Tensor) -> torch.dtype:
    """The common dtype: under autocast a mean may be in float32 and a covariance in bfloat16."""
    dtype = tensors[0].dtype
    for x in tensors[1:]:
        dtype = torch.promote_types(dtype, x.dtype)
    return dtype


def real_dtype(dtype: torch.dtype) -> torch.dtype:
    return REAL_DTYPE.get(dtype, dtype)


def widened(x: Tensor, dtype: torch.dtype) -> Tensor:
    """In the widest dtype, complex if ``dtype`` is; gradients that overflow on the way back become the largest number."""
    return cast(x, torch.promote_types(widest(x), dtype))


def computed(
    f: Map, inputs: list[tuple[Tensor, int]], scales: Callable[..., Scales], dtype: torch.dtype, bits: int | None = None
) -> Tensor:
    """`homogeneous` of what `widened` gave, with one output, in ``dtype``; what overflows there is the largest number."""
    (result,) = homogeneous(f, inputs, scales, bits=bits, known=inputs[0][0].real.dtype != dtype)
    return cast(result, dtype)


def squares(x: Tensor) -> Tensor:
    """|x|^2, twice differentiable at zero."""
    return x.real.square() + x.imag.square() if x.is_complex() else x.square()


def centred(X: Tensor) -> tuple[Tensor, Tensor]:
    """The mean (*B, d), and X less it, divided by (N - 1)^(1/2), or by 1 if there is but one sample."""
    mean = X.mean(-2)
    return mean, (X - mean.unsqueeze(-2)) / max(X.shape[-2] - 1, 1) ** 0.5
