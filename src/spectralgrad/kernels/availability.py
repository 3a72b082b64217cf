"""Which kernels run on a device, and why the others do not."""

from typing import NamedTuple

import torch

from . import jacobi, nvrtc, power, qr, small_svd, spectral, svd, syev, tiles


class KernelStatus(NamedTuple):
    """One kernel on one device."""

    name: str  # the module that calls it
    runs: bool
    reason: str  # why it does not run; of one that runs, what it takes


def status(device: torch.device | str) -> list[KernelStatus]:
    """Every kernel on ``device``, by the predicates that decide at run time.

    Where a kernel does not run, or an input is larger than it takes, plain torch does the same work.

    >>> [found.name for found in status("meta") if not found.runs]
    ['moments', 'affine', 'jacobi', 'syev', 'svd', 'spectral', 'power', 'clouds', 'whitening']
    >>> status("meta")[2].reason
    'needs a CUDA device, and this is meta'
    """
    device = torch.device(device)
    if device.type == "cuda" and device.index is None and torch.cuda.is_available():
        device = torch.device("cuda", torch.cuda.current_device())
    no_triton, no_nvrtc = tiles.obstacle(device), nvrtc.obstacle(device)
    group = tiles.largest_group(device)
    single, double = (0, 0) if no_nvrtc else (spectral.largest(dtype, device.index) for dtype in nvrtc.REAL)
    power_single, power_double = (power.LARGEST[dtype] for dtype in nvrtc.REAL)
    return [
        _status("moments", no_triton, f"groups of up to {group} channels"),
        _status("affine", no_triton, f"groups of up to {group} channels"),
        _status("jacobi", no_nvrtc, f"real matrices up to n = {jacobi.LARGEST}"),
        _status("syev", syev.obstacle(device), "batches of any size, real and complex: cuSOLVER's XsyevBatched"),
        _status("svd", no_nvrtc, f"real matrices of up to {qr.LARGEST} columns or rows, or {svd.LARGEST} of both"),
        _status("spectral", no_nvrtc, f"real matrices up to n = {single}, in float64 {double}"),
        _status("power", no_nvrtc, f"real matrices up to n = {power_single}, in float64 {power_double}"),
        _status("clouds", no_nvrtc, f"points of float32 with up to {small_svd.LARGEST} coordinates"),
        _status("whitening", no_nvrtc or no_triton, f"groups of up to {min(group, single)} channels"),
    ]


def _status(name: str, obstacle: str | None, takes: str) -> KernelStatus:
    return KernelStatus(name, runs=obstacle is None, reason=obstacle or f"takes {takes}")
