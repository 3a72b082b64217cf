"""torch's own launcher of kernels, and sequences of launches that are recorded once and go on without Python's way to them.

torch's compiler launches its kernels by `_StaticCudaLauncher`, which reads plain numbers in C++: 4 us of the host, where
ctypes takes 8 and Triton 10 (H200). It takes any function that the driver has loaded. A torch without it does without.

A step of several kernels costs the host far more than its launches: settings are looked up, buffers are cut into parts,
records are made. All of that follows from shapes, strides, dtypes and options. So `sequence` keeps what a step launched, a
CUDA graph whose pointers are left open: each is a place in one of the step's tensors.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spectralgrad.context import launch_kernel, raw_stream

ALIGNED = 16  # bytes: Triton compiles kernels of their own for pointers that are multiples of it
ADDRESS = "O"  # in a signature; numbers are i, l, f and d, as in the module struct
MOST = 1024  # sequences that are kept


class Function(NamedTuple):
    """A kernel as the driver has it, and how it runs."""

    handle: int
    grid: tuple[int, int, int]
    warps: int  # of a block
    shared: int  # bytes of dynamic shared memory of a block
    signature: str  # a letter for each argument


class _Thread(threading.local):
    recorder: "_Recorder | None" = None


_thread = _Thread()


def launch(function: Function, arguments: tuple[float, ...], device: int) -> bool:
    """Run on the current stream of ``device``, which must be the current device. False where this torch cannot do it."""
    global launch_kernel
    if launch_kernel is None or raw_stream is None:
        return False
    try:
        launch_kernel(*_flat(function), arguments, raw_stream(device))
    except (
        TypeError,
        OverflowError,
    ):  # it is torch's own affair: arguments may change; Windows's of 2.9 takes no 64-bit stream
        launch_kernel = None
        return False
    if _thread.recorder is not None:
        _thread.recorder.launched.append((function, arguments))
    return True


def note_scratch(buffer: Tensor) -> None:
    """A step that is being recorded has made memory that nothing needs after it."""
    if _thread.recorder is not None:
        _thread.recorder.scratch.append(buffer)


def note_other_launch() -> None:
    """A step that is being recorded has launched something in another way."""
    if _thread.recorder is not None:
        _thread.recorder.is_whole = False


def sequence(kind: Hashable, device: int | None, memory: tuple[Tensor | None, ...], step: Callable[[], None]) -> None:
    """Run ``step``, which launches kernels; one of the same kind is not run but its launches are, with these tensors.

    Args:
        kind: all that the launches depend on but for addresses: which step it is, shapes, strides, dtypes, numbers.
        device: None is the CPU, where nothing is recorded.
        memory: what the step reads and writes, besides scratch memory of its own from `buffers.parts`.
    """
    bases = (0, *[0 if x is None else x.data_ptr() for x in memory])
    if device is None or launch_kernel is None or _thread.recorder is not None or any(base % ALIGNED for base in bases):
        step()
        return
    kept = _kept.get(kind)
    if kept is not None:
        kept.run(device, bases, memory)
        return
    recorder = _thread.recorder = _Recorder()
    try:
        step()
    finally:
        _thread.recorder = None
    found = recorder.sequence(bases, memory)
    if found is not None:
        _kept[kind] = found
        if len(_kept) > MOST:
            _kept.popitem(last=False)


def forget() -> None:
    """Drop all sequences."""
    _kept.clear()


def _flat(function: Function) -> tuple[Any, ...]:
    handle, grid, warps, shared, signature = function
    return handle, *grid, warps, shared, signature


class _Launch(NamedTuple):
    """A launch with its pointers left open."""

    function: tuple[Any, ...]
    places: tuple[tuple[int, int], ...]  # of the leading addresses: the tensor, and bytes from its first
    rest: tuple[float, ...]  # what follows them


class _Sequence:
    def __init__(self, launches: list[_Launch], scratch: int) -> None:
        self.launches, self.scratch = launches, scratch

    def run(self, device: int, bases: tuple[int, ...], memory: tuple[Tensor | None, ...]) -> None:
        if self.scratch:
            like = next(x for x in memory if x is not None)
            buffer = torch.empty(self.scratch, dtype=torch.uint8, device=like.device)
            bases = (*bases, buffer.data_ptr())
        assert launch_kernel is not None
        assert raw_stream is not None
        stream = raw_stream(device)
        for function, places, rest in self.launches:
            launch_kernel(*function, (*[bases[tensor] + offset for tensor, offset in places], *rest), stream)


_kept: OrderedDict[Hashable, _Sequence] = OrderedDict()


class _Recorder:
    """Collects what a step launches."""

    def __init__(self) -> None:
        self.launched: list[tuple[Function, tuple[float, ...]]] = []
        self.scratch: list[Tensor] = []
        self.is_whole = True

    def sequence(self, bases: tuple[int, ...], memory: tuple[Tensor | None, ...]) -> _Sequence | None:
        """What was launched; None where something went another way, or where an address does not tell its tensor."""
        if not self.is_whole or not self.launched:
            return None
        areas = [
            _Area(i, base, _bytes(x)) for i, (base, x) in enumerate(zip(bases[1:], memory, strict=True), 1) if x is not None
        ]
        total = 0
        for buffer in self.scratch:
            areas.append(_Area(len(bases), buffer.data_ptr(), _bytes(buffer), total))
            total += -(-_bytes(buffer) // ALIGNED) * ALIGNED
        launches = []
        for function, arguments in self.launched:
            count = len(function.signature) - len(function.signature.lstrip(ADDRESS))
            found = [_place(int(address), areas) for address in arguments[:count]]
            if None in found:
                return None
            launches.append(_Launch(_flat(function), tuple(filter(None, found)), arguments[count:]))
        return _Sequence(launches, total)


def _bytes(x: Tensor) -> int:
    """From the first number of ``x`` to the last, whatever lies between."""
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return (last + 1) * x.element_size() if x.numel() else 0


class _Area(NamedTuple):
    """Memory of a step."""

    tensor: int  # which one
    start: int  # its first byte's address
    size: int  # bytes
    before: int = 0  # bytes of the same tensor before it

    def holds(self, address: int) -> bool:
        return self.start <= address < self.start + self.size


def _place(address: int, areas: list[_Area]) -> tuple[int, int] | None:
    """In which tensor an address lies, and how many bytes from its first; 0 is null. None: in no tensor, or in several."""
    if address == 0:
        return 0, 0
    found = [area for area in areas if area.holds(address)]
    if len(found) != 1:
        return None
    (area,) = found
    return area.tensor, address - area.start + area.before
