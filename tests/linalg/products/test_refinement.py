"""Square roots by products in float64: M - Y Y is rounding at every condition number, and only what gains is touched."""

import math

import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from spectralgrad.linalg.products import roots
from support import cases
from support.roots import value_and_gradient

NEWTON = sg.NewtonSchulz()
# condition number -> the residual that docs/newton.md promises; singular to rounding from 1e15 on
RESIDUALS = {1e6: 1e-13, 1e8: 1e-13, 1e10: 1e-13, 1e12: 1e-13, 1e14: 1e-13, 1e15: 1e-12, 1e16: 1e-12}
each_condition = pytest.mark.parametrize("condition", RESIDUALS)


def conditioned(condition: float, n: int, *batch: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    w = torch.logspace(-math.log10(condition), 0, n, dtype=torch.float64)
    return cases.with_spectrum(w, *batch, dtype=dtype, seed=seed)


def residual(M: Tensor, Y: Tensor) -> float:
    return float((torch.linalg.matrix_norm(Y @ Y - M) / torch.linalg.matrix_norm(M)).max())


def without(A: Tensor, Y: Tensor, Z: Tensor, lower: float) -> Tensor:
    return Y


@pytest.mark.covering(2)
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=cases.ident)
@pytest.mark.parametrize("n", [3, 8, 64])
@each_condition
def test_residual(condition: float, n: int, dtype: torch.dtype) -> None:
    for scale in cases.SCALES:
        M = scale * conditioned(condition, n, 2, dtype=dtype)
        assert residual(M, sg.sqrtm(M, solver=NEWTON)) < RESIDUALS[condition]


@each_condition
def test_residual_where_the_host_may_not_look(condition: float, unwatched: None) -> None:
    M = conditioned(condition, 32, 2)
    assert residual(M, sg.sqrtm(M, solver=NEWTON)) < RESIDUALS[condition]


def test_the_iteration_alone_leaves_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control, and why there is a correction: eps times the root of the condition number."""
    monkeypatch.setattr(roots, "refined", without)
    M = conditioned(1e14, 64)
    assert 1e-11 < residual(M, sg.sqrtm(M, solver=NEWTON)) < 1e-8


def test_only_what_gains_is_corrected(monkeypatch: pytest.MonkeyPatch) -> None:
    M = torch.stack([conditioned(2, 8), conditioned(1e14, 8), conditioned(1e3, 8)])
    Y = sg.sqrtm(M, solver=NEWTON)
    monkeypatch.setattr(roots, "refined", without)
    plain = sg.sqrtm(M, solver=NEWTON)
    assert [torch.equal(a, b) for a, b in zip(Y, plain, strict=True)] == [True, False, True]


def test_fewer_digits_on_request_are_not_corrected() -> None:
    M = conditioned(30, 6)
    assert residual(M, sg.sqrtm(M, solver=sg.NewtonSchulz(tol=1e-3))) > 1e-8


def test_what_has_no_root_is_left_alone(unwatched: None, monkeypatch: pytest.MonkeyPatch) -> None:
    M = torch.stack([cases.random_covariance(4), -torch.eye(4).double(), torch.diag(torch.tensor([1.0, 1, 1, -1])).double()])
    Y = sg.sqrtm(M, solver=NEWTON)
    assert Y.isfinite().all()
    monkeypatch.setattr(roots, "refined", without)
    torch.testing.assert_close(Y[1:], sg.sqrtm(M, solver=NEWTON)[1:], rtol=0, atol=0)


@pytest.mark.parametrize("n", [1, 3, 40])
def test_what_has_no_root_is_finite_where_nobody_checks(n: int) -> None:
    """Of -I the iterates cancel, and what they leave of the norm that bounds the equation is 0."""
    M = -torch.eye(n, dtype=torch.float64).requires_grad_()
    with sg.checks(False):
        Y = sg.sqrtm(M, solver=NEWTON)
        (g,) = torch.autograd.grad(Y.sum(), M)
    assert Y.isfinite().all()
    assert g.isfinite().all()


@pytest.mark.parametrize("condition", [1e4, 1e8])
def test_the_gradient_is_that_of_eigenvectors(condition: float) -> None:
    M = conditioned(condition, 16, 2)
    got, want = value_and_gradient(sg.sqrtm, M, solver=NEWTON), value_and_gradient(sg.sqrtm, M, solver=sg.Lapack())
    for x, y in zip(got, want, strict=True):
        assert cases.relative_error(x, y) < 10 * condition * cases.eps(torch.float64)
