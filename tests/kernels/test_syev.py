"""cuSOLVER's batched routine as we call it, on a stand-in for the library that runs on the CPU."""

import ctypes
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from spectralgrad import counters
from spectralgrad.kernels import syev
from spectralgrad.linalg.solvers import cusolver
from support import cases
from support.families import families, faults
from support.on_cpu import on_cpu  # noqa: F401

NUMBERS = {0: np.float32, 1: np.float64, 4: np.complex64, 5: np.complex128}  # by cudaDataType
DTYPES = [torch.float32, torch.float64, torch.complex64, torch.complex128]
HOST_BYTES, DEVICE_BYTES = 16, 64


class Library:
    """Takes what cuSOLVER takes, in its order, and decomposes by numpy: columns first, the lower triangle."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.streams: list[int] = []
        self.failing: Sequence[int] = ()

    def cusolverDnCreate(self, handle: object) -> int:
        return 0

    cusolverDnCreateParams = cusolverDnCreate

    def cusolverDnSetStream(self, handle: object, stream: int) -> int:
        self.streams.append(stream)
        return 0

    def cusolverDnXsyevBatched_bufferSize(self, *arguments: object) -> int:
        _, _, jobz, uplo, n, kind, A, lda, _, w, compute, device, host, batch = arguments
        assert (jobz, uplo, lda, compute, A, w) == (1, 0, n, kind, None, None)
        device._obj.value, host._obj.value = DEVICE_BYTES * batch, HOST_BYTES  # type: ignore[attr-defined, operator]
        return 0

    def cusolverDnXsyevBatched(self, *arguments: int) -> int:
        _, _, jobz, uplo, n, kind, A, lda, real, w, compute, _, bytes_, _, host_bytes, info, batch = arguments
        if batch > syev.LARGEST_BATCH:
            return 3
        assert (jobz, uplo, lda, compute) == (1, 0, n, kind)
        assert (bytes_, host_bytes) == (DEVICE_BYTES * batch, HOST_BYTES)
        self.batches.append(batch)
        memory = _array(A, NUMBERS[kind], (batch, n, n))
        lower = np.tril(memory.swapaxes(-1, -2))  # columns first
        H = lower + np.tril(lower, -1).swapaxes(-1, -2).conj()
        values, vectors = np.linalg.eigh(H)
        memory[:] = vectors.swapaxes(-1, -2)
        _array(w, NUMBERS[real], (batch, n))[:] = values
        _array(info, np.int32, (batch,))[:] = [i in self.failing for i in range(batch)]
        return 0


def _array(address: int, dtype: type, shape: tuple[int, ...]) -> np.ndarray:
    bytes_ = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * bytes_).from_address(address), dtype).reshape(shape)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch, on_cpu: None) -> Library:  # noqa: F811
    found = Library()
    monkeypatch.setattr(syev, "_library", lambda: found)
    monkeypatch.setattr(syev, "_handles", type(syev._handles)())
    monkeypatch.setattr(syev, "runs_on", lambda H: H.numel() > 0)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
    monkeypatch.setattr(syev, "raw_stream", lambda _: 7)
    syev._workspace.cache_clear()
    yield found  # type: ignore[misc]
    syev._workspace.cache_clear()


def hermitian(n: int, batch: int, dtype: torch.dtype) -> Tensor:
    X = cases.random(batch, n, n, dtype=dtype)
    return X @ X.mH / n


@pytest.mark.parametrize("dtype", DTYPES, ids=cases.ident)
@pytest.mark.parametrize("n", [1, 3, 8])
def test_eigenpairs(n: int, dtype: torch.dtype, library: Library) -> None:
    M = hermitian(n, 5, dtype)
    w, V, failed = syev.solve(M.clone())
    assert not failed.any()
    assert faults(["random"] * 5, M, w, V) == []
    assert library.streams == [7]


def test_a_large_batch_is_split(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syev, "LARGEST_BATCH", 4)
    M = hermitian(3, 10, torch.float64)
    w, V, _ = syev.solve(M.clone())
    assert library.batches == [4, 4, 2]
    assert faults(["random"] * 10, M, w, V) == []


def test_an_error_of_the_library_is_told(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "cusolverDnXsyevBatched", lambda *_: 3)
    with pytest.raises(RuntimeError, match="cuSOLVER error 3"):
        syev.solve(hermitian(3, 2, torch.float32))


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=cases.ident)
@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
def test_any_scale_and_layout(scale: float, dtype: torch.dtype, library: Library) -> None:
    names, M = families(6, dtype, ["plain"])
    for X in (M * scale, (M * scale).mT, (M * scale).flip(0)[::2]):
        w, V = cusolver.eigh_of_anything(X)
        assert faults(names[: len(X)], X.contiguous(), w, V) == []


def test_only_the_hermitian_part_counts_and_the_input_stays(library: Library) -> None:
    X = cases.random(2, 5, 5, dtype=torch.complex128)
    before = X.clone()
    w, V = cusolver.eigh_of_anything(X)
    assert torch.equal(X, before)
    assert faults(["random"] * 2, (X + X.mH) / 2, w, V) == []


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_broken_matrix_spoils_no_other(value: float, library: Library) -> None:
    M = hermitian(4, 3, torch.float32)
    good = cusolver.eigh_of_anything(M)
    M[1, 2, 0] = value
    counters.reset_counts()
    w, V = cusolver.eigh_of_anything(M)
    assert counters.counts() == {"nonfinite_input": 1}
    assert w[1].isnan().all()
    assert V[1].isnan().all()
    assert torch.equal(w[[0, 2]], good[0][[0, 2]])
    assert torch.equal(V[[0, 2]], good[1][[0, 2]])


def test_a_matrix_that_did_not_converge_is_nan_and_counted(library: Library) -> None:
    library.failing = (2,)
    counters.reset_counts()
    w, V = cusolver.eigh_of_anything(hermitian(4, 3, torch.complex64))
    assert counters.counts() == {"solver_failed": 1}
    assert w.isnan().any(-1).tolist() == [False, False, True]
    assert V.isnan().any(-1).any(-1).tolist() == [False, False, True]


@pytest.mark.parametrize("dtype", DTYPES, ids=cases.ident)
def test_the_routine_gets_matrices_without_structure(
    dtype: torch.dtype, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small entries and zeros leave cuSOLVER's vectors far from orthogonal; a reflection fills them."""
    seen: list[Tensor] = []
    call = syev.solve
    monkeypatch.setattr(syev, "solve", lambda H: seen.append(H.clone()) or call(H))  # type: ignore[func-returns-value]
    scale = torch.logspace(0, -15, 12, dtype=torch.float64)
    graded = (hermitian(12, 3, torch.complex128 if dtype.is_complex else torch.float64) * scale[:, None] * scale).to(dtype)
    for M in (graded, torch.diag(scale).to(dtype).expand(2, 12, 12), torch.ones(1, 12, 12, dtype=dtype)):
        w, V = cusolver.eigh_of_anything(M)
        assert faults(["structure"] * len(M), M, w, V) == []
        size = seen[-1].abs().amax((-2, -1))
        assert bool((seen[-1].abs().amin((-2, -1)) > 1e-4 * size).all())
        assert int(torch.linalg.matrix_rank(seen[-1][0].to(torch.complex128), rtol=1e-3 * cases.eps(seen[-1].dtype))) == 12
    w, V = cusolver.eigh_of_anything(torch.zeros(3, 5, 5, dtype=dtype))
    assert not w.any()
    assert faults(["zeros"] * 3, torch.zeros(3, 5, 5, dtype=dtype), w, V) == []


@pytest.mark.parametrize(("n", "dtype"), [(32, np.float64), (33, np.float32)])
def test_small_matrices_in_single_precision_are_solved_in_double(n: int, dtype: type, library: Library) -> None:
    seen: list[object] = []
    call = library.cusolverDnXsyevBatched
    library.cusolverDnXsyevBatched = lambda *a: seen.append(NUMBERS[a[5]]) or call(*a)  # type: ignore
    M = hermitian(n, 2, torch.float32)
    w, V = cusolver.eigh_of_anything(M)
    assert seen == [dtype]
    assert (w.dtype, V.dtype) == (torch.float32, torch.float32)
    assert faults(["random"] * 2, M, w, V) == []


def test_eigenvalues_beyond_single_precision_are_cut(library: Library) -> None:
    w, _ = cusolver.eigh_of_anything(torch.full((4, 4), 3e38))
    assert float(w[-1]) == torch.finfo(torch.float32).max
