"""Singular values and polar factors on a GPU: families, every way the sizes go, no host wait, graphs, NaN, the same bits."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from support import cases
from support.gpu import captured, error, no_host_wait
from support.triplets import SCALES, families, faults

pytestmark = pytest.mark.cuda
REALS = [torch.float32, torch.float64]
# In registers, Jacobi on the matrix, by a triangle of one piece and of several, W in global memory (128 in float64).
SIZES = [
    (1, 1),
    (3, 3),
    (2, 4),
    (5, 5),
    (13, 6),
    (6, 13),
    (32, 32),
    (33, 33),
    (64, 64),
    (900, 100),
    (7, 300),
    (1000, 3),
    (128, 128),
]
Function = Callable[[Tensor], Tensor]
POLAR: dict[str, Function] = {
    "polar": sg.polar,
    "procrustes": sg.procrustes,
    "rotation": lambda A: sg.procrustes(A, special=True),
}


def triplets(A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    U, S, Vh = sg.svd(A.cuda())
    return U, S, Vh


@pytest.mark.parametrize("dtype", REALS, ids=cases.ident)
@pytest.mark.parametrize(("m", "n"), SIZES)
def test_families(m: int, n: int, dtype: torch.dtype) -> None:
    names, A = families(m, n, dtype, SCALES)
    assert faults(names, A, *(x.cpu() for x in triplets(A))) == []


@pytest.mark.parametrize("dtype", REALS, ids=cases.ident)
def test_rows_in_global_memory(dtype: torch.dtype) -> None:
    A = cases.random(16, 200, 160, dtype=dtype)
    assert faults(["random"] * 16, A, *(x.cpu() for x in triplets(A))) == []


@pytest.mark.parametrize(("m", "n"), SIZES)
def test_the_same_bits_and_no_host_wait(m: int, n: int) -> None:
    A = cases.random(4, m, n, dtype=torch.float32).cuda()
    expected = sg.svd(A)
    with no_host_wait():
        found = sg.svd(A)
    for x, y in zip(found, expected, strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("n", [3, 16, 64])
def test_a_captured_svd_is_the_eager_one(n: int) -> None:
    A = cases.random(4, n, n, dtype=torch.float32).cuda()
    expected, written, replay = captured(lambda: sg.svd(A))
    replay()
    torch.cuda.synchronize()
    for x, y in zip(written, expected, strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("name", POLAR)
@pytest.mark.parametrize("n", [3, 24, 64, 70])
def test_polar_factors_and_their_gradients(n: int, name: str) -> None:
    """Against the CPU in float64; captured in a graph, forward and backward, where nothing waits."""
    A, weight, f = cases.random(5, n, n), cases.random(5, n, n, seed=1), POLAR[name]

    def gradient(X: Tensor) -> tuple[Tensor, Tensor]:
        X = X.clone().requires_grad_()
        Q = f(X)
        return Q.detach(), torch.autograd.grad((Q * weight.to(Q)).sum(), X)[0]

    expected = gradient(A)
    found = gradient(A.cuda())
    assert max(map(error, found, expected)) <= 1e-9
    if n == 3 or name != "rotation":  # torch's determinant of larger ones waits
        X = A.cuda().requires_grad_()
        G = weight.cuda()
        eager, written, replay = captured(lambda: torch.autograd.grad(f(X), X, G)[0])
        replay()
        torch.cuda.synchronize()
        assert torch.equal(written, eager)


@pytest.mark.parametrize("n", [3, 16, 40])
def test_nan_stays_in_its_matrix(n: int) -> None:
    A = cases.random(3, n, n, dtype=torch.float32).cuda()
    A[1, 0, 0] = torch.inf
    sg.reset_counts()
    U, S, Vh = sg.svd(A)
    for x in (U, S, Vh):
        assert bool(x[1].isnan().all())
        assert bool(x[[0, 2]].isfinite().all())
    assert sg.counts() == {"nonfinite_input": 1}
    with sg.checks(True), pytest.raises(sg.errors.NonFiniteError):
        sg.svd(A)


def test_small_singular_values_of_scaled_columns() -> None:
    """Each relative to itself; those of the float64 kernel are right to 1e-13."""
    B = cases.random_covariance(34) + torch.eye(34)
    A = (B * torch.exp2(torch.linspace(0, -80, 34, dtype=torch.float64).round()).flip(0)).float().cuda()
    exact, S = sg.svdvals(A.double()), sg.svdvals(A).double()
    assert float(((S - exact) / exact).abs().max()) < 1e-4


def test_more_numbers_than_32_bits_count() -> None:
    """Two matrices at the ends of a batch of 2^29 numbers and more, each at its own place."""
    A = torch.zeros(60_000_001, 3, 3, device="cuda")  # 2.2 GB
    A[-1] = torch.diag(torch.tensor([3.0, 2.0, 1.0]))
    assert sg.svdvals(A)[-1].tolist() == pytest.approx([3.0, 2.0, 1.0])
