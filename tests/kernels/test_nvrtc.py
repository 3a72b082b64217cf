"""Every kernel under the rules of NVRTC, where its library is installed (pip install nvidia-cuda-nvrtc); it needs no GPU.

The emulator compiles the same sources by g++, which knows no difference between host and device functions.
"""

import ctypes
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from spectralgrad.kernels import clouds, eigenpairs, jacobi, nvrtc, polar, power, qr, scale, small_svd, spectral, svd, syev

REALS = [torch.float32, torch.float64]
DTYPES = [*REALS, torch.complex64, torch.complex128]
CAPABILITY = (9, 0)
SHARED_MEMORY = 226 << 10
MULTIPROCESSORS = 132


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    found = [path for folder in map(Path, sys.path) for path in sorted(folder.glob("nvidia/*/lib/libnvrtc.so.1[0-9]"))]
    if not found:
        pytest.skip("needs libnvrtc: pip install nvidia-cuda-nvrtc")
    return ctypes.CDLL(str(found[0]))


@pytest.fixture
def compiles(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Kernels are compiled and not loaded; yields the names of those that were."""
    monkeypatch.setenv("SPECTRALGRAD_CACHE", "")
    compiled: list[str] = []

    def kernel(file: str, name: str, defines: nvrtc.Defines, shared: int, device: int) -> None:
        assert nvrtc._compile(library, file, defines, CAPABILITY)
        compiled.append(name)

    modules = (clouds, eigenpairs, jacobi, polar, power, qr, scale, small_svd, spectral, svd, syev)
    cached = [getattr(module, name) for module in modules for name in ("_kernel", "_compiled") if hasattr(module, name)]
    monkeypatch.setattr(nvrtc, "Kernel", kernel)
    monkeypatch.setattr(nvrtc, "shared_memory", lambda _: SHARED_MEMORY)
    monkeypatch.setattr(nvrtc, "for_clusters", lambda _: MULTIPROCESSORS)
    for function in cached:
        function.cache_clear()
    yield compiled
    for function in cached:
        function.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", REALS, ids=str)
def test_eigenpairs_and_singular_values(dtype: torch.dtype, compiles: list[str]) -> None:
    for n, batch in ((3, 1), (16, 1), (64, 1), (128, 1), (16, 4096), (64, 4096), (256, 4)):
        jacobi._kernel(n, dtype, 0, batch, False)
    for n in (16, 128):
        jacobi._kernel(n, dtype, 0, 1, True)
    for n in (8, 64, 128):
        svd._kernel(n, n, dtype, 0, 256)
    for m, n in ((3, 3), (4, 2)):
        for name in ("svd", "polar", "derivative"):
            small_svd._compiled(name, m, n, dtype, 0)
    assert len(compiles) > 10


@pytest.mark.slow
@pytest.mark.parametrize("dtype", REALS, ids=str)
def test_functions_powers_and_triangles(dtype: torch.dtype, compiles: list[str]) -> None:
    size = dtype.itemsize
    for layout in (spectral.shape(16, size), spectral.shape(64, size, few=True), spectral.shape(66, size)):
        for name, kind in itertools.product(("value", "derivative"), ("GIVEN", "INVERSE_SQRT", "POWER", "EXP")):
            spectral._compiled(name, kind, "NOTHING", kind == "POWER", layout, dtype, 0)
    for name in ("quotients", "pullback", "iterate", "retrace"):
        power._kernel(name, 33, False, dtype, 0)
    for name, (m, n) in itertools.product(("factor", "apply"), ((40, 3), (500, 100))):
        qr._compiled(name, qr.shape(m, n, size), dtype, 0)
    assert len(compiles) == 3 * 8 + 4 + 4


@pytest.mark.slow
@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (10, 0), (12, 0)], ids=str)
def test_other_devices(capability: tuple[int, int], compiles: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "CAPABILITY", capability)
    scale._compiled("exponent", torch.float32, 0)
    small_svd._compiled("polar", 3, 3, torch.float32, 0)
    jacobi._kernel(16, torch.float32, 0, 1, False)
    if capability >= (9, 0):
        jacobi._kernel(128, torch.float32, 0, 1, False)  # in a cluster of blocks
    assert len(compiles) == 3 + (capability >= (9, 0))


@pytest.mark.slow
def test_clouds(compiles: list[str]) -> None:
    for d, lanes, scaled, weighted in ((3, 8, False, False), (2, 32, True, True), (4, 256, True, True), (1, 8, True, False)):
        for name in ("align", "spread"):
            clouds._compiled(name, d, lanes, scaled, weighted, 0)
    assert len(compiles) == 8


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_stands_around_others(dtype: torch.dtype, compiles: list[str]) -> None:
    for name in ("look", "prepare", "finish"):
        syev._compiled(name, dtype, 0)
    if not dtype.is_complex:
        for name in ("exponent", "shift"):
            scale._compiled(name, dtype, 0)
        jacobi._kernel(8, dtype, 0, 1, False)
        for kind, n in (("GIVEN", 16), ("TAYLOR", 66)):
            layout, rounding = spectral.shape(n, dtype.itemsize), eigenpairs.Rounding(1e3, 2.0)
            eigenpairs._compiled(kind, True, layout, rounding, dtype, 0)
            for name in ("derivative", "turn"):
                polar._compiled(name, layout, dtype, 0)
    assert compiles


def test_a_mistake_is_told_with_its_line(compiles: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "defines", lambda _: {"REAL": "number"})
    with pytest.raises(RuntimeError, match=r"(?s)NVRTC could not compile scale\.cu.*identifier"):
        scale._compiled("shift", torch.float32, 0)
    assert compiles == []
