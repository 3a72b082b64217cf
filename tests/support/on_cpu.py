"""Our CUDA C++ kernels compiled for the CPU: `kernels.nvrtc.Kernel` with the same arguments, under the emulator.

A thread of the GPU is a fiber here, so this is slow and for small matrices. It runs the very source that NVRTC compiles.
"""

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import ClassVar

import pytest
import torch

import spectralgrad.kernels
from spectralgrad.context import may_launch
from spectralgrad.kernels import (
    clouds,
    doors,
    eigenpairs,
    jacobi,
    nvrtc,
    polar,
    power,
    qr,
    scale,
    small_svd,
    spectral,
    svd,
    syev,
)
from spectralgrad.kernels.buffers import Memory
from spectralgrad.kernels.launcher import _bytes
from support.lanes import NATIVE

HERE = Path(__file__).parent
KERNELS = Path(spectralgrad.kernels.__file__).parent
SHARED_MEMORY = 227 << 10  # bytes, as an H200 has


@cache
def folder_in(root: Path) -> Path:
    """Where compiled kernels are kept from run to run: a folder for the sources as they are; those of others are removed."""
    ours = [file for name in ("emulator", "on_cpu", "races") for file in HERE.glob(f"{name}.*")]
    sources = sorted([*KERNELS.glob("*.cu*"), *ours])
    content = hashlib.sha256(b"".join(file.read_bytes() for file in sources)).hexdigest()
    folder = root / ".pytest_cache" / "kernels" / content
    folder.mkdir(parents=True, exist_ok=True)
    for other in set(folder.parent.iterdir()) - {folder}:
        shutil.rmtree(other, ignore_errors=True)
    return folder


def compiled(file: Path, *arguments: str) -> Path:
    """The file that g++ makes of these arguments, unless it is there. Workers share its folder: it is whole or not there."""
    if not file.exists():
        own = file.with_suffix(f".{os.getpid()}")
        command = ["g++", "-O1", "-w", "-std=c++17", "-fPIC", "-U_FORTIFY_SOURCE", *arguments, "-o", str(own)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        own.replace(file)
    return file


class Kernel:
    """What stands in for `nvrtc.Kernel`."""

    folder: Path
    backwards = False  # the last block and thread go first
    watched = False  # races are an error, and so is what lies beyond the memory that was given: see races.cpp
    bytes_at: ClassVar[dict[int, int]] = {}  # from the addresses that kernels were given

    def __init__(self, file: str, name: str, defines: nvrtc.Defines, shared: int, device: int) -> None:
        source = KERNELS / file
        name_of_all = hashlib.sha256(repr((file, sorted(defines.items()), self.watched)).encode()).hexdigest()
        library, kernel = self.folder / f"{name_of_all}.so", str(HERE / "on_cpu.cpp")
        options = [f'-DKERNEL="{source}"', f"-DOF_{source.stem}", *(f"-D{key}={value}" for key, value in defines.items())]
        others = [compiled(self.folder / "emulator.o", "-c", str(HERE / "emulator.cpp"))]  # once for all kernels
        if self.watched:
            kernel = str(compiled(library.with_suffix(".o"), "-c", "-g", "-fsanitize=thread", *options, kernel))
            others.append(compiled(self.folder / "races.o", "-c", str(HERE / "races.cpp")))
        compiled(library, "-shared", "-Wl,-Bsymbolic", *options, kernel, *map(str, others))
        self.library = ctypes.CDLL(str(library))
        self.run = getattr(self.library, f"run_{name}")
        self.shared = shared

    def launch(self, device: int, blocks: int, threads: int, *arguments: nvrtc.Argument) -> None:
        self.library.set_order(self.backwards)
        if self.watched:
            for address in (x for x in arguments if isinstance(x, int) and x):
                self.library.give(ctypes.c_void_p(address), ctypes.c_ulong(self.bytes_at[address]))
        typed = (ctypes.c_void_p(x) if isinstance(x, int) else x for x in arguments)
        self.run(blocks, threads, self.shared, *typed)
        if self.watched:
            told = ctypes.c_char_p()
            count = self.library.races(ctypes.byref(told))
            assert count == 0, f"{count} races in {self.library._name}:\n{(told.value or b'').decode()}"


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Kernels take CPU tensors and run under the emulator."""
    if shutil.which("g++") is None or sys.platform != "linux":  # elsewhere another compiler bears this name
        pytest.skip("needs Linux's g++ to compile the kernels for the CPU")
    root = pytestconfig.rootpath
    Kernel.folder = folder_in(root if os.access(root, os.W_OK) else tmp_path_factory.getbasetemp())
    monkeypatch.setattr(nvrtc, "Kernel", Kernel)
    monkeypatch.setattr(Kernel, "bytes_at", {})
    monkeypatch.setattr(nvrtc, "shared_memory", lambda _: SHARED_MEMORY)
    monkeypatch.setattr(nvrtc, "for_clusters", lambda _: 0)
    monkeypatch.setattr(nvrtc, "lies_on_a_gpu", may_launch)
    monkeypatch.setattr(doors, "on_a_gpu", lambda _: True)
    for name in NATIVE:
        monkeypatch.setattr(f"spectralgrad.kernels.cpu.{name}.takes", lambda *_: False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
    for module in (clouds, eigenpairs, jacobi, polar, power, qr, scale, small_svd, spectral, svd, syev):
        for cached in ("_kernel", "_compiled"):
            if hasattr(module, cached):
                getattr(module, cached).cache_clear()
        if hasattr(module, "addresses"):
            monkeypatch.setattr(module, "addresses", addresses)


def addresses(*memory: Memory | None) -> list[nvrtc.Argument]:
    """`nvrtc.addresses`, and how many bytes lie there."""
    found: dict[int, int] = {}
    for x in memory:
        if x is not None:
            size = _bytes(x) if isinstance(x, torch.Tensor) else 4 * x.size
            found[x.data_ptr()] = max(size, found.get(x.data_ptr(), 0))  # two may begin at one place
    Kernel.bytes_at.update(found)
    return nvrtc.addresses(*memory)
