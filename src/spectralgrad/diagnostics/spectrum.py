"""Condition number, gaps and ranks of one group, from its eigenvalues; `ConditionMonitor` gives the formulas."""

import math
from typing import Any

import torch
from torch import Tensor

from spectralgrad.errors import LinAlgError
from spectralgrad.linalg.precision import in_widest
from spectralgrad.linalg.projector import Cut
from spectralgrad.nn.denoise import PCADenoise1d, PCADenoise2d

from .record import OF_GROUP, Record


def eigenvalues_of(C: Tensor) -> Tensor:
    """(*B, d), ascending, in the widest dtype; NaN where ``C`` (*B, d, d) is not finite, or LAPACK gives up (never seen)."""
    C = in_widest(C)
    broken = ~torch.isfinite(C).all(-1).all(-1)
    try:
        w: Tensor = torch.linalg.eigvalsh(C.masked_fill(broken[..., None, None], 0))
    except LinAlgError:  # to watch a training must not end it
        return C.new_full(C.shape[:-1], torch.nan)
    return w.masked_fill(broken.unsqueeze(-1), torch.nan)


def entries_of_spectrum(layer: Any, w: Tensor, dtype: torch.dtype, most: int | None = None) -> Record:
    """The entries of one group, from its eigenvalues (d,), ascending.

    ``dtype`` is that of the covariance; ``most`` is the rank that it can have, by samples and inputs, None where unknown.
    """
    d, largest, smallest = len(w), float(w[-1]), float(w[0])
    if not math.isfinite(largest):
        return dict.fromkeys(OF_GROUP, math.nan) | {"range": None, "at_floor": None, "kept_rank": None}
    # Without an eps of the layer, what rounding leaves of a zero in a product of so many channels.
    floor = float(getattr(layer, "eps", 0)) or d * torch.finfo(dtype).eps * max(largest, 0.0)
    rank = d if most is None else max(1, min(d, most))
    last = float(w[-rank])
    zero = d * torch.finfo(w.dtype).eps * largest  # at most it: a zero matrix is singular too
    pairs = w[1:] > floor  # below it a ratio is rounding over rounding
    at_floor = int((w <= floor).sum())
    kept = _kept_by_denoising(layer, w.to(dtype))
    return {
        "condition": math.inf if smallest <= zero else largest / smallest,
        "condition_range": math.inf if last <= zero else largest / last,
        "range": rank,
        "largest": largest,
        "smallest": smallest,
        "smallest_gap": None if d == 1 else float(w.diff().min()) / largest if largest > 0 else 0.0,
        "mean_ratio": float((w[:-1].clamp(min=0) / w[1:])[pairs].mean()) if bool(pairs.any()) else None,
        "at_floor": at_floor,
        "kept_rank": d - at_floor if kept is None else kept,
    }


def _kept_by_denoising(layer: Any, w: Tensor) -> int | None:
    """How many of ``w`` (d,), in the layer's dtype, a denoising layer keeps, by its tolerance for ties; None for others."""
    if not isinstance(layer, (PCADenoise1d, PCADenoise2d)):
        return None
    return int(Cut(layer.rank, layer.energy).kept(w).sum())
