"""CUDA C++ compiled at run time by the NVRTC that torch ships, and launched through the driver.

For kernels that need what Triton does not offer: threads that exchange rows through shared memory, round after round.
"""

import ctypes
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from ctypes import c_double, c_float, c_int, c_longlong, c_void_p
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from spectralgrad.context import may_launch, raw_stream

from . import cubins, launcher
from .buffers import Memory
from .devices import cuda_obstacle
from .launcher import Function

REAL = {torch.float32: "float", torch.float64: "double"}
_DYNAMIC_SHARED_MEMORY = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_RESERVED = 1 << 10  # bytes of a block's shared memory that are left alone
_CLUSTERS_SINCE = 9  # major compute capability
_WARP = 32  # threads
_NO_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT
_compiling = threading.Lock()

Defines: TypeAlias = Mapping[str, str | int | float]
Argument: TypeAlias = int | c_int | c_longlong | c_float | c_double  # an int is an address
_LETTERS = {int: launcher.ADDRESS, c_int: "i", c_longlong: "l", c_float: "f", c_double: "d"}


@lru_cache(maxsize=1)
def _libraries() -> tuple[ctypes.CDLL, ctypes.CDLL] | None:
    """NVRTC and the CUDA driver, or None where torch came without them."""
    if torch.version.cuda is None or raw_stream is None:
        return None
    major = torch.version.cuda.split(".")[0]
    # torch's own stub knows where its NVRTC lies: symbols are found through it.
    for name in (str(Path(torch.__file__).parent / "lib" / "libcaffe2_nvrtc.so"), f"libnvrtc.so.{major}", "libnvrtc.so"):
        try:
            nvrtc, driver = ctypes.CDLL(name), ctypes.CDLL("libcuda.so.1")
            nvrtc.nvrtcCreateProgram  # noqa: B018  (raises where the stub does not lead to the library)
        except (OSError, AttributeError):
            continue
        size, pointer = ctypes.c_uint, c_void_p
        driver.cuLaunchKernel.argtypes = [pointer, *[size] * 7, pointer, pointer, pointer]
        return nvrtc, driver
    return None


@lru_cache
def obstacle(device: torch.device) -> str | None:
    """What keeps CUDA C++ from being compiled for ``device``, in words; None where it is."""
    if (missing := cuda_obstacle(device)) is not None:
        return missing
    return None if _libraries() is not None else "torch came without NVRTC, or libcuda.so.1 was not found"


def takes(x: Tensor) -> bool:
    """Whether kernels can be compiled for the device and dtype of ``x``, a tensor with entries and memory of its own."""
    return x.dtype in REAL and lies_on_a_gpu(x)


def lies_on_a_gpu(x: Tensor) -> bool:
    """Whether kernels can be compiled for the device of ``x``, a tensor with entries and memory of its own."""
    return x.is_cuda and may_launch(x) and obstacle(x.device) is None


def on_device(device: int) -> AbstractContextManager[None]:
    """A block in which ``device`` is the current device, as `Kernel.launch` asks for."""
    return nullcontext() if device == torch.cuda.current_device() else torch.cuda.device(device)


def numbers(dtype: torch.dtype) -> dict[str, str | int | float]:
    """The compile-time constants that say which real numbers a kernel computes with."""
    limits = torch.finfo(dtype)
    return {
        "REAL": "float" if limits.bits == 32 else "double",
        "EPS": limits.eps,
        "LARGEST": limits.max,
        "TINY": limits.tiny,
    }


@lru_cache(maxsize=64)
def shared_memory(device: int) -> int:
    """Bytes of shared memory that one block may ask for."""
    properties = torch.cuda.get_device_properties(device)
    return int(getattr(properties, "shared_memory_per_block_optin", 48 << 10)) - _RESERVED


@lru_cache(maxsize=64)
def for_clusters(device: int) -> int:
    """Multiprocessors of a device that runs clusters of blocks; else 0."""
    properties = torch.cuda.get_device_properties(device)
    return int(properties.multi_processor_count) if properties.major >= _CLUSTERS_SINCE else 0


def addresses(*memory: Memory | None) -> list[Argument]:
    """Of the first number of each; null for None."""
    return [0 if x is None else x.data_ptr() for x in memory]


class Kernel:
    """One compiled function, loaded on one device.

    Args:
        file: the source, beside this file.
        name: of the function, declared extern "C".
        defines: compile-time constants.
        shared: bytes of dynamic shared memory.
        device: index of the device.
    """

    def __init__(self, file: str, name: str, defines: Defines, shared: int, device: int) -> None:
        libraries = _libraries()
        assert libraries is not None
        self._driver, self._shared = libraries[1], shared
        self._signature = ""  # until the first launch
        with torch.cuda.device(device):
            self._enter(device)
            cubin = _compile(libraries[0], file, defines, torch.cuda.get_device_capability(device))
            module, self._function = c_void_p(), c_void_p()
            self._check(self._driver.cuModuleLoadData(ctypes.byref(module), cubin))
            self._check(self._driver.cuModuleGetFunction(ctypes.byref(self._function), module, name.encode()))
            if shared > 48 << 10:
                self._check(self._driver.cuFuncSetAttribute(self._function, _DYNAMIC_SHARED_MEMORY, shared))
        self._handle = int(self._function.value or 0)

    def launch(self, device: int, blocks: int, threads: int, *arguments: Argument) -> None:
        """Run on the current stream of ``device``, which must be the current device; in whole warps."""
        if not self._signature:
            self._signature = "".join(_LETTERS[type(x)] for x in arguments)
        function = Function(self._handle, (blocks, 1, 1), threads // _WARP, self._shared, self._signature)
        values = tuple([x if isinstance(x, int) else x.value for x in arguments])
        if not launcher.launch(function, values, device):
            self._launch_by_ctypes(device, blocks, threads, arguments)

    def _launch_by_ctypes(self, device: int, blocks: int, threads: int, arguments: tuple[Argument, ...]) -> None:
        assert raw_stream is not None
        typed = [c_void_p(x) if isinstance(x, int) else x for x in arguments]
        addresses = (c_void_p * len(typed))(*map(ctypes.addressof, typed))
        call = (self._function, blocks, 1, 1, threads, 1, 1, self._shared, raw_stream(device), addresses, None)
        code = self._driver.cuLaunchKernel(*call)
        if code == _NO_CONTEXT:
            self._enter(device)
            code = self._driver.cuLaunchKernel(*call)
        self._check(code)

    def _enter(self, device: int) -> None:
        """Make the device's context current for the driver: a new thread, as autograd's are, may not have it yet."""
        context = c_void_p()
        self._check(self._driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
        self._check(self._driver.cuCtxSetCurrent(context))

    def _check(self, code: int) -> None:
        if code:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorString(code, ctypes.byref(text))
            raise RuntimeError(f"CUDA driver error {code}: {(text.value or b'unknown').decode()}")


def _compile(nvrtc: ctypes.CDLL, file: str, defines: Defines, capability: tuple[int, int]) -> bytes:
    """From disk, where an earlier process left it, or by NVRTC."""
    folder = Path(__file__).parent
    source = (folder / file).read_bytes()
    options = [f"--gpu-architecture=sm_{capability[0]}{capability[1]}", "--std=c++17"]
    options += [f"-D{name}={value}" for name, value in defines.items()]
    headers = [header.read_bytes() for header in sorted(folder.glob("*.cuh"))]
    parts = [_version(nvrtc), *(option.encode() for option in options), source, *headers]
    with _compiling:
        return cubins.kept(parts, lambda: _compile_now(nvrtc, file, source, [*options, f"--include-path={folder}"]))


def _compile_now(nvrtc: ctypes.CDLL, file: str, source: bytes, options: list[str]) -> bytes:
    program = c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, file.encode(), 0, None, None)
    failed = nvrtc.nvrtcCompileProgram(program, len(options), _strings([option.encode() for option in options]))
    if failed:
        log = _read(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
        raise RuntimeError(f"NVRTC could not compile {file} with {options}:\n{log.decode(errors='replace')}")
    return _read(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)


def _version(nvrtc: ctypes.CDLL) -> bytes:
    major, minor = c_int(), c_int()
    nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"NVRTC {major.value}.{minor.value}".encode()


def _strings(texts: list[bytes]) -> "ctypes.Array[ctypes.c_char_p]":
    return (ctypes.c_char_p * len(texts))(*texts)


def _read(size_of: Callable[..., object], get: Callable[..., object], program: c_void_p) -> bytes:
    size = ctypes.c_size_t()
    size_of(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    get(program, buffer)
    return buffer.raw
