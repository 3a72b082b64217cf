"""The polar factor: values against SVD and scipy, gradients exact at every tie, by SVD and by matrix products."""

from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import spectralgrad as sg
from support import cases
from support.marks import slow_but

SOLVERS = [sg.Auto(), sg.NewtonSchulz()]
SHAPES = {"square": (3, 3), "tall": (4, 3), "wide": (3, 4)}
DTYPES = [torch.float64, torch.complex128]
SPECTRA = {"separate": [3.0, 2.0, 0.7], "pair": [2.0, 2.0, 1.0], "equal": [1.0, 1.0, 1.0]}


def solver_id(solver: object) -> str:
    return type(solver).__name__


def with_singular_values(s: list[float], shape: tuple[int, int], dtype: torch.dtype = torch.float64) -> Tensor:
    U, V = (cases.rotation(n, dtype=dtype, seed=i)[:, : len(s)] for i, n in enumerate(shape))
    return (U * torch.tensor(s, dtype=torch.float64)) @ V.mH


def gradient(A: Tensor, **options: Any) -> Tensor:
    A = A.detach().requires_grad_()
    Q = sg.polar(A, **options)
    weight = cases.random(*Q.shape, dtype=torch.complex128 if Q.is_complex() else torch.float64, seed=9).to(Q.dtype)
    return torch.autograd.grad((Q * weight).real.sum(), A)[0]


@pytest.mark.parametrize("solver", [*SOLVERS, sg.Lapack(), sg.SVD()], ids=solver_id)
@pytest.mark.parametrize("dtype", cases.DTYPES, ids=cases.ident)
def test_values(dtype: torch.dtype, solver: Any) -> None:
    for shape in ((4, 4), (6, 3), (3, 6), (1, 1), (1, 4), (2, 3, 5, 4)):
        A = cases.random(*shape, dtype=dtype, seed=1)
        Q = sg.polar(A, solver=solver)
        assert Q.dtype == dtype
        U, _, Vh = torch.linalg.svd(A, full_matrices=False)
        rounding = 1000 * cases.eps(dtype)
        torch.testing.assert_close(Q, U @ Vh, rtol=rounding, atol=rounding)
        if len(shape) == 2 and shape[0] >= shape[1]:
            want, _ = scipy.linalg.polar(A.numpy())
            np.testing.assert_allclose(Q.numpy(), want, rtol=rounding, atol=rounding)


def test_it_is_the_nearest_orthonormal_matrix() -> None:
    A = cases.random(4, 3)
    nearest = torch.linalg.norm(A - sg.polar(A))
    for seed in range(20):
        other = torch.linalg.qr(sg.polar(A) + 0.1 * cases.random(4, 3, seed=seed)).Q
        other = other * (other * sg.polar(A)).sum(0).sign()  # the signs that QR leaves open
        assert torch.linalg.norm(A - other) > nearest


@pytest.mark.covering(2)
@pytest.mark.parametrize("solver", SOLVERS, ids=solver_id)
@pytest.mark.parametrize("s", SPECTRA.values(), ids=SPECTRA)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("dtype", DTYPES, ids=cases.ident)
def test_gradcheck(dtype: torch.dtype, shape: tuple[int, int], s: list[float], solver: Any) -> None:
    A = with_singular_values(s, shape, dtype).requires_grad_()
    assert gradcheck(lambda A: sg.polar(A, solver=solver), A, check_forward_ad=True)


@pytest.mark.covering(1)
@pytest.mark.parametrize(
    ("dtype", "solver"),
    [(torch.float64, sg.Auto()), (torch.complex128, sg.Auto()), (torch.float64, sg.NewtonSchulz())],
    ids=["real", "complex", "NewtonSchulz"],
)
@pytest.mark.parametrize("s", slow_but(["pair"], {"separate": [3.0, 2.0, 0.7], "pair": [2.0, 2.0, 1.0]}))
@pytest.mark.parametrize("shape", [(3, 3), (3, 2), (2, 3)], ids=SHAPES)
def test_second_derivatives(shape: tuple[int, int], s: list[float], dtype: torch.dtype, solver: Any) -> None:
    A = with_singular_values(s[: min(shape)], shape, dtype).requires_grad_()
    weight = cases.random(*shape, dtype=dtype, seed=9)

    def function(A: Tensor) -> Tensor:
        return (sg.polar(A, solver=solver) * weight).sum()

    assert gradgradcheck(function, A, check_fwd_over_rev=True, check_rev_over_rev=True)


def test_other_rules_go_through_the_singular_vectors() -> None:
    separate = with_singular_values(SPECTRA["separate"], (4, 3))
    tied = with_singular_values([2.0, 2.0 - 1e-13, 1.0], (4, 3))
    assert torch.equal(gradient(separate, gradient=sg.Exact()), gradient(separate))
    assert cases.relative_error(gradient(separate, gradient=sg.Lorentzian()), gradient(separate)) < 1e-12
    for rule in (sg.Clip(0.1), sg.Lorentzian(rtol=1.0)):  # gaps cancel in U V^H, and what is left takes no rule
        assert cases.relative_error(gradient(separate, gradient=rule), gradient(separate)) < 1e-12
    for rule in (sg.Lorentzian(), sg.Exact()):
        assert cases.relative_error(gradient(tied, gradient=rule), gradient(tied)) < 1e-7
    equal = torch.eye(4, 3, dtype=torch.float64)
    for A in (equal, equal.mT):
        assert not gradient(A, gradient=sg.Analytic()).isfinite().all()  # the control: it does go through the vectors


@pytest.mark.parametrize("gap", [1e-2, 1e-7, 1e-13])
def test_near_ties_cost_no_digits(gap: float) -> None:
    """The closed form at the tie itself: Q W with W_ij = (P - P^T)_ij / (s_i + s_j) in the singular basis."""
    s = [2.0, 2.0 - gap, 1.0]
    A = with_singular_values(s, (3, 3))
    U, V = (cases.rotation(3, seed=i) for i in range(2))
    weight = cases.random(3, 3, seed=9)
    P = U.mT @ weight @ V
    total = torch.tensor(s, dtype=torch.float64)[:, None] + torch.tensor(s, dtype=torch.float64)
    want = U @ ((P - P.mT) / total) @ V.mT
    assert cases.relative_error(gradient(A), want) < 1e-13
    assert cases.relative_error(gradient(A, solver=sg.NewtonSchulz()), want) < 1e-12
    assert cases.relative_error(gradient(A.float()), want) < 1e-5


DEFICIENT = {"one zero": [2.0, 1.0, 0.0], "two zeros": [2.0, 0.0, 0.0], "zero matrix": [0.0, 0.0, 0.0]}


@pytest.mark.parametrize("s", DEFICIENT.values(), ids=DEFICIENT)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("dtype", cases.DTYPES, ids=cases.ident)
def test_rank_deficient_stays_finite(dtype: torch.dtype, shape: tuple[int, int], s: list[float]) -> None:
    for scale in cases.SCALES:
        A = (scale * with_singular_values(s, shape, dtype)).to(dtype).requires_grad_()
        Q = sg.polar(A)
        gram = Q.mH @ Q if shape[0] >= shape[1] else Q @ Q.mH
        torch.testing.assert_close(gram, torch.eye(3, dtype=dtype), rtol=1e-4, atol=1e-5)
        (first,) = torch.autograd.grad((Q * cases.random(*shape, dtype=dtype)).real.sum(), A, create_graph=True)
        (second,) = torch.autograd.grad((first * first.conj()).real.sum(), A)
        assert first.isfinite().all()
        assert second.isfinite().all()


@pytest.mark.parametrize("d", [4, 16, 64])
def test_newton_schulz_agrees_with_the_svd(d: int) -> None:
    for dtype, limit in ((torch.float32, 1e-5), (torch.float64, 1e-10)):
        A = cases.random(2, d, d // 2).to(dtype)
        assert cases.relative_error(sg.polar(A, solver=sg.NewtonSchulz()), sg.polar(A.double())) <= limit
        assert cases.relative_error(gradient(A, solver=sg.NewtonSchulz()), gradient(A.double())) <= limit


def test_newton_schulz_options() -> None:
    A = with_singular_values([1.0, 0.5, 0.02], (4, 3))

    def error(solver: sg.NewtonSchulz) -> float:
        return cases.relative_error(sg.polar(A, solver=solver), sg.polar(A))

    loose, tight, whole = (error(sg.NewtonSchulz(tol=tol)) for tol in (1e-2, 1e-5, None))
    assert loose > 100 * tight > 100 * whole
    assert whole < 1e-13
    assert error(sg.NewtonSchulz(steps=5)) > 0.1 > 1e-6 > error(sg.NewtonSchulz(steps=20))


def test_a_loose_tolerance_is_no_error() -> None:
    """The residual that ``tol`` speaks of is relative to sqrt(n); so is what counts as not converged."""
    A = cases.random(64, 32)
    assert cases.relative_error(sg.polar(A, solver=sg.NewtonSchulz(tol=0.08)), sg.polar(A)) < 0.1


def test_a_wide_matrix_takes_the_solver() -> None:
    A = cases.random(3, 5)
    for solver in (sg.NewtonSchulz(steps=3), sg.NewtonSchulz(tol=0.1)):
        Q = sg.polar(A, solver=solver)
        assert torch.equal(Q, sg.polar(A.mT, solver=solver).mT)
        assert cases.relative_error(Q, sg.polar(A)) > 1e-4


def test_steps_are_differentiated_through() -> None:
    A = cases.random(4, 3).requires_grad_()
    assert gradcheck(lambda A: sg.polar(A, solver=sg.NewtonSchulz(steps=3)), A, check_forward_ad=True)
    assert gradcheck(lambda A: sg.polar(A.mT, solver=sg.NewtonSchulz(steps=3)), A)
    few = gradient(A, solver=sg.NewtonSchulz(steps=3))
    assert cases.relative_error(few, gradient(A)) > 0.1  # and so differ from the limit's gradient
