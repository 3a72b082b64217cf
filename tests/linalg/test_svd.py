"""The singular value decomposition: values as torch's, gradients right where they exist and bounded where not."""

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import spectralgrad as sg
from support import cases

SHAPES = [(3, 3), (4, 3), (3, 4), (2, 3, 3)]
DTYPES = [torch.float64, torch.complex128]
SPECTRA = {  # singular values, descending
    "equal": [1.0, 1.0, 1.0],
    "pair": [2.0, 1.0, 1.0],
    "near": [1.0, 1.0 - 1e-12, 0.5],
    "zero": [2.0, 1.0, 0.0],
    "two zeros": [2.0, 0.0, 0.0],
    "all zero": [0.0, 0.0, 0.0],
    "graded": [1.0, 1e-7, 1e-14],
}


def with_singular_values(
    s: list[float], m: int | None = None, n: int | None = None, dtype: torch.dtype = torch.float64
) -> Tensor:
    """A random matrix (m, n), square by default, with these singular values."""
    k = len(s)
    U, V = (cases.rotation(size or k, dtype=dtype, seed=i)[:, :k] for i, size in enumerate((m, n)))
    return (U * torch.tensor(s, dtype=torch.float64)) @ V.mH


def leading(U: Tensor, S: Tensor, Vh: Tensor) -> tuple[Tensor, Tensor]:
    """The projectors on two leading vectors: they depend on the space but not on the basis inside it."""
    U, Vh = U[..., :2], Vh[..., :2, :]
    return U @ U.mH, Vh.mH @ Vh


def joined(U: Tensor, S: Tensor, Vh: Tensor) -> Tensor:
    """U_2 V_2^H: the same, since inside a tie both sides rotate together."""
    return U[..., :2] @ Vh[..., :2, :]


def invariant(U: Tensor, S: Tensor, Vh: Tensor) -> tuple[Tensor, ...]:
    """Independent of signs and phases only."""
    return U.abs(), S, Vh.abs(), (U * S.cos().unsqueeze(-2)) @ Vh


def loss(out: tuple[Tensor, ...]) -> Tensor:
    """Every entry with a weight of its own."""
    total = torch.zeros(())
    for i, x in enumerate(out):
        weight = cases.random(*x.shape, dtype=torch.complex128 if x.is_complex() else torch.float64, seed=i + 5)
        total = total + (x * weight.to(x.dtype)).real.sum()
    return total


def gradient(A: Tensor, rule: sg.Rule | None, of: Callable[..., tuple[Tensor, ...]] = invariant) -> Tensor:
    A = A.detach().requires_grad_()
    return torch.autograd.grad(loss(of(*sg.svd(A, gradient=rule))), A)[0]


@pytest.mark.parametrize("solver", [sg.Auto(), sg.Lapack(), sg.SVD()], ids=cases.ident)
@pytest.mark.parametrize("dtype", cases.DTYPES, ids=cases.ident)
def test_values(dtype: torch.dtype, solver: sg.Solver) -> None:
    for shape in ((4, 4), (6, 3), (3, 6), (1, 5), (5, 1), (2, 3, 4, 5)):
        A = cases.random(*shape, dtype=dtype)
        U, S, Vh = sg.svd(A, solver=solver)
        want = torch.linalg.svd(A, full_matrices=False)
        assert [x.shape for x in (U, S, Vh)] == [x.shape for x in want]
        assert [x.dtype for x in (U, S, Vh)] == [x.dtype for x in want]
        torch.testing.assert_close(S, want.S)
        rounding = 100 * cases.eps(dtype)
        torch.testing.assert_close((U * S.unsqueeze(-2)) @ Vh, A, rtol=rounding, atol=rounding)
        identity = torch.eye(min(shape[-2:]), dtype=dtype).expand(*shape[:-2], -1, -1)
        torch.testing.assert_close(U.mH @ U, identity, rtol=rounding, atol=rounding)
        torch.testing.assert_close(Vh @ Vh.mH, identity, rtol=rounding, atol=rounding)


@pytest.mark.parametrize("rule", [sg.Exact(), sg.Lorentzian()], ids=cases.ident)
@pytest.mark.parametrize("dtype", DTYPES, ids=cases.ident)
def test_gradient_is_torch_s_where_values_are_separate(dtype: torch.dtype, rule: sg.Rule) -> None:
    for m, n in ((3, 3), (5, 3), (3, 5)):
        A = with_singular_values([3.0, 2.0, 0.7], m, n, dtype).requires_grad_()
        out = invariant(*torch.linalg.svd(A, full_matrices=False))
        (want,) = torch.autograd.grad(loss(out), A)
        assert cases.relative_error(gradient(A, rule), want) <= 1e-8
        assert cases.relative_error(gradient(A, sg.Taylor(2)), want) > 1e-3  # the control


@pytest.mark.covering(1)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=cases.ident)
def test_gradcheck(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    A = cases.random(*shape, dtype=dtype, seed=3).requires_grad_()

    def function(A: Tensor) -> Any:
        return invariant(*sg.svd(A, gradient=sg.Exact()))

    assert gradcheck(function, A, check_forward_ad=True, check_batched_grad=len(shape) == 2)


@pytest.mark.covering(1)
@pytest.mark.parametrize("shape", SHAPES[:3], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=cases.ident)
def test_second_derivatives(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    A = cases.random(*shape, dtype=dtype, seed=3).requires_grad_()

    def function(A: Tensor) -> Tensor:
        return loss(invariant(*sg.svd(A, gradient=sg.Exact())))

    assert gradgradcheck(function, A, check_fwd_over_rev=True, check_rev_over_rev=True)


TIES = {"above": [2.0, 2.0, 1.0], "below": [2.0, 1.5, 1.0, 1.0], "both": [2.0, 2.0, 1.0, 1.0], "null": [2.0, 2.0, 0.0, 0.0]}


@pytest.mark.covering(1)
@pytest.mark.parametrize("s", TIES.values(), ids=TIES)
@pytest.mark.parametrize("dtype", DTYPES, ids=cases.ident)
def test_exact_is_exact_at_ties(dtype: torch.dtype, s: list[float]) -> None:
    """For what does not depend on the basis inside a tie; finite differences see the same smooth function."""
    k = len(s)
    for m, n in ((k, k), (k + 1, k), (k, k + 1)):
        A = with_singular_values(s, m, n, dtype).requires_grad_()
        assert gradcheck(lambda A: leading(*sg.svd(A, gradient=sg.Exact())), A, check_forward_ad=True)


@pytest.mark.parametrize("s", TIES.values(), ids=TIES)
def test_exact_is_exact_where_both_sides_meet(s: list[float]) -> None:
    k = len(s)
    for m, n in ((k, k), (k + 1, k), (k, k + 1)):
        A = with_singular_values(s, m, n).requires_grad_()
        assert gradcheck(lambda A: joined(*sg.svd(A, gradient=sg.Exact())), A, check_forward_ad=True)


def product(U: Tensor, S: Tensor, Vh: Tensor) -> tuple[Tensor, ...]:
    return (U @ Vh,)


def all_is_seen(K: Tensor, X: Tensor, *others: Any) -> Tensor:
    return X


def error_of_polar_at_ties(rule: sg.Rule) -> float:
    """The largest error of the gradient of U V^H in float32, at ties to rounding of all, of half, or of two values."""
    errors = []
    for n in (3, 16, 64):
        spread = torch.linspace(2.0, 0.3, n).tolist()
        for s in ([1.0] * n, [2.0] * (n // 2 + 1) + spread[n // 2 + 1 :], [spread[1], *spread[1:]]):
            A = with_singular_values(s, n + 1, n).float()
            exact = A.double().requires_grad_()
            (want,) = torch.autograd.grad(loss((sg.polar(exact),)), exact)
            errors.append(cases.relative_error(gradient(A, rule, product).double(), want))
    return float(max(errors))


@pytest.mark.parametrize("rule", [sg.Lorentzian(), sg.Exact(), sg.Taylor(9)], ids=cases.ident)
def test_a_tie_does_not_divide_the_rounding_of_cotangents(rule: sg.Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    """What docs/svd.md says of `U @ Vh`."""
    assert error_of_polar_at_ties(rule) < 1e-5
    assert error_of_polar_at_ties(sg.Clip(100.0)) < 1e-4
    monkeypatch.setattr(importlib.import_module("spectralgrad.linalg.svd"), "without_rounding", all_is_seen)
    assert error_of_polar_at_ties(sg.Lorentzian()) > 1e-3  # the control


def test_exact_at_ties_in_closed_form() -> None:
    """With s = (a, a, b, b), dP = (P dM Q + Q dM P) / (a^2 - b^2) for P = U_2 U_2^T, Q = I - P and M = A A^T."""
    A = with_singular_values([2.0, 2.0, 1.0, 1.0])
    U, _, _ = torch.linalg.svd(A)
    P = U[:, :2] @ U[:, :2].mT
    Q = torch.eye(4, dtype=torch.float64) - P
    G = cases.random(4, 4)
    by_M = (P @ (G + G.mT) / 2 @ Q) / 3
    want = 2 * (by_M + by_M.mT) @ A

    def got(rule: sg.Rule) -> Tensor:
        leaf = A.clone().requires_grad_()
        return torch.autograd.grad((leading(*sg.svd(leaf, gradient=rule))[0] * G).sum(), leaf)[0]

    assert cases.relative_error(got(sg.Exact()), want) < 1e-13
    assert cases.relative_error(got(sg.Lorentzian()), want) < 1e-13
    assert cases.relative_error(got(sg.Taylor(2)), want) > 1e-3  # the controls
    leaf = torch.diag(torch.tensor([2.0, 2.0, 1.0, 1.0], dtype=torch.float64)).requires_grad_()  # ties to the last bit
    (infinite,) = torch.autograd.grad((leading(*sg.svd(leaf, gradient=sg.Analytic()))[0] * G).sum(), leaf)
    assert not infinite.isfinite().all()


@pytest.mark.covering(1)
@pytest.mark.parametrize("rule", [None, *cases.BOUNDED_RULES], ids=cases.ident)
@pytest.mark.parametrize("s", SPECTRA.values(), ids=SPECTRA)
def test_gradient_is_finite(s: list[float], rule: sg.Rule | None) -> None:
    for dtype in cases.DTYPES:
        for m, n in ((3, 3), (4, 3), (3, 4)):
            A = with_singular_values(s, m, n, dtype).to(dtype)
            for scale in cases.SCALES:
                assert gradient(scale * A, rule).isfinite().all(), (dtype, m, n, scale)


EXTREMES = [(torch.float32, 1e-30), (torch.float32, 1e30), (torch.float64, 1e-280), (torch.float64, 1e280)]


@pytest.mark.parametrize("rule", [None, *cases.BOUNDED_RULES], ids=cases.ident)
@pytest.mark.parametrize(("dtype", "scale"), EXTREMES, ids=cases.ident)
def test_gradient_is_finite_where_squares_overflow(dtype: torch.dtype, scale: float, rule: sg.Rule | None) -> None:
    """The bound of every rule, relative to the scale, still fits into the dtype here."""
    for name, s in SPECTRA.items():
        for m, n in ((3, 3), (4, 3)):
            A = scale * with_singular_values(s, m, n).to(dtype)
            assert gradient(A, rule).isfinite().all(), (name, m, n)


def test_the_analytic_gradient_is_not_finite() -> None:
    A = torch.eye(3, requires_grad=True)
    (got,) = torch.autograd.grad(loss(sg.svd(A, gradient=sg.Analytic())), A)
    assert not got.isfinite().all()


def test_every_rule_has_its_own_gradient() -> None:
    A = with_singular_values([1.0, 1.0 - 1e-8, 0.5], 4)
    rules = [*cases.BOUNDED_RULES, sg.Lorentzian(rtol=1e-3), sg.Taylor(3), sg.Clip(30.0)]
    gradients = [gradient(A, rule) for rule in rules]
    for i, one in enumerate(gradients):
        for other in gradients[:i]:
            assert cases.relative_error(one, other) > 1e-3
    assert torch.equal(gradient(A, None), gradient(A, sg.Lorentzian()))


def test_near_ties_are_bounded_by_the_rule() -> None:
    """|K| <= 1/(2 rtol): the gradient does not grow as the gap closes."""
    sizes = [
        gradient(with_singular_values([1.0, 1.0 - gap, 0.5]), sg.Lorentzian(1e-3)).norm() for gap in (1e-3, 1e-6, 1e-12)
    ]
    assert max(sizes) < 1e4
    analytic = gradient(with_singular_values([1.0, 1.0 - 1e-12, 0.5]), sg.Analytic()).norm()
    assert not analytic < 1e8


def test_a_threshold_is_relative_to_each_matrix_of_a_batch() -> None:
    A = cases.random(3, 4, 3) * torch.tensor([1.0, 30.0, 0.1], dtype=torch.float64)[:, None, None]

    def of(A: Tensor) -> Tensor:
        A = A.clone().requires_grad_()
        U, _, Vh = sg.svd(A, gradient=sg.Clip(2.0))
        return torch.autograd.grad(U[..., 0, :].abs().sum() + Vh[..., 0].abs().sum(), A)[0]

    torch.testing.assert_close(of(A), torch.stack([of(a) for a in A]), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(of(A[0]), 30 * of(30 * A[0]), rtol=1e-12, atol=1e-12)
