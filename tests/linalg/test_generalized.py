"""The generalized eigenproblem: pairs as scipy's, gradients right at every gap and bounded at ties."""

from typing import Any

import pytest
import scipy.linalg
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import spectralgrad as sg
from spectralgrad.errors import DefinitenessError, DtypeError, NonFiniteError, OptionError, ShapeError, SymmetryError
from support import cases

DTYPES = [torch.float64, torch.complex128]


def pencil(w: Tensor, dtype: torch.dtype = torch.float64, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A, B with these generalized eigenvalues (n,): A = X w X^H, B = X X^H, X of condition 10 or so."""
    n = len(w)
    X = (
        cases.rotation(n, dtype=dtype, seed=seed)
        * torch.linspace(1, 3, n, dtype=torch.float64)
        @ cases.rotation(n, dtype=dtype, seed=seed + 1)
    )
    return (X * w) @ X.mH, X @ X.mH


def of_both(f: Any, rule: sg.Rule | None = None) -> Any:
    """A function of the Hermitian parts, so that finite differences may move any entry."""
    return lambda A, B: f(*sg.generalized_eigh((A + A.mH) / 2, (B + B.mH) / 2, gradient=rule))


def invariant(w: Tensor, V: Tensor) -> tuple[Tensor, ...]:
    """Independent of signs and phases."""
    return w, V.abs(), (V * w.cos().unsqueeze(-2)) @ V.mH


def leading(w: Tensor, V: Tensor) -> tuple[Tensor, ...]:
    """Independent of the basis inside a tie of the first two."""
    return w[..., :2].sum(), V[..., :2] @ V[..., :2].mH


@pytest.mark.parametrize("dtype", cases.DTYPES, ids=cases.ident)
@pytest.mark.parametrize("spectrum", cases.SPECTRA, ids=lambda f: f.__name__)
def test_values(spectrum: Any, dtype: torch.dtype) -> None:
    A, B = (x.to(dtype) for x in pencil(spectrum(6), torch.complex128 if dtype.is_complex else torch.float64))
    w, V = sg.generalized_eigh(A, B)
    rounding = 300 * cases.eps(dtype)
    assert (A @ V - (B @ V) * w).abs().max() <= rounding * A.abs().max()
    torch.testing.assert_close(V.mH @ B @ V, torch.eye(6, dtype=dtype), rtol=0, atol=rounding)
    want = torch.from_numpy(scipy.linalg.eigh(A.numpy(), B.numpy(), eigvals_only=True))
    torch.testing.assert_close(w, want, rtol=0, atol=rounding * float(want.abs().max()))


@pytest.mark.parametrize("dtype", DTYPES, ids=cases.ident)
def test_derivatives(dtype: torch.dtype) -> None:
    A, B = (x.requires_grad_() for x in pencil(torch.tensor([-1.0, 0.5, 2.0], dtype=torch.float64), dtype))
    f = of_both(invariant, sg.Exact())
    assert gradcheck(f, (A, B), check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(lambda A, B: sum(x.real.sin().sum() for x in f(A, B)), (A, B), check_fwd_over_rev=True)


@pytest.mark.parametrize("rule", [sg.Exact(), sg.Lorentzian()], ids=cases.ident)
def test_ties(rule: sg.Rule) -> None:
    A, B = (x.requires_grad_() for x in pencil(torch.tensor([1.0, 1.0, 2.0], dtype=torch.float64)))
    assert gradcheck(of_both(leading, rule), (A, B), check_forward_ad=True)


def test_a_tie_to_the_last_bit() -> None:
    A = torch.eye(3, dtype=torch.float64, requires_grad=True)
    B = (2 * torch.eye(3, dtype=torch.float64)).requires_grad_()

    def grads(rule: sg.Rule) -> list[Tensor]:
        return [*torch.autograd.grad(sum(x.sum() for x in sg.generalized_eigh(A, B, gradient=rule)), (A, B))]

    assert all(g.isfinite().all() for rule in cases.BOUNDED_RULES for g in grads(rule))
    assert not all(g.isfinite().all() for g in grads(sg.Analytic()))  # the control


def test_with_the_identity_it_is_eigh() -> None:
    A = cases.with_spectrum(cases.separated(4), 3).requires_grad_()
    B = torch.eye(4, dtype=torch.float64, requires_grad=True)
    weight = cases.random(3, 4, 4)
    w, V = sg.generalized_eigh(A, B)
    x, U = sg.eigh(A)
    torch.testing.assert_close(w, x)
    torch.testing.assert_close(V.abs(), U.abs())
    (got,) = torch.autograd.grad((V.abs() * weight).sum() + w.cos().sum(), A)
    (want,) = torch.autograd.grad((U.abs() * weight).sum() + x.cos().sum(), A)
    torch.testing.assert_close(got, want)


def test_every_rule_has_its_own_gradient() -> None:
    A, B = pencil(torch.tensor([1.0, 1.0 + 1e-8, 2.0], dtype=torch.float64))
    found = []
    for rule in [*cases.BOUNDED_RULES, sg.Lorentzian(rtol=1e-3), sg.Taylor(3), sg.Clip(30.0)]:
        leaf = A.clone().requires_grad_()
        found.append(torch.autograd.grad(sg.generalized_eigh(leaf, B, gradient=rule)[1].abs().sum(), leaf)[0])
        assert all(cases.relative_error(found[-1], other) > 1e-6 for other in found[:-1])


@pytest.mark.parametrize("solver", cases.SOLVERS, ids=cases.ident)
def test_solvers(solver: sg.Solver) -> None:
    A, B = pencil(cases.separated(5))
    torch.testing.assert_close(sg.generalized_eigh(A, B, solver=solver).eigenvalues, cases.separated(5))


@pytest.mark.parametrize("a", [1e-45, 1e-38, 1e-20, 1.0, 1e20, 3e38])
@pytest.mark.parametrize("b", [1e-45, 1e-38, 1e-20, 1e20, 3e38])
def test_any_scale(a: float, b: float) -> None:
    """Scaled back last: eigenvalues that overflow are the largest number, and no derivative is NaN."""
    M = cases.with_spectrum(torch.tensor([-1.0, -0.5, 0.25, 0.5], dtype=torch.float64), dtype=torch.float32)
    A, B = (a * M).requires_grad_(), (b * torch.eye(4)).requires_grad_()
    w, V = sg.generalized_eigh(A, B)
    exact = torch.linalg.eigvalsh(A.detach().double()) / torch.tensor(b).double()
    largest = torch.finfo(torch.float32).max
    want = exact.clamp(-largest, largest)
    smallest = 1e-45  # results below it round to it or to 0
    assert (w.double() - want).abs().max() <= 30 * cases.eps(torch.float32) * want.abs().max() + smallest
    grads = torch.autograd.grad((V * torch.arange(4.0)).sum() + w.sum() * 1e-3, (A, B), create_graph=True)
    again = torch.autograd.grad(sum((g * torch.arange(4.0)).sum() for g in grads), (A, B))
    assert all(x.isfinite().all() for x in (w, V, *grads, *again))


def test_shapes_dtypes_and_transforms() -> None:
    A = cases.with_spectrum(cases.separated(3), 2, 1)
    B = cases.with_spectrum(cases.separated(3), 4, seed=1)
    w, V = sg.generalized_eigh(A, B)
    assert w.shape == (2, 4, 3)
    assert V.shape == (2, 4, 3, 3)
    assert sg.generalized_eigh(A[:0], B[:1]).eigenvectors.shape == (0, 1, 3, 3)
    torch.testing.assert_close(sg.generalized_eigh(torch.ones(1, 1), 2 * torch.ones(1, 1)).eigenvalues, torch.tensor([0.5]))
    half = sg.generalized_eigh(A.bfloat16() * torch.eye(3).bfloat16(), torch.eye(3).bfloat16())
    assert half.eigenvalues.dtype == torch.bfloat16

    def f(A: Tensor, B: Tensor) -> Tensor:
        return invariant(*sg.generalized_eigh(A, B))[2]

    pairs = A.expand(2, 4, 3, 3).flatten(0, 1), B.expand(2, 4, 3, 3).flatten(0, 1)
    torch.testing.assert_close(torch.func.vmap(f)(*pairs), f(*pairs))
    torch.testing.assert_close(torch.func.vmap(f, in_dims=(0, None))(pairs[0], B[0]), f(pairs[0], B[0]))
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    X = pairs[0].clone().requires_grad_()
    (got,) = torch.autograd.grad(compiled(X, pairs[1]).sum(), X)
    torch.testing.assert_close(got, torch.func.grad(lambda A: f(A, pairs[1]).sum())(pairs[0]))


@pytest.mark.parametrize("name", ["A", "B"])
def test_the_error_is_about_the_matrix_that_was_given(name: str) -> None:
    fine, infinite = 2 * torch.eye(3), torch.diag(torch.tensor([1.0, torch.inf, 1.0]))
    lopsided = fine + torch.ones(3, 3).triu(1)

    def call(M: torch.Tensor) -> None:
        sg.generalized_eigh(**{"A": fine, "B": fine, name: M})

    with pytest.raises(SymmetryError, match=rf"`generalized_eigh`: `{name}` must be symmetric .* pass \({name} \+ {name}"):
        call(lopsided)
    with pytest.raises(NonFiniteError, match=rf"`{name}` must be finite, got 0 NaN and 1 Inf among 9 entries, .* \(1, 1\)"):
        call(infinite)
    with sg.checks(False):
        assert sg.generalized_eigh(lopsided, fine)[0].isfinite().all()
    with pytest.raises(DefinitenessError, match=r"from -2\.000e\+00 to -2\.000e\+00"):
        sg.generalized_eigh(fine, -fine)


def test_bad_input() -> None:
    eye = torch.eye(3)
    for B in (torch.zeros(3, 3), torch.diag(torch.tensor([1.0, 1.0, -1.0])), torch.diag(torch.tensor([1.0, 1.0, 1e-9]))):
        with pytest.raises(DefinitenessError, match="`generalized_eigh`: `B` must be positive definite"):
            sg.generalized_eigh(eye, B)
        with sg.checks(False):
            assert all(x.isfinite().all() for x in sg.generalized_eigh(eye, B))
    with pytest.raises(ShapeError, match="`generalized_eigh`: the batches of `A` and `B` must broadcast"):
        sg.generalized_eigh(torch.eye(3).expand(2, 3, 3), torch.eye(3).expand(5, 3, 3))
    with pytest.raises(ShapeError, match="one size"):
        sg.generalized_eigh(eye, torch.eye(2))
    with pytest.raises(DtypeError, match="one dtype"):
        sg.generalized_eigh(eye, eye.double())
    with pytest.raises(SymmetryError, match="`generalized_eigh`"):
        sg.generalized_eigh(eye, eye + torch.ones(3, 3).triu(1))
    with pytest.raises(NonFiniteError, match="`generalized_eigh`"):
        sg.generalized_eigh(eye * torch.nan, eye)
    with pytest.raises(OptionError, match="gradient"):
        sg.generalized_eigh(eye, eye, gradient=sg.PowerIteration(3))  # type: ignore[arg-type]
