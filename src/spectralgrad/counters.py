"""Counts of what went wrong but could be handled: solver retries, non-finite input, clamped eigenvalues.

Host events are plain integers behind a lock. Device events are added to a tensor that stays on its device, so that
counting never makes the host wait; reading them does.
"""

import threading
from collections import Counter
from typing import NamedTuple

import torch
from torch import Tensor

from spectralgrad.context import tracing

__all__ = ["count", "count_on_device", "counts", "reset_counts"]

_lock = threading.Lock()
_host: Counter[str] = Counter()
_device: dict[tuple[str, torch.device], Tensor] = {}
_resets = 0


def count(event: str, times: int = 1) -> None:
    """Add ``times`` to the host count of ``event``."""
    with _lock:
        _host[event] += times


def count_on_device(event: str, happened: Tensor) -> None:
    """Add the number of true entries of ``happened`` without a host synchronisation."""
    if tracing() or happened.device.type == "meta" or type(happened) is not Tensor:  # nothing has happened yet
        return
    counter = device_counter(event, happened.device)
    with _lock:
        counter.add_(happened.sum())


def device_counter(event: str, device: torch.device) -> Tensor:
    """The int64 count of ``event`` on ``device``, for kernels that add to it themselves."""
    with _lock:
        total = _device.get((event, device))
        if total is None:
            total = _device[event, device] = torch.zeros((), dtype=torch.int64, device=device)
        return total


class Snapshot(NamedTuple):
    """How often `reset_counts` ran, the host counts, and the device counters where they lie."""

    resets: int
    on_host: Counter[str]
    on_devices: list[tuple[str, Tensor]]


def snapshot() -> Snapshot:
    """All counts as they are now.

    For those who fetch the device counters together with other tensors, or subtract an earlier reading.
    """
    with _lock:
        return Snapshot(_resets, Counter(_host), [(event, tensor) for (event, _), tensor in _device.items()])


def counts() -> dict[str, int]:
    """Everything counted since the start or the last `reset_counts`; reads the device counters, so it may wait.

    Keys: ``solver_retry_float64``, ``solver_retry_jitter``, ``solver_failed``, ``nonfinite_input``,
    ``clamped_eigenvalue``, ``root_unconverged``, ``rotation_not_unique``, ``tie_across_cut``, ``tied_eigenvectors``; absent
    means zero.

    The last counts backward passes on a CPU that met eigenvectors, or singular vectors, of a tie. A loss that sees the space
    they span alone has the right gradient. For V f(w) V^H by hand it is wrong: take `sqrtm`, `spectral_map` and the like.

    >>> import torch, spectralgrad as sg
    >>> sg.reset_counts()
    >>> with sg.checks(False):
    ...     _ = sg.sqrtm(torch.full((1, 1), float("nan")))
    >>> sg.counts()
    {'nonfinite_input': 1}
    >>> sg.reset_counts()
    """
    _, total, on_device = snapshot()
    for event, tensor in on_device:
        total[event] += int(tensor)
    return {event: times for event, times in sorted(total.items()) if times}


def reset_counts() -> None:
    """Set every count to zero.

    >>> import spectralgrad as sg
    >>> sg.reset_counts()
    >>> sg.counts()
    {}
    """
    global _resets
    with _lock:
        _resets += 1
        _host.clear()
        for tensor in _device.values():
            tensor.zero_()
