"""Inverse roots M^(-1/p): both ways against sixty digits, the errors that the docstring states, which p go by products."""

import math
from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import spectralgrad as sg
from spectralgrad.errors import OptionError
from spectralgrad.linalg import choices
from spectralgrad.linalg.products import roots
from support import cases
from support.products import Products

NEWTON = sg.NewtonSchulz()
EXACT_DIGITS = 60


def decades(n: int, condition: float) -> Tensor:
    return torch.logspace(-math.log10(condition), 0, n, dtype=torch.float64)


def two_ties(n: int, condition: float) -> Tensor:
    w = torch.ones(n, dtype=torch.float64)
    w[: n // 2] = 1 / condition
    return w


def one_small(n: int, condition: float) -> Tensor:
    w = torch.linspace(0.5, 1, n, dtype=torch.float64)
    w[0] = 1 / condition
    return w


SPECTRA = [decades, two_ties, one_small]
# dtype, condition number, and the largest relative error of value and gradient by products
BY_PRODUCTS = [
    *(
        (torch.float32, condition, 1.0 * cases.eps(torch.float32), 4 * cases.eps(torch.float32))
        for condition in (1e2, 1e4, 1e6)
    ),
    *((torch.float64, k, k * cases.eps(torch.float64), 2 * k * cases.eps(torch.float64)) for k in (1e2, 1e6, 1e9, 1e12)),
]


def to_tensor(X: Any, n: int) -> Tensor:
    return torch.tensor([[float(X[i, j]) for j in range(n)] for i in range(n)], dtype=torch.float64)


def exact(M: Tensor, weight: Tensor, p: int) -> tuple[Tensor, Tensor]:
    """M^(-1/p) and the gradient of its product with ``weight``, from mpmath's eigenpairs and divided differences."""
    n, alpha = len(M), -mpmath.mpf(1) / p
    w, V = mpmath.eigsy(mpmath.matrix(M.double().tolist()))
    f = [x**alpha for x in w]
    inner = V.T * mpmath.matrix(((weight + weight.mT) / 2).double().tolist()) * V
    for i in range(n):
        for j in range(n):
            inner[i, j] *= alpha * f[i] / w[i] if w[i] == w[j] else (f[i] - f[j]) / (w[i] - w[j])
    return to_tensor(V * mpmath.diag(f) * V.T, n), to_tensor(V * inner * V.T, n)


def found(M: Tensor, weight: Tensor, p: int, solver: Any) -> tuple[Tensor, Tensor]:
    M = M.clone().requires_grad_()
    X = sg.inv_root(M, p, solver=solver)
    return X.detach(), torch.autograd.grad((X * weight).sum(), M)[0]


def errors_of(M: Tensor, p: int, solver: Any) -> list[float]:
    weight = cases.random(*M.shape, seed=9).to(M.dtype)
    with mpmath.workdps(EXACT_DIGITS):
        want = exact(M, weight, p)
    return [cases.relative_error(x, y) for x, y in zip(found(M, weight, p, solver), want, strict=True)]


@pytest.mark.covering(2)
@pytest.mark.parametrize("spectrum", SPECTRA, ids=lambda f: f.__name__)
@pytest.mark.parametrize(("dtype", "condition", "value", "gradient"), BY_PRODUCTS, ids=lambda x: cases.ident(x)[:8])
@pytest.mark.parametrize("p", [2, 4])
def test_errors_by_products(
    p: int, dtype: torch.dtype, condition: float, value: float, gradient: float, spectrum: Callable[[int, float], Tensor]
) -> None:
    """What the docstring of `inv_root` states."""
    M = cases.with_spectrum(spectrum(8, condition), dtype=dtype)
    got = errors_of(M, p, NEWTON)
    assert got[0] < value
    assert got[1] < gradient


@pytest.mark.parametrize(("dtype", "conditions"), [(torch.float32, (1e2, 1e4)), (torch.float64, (1e2, 1e6, 1e12))])
@pytest.mark.parametrize("p", [1, 2, 3, 4, 8])
def test_errors_by_eigenpairs(p: int, dtype: torch.dtype, conditions: tuple[float, ...]) -> None:
    for condition in conditions:
        value, gradient = errors_of(cases.with_spectrum(decades(8, condition), dtype=dtype), p, sg.Lapack())
        assert value < 4 * condition * cases.eps(dtype)
        assert gradient < 10 * condition * cases.eps(dtype)


def test_the_reference_can_tell() -> None:
    """Negative control: another root, and a gradient that is not Hermitian's."""
    M = cases.with_spectrum(decades(6, 10))
    weight = cases.random(6, 6, seed=9)
    with mpmath.workdps(EXACT_DIGITS):
        value, gradient = exact(M, weight, 4)
    other = found(M, weight, 3, sg.Lapack())
    assert cases.relative_error(other[0], value) > 0.05
    assert cases.relative_error(other[1], gradient) > 0.05


@pytest.mark.parametrize("dtype", cases.DTYPES, ids=cases.ident)
@pytest.mark.parametrize("p", [1, 2, 3, 4, 7])
def test_it_is_the_power_of_powm_and_inverts(p: int, dtype: torch.dtype) -> None:
    M = cases.with_spectrum(cases.repeated(5), 2, 3, dtype=dtype)
    X = sg.inv_root(M, p)
    assert X.dtype == dtype
    torch.testing.assert_close(X, sg.powm(M, -1 / p))
    identity = torch.eye(5, dtype=dtype).expand_as(M)
    torch.testing.assert_close(torch.linalg.matrix_power(X, p) @ M, identity, rtol=1e-4, atol=100 * cases.eps(dtype))


@pytest.mark.parametrize("scale", [*cases.SCALES, 1e-30, 1e30])
@pytest.mark.parametrize("solver", [sg.Auto(), NEWTON], ids=cases.ident)
def test_scale_does_not_matter(solver: Any, scale: float) -> None:
    M = cases.with_spectrum(cases.separated(5), dtype=torch.float32)
    for p in (2, 4):
        want = sg.inv_root(M.double() * scale, p, solver=sg.Lapack())
        assert cases.relative_error(sg.inv_root(M * scale, p, solver=solver), want) < 1e-5


DERIVATIVES = {"p = 2": (2, sg.Auto()), "p = 3": (3, sg.Auto()), "p = 4": (4, sg.Auto()), "products": (4, NEWTON)}


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=cases.ident)
@pytest.mark.parametrize("s", [[1.0, 2.0, 3.0], [1.0, 2.0, 2.0], [2.0, 2.0, 2.0], [1.0, 1.0 + 1e-9, 50.0]])
@pytest.mark.parametrize(("p", "solver"), DERIVATIVES.values(), ids=DERIVATIVES)
def test_derivatives(p: int, solver: Any, s: list[float], dtype: torch.dtype) -> None:
    M = cases.with_spectrum(torch.tensor(s, dtype=torch.float64), dtype=dtype).requires_grad_()

    def function(M: Tensor) -> Tensor:
        return sg.inv_root((M + M.mH) / 2, p, solver=solver)

    assert gradcheck(function, M, check_forward_ad=True)
    weight = cases.random(3, 3, dtype=dtype, seed=9)
    assert gradgradcheck(lambda M: (function(M) * weight).sum(), M, check_fwd_over_rev=not dtype.is_complex)


@pytest.mark.parametrize("p", [1, 3, 5, 8])
def test_other_roots_have_no_way_by_products(p: int) -> None:
    with pytest.raises(OptionError, match=r"^`inv_root`: NewtonSchulz computes square roots, .* take another solver"):
        sg.inv_root(torch.eye(2), p, solver=NEWTON)


@pytest.mark.usefixtures("without_native")
def test_the_door_sends_both_inverse_roots_by_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CUDA from n = 129 on; here the door is told so."""
    M = cases.with_spectrum(decades(8, 1e6), dtype=torch.float32)
    rough = {p: sg.inv_root(M, p) for p in (2, 3, 4)}
    monkeypatch.setattr(choices, "roots_by_products", lambda _: True)
    for p in (2, 4):
        torch.testing.assert_close(sg.inv_root(M, p), sg.inv_root(M, p, solver=NEWTON), rtol=0, atol=0)
        torch.testing.assert_close(sg.powm(M, -1 / p), sg.inv_root(M, p), rtol=0, atol=0)
        assert not torch.equal(sg.inv_root(M, p), rough[p])
        assert torch.equal(sg.inv_root(M, p, solver=sg.Lapack()), rough[p])
        assert torch.equal(sg.inv_root(M, p, floor=1e-12), sg.inv_root(M, p, floor=1e-12, solver=sg.Lapack()))
    assert torch.equal(sg.inv_root(M, 3), rough[3])


def test_floor_clamps() -> None:
    M = torch.diag(torch.tensor([16.0, 1e-9, 0.0])).requires_grad_()
    X = sg.inv_root(M, 4, floor=1e-4)
    torch.testing.assert_close(X.diagonal(), torch.tensor([0.5, 10.0, 10.0]))
    X.trace().backward()
    torch.testing.assert_close(M.grad, torch.diag(torch.tensor([-0.25 / 32, 0.0, 0.0])))


def test_steps_are_the_baseline_twice() -> None:
    M = cases.with_spectrum(decades(6, 1e3))
    want = sg.inv_root(M, 4)
    few, many = (cases.relative_error(sg.inv_root(M, 4, solver=sg.NewtonSchulz(steps=steps)), want) for steps in (5, 25))
    assert few > 0.05
    assert many < 1e-8
    twice = sg.sqrtm(sg.inv_sqrtm(M, solver=sg.NewtonSchulz(steps=5)), solver=sg.NewtonSchulz(steps=5))
    torch.testing.assert_close(sg.inv_root(M, 4, solver=sg.NewtonSchulz(steps=5)), twice)


def test_tol_sets_the_number_of_digits() -> None:
    M = cases.with_spectrum(decades(6, 30))
    want = sg.inv_root(M, 4, solver=sg.Lapack())
    loose, whole = (cases.relative_error(sg.inv_root(M, 4, solver=sg.NewtonSchulz(tol=tol)), want) for tol in (1e-2, None))
    assert 1e-2 > loose > 1e-9 > 1e-12 > whole


# As a GPU does it: a fixed schedule, no look at a value.


@pytest.mark.parametrize("condition", [1.0, 1e3, 1e6])
@pytest.mark.parametrize("n", [8, 64])
def test_a_fixed_schedule_is_as_good(condition: float, n: int, unwatched: None) -> None:
    M = cases.with_spectrum(decades(n, condition), 2, dtype=torch.float32)
    weight = cases.random(2, n, n, seed=9)
    with sg.checks(True):
        want = found(M.double(), weight, 4, sg.Lapack())
    got = found(M, weight.float(), 4, NEWTON)
    assert max(cases.relative_error(x, y) for x, y in zip(got, want, strict=True)) < 1e-6
    assert not sg.counts()


@pytest.mark.parametrize("spectrum", [decades, two_ties], ids=lambda f: f.__name__)
def test_large_matrices_are_reached_too(spectrum: Callable[[int, float], Tensor], unwatched: None) -> None:
    """Simple norms exceed the largest eigenvalue by n^(1/2): a fixed schedule would leave the smallest ones behind."""
    M = cases.with_spectrum(spectrum(400, 2e6), dtype=torch.float32)
    weight = cases.random(400, 400, seed=9)
    want, got = found(M.double(), weight, 2, sg.Lapack()), found(M, weight.float(), 2, NEWTON)
    assert cases.relative_error(got[0], want[0]) < cases.eps(torch.float32)
    assert cases.relative_error(got[1], want[1]) < 4 * cases.eps(torch.float32)


def test_without_float64_it_is_as_good_as_float32_eigenvectors(unwatched: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roots, "product_dtype", lambda x: x.dtype)
    M = cases.with_spectrum(decades(64, 1e4), dtype=torch.float32)
    want = sg.inv_root(M.double(), 4)
    by_products, by_eigenvectors = (
        cases.relative_error(sg.inv_root(M, 4, solver=solver), want) for solver in (NEWTON, sg.Lapack())
    )
    assert 2e-7 < by_products < by_eigenvectors


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=cases.ident)
@pytest.mark.parametrize("w", [[-1.0, 1, 1, 2], [0.0, 0, 0, 1], [0.0, 0, 0, 0], [-4.0, -3, -2, -1]])
def test_unconverged_is_finite_and_counted(w: list[float], dtype: torch.dtype, unwatched: None) -> None:
    good = cases.random_covariance(4)
    M = torch.stack([good, cases.with_spectrum(torch.tensor(w, dtype=torch.float64))]).to(dtype)
    for x in found(M, cases.random(2, 4, 4).to(dtype), 4, NEWTON):
        assert x.isfinite().all()
    assert 1 <= sg.counts()["root_unconverged"] <= 2  # by one of the two roots, or by both


@pytest.mark.parametrize(
    ("dtype", "forward", "backward"), [(torch.float32, 52, 58), (torch.float64, 104, 88)], ids=cases.ident
)
def test_number_of_products(dtype: torch.dtype, forward: int, backward: int, unwatched: None) -> None:
    """What docs/newton.md says of n = 256; a few more for larger ones."""
    M = cases.random_covariance(256, 1, dtype=dtype).requires_grad_()
    with Products() as products:
        X = sg.inv_root(M, 4, solver=NEWTON)
    assert products.shapes == {(256, 256, 256): forward}
    with Products() as products:
        X.sum().backward()
    assert products.shapes == {(256, 256, 256): backward}
