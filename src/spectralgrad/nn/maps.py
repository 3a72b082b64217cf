"""Feature maps and images as samples in columns, or the error that says why not."""

import torch
from torch import Tensor

from spectralgrad.context import may_look
from spectralgrad.errors import DtypeError, NonFiniteError, OptionError, ShapeError
from spectralgrad.validation import REAL, largest_part, overflow_advice, require_dense, require_finite, require_real

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


def require_pooled(who: str, x: Tensor, name: str, any_batch: bool = False) -> None:
    """Raise unless ``x`` is a real, finite batch of maps (N, C, H, W), or (*B, C, H, W), or of tokens (N, T, C)."""
    require_real(who, x, name)
    has_ndim = x.ndim >= 3 if any_batch else x.ndim in (3, 4)
    if not has_ndim or 0 in x.shape[1 if x.ndim == 3 else -3 :]:
        maps = "(*batch, C, H, W)" if any_batch else "(N, C, H, W)"
        raise ShapeError(
            f"`{who}`: `{name}` must be maps {maps} or tokens (N, T, C), with at least one channel and one position, got "
            f"shape {tuple(x.shape)}. A single map is (1, C, H, W)."
        )
    if not may_look(x):
        return
    positions = x.shape[1] if x.ndim == 3 else x.shape[-2:].numel()
    dtype, largest = torch.promote_types(x.dtype, torch.float32), largest_part(x)
    if not largest <= torch.finfo(dtype).max / (2 * positions):  # sums of differences over the positions are numbers
        require_finite(who, x.detach(), name)
        raise NonFiniteError(
            f"`{who}`: the mean of `{name}` over {positions} positions overflows {dtype}: entries reach {largest:.2e}. "
            f"{overflow_advice('Scale the input down', dtype)}"
        )


def map_samples(who: str, x: Tensor, name: str) -> Tensor:
    """Maps (N, C, H, W) as samples (N, C, H W), or the error."""
    require_maps(who, x, name)
    return as_columns(x)


def as_columns(x: Tensor) -> Tensor:
    """Maps (*B, C, H, W) as samples (*B, C, H W), at least in float32; nothing is checked."""
    return x.to(torch.promote_types(x.dtype, torch.float32)).flatten(-2)


def tokens_as_maps(x: Tensor) -> Tensor:
    """Tokens (N, T, C) as maps (N, C, T, 1), with the channels last in memory; maps as they are."""
    return x.mT.unsqueeze(-1) if x.ndim == 3 else x


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
