"""Launches of Triton kernels, prepared once for each kind of input and kept."""

import importlib
from collections.abc import Callable
from functools import lru_cache
from types import ModuleType
from typing import Any, ParamSpec, Protocol, TypeVar, cast

import torch

from spectralgrad.context import raw_stream

from . import launcher, tiles
from .buffers import Memory, Part
from .launcher import ALIGNED, Function, note_other_launch

P = ParamSpec("P")
R = TypeVar("R")


class Compiled(Protocol):
    """What Triton made of a kernel for arguments of one kind."""

    metadata: Any
    src: Any
    function: int  # the driver's handle

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]: ...


class TritonKernel(Protocol):
    """A function decorated with triton.jit."""

    arg_names: list[str]

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Compiled]: ...


@lru_cache
def device_code(name: str) -> ModuleType:
    """The module with Triton code, imported when it is first needed: the CPU does without Triton."""
    return importlib.import_module(f"spectralgrad.kernels.triton_{name}")


_SCRATCH = ("global_scratch_size", "profile_scratch_size")
_forget: list[Callable[[], None]] = [launcher.forget]


def kept(make: Callable[P, R]) -> Callable[P, R]:
    """Keep what ``make`` makes of shapes, strides and dtypes: a `Launch`."""
    cached = lru_cache(maxsize=1024)(make)
    _forget.append(cached.cache_clear)
    return cast("Callable[P, R]", cached)


def forget_launches() -> None:
    """Drop every launch that was kept. Call this after a change of `tiles.PRECISION` or of a table of configurations."""
    tiles.plan.cache_clear()
    for forget in _forget:
        forget()


class Launch:
    """A Triton kernel with its grid, numbers and constants: a call gives the pointers only.

    Triton looks at every argument of every launch, and asks the driver about every pointer, to find the kernel that it
    compiled for arguments of their kind. On the host of an H200 that takes 70 us, more than the kernel itself. So what it
    found is kept here and launched directly, where all pointers are aligned as they were the first time.

    Args:
        kernel: parameters are pointers, numbers and compile-time constants, in this order.
        grid: programs.
        numbers: in the order of the parameters.
        constants: by name, with num_warps and num_stages.
    """

    def __init__(
        self, kernel: TritonKernel, grid: tuple[int, ...], numbers: tuple[float, ...], **constants: int | str
    ) -> None:
        self.kernel, self.grid, self.numbers, self.constants = kernel, grid, numbers, constants
        self._run: Callable[..., None] | None = None
        self._after_pointers: tuple[float | str, ...] = ()
        self._function: Function | None = None
        self._after_addresses: tuple[float, ...] = ()

    def __call__(self, device: int | None, *pointers: Memory | None) -> None:
        """Run on ``device``; None is the interpreter.

        Args:
            pointers: which of them are None, and the dtypes, are the same in every call.
        """
        if device is not None and device != torch.cuda.current_device():  # Triton launches on the current one
            with torch.cuda.device(device):
                self(device, *pointers)
            return
        addresses = [x.data_ptr() for x in pointers if x is not None]
        if device is None or self._run is None or any(address % ALIGNED for address in addresses):
            self._launch_by_triton(device, pointers)
            return
        if self._function is None or not launcher.launch(self._function, (*addresses, *self._after_addresses), device):
            note_other_launch()
            given = (None if x is None else x.data_ptr() for x in pointers)
            self._run(*given, *self._after_pointers, stream=raw_stream(device))

    def _launch_by_triton(self, device: int | None, pointers: tuple[Memory | None, ...]) -> None:
        note_other_launch()
        tensors = (x.tensor() if isinstance(x, Part) else x for x in pointers)
        # a * b + c in one rounding: Triton 3.9 warns where this is left open
        compiled = self.kernel[self.grid](*tensors, *self.numbers, **self.constants, enable_fp_fusion=True)
        if device is None or any(x.data_ptr() % ALIGNED for x in pointers if x is not None):
            return
        names = self.kernel.arg_names[len(pointers) :]
        across, down, deep = (*self.grid, 1, 1)[:3]
        grid = across, down, deep
        self._after_pointers = (*self.numbers, *(self.constants[name] for name in names[len(self.numbers) :]))
        self._function, self._after_addresses = _directly(compiled, grid, dict(zip(names, self.numbers, strict=False)))
        self._compiled = compiled  # whose end would unload the function
        self._run = compiled[grid]


# By Triton's names: of arguments that torch's launcher passes on.
_LETTERS = {"i32": "i", "i64": "l", "fp32": "f", "fp64": "d"}


def _directly(
    compiled: Compiled, grid: tuple[int, int, int], numbers: dict[str, float]
) -> tuple[Function | None, tuple[float, ...]]:
    """The function that Triton made, and its arguments after the addresses; None where it needs what Triton's launcher does.

    Args:
        numbers: by name. Those that Triton took for constants, as it does with 1, are no arguments any more.
    """
    metadata = compiled.metadata
    needs_more = (
        getattr(metadata, "num_ctas", 1) != 1
        or getattr(metadata, "launch_cooperative_grid", False)
        or getattr(metadata, "launch_pdl", False)
    )
    scratch = [getattr(metadata, name) for name in _SCRATCH if hasattr(metadata, name)]  # two last arguments, null if unused
    kinds = {name: kind for name, kind in compiled.src.signature.items() if kind != "constexpr"}
    letters = [launcher.ADDRESS if kind.startswith("*") else _LETTERS.get(kind) for kind in kinds.values()]
    if needs_more or any(scratch) or None in letters:
        return None, ()
    signature = "".join(filter(None, letters)) + launcher.ADDRESS * len(scratch)
    after = [numbers[name] for name in kinds if name in numbers]
    return Function(compiled.function, grid, metadata.num_warps, metadata.shared, signature), (*after, *[0] * len(scratch))
