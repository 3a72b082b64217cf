"""Roots by matrix products on a GPU: accuracy, no host wait, CUDA graphs, what does not converge."""

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


CALLS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...] | None]] = {
    "sqrtm": (lambda M: ROOTS["sqrtm"](M, solver=NEWTON), None),
    "inv_sqrtm": (lambda M: ROOTS["inv_sqrtm"](M, solver=NEWTON), None),
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
