"""Our CUDA C++ kernels compiled for the CPU: `kernels.nvrtc.Kernel` with the same arguments, under the emulator.

A thread of the GPU is a fiber here, so this is slow and for small matrices. It runs the very source that NVRTC compiles.
"""

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import spectralgrad.kernels
from spectralgrad.kernels import jacobi, nvrtc, power, qr, scale, small_svd, spectral, svd, syev

HERE = Path(__file__).parent
SHARED_MEMORY = 227 << 10  # bytes, as an H200 has


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

    def __init__(self, file: str, name: str, defines: nvrtc.Defines, shared: int, device: int) -> None:
        source = Path(spectralgrad.kernels.__file__).parent / file
        name_of_all = hashlib.sha256(repr((file, sorted(defines.items()))).encode()).hexdigest()
        library = self.folder / f"{name_of_all}.so"
        options = [f'-DKERNEL="{source}"', f"-DOF_{source.stem}", *(f"-D{key}={value}" for key, value in defines.items())]
        emulator = compiled(self.folder / "emulator.o", "-c", str(HERE / "emulator.cpp"))  # once for all kernels
        compiled(library, "-shared", "-Wl,-Bsymbolic", *options, str(HERE / "on_cpu.cpp"), str(emulator))
        self.library = ctypes.CDLL(str(library))
        self.run = getattr(self.library, f"run_{name}")
        self.shared = shared

    def launch(self, device: int, blocks: int, threads: int, *arguments: nvrtc.Argument) -> None:
        self.library.set_order(self.backwards)
        self.run(blocks, threads, self.shared, *arguments)


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Kernels take CPU tensors and run under the emulator."""
    if shutil.which("g++") is None or sys.platform != "linux":  # elsewhere another compiler bears this name
        pytest.skip("needs Linux's g++ to compile the kernels for the CPU")
    own = tmp_path_factory.getbasetemp()
    Kernel.folder = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    monkeypatch.setattr(nvrtc, "Kernel", Kernel)
    monkeypatch.setattr(nvrtc, "shared_memory", lambda _: SHARED_MEMORY)
    monkeypatch.setattr(nvrtc, "for_clusters", lambda _: 0)
    monkeypatch.setattr(nvrtc, "takes", lambda x: type(x) is torch.Tensor and x.dtype in nvrtc.REAL and x.numel() > 0)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
    for module in (jacobi, power, qr, scale, small_svd, spectral, svd, syev):
        for cached in ("_kernel", "_compiled"):
            if hasattr(module, cached):
                getattr(module, cached).cache_clear()
