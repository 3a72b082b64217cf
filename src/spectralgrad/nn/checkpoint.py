"""A batch norm's checkpoint, read by the layer that has taken its place."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .base import BatchStatistics

_COUNTED_FROM = 2  # the version of torch's batch norms that first has num_batches_tracked


def translated(layer: "BatchStatistics", state: dict[str, Any], prefix: str, version: int | None) -> list[str]:
    """Put the layer's own buffers in the place of a batch norm's ``running_var`` in ``state``; what is wrong with it, if so.

    ``state`` is `load_state_dict`'s own copy. Nothing changes unless the variance is there and a buffer of ours is not.
    """
    variance = state.get(f"{prefix}running_var")
    names = [name for name in layer._buffers if name.startswith("running_") and f"{prefix}{name}" not in state]
    if variance is None or not names or names == ["running_mean"]:
        return []
    wrong = _fault(layer.num_features, variance)
    if wrong is not None:
        return [f"`{layer.who}`: {prefix}running_var of a batch norm must {wrong}."]
    del state[f"{prefix}running_var"]
    for name, value in layer.from_variance(variance).items():
        state.setdefault(f"{prefix}{name}", value)
    if version is None or version < _COUNTED_FROM:
        state.setdefault(f"{prefix}num_batches_tracked", torch.zeros((), dtype=torch.long, device=variance.device))
    return []


def _fault(num_features: int, variance: Any) -> str | None:
    """What a running variance must be, if this one is not."""
    if not isinstance(variance, Tensor) or variance.shape != (num_features,):
        came = tuple(variance.shape) if isinstance(variance, Tensor) else type(variance).__name__
        return f"have shape ({num_features},), one number for each channel, got {came}"
    if variance.is_meta or bool((torch.isfinite(variance) & (variance >= 0)).all()):
        return None
    return f"be finite and not negative, got a least value of {float(variance.min()):.3g}"
