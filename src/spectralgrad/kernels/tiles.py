"""What the grouped kernels share: how channels fall into tiles and samples into splits, and when a kernel can run.

A tensor (N, C, *) is N P samples of C channels, P positions each, read in place through three strides. A tile holds
as many groups of d channels as fit into T = max(16, d rounded up to a power of two): tensor cores want 16.
"""

import importlib.util
import os
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

LARGEST_GROUP = 128  # channels of one group that a tile can hold
PRECISION = "tf32x3"  # of products: three TF32 products, or "ieee"; both keep float32's accuracy
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_LARGEST_INDEX = 2**31 - 1  # samples are counted in 32 bits; offsets between samples in 64
_ANY_MULTIPROCESSORS = 4  # for the interpreter: enough for several splits of a small test
_AMPERE, _WIDE = 8, (9, 10)  # TF32 products need Ampere; tiles above 32 the shared memory and wgmma of sm_90 and sm_100
_LARGEST_ELSEWHERE = 32
_ALIGNED = 16  # bytes: Triton compiles kernels of their own for pointers that are multiples of it

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
def _largest_group(index: int) -> int:
    """The largest group that the kernels take on this GPU; 0 where they take none."""
    major, _ = torch.cuda.get_device_capability(index)
    if torch.version.cuda is None or major < _AMPERE:
        return 0
    return LARGEST_GROUP if major in _WIDE else _LARGEST_ELSEWHERE


@lru_cache
def _multiprocessors(index: int) -> int:
    return int(torch.cuda.get_device_properties(index).multi_processor_count)


def fits(x: Tensor, group_size: int) -> bool:
    """Whether a kernel can take ``x`` (N, C, *) in groups of ``group_size`` channels; else the twin does."""
    if x.dtype not in DTYPES or group_size > LARGEST_GROUP or not 0 < x.numel() // x.shape[1] <= _LARGEST_INDEX:
        return False
    if x.is_cuda:
        return has_triton() and group_size <= _largest_group(x.device.index)
    return x.device.type == "cpu" and is_interpreted()


@lru_cache
def device_code(name: str) -> Any:
    """The module with Triton code, imported when it is first needed: the CPU does without Triton."""
    return importlib.import_module(f"spectralgrad.kernels.triton_{name}")


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
    """``x``, copied only where its positions have no common stride."""
    return x if layout(x.shape, x.stride()) is not None else x.contiguous()


def known_layout(shape: Size, strides: Size) -> Layout:
    """`layout` of what is readable."""
    where = layout(shape, strides)
    assert where is not None
    return where


_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def memory_format(x: Tensor) -> torch.memory_format:
    """channels_last where ``x`` is so and not contiguous as well, else contiguous: what a result should have."""
    last = _CHANNELS_LAST.get(x.ndim)
    if last is None or x.is_contiguous() or not x.is_contiguous(memory_format=last):
        return torch.contiguous_format
    return last


class Part(NamedTuple):
    """Some numbers of a float32 buffer: a tensor for kernels alone, without the cost of making one."""

    buffer: Tensor
    first: int
    size: int
    address: int

    @property
    def dtype(self) -> torch.dtype:
        return self.buffer.dtype

    def data_ptr(self) -> int:
        return self.address

    def tensor(self) -> Tensor:
        return self.buffer[self.first : self.first + self.size]


def parts(x: Tensor, *sizes: int) -> list[Part]:
    """Parts of a new buffer on the device of ``x``, each aligned."""
    places, total = _places(sizes)
    buffer = torch.empty(total, dtype=torch.float32, device=x.device)
    start = buffer.data_ptr()
    return [Part(buffer, first, size, start + 4 * first) for first, size in zip(places, sizes, strict=True)]


@lru_cache
def _places(sizes: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    places, total = [], 0
    for size in sizes:
        places.append(total)
        total += -(-size * 4 // _ALIGNED) * _ALIGNED // 4
    return tuple(places), total


_kept: list[Any] = []
Make = TypeVar("Make", bound=Callable[..., Any])


def launches(make: Make) -> Make:
    """Keep what a function makes of shapes, strides and dtypes: a `Launch`."""
    cached = lru_cache(maxsize=1024)(make)
    _kept.append(cached)
    return cast(Make, cached)


def forget_launches() -> None:
    """For who changes PRECISION or a table of configurations: they are part of what was kept."""
    for cached in (plan, *_kept):
        cached.cache_clear()


class Launch:
    """A Triton kernel with its grid, numbers and constants: pointers are all that is left to give.

    Triton looks at every argument of every launch, and asks the driver about every pointer, to find the kernel that it
    compiled for arguments of their kind. On the host of an H200 that takes 70 us, more than the kernel itself. So what it
    found is kept here and launched directly, where all pointers are aligned as they were the first time.

    Args:
        kernel: parameters are pointers, numbers and compile-time constants, in this order.
        grid: programs.
        numbers: in the order of the parameters.
        constants: by name, with num_warps and num_stages.
    """

    def __init__(self, kernel: Any, grid: tuple[int, ...], numbers: tuple[float, ...], **constants: Any) -> None:
        self.kernel, self.grid, self.numbers, self.constants = kernel, grid, numbers, constants
        self._run: Callable[..., None] | None = None
        self._rest: tuple[Any, ...] = ()

    def __call__(self, device: int | None, *pointers: Any) -> None:
        """Run on ``device``; None is the interpreter.

        Args:
            pointers: tensors, parts or None; which are None, and the dtypes, are the same in every call.
        """
        if device is not None and device != torch.cuda.current_device():  # Triton launches on the current one
            with torch.cuda.device(device):
                self(device, *pointers)
            return
        addresses = [None if x is None else x.data_ptr() for x in pointers]
        aligned = not any(address % _ALIGNED for address in addresses if address is not None)
        if aligned and self._run is not None:
            assert device is not None
            self._run(*addresses, *self._rest, stream=torch._C._cuda_getCurrentRawStream(device))
            return
        tensors = (x.tensor() if isinstance(x, Part) else x for x in pointers)
        # a * b + c in one rounding: Triton 3.9 warns where this is left open
        compiled = self.kernel[self.grid](*tensors, *self.numbers, **self.constants, enable_fp_fusion=True)
        if aligned and device is not None:
            last = self.kernel.arg_names[len(pointers) + len(self.numbers) :]
            self._rest = (*self.numbers, *(self.constants[name] for name in last))
            self._run = compiled[(*self.grid, 1, 1)[:3]]


def grouped(x: Tensor, groups: int) -> Tensor:
    """(N, C, *) -> (groups, d, n) in float64, for the twins: exact products whatever the precision flags say."""
    X = x.to(torch.float64).transpose(0, 1).flatten(1)
    return X.reshape(groups, X.shape[0] // groups, X.shape[1])


def ungrouped(Y: Tensor, given: Tensor) -> Tensor:
    """The way back, in the shape, dtype and memory format of ``given``."""
    y = Y.to(given.dtype).reshape(given.shape[1], given.shape[0], *given.shape[2:]).transpose(0, 1)
    return y.contiguous(memory_format=memory_format(given))


def statistics_dtype(x: Tensor) -> torch.dtype:
    """What statistics come in: at least float32."""
    return torch.promote_types(x.dtype, torch.float32)
