"""cuSOLVER's batched eigensolver, `cusolverDnXsyevBatched`, called directly.

torch has it in its libraries since CUDA 12.6, but takes the matrices of a batch one after the other before torch 2.12, and
waits for the result in every version. A call from here does neither.

Its kernels multiply small entries with each other, and what underflows there leaves NaN, or vectors that are not orthogonal,
though each solves M v = w v. In single precision graded matrices suffice, with entries 1e-6 of the largest (H200, CUDA 13),
in double precision a matrix of ones. Dense matrices of full rank it solves well. So it gets each matrix at scale 1, turned
by a reflection and with noise of a part of its rounding: a pass over the matrix and one over its vectors; see syev.cu.
"""

import ctypes
import threading
from ctypes import POINTER, byref, c_double, c_float, c_int, c_int64, c_longlong, c_size_t, c_void_p
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from spectralgrad.context import raw_stream

from . import nvrtc
from .buffers import contiguous
from .devices import cuda_obstacle
from .nvrtc import addresses

LARGEST_BATCH = 1 << 14  # of one call; it refuses some 32,000 and more (CUDA 13.0), whatever their size
_TYPES = {torch.float32: (0, 0), torch.float64: (1, 1), torch.complex64: (4, 0), torch.complex128: (5, 1)}  # of A and w
_VECTORS, _LOWER = 1, 0  # CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER
_SONAMES = {"12": "libcusolver.so.11", "13": "libcusolver.so.12"}  # by CUDA's major version
_THREADS, _MANY_THREADS = 256, 1024  # of a block: for some numbers each, and for a whole matrix
_SMALL = 32  # rows up to which it has another method, whose single precision leaves NaN for some deficient matrices still
_DOUBLE = {torch.float32: torch.float64, torch.complex64: torch.complex128}
_STATE = 4  # 32-bit numbers of a State in syev.cu, in float32; two more in float64
_handles = threading.local()  # a handle serves one thread at a time


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL | None:
    """libcusolver as torch has it, or None where it is not found or too old."""
    soname = _SONAMES.get((torch.version.cuda or "").split(".")[0])
    if soname is None:
        return None
    beside_torch = sorted(str(path) for path in Path(torch.__file__).parents[1].glob(f"nvidia/*/lib/{soname}"))
    for name in (soname, *beside_torch):
        try:
            library = ctypes.CDLL(name)
            call, size = library.cusolverDnXsyevBatched, library.cusolverDnXsyevBatched_bufferSize
        except (OSError, AttributeError):
            continue
        matrices = (c_void_p, c_void_p, c_int, c_int, c_int64, c_int, c_void_p, c_int64, c_int, c_void_p, c_int)
        size.argtypes = (*matrices, POINTER(c_size_t), POINTER(c_size_t), c_int64)
        call.argtypes = (*matrices, c_void_p, c_size_t, c_void_p, c_size_t, c_void_p, c_int64)
        library.cusolverDnSetStream.argtypes = [c_void_p, c_void_p]
        return library
    return None


@lru_cache
def obstacle(device: torch.device) -> str | None:
    """What keeps the routine from being called on ``device``, in words; None where it is."""
    if (missing := cuda_obstacle(device)) is not None:
        return missing
    if _library() is None:
        return "torch came without a libcusolver that has XsyevBatched (CUDA 12.6 or newer)"
    return nvrtc.obstacle(device)


def runs_on(H: Tensor) -> bool:
    """Whether `eigh` and `solve` take matrices (*B, n, n) like ``H``."""
    return H.dtype in _TYPES and nvrtc.lies_on_a_gpu(H) and obstacle(H.device) is None


class Workspace(NamedTuple):
    """Bytes that a batch takes."""

    device: int
    host: int


def eigh(M: Tensor, nonfinite: Tensor, failures: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (*B, n), ascending, and eigenvectors (*B, n, n) of the Hermitian part of any ``M`` (*B, n, n).

    The host never waits for the device. NaN where a matrix is not finite, and where the routine failed.

    Args:
        nonfinite, failures: int64 counters, to which these matrices are added.
    """
    index, n = M.device.index, M.shape[-1]
    if index != torch.cuda.current_device():
        with torch.cuda.device(index):
            return eigh(M, nonfinite, failures)
    if n <= _SMALL and M.dtype in _DOUBLE:
        w, V = eigh(M.to(_DOUBLE[M.dtype]), nonfinite, failures)
        most = torch.finfo(M.dtype).max
        return w.clamp(-most, most).to(M.real.dtype), V.to(M.dtype)
    M = contiguous(M.resolve_conj())
    batch, real = M.numel() // (n * n), M.real.dtype
    states = torch.empty(batch, _STATE + (2 if real == torch.float64 else 0), dtype=torch.int32, device=M.device)
    H, q = torch.empty_like(M), M.new_empty(batch, n)
    number = c_float if real == torch.float32 else c_double
    size, beta = c_int(n), number(_beta(n))
    look, prepare, finish = (_compiled(name, M.dtype, index) for name in ("look", "prepare", "finish"))
    look.launch(index, batch, _MANY_THREADS, *addresses(M, states, q, nonfinite), size, beta)
    blocks = -(-M.numel() // _THREADS)
    prepare.launch(index, blocks, _THREADS, *addresses(M, states, q, H), size, c_longlong(M.numel()))
    w, V, failed = solve(H)
    finish.launch(index, batch, _MANY_THREADS, *addresses(states, failed, w, H, failures), size, beta)
    return w, V


@lru_cache(maxsize=1024)
def _beta(n: int) -> float:
    """2 / |r|^2 for the numbers r of syev.cu."""

    def hashed(i: int) -> int:
        x = 2654435769 * (i + 1) % 2**32
        return (x ^ (x >> 15)) * 2246822519 % 2**32

    return 2 / sum((0.5 + (hashed(i) >> 16) / 65536) ** 2 for i in range(n))


@lru_cache(maxsize=64)
def _compiled(name: str, dtype: torch.dtype, device: int) -> nvrtc.Kernel:
    shared = _MANY_THREADS // 32 * torch.finfo(dtype).bits // 8 if name == "look" else 0  # a real number of each warp
    return nvrtc.Kernel("syev.cu", name, defines(name, dtype), shared, device)


def defines(name: str, dtype: torch.dtype) -> dict[str, str | int | float]:
    """The compile-time constants of syev.cu."""
    return {
        **nvrtc.numbers(dtype),
        "PARTS": 2 if dtype.is_complex else 1,
        "THREADS": _THREADS if name == "prepare" else _MANY_THREADS,
    }


def solve(H: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Eigenvalues (*B, n), ascending, eigenvectors (*B, n, n) and int32 (*B,), not 0 where a matrix did not converge.

    Args:
        H: (*B, n, n), on the current device, finite and Hermitian: its lower triangle is read. Contiguous; it is
            overwritten.
    """
    n = H.shape[-1]
    flat = H.view(-1, n, n)
    w = torch.empty(flat.shape[:-1], dtype=H.real.dtype, device=H.device)
    failed = torch.empty(len(flat), dtype=torch.int32, device=H.device)
    for part in range(0, len(flat), LARGEST_BATCH):
        _call(flat[part : part + LARGEST_BATCH], w[part : part + LARGEST_BATCH], failed[part : part + LARGEST_BATCH])
    # cuSOLVER counts columns first: it was given the conjugate of H, and its vectors lie in rows.
    return w.view(H.shape[:-1]), H.mH, failed.view(H.shape[:-2])


def _call(A: Tensor, w: Tensor, failed: Tensor) -> None:
    library, device, (batch, n, _) = _library(), A.device.index, A.shape
    assert library is not None
    handle, options = _handle(device)
    _require(library.cusolverDnSetStream(handle, raw_stream(device)))
    dtype, real = _TYPES[A.dtype]
    work = _workspace(A.dtype, n, batch, device)
    on_device = torch.empty(work.device, dtype=torch.uint8, device=A.device)
    on_host = ctypes.create_string_buffer(work.host) if work.host else None
    matrices = (_VECTORS, _LOWER, n, dtype, A.data_ptr(), n, real, w.data_ptr(), dtype)
    space = (on_device.data_ptr(), work.device, on_host, work.host)
    _require(library.cusolverDnXsyevBatched(handle, options, *matrices, *space, failed.data_ptr(), batch))


@lru_cache(maxsize=1024)
def _workspace(dtype: torch.dtype, n: int, batch: int, device: int) -> Workspace:
    library = _library()
    assert library is not None
    on_device, on_host = c_size_t(), c_size_t()
    kind, real = _TYPES[dtype]
    matrices = (_VECTORS, _LOWER, n, kind, None, n, real, None, kind)
    size = library.cusolverDnXsyevBatched_bufferSize
    _require(size(*_handle(device), *matrices, byref(on_device), byref(on_host), batch))
    return Workspace(on_device.value, on_host.value)


def _handle(device: int) -> tuple[c_void_p, c_void_p]:
    """This thread's cuSOLVER handle and its options for the current device; both live as long as the process."""
    found: dict[int, tuple[c_void_p, c_void_p]] = _handles.__dict__.setdefault("by_device", {})
    if device not in found:
        library = _library()
        assert library is not None
        handle, options = c_void_p(), c_void_p()
        _require(library.cusolverDnCreate(byref(handle)))
        _require(library.cusolverDnCreateParams(byref(options)))
        found[device] = handle, options
    return found[device]


def _require(code: int) -> None:
    if code:
        raise RuntimeError(f"cuSOLVER error {code} in XsyevBatched")
