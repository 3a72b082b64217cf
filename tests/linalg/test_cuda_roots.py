"""Roots by matrix products on a GPU: accuracy, no host wait, CUDA graphs, what does not converge."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from spectralgrad.nn import CovariancePool2d
from support import cases
from support.gpu import captured, error, no_host_wait
from support.roots import ROOTS, Root, each_root, value_and_gradient

pytestmark = [pytest.mark.cuda, pytest.mark.filterwarnings("default")]

Note = Callable[[str, object], None]
NEWTON = sg.NewtonSchulz()


def deficient(n: int) -> Tensor:
    return cases.rank_deficient(n) + 1e-5


MATRICES: dict[str, Callable[[int], Tensor]] = {
    "covariance": lambda n: cases.random_covariance(n, 2),
    "condition 1e5": lambda n: cases.with_spectrum(torch.logspace(-5, 0, n, dtype=torch.float64), 2),
    "rank n/2 + 1e-5": lambda n: cases.with_spectrum(deficient(n), 2),
}


def on_gpu(root: Root, M: Tensor) -> tuple[Tensor, Tensor]:
    """Value and gradient, with the weight that `value_and_gradient` draws on the CPU."""
    X = M.cuda().requires_grad_()
    Y = root(X, solver=NEWTON)
    weight = cases.random(*M.shape, seed=9).to(M.dtype).cuda()
    return Y.detach(), torch.autograd.grad((Y * weight).sum(), X)[0]


@each_root
@pytest.mark.parametrize("kind", MATRICES)
@pytest.mark.parametrize("n", [32, 64, 128, 196, 256])
def test_accuracy(root: Root, kind: str, n: int, record_property: Note) -> None:
    """Value and gradient in float32 against eigenvectors in float64 of the same matrices, by LAPACK."""
    M = MATRICES[kind](n).float()
    want = value_and_gradient(root, M.double(), solver=sg.Lapack())
    found = [error(a, b) for a, b in zip(on_gpu(root, M), want, strict=True)]
    record_property("value", found[0])
    record_property("gradient", found[1])
    assert max(found) <= 1e-5


@pytest.mark.parametrize("kind", MATRICES)
@pytest.mark.parametrize("n", [129, 512])
@pytest.mark.parametrize("p", [2, 4])
def test_inverse_roots_by_the_default_way(p: int, n: int, kind: str, record_property: Note) -> None:
    """`inv_root` goes by products here without being asked, and has the error that its docstring states."""
    M = MATRICES[kind](n).float()
    weight = cases.random(*M.shape, seed=9).float()

    def found(X: Tensor, **options: sg.Lapack) -> tuple[Tensor, Tensor]:
        X = X.requires_grad_()
        Y = sg.inv_root(X, p, **options)
        return Y.detach(), torch.autograd.grad((Y * weight.to(Y)).sum(), X)[0]

    want = found(M.double(), solver=sg.Lapack())
    value, gradient = (error(a, b) for a, b in zip(found(M.cuda()), want, strict=True))
    record_property("value", value)
    record_property("gradient", gradient)
    assert value < cases.eps(torch.float32)
    assert gradient < 4 * cases.eps(torch.float32)


def test_the_largest_inverse_root() -> None:
    """n = 4096, against eigenvectors in float64 on the same device."""
    w = torch.logspace(-5, 0, 4096, dtype=torch.float64)
    V = torch.linalg.qr(cases.random(4096, 4096).cuda())[0]
    M = ((V * w.cuda()) @ V.mT).float()
    M = (M + M.mT) / 2
    want = sg.inv_root(M.double(), 4, solver=sg.Lapack())
    assert error(sg.inv_root(M, 4), want) < cases.eps(torch.float32)


@pytest.mark.parametrize("condition", [1e6, 1e14])
def test_residual_of_the_square_root_in_float64(condition: float, record_property: Note) -> None:
    w = torch.logspace(-math.log10(condition), 0, 64, dtype=torch.float64)
    M = cases.with_spectrum(w, 2).cuda()
    Y = sg.sqrtm(M, solver=NEWTON)
    residual = float((torch.linalg.matrix_norm(Y @ Y - M) / torch.linalg.matrix_norm(M)).max())
    record_property("residual", residual)
    assert residual < 1e-13


CALLS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...] | None]] = {
    "sqrtm": (lambda M: ROOTS["sqrtm"](M, solver=NEWTON), None),
    "inv_sqrtm": (lambda M: ROOTS["inv_sqrtm"](M, solver=NEWTON), None),
    "inv_root(4)": (lambda M: sg.inv_root(M, 4), None),
    "polar": (lambda A: sg.polar(A, solver=NEWTON), None),
    "CovariancePool2d": (CovariancePool2d(64, reduced=None), (4, 64, 7, 7)),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_host_does_not_wait(name: str) -> None:
    f, shape = CALLS[name]
    given = cases.random_covariance(196, 4) if shape is None else cases.random(*shape)
    X = given.float().cuda().requires_grad_()
    f(X).sum().backward()  # warm up
    torch.cuda.synchronize()
    with no_host_wait():
        f(X).sum().backward()


def test_a_captured_root_is_the_eager_one() -> None:
    """Forward and backward, bit for bit."""
    M = cases.random_covariance(64, 4).float().cuda().requires_grad_()
    expected, written, replay = captured(lambda: torch.autograd.grad(sg.inv_sqrtm(M, solver=NEWTON).sum(), M)[0])
    replay()
    torch.cuda.synchronize()
    assert torch.equal(written, expected)


def test_a_negative_matrix_is_finite_and_counted() -> None:
    M = torch.stack([torch.eye(160), -torch.eye(160)])
    before = sg.counts().get("root_unconverged", 0)
    value, gradient = on_gpu(sg.inv_sqrtm, M)
    assert value.isfinite().all()
    assert gradient.isfinite().all()
    assert sg.counts().get("root_unconverged", 0) - before == 1
