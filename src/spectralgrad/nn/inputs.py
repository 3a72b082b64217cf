"""Feature maps, tokens and images as samples in columns, and matrices to compute with, or the error that says why not."""

import torch
from torch import Tensor

from spectralgrad.context import is_transformed, may_look
from spectralgrad.errors import DtypeError, NonFiniteError, OptionError, ShapeError
from spectralgrad.linalg.precision import hermitian_part
from spectralgrad.validation import (
    REAL,
    as_matrix,
    asymmetry_tolerance,
    overflow_advice,
    require_dense,
    require_finite,
    require_hermitian,
    require_real,
)

_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
_OVERSHOOT = 0.5  # interpolation leaves [0, 1] by less than that; an image in 0..255 leaves it by more


def require_maps(who: str, x: Tensor, name: str) -> None:
    """Raise unless ``x`` is a real, finite batch of maps (N, C, H, W), with channels and positions."""
    require_real(who, x, name)
    if x.ndim != 4 or 0 in x.shape[-3:]:
        raise ShapeError(
            f"`{who}`: `{name}` must have shape (N, C, H, W) with at least one channel and one position, got "
            f"{tuple(x.shape)}."
        )
    require_finite_map(who, x, name)


def require_pooled(who: str, x: Tensor, name: str, any_batch: bool = False) -> bool:
    """Raise unless ``x`` is a real, finite batch of maps (N, C, H, W), or (*B, C, H, W), or of tokens (N, T, C).

    Returns:
        Whether its values may be looked at.
    """
    if type(x) is not Tensor or x.dtype not in REAL or x.layout != torch.strided or x.is_nested:  # else nothing is wrong
        require_real(who, x, name)
    has_ndim = x.ndim >= 3 if any_batch else x.ndim in (3, 4)
    if not has_ndim or 0 in x.shape[1 if x.ndim == 3 else -3 :]:
        maps = "(*batch, C, H, W)" if any_batch else "(N, C, H, W)"
        raise ShapeError(
            f"`{who}`: `{name}` must be maps {maps} or tokens (N, T, C), with at least one channel and one position, got "
            f"shape {tuple(x.shape)}. A single map is (1, C, H, W)."
        )
    if not may_look(x) or x.numel() == 0:
        return False
    positions = x.shape[1] if x.ndim == 3 else x.shape[-2:].numel()
    dtype, (low, high) = torch.promote_types(x.dtype, torch.float32), x.detach().aminmax()
    largest = max(-float(low), float(high))
    if not largest <= torch.finfo(dtype).max / (2 * positions):  # sums of differences over the positions are numbers
        require_finite(who, x.detach(), name)
        raise NonFiniteError(
            f"`{who}`: the mean of `{name}` over {positions} positions overflows {dtype}: entries reach {largest:.2e}. "
            f"{overflow_advice('Scale the input down', dtype)}"
        )
    return True


def color_samples(who: str, x: Tensor, name: str, clip: bool) -> Tensor:
    """Images (3, H, W) or (N, 3, H, W) as samples (N, 3, H W) in [0, 1]."""
    if not isinstance(x, Tensor) or x.dtype not in (*REAL, torch.uint8):
        came = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise DtypeError(f"`{who}`: `{name}` must be a floating-point tensor in [0, 1] or uint8, got {came}.")
    require_dense(who, x, name)
    if x.ndim not in (3, 4) or x.shape[-3] not in (1, 3) or 0 in x.shape[-2:]:
        raise ShapeError(
            f"`{who}`: `{name}` must have shape (C, H, W) or (N, C, H, W) with 1 or 3 channels and at least one pixel, got "
            f"{tuple(x.shape)}. Move channels that come last with movedim(-1, -3); leave out an alpha channel."
        )
    samples = x.reshape(-1, *x.shape[-3:]).flatten(-2)
    if x.dtype == torch.uint8:
        return samples.to(torch.float32) / 255
    require_finite_map(who, x, name)
    if clip and may_look(x) and x.numel():
        low, high = (float(bound) for bound in x.detach().aminmax())
        if low < -_OVERSHOOT or high > 1 + _OVERSHOOT:
            raise OptionError(
                f"`{who}`: `{name}` must lie in [0, 1], got {low:.4g} to {high:.4g}. Divide 0..255 by 255, pass uint8, or "
                "pass clip=False to have no range."
            )
    return samples.to(torch.promote_types(x.dtype, torch.float32))


def require_finite_map(who: str, x: Tensor, name: str) -> None:
    if may_look(x):
        require_finite(who, x.detach(), name)


def format_of(x: Tensor) -> torch.memory_format:
    """channels_last where ``x`` (N, C, *) has only that; else contiguous, as inside vmap, which knows no other."""
    last = _CHANNELS_LAST.get(x.ndim)
    if last is None or x.is_contiguous() or (is_transformed(x)):
        return torch.contiguous_format
    return last if x.is_contiguous(memory_format=last) else torch.contiguous_format


def owned(buffer: Tensor, dtype: torch.dtype) -> Tensor:
    """A buffer for a graph that may save it: a copy, since a training pass may move the buffer before backward.

    What torch.jit traces saves nothing, and must come out the same with and without gradients.
    """
    return buffer.to(dtype, copy=torch.is_grad_enabled() and not torch.jit.is_tracing())  # type: ignore[attr-defined]


def as_matrices(who: str, input: Tensor, n: int, option: str, dtype: torch.dtype) -> Tensor:
    """(*B, n, n) in a dtype to compute in, or the error that says why not."""
    X = require_symmetric(who, input)
    if X.shape[-1] != n:
        raise ShapeError(f"`{who}`: `input` must be (*batch, {n}, {n}), as {option} says, got shape {tuple(input.shape)}.")
    wanted = torch.promote_types(dtype, torch.float32)
    if X.real.dtype != wanted:
        raise DtypeError(
            f"`{who}`: `input` must have the precision of the layer, {dtype}, got {input.dtype}. Convert one of them with "
            ".to()."
        )
    return X


def require_symmetric(who: str, input: Tensor) -> Tensor:
    """`as_matrix`, or the error, which names `input`, that says why these are no finite Hermitian matrices."""
    X = as_matrix(who, input, square=True, name="input")
    tolerance = asymmetry_tolerance(input)
    if tolerance is not None and not is_transformed(X) and X.numel():
        M = X.detach()
        require_hermitian(who, M, hermitian_part(M), tolerance, "input")
    return X
