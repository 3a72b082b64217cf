"""Launches of Triton kernels, prepared once for each kind of input and kept."""

import importlib
from collections.abc import Callable
from functools import lru_cache
from types import ModuleType
from typing import ParamSpec, Protocol, TypeVar, cast

import torch

from . import tiles
from .buffers import ALIGNED, Memory, Part

P = ParamSpec("P")
R = TypeVar("R")


class Compiled(Protocol):
    """What Triton made of a kernel for arguments of one kind."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]: ...


class TritonKernel(Protocol):
    """A function decorated with triton.jit."""

    arg_names: list[str]

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Compiled]: ...


@lru_cache
def device_code(name: str) -> ModuleType:
    """The module with Triton code, imported when it is first needed: the CPU does without Triton."""
    return importlib.import_module(f"spectralgrad.kernels.triton_{name}")


_forget: list[Callable[[], None]] = []


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

    def __call__(self, device: int | None, *pointers: Memory | None) -> None:
        """Run on ``device``; None is the interpreter.

        Args:
            pointers: which of them are None, and the dtypes, are the same in every call.
        """
        if device is not None and device != torch.cuda.current_device():  # Triton launches on the current one
            with torch.cuda.device(device):
                self(device, *pointers)
            return
        addresses = [None if x is None else x.data_ptr() for x in pointers]
        aligned = not any(address % ALIGNED for address in addresses if address is not None)
        if aligned and self._run is not None:
            assert device is not None
            self._run(*addresses, *self._after_pointers, stream=torch._C._cuda_getCurrentRawStream(device))
            return
        tensors = (x.tensor() if isinstance(x, Part) else x for x in pointers)
        # a * b + c in one rounding: Triton 3.9 warns where this is left open
        compiled = self.kernel[self.grid](*tensors, *self.numbers, **self.constants, enable_fp_fusion=True)
        if aligned and device is not None:
            last = self.kernel.arg_names[len(pointers) + len(self.numbers) :]
            self._after_pointers = (*self.numbers, *(self.constants[name] for name in last))
            self._run = compiled[(*self.grid, 1, 1)[:3]]
