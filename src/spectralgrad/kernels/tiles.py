"""What the grouped kernels share: how channels fall into tiles and samples into splits, and when a kernel can run.

A tensor (N, C, *) is N P samples of C channels, P positions each, read in place through three strides. A tile holds
as many groups of d channels as fit into T = max(16, d rounded up to a power of two): tensor cores want 16.
"""

import importlib.util
import os
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from .devices import cuda_obstacle

LARGEST_GROUP = 128  # channels of one group that a tile can hold
PRECISION = "tf32x3"  # of products: three TF32 products, or "ieee"; both keep float32's accuracy
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MOST_SAMPLES = 2**31 - 2**10  # samples are counted in 32 bits, a block beyond the last of them too; offsets in 64
_ANY_MULTIPROCESSORS = 4  # for the interpreter: enough for several splits of a small test
_AMPERE, _WIDE = 8, (9, 10)  # TF32 products need Ampere; tiles above 32 the shared memory and wgmma of sm_90 and sm_100
_LARGEST_ELSEWHERE = 32

Size = tuple[int, ...]


class Config(NamedTuple):
    """How one kernel runs for one tile size."""

    block: int  # samples at a time; a product of sums contracts them
    warps: int
    stages: int
    programs: int  # for each multiprocessor
    depth: int = 0  # channels at a time: a product of transforms contracts them


class Plan(NamedTuple):
    """How channels and samples are shared out among programs."""

    tile: int  # T
    together: int  # groups in a tile
    tiles: int
    chunk: int  # samples of a program, a multiple of the block
    splits: int


class Layout(NamedTuple):
    """Where sample k of channel c lies: (k // positions) by_image + (k % positions) by_position + c by_channel."""

    positions: int
    by_image: int
    by_channel: int
    by_position: int


@lru_cache(maxsize=1)
def has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


@lru_cache(maxsize=1)
def is_interpreted() -> bool:
    """Whether Triton runs kernels in Python on CPU tensors; it decides so when it is imported."""
    return os.environ.get("TRITON_INTERPRET") == "1" and has_triton()


@lru_cache
def obstacle(device: torch.device) -> str | None:
    """What keeps the grouped kernels from running on ``device``, in words; None where they run."""
    if device.type == "cpu":
        return None if is_interpreted() else "Triton compiles for GPUs; on the CPU it needs TRITON_INTERPRET=1"
    if (missing := cuda_obstacle(device)) is not None:
        return missing
    if not has_triton():
        return "Triton is not installed"
    major, minor = torch.cuda.get_device_capability(device)
    return None if major >= _AMPERE else f"compute capability {major}.{minor}; TF32 products need {_AMPERE}.0"


@lru_cache
def largest_group(device: torch.device) -> int:
    """The largest group that the kernels take on this device; 0 where they take none."""
    if obstacle(device) is not None:
        return 0
    wide = device.type == "cpu" or torch.cuda.get_device_capability(device)[0] in _WIDE
    return LARGEST_GROUP if wide else _LARGEST_ELSEWHERE


@lru_cache
def _multiprocessors(index: int) -> int:
    return int(torch.cuda.get_device_properties(index).multi_processor_count)


def fits(x: Tensor, group_size: int) -> bool:
    """Whether a kernel can take ``x`` (N, C, *) in groups of ``group_size`` channels."""
    if x.dtype not in DTYPES or not 0 < x.numel() // x.shape[1] <= MOST_SAMPLES:
        return False
    return group_size <= largest_group(x.device)


def tile_of(group_size: int) -> int:
    return max(16, 1 << (group_size - 1).bit_length())


@lru_cache
def plan(channels: int, group_size: int, samples: int, config: Config, device: int | None) -> Plan:
    """Enough splits to fill the device ``config.programs`` times, each of whole blocks and none of them empty."""
    tile = tile_of(group_size)
    together = min(tile // group_size, channels // group_size)
    tiles = -(-channels // (together * group_size))
    multiprocessors = _ANY_MULTIPROCESSORS if device is None else _multiprocessors(device)
    wanted = max(1, config.programs * multiprocessors // tiles)
    chunk = -(-samples // (wanted * config.block)) * config.block
    return Plan(tile, together, tiles, chunk, -(-samples // chunk))


@lru_cache(maxsize=4096)
def layout(shape: Size, strides: Size) -> Layout | None:
    """The three strides of (N, C, *), or None where the positions have no common one."""
    positions, by_position = 1, 1
    for size, stride in zip(reversed(shape[2:]), reversed(strides[2:]), strict=True):
        if size == 1:
            continue
        if positions == 1:
            by_position = stride
        elif stride != by_position * positions:
            return None
        positions *= size
    return Layout(positions, strides[0], strides[1], by_position)


def readable(x: Tensor) -> Tensor:
    """``x``, copied only where its positions have no common stride, and where its sign is left for later (z.conj().imag)."""
    x = x.resolve_neg()
    return x if x.is_contiguous() or layout(x.shape, x.stride()) is not None else x.contiguous()


def known_layout(shape: Size, strides: Size) -> Layout:
    """`layout` of what is readable."""
    where = layout(shape, strides)
    assert where is not None
    return where


_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def memory_format(x: Tensor) -> torch.memory_format:
    """The format of a result: channels_last where ``x`` is so and is not contiguous as well, else contiguous."""
    last = _CHANNELS_LAST.get(x.ndim)
    if last is None or x.is_contiguous() or not x.is_contiguous(memory_format=last):
        return torch.contiguous_format
    return last


def statistics_dtype(x: Tensor) -> torch.dtype:
    """The dtype of statistics: at least float32."""
    return torch.promote_types(x.dtype, torch.float32)
