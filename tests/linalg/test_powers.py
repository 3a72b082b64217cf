"""Divided differences of powers and logarithms to 100 eps, given the eigenvalues, over wide spectra; and overflow."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import mpmath
import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from spectralgrad.errors import NonFiniteError
from spectralgrad.linalg import elementary, scalars
from support import cases

LIMIT = 100  # times eps
CONDITION = {torch.float32: 6, torch.float64: 12}  # powers of ten
ALPHAS = [-3.0, -2.5, -2.0, -1.7, -1.0, -0.999999, -0.75, -0.5, -1 / 3, -0.25, -0.1, -1e-3]
ALPHAS += [0.0, 1e-3, 0.1, 0.25, 1 / 3, 0.5, 0.7, 0.999, 1.0, 1.001, 1.5, 2.0, 2.2, 3.0]
real = pytest.mark.parametrize("dtype", CONDITION, ids=cases.ident)

Number = mpmath.mpf
Scalar = Callable[[Number], Number]
mpmath.mp.dps = 60  # of 0.999 eps and a condition of 1e12 some 30 digits are lost


def spectrum(dtype: torch.dtype) -> Tensor:
    """Graded, with pairs near and very near each other; unequal to the last bit."""
    graded = torch.logspace(-CONDITION[dtype], 0, 7, dtype=torch.float64)
    close = torch.tensor([0.5, 0.49999, 1 - 1e-4, 1 - 4 * cases.eps(dtype), 3e-3, 3e-3 * (1 + 1e-6)], dtype=torch.float64)
    return torch.cat([graded, close]).to(dtype).unique()


def differences(f: Scalar, slope: Scalar, w: Tensor, floor: float | None = None) -> list[list[Number]]:
    """(f(c_i) - f(c_j)) / (w_i - w_j) of the function clamped at ``floor``, with derivative 0 below it."""
    x = [mpmath.mpf(v) for v in w.tolist()]
    low = -mpmath.inf if floor is None else mpmath.mpf(float(torch.tensor(floor, dtype=w.dtype)))
    c = [max(v, low) for v in x]

    def one(i: int, j: int) -> Number:
        if x[i] == x[j]:
            return slope(x[i]) if x[i] >= low else mpmath.mpf(0)
        return (f(c[i]) - f(c[j])) / (x[i] - x[j])

    return [[one(i, j) for j in range(len(x))] for i in range(len(x))]


def found(function: Callable[[Tensor], Tensor], w: Tensor) -> Tensor:
    """The Loewner matrix: of a diagonal matrix the eigenvectors are the axes, and the gradient of the sum is F itself."""
    M = torch.diag(w).requires_grad_()
    return torch.autograd.grad(function(M), M, torch.ones_like(M))[0]


def worst(got: Tensor, want: list[list[Number]]) -> float:
    """The largest relative error of an entry, in eps; infinite for NaN and for zero where it should not be."""
    eps, result = cases.eps(got.dtype), 0.0
    for i, row in enumerate(want):
        for j, r in enumerate(row):
            g = float(got[i, j])
            if g != g:
                return float("inf")
            error = abs(mpmath.mpf(g) - r)
            result = max(result, float(error / abs(r) / eps) if r else (float("inf") if g else 0.0))
    return result


def power_error(alpha: float, w: Tensor, floor: float | None = None) -> float:
    a = mpmath.mpf(alpha)
    want = differences(lambda x: x**a, lambda x: a * x ** (a - 1), w, floor)
    return worst(found(lambda M: sg.powm(M, alpha, floor=floor), w), want)


def log_error(w: Tensor, floor: float | None = None) -> float:
    return worst(found(lambda M: sg.logm(M, floor=floor), w), differences(mpmath.log, lambda x: 1 / x, w, floor))


def _old_power(self: elementary.Power, a: Tensor, b: Tensor) -> Tensor:
    a, b = torch.maximum(a, b), torch.minimum(a, b)
    positive = a > 0
    top = torch.where(positive, a, 1)
    t = -torch.log1p(-torch.where(positive, a - b, 0) / top)
    tie = t == 0
    ratio = torch.expm1(-self.alpha * t) / torch.expm1(-torch.where(tie, 1, t))
    return torch.where(positive, top.pow(self.alpha - 1) * torch.where(tie, self.alpha, ratio), float(self.alpha == 1))


def _old_log(self: elementary.Log, a: Tensor, b: Tensor) -> Tensor:
    a, b = torch.maximum(a, b), torch.minimum(a, b)
    r = (a - b) / b
    return torch.where(r == 0, 1, torch.log1p(r) / torch.where(r == 0, 1, r)) / b


@contextmanager
def old_formulas() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(elementary.Power, "difference", _old_power)
        patch.setattr(elementary.Log, "difference", _old_log)
        patch.setattr(elementary.Power, "at_scale_1", scalars.Scalar.at_scale_1)  # nor was anything scaled
        patch.setattr(elementary.Log, "at_scale_1", scalars.Scalar.at_scale_1)
        yield


@real
@pytest.mark.parametrize("alpha", ALPHAS)
def test_powers(alpha: float, dtype: torch.dtype) -> None:
    assert power_error(alpha, spectrum(dtype)) <= LIMIT


@pytest.mark.parametrize("scale", [1e231, 1e-200])
@pytest.mark.parametrize("alpha", [-1 / 6, -0.2, 0.7])
def test_powers_far_from_one_do_not_lose_digits_to_the_exponent(alpha: float, scale: float) -> None:
    assert power_error(alpha, torch.tensor([1.0, 3.0, 3e9], dtype=torch.float64) * scale) <= 10


@real
@pytest.mark.parametrize("alpha", [-3.0, -2.0, -1.0, -0.75, -1 / 3])
@pytest.mark.usefixtures("without_native")  # it has its own formulas
def test_powers_show_the_old_formula(alpha: float, dtype: torch.dtype) -> None:
    with old_formulas():
        assert power_error(alpha, spectrum(dtype)) > LIMIT


FLOORS = [  # the issue's, and some beside them
    ([0.0, 1.0, 400.0], 1e-5),
    ([0.01, 1e5], 1e-10),
    ([-2.0, -1e-3, 0.0, 1e-3, 1.0], 1e-3),
    ([0.0, 1e-8, 2e-3, 1.0, 1e3], 1e-6),
]


@real
@pytest.mark.parametrize("alpha", [-3.0, -2.0, -1.0, -0.5, -1 / 3, 0.3, 0.5, 1.0, 2.2])
@pytest.mark.parametrize(("w", "floor"), FLOORS, ids=str)
def test_powers_with_a_floor(w: list[float], floor: float, alpha: float, dtype: torch.dtype) -> None:
    # one clamped to c against l: f[c, l] (c - l)/(w - l), where c - l and w - l are rounded once each
    assert power_error(alpha, torch.tensor(w, dtype=dtype), floor) <= LIMIT


@pytest.mark.usefixtures("without_native")  # it has its own formulas
def test_floors_show_the_old_formula() -> None:
    with old_formulas():
        assert power_error(-1.0, torch.tensor([0.0, 1.0, 400.0]), 1e-5) * cases.eps(torch.float32) > 0.5
        assert power_error(-1.0, torch.tensor([0.01, 1e5]), 1e-10) * cases.eps(torch.float32) > 0.5


@real
@pytest.mark.usefixtures("without_native")  # it has its own formulas
def test_the_figures_of_the_issue(dtype: torch.dtype) -> None:
    """diag(400, 1, 0), diag(1e5, .01), condition 1e6 at -1 and -2; in float64 (1, 1e-15)."""
    assert power_error(-1.0, torch.tensor([1e-6, 1.0], dtype=dtype)) <= LIMIT
    assert power_error(-2.0, torch.tensor([1e-6, 1.0], dtype=dtype)) <= LIMIT
    if dtype == torch.float64:
        assert power_error(-1.0, torch.tensor([1e-15, 1.0], dtype=dtype)) <= LIMIT
        with old_formulas():
            assert power_error(-1.0, torch.tensor([1e-15, 1.0], dtype=dtype)) * cases.eps(dtype) > 1e-4


@real
def test_logarithms(dtype: torch.dtype) -> None:
    assert log_error(spectrum(dtype)) <= LIMIT


WIDE = {
    torch.float32: [([0.0, 1e20], 1e-5), ([0.0, 1e20], 1e-20), ([1e-9, 1.0, 1e20], 1e-12)],
    torch.float64: [([0.0, 1e150], 1e-5), ([0.0, 1e150], 1e-100)],
}


@real
def test_logarithms_of_wide_spectra(dtype: torch.dtype) -> None:
    for w, floor in WIDE[dtype]:
        assert log_error(torch.tensor(w, dtype=dtype), floor) <= LIMIT, (w, floor)
    with old_formulas():
        assert not found(lambda M: sg.logm(M, floor=1e-20), torch.tensor([0.0, 1e20])).isfinite().all()


WIDER = {torch.float32: ([0.0, 1e30], 1e-30), torch.float64: ([0.0, 1e250], 1e-250)}


@real
def test_logarithms_of_spectra_wider_than_the_range_of_numbers(dtype: torch.dtype) -> None:
    """log(a/b) of a quotient that overflows; F = 138 / 1e30."""
    w, floor = WIDER[dtype]
    assert log_error(torch.tensor(w, dtype=dtype), floor) <= LIMIT


ENDS = {torch.float32: (7.5e37, 1e-20), torch.float64: (4e307, 1e-170)}


@real
@pytest.mark.parametrize("alpha", [-1.0, -0.3, -1 / 8])
def test_powers_of_spectra_wider_than_the_range_of_numbers(alpha: float, dtype: torch.dtype) -> None:
    """F = (l^alpha - c^alpha) / l for one clamped to c, where l / c overflows; for -1 c^(alpha - 1) does so too."""
    top, floor = ENDS[dtype]
    F = found(lambda M: sg.powm(M, alpha, floor=floor), torch.tensor([0.0, top], dtype=dtype))
    assert F[0, 0] == 0
    assert abs(float(F[0, 1]) / ((top**alpha - floor**alpha) / top) - 1) <= LIMIT * cases.eps(dtype)


@real
def test_they_are_finite_at_least(dtype: torch.dtype) -> None:
    w, floor = WIDER[dtype]
    for function in (sg.logm, sg.inv_sqrtm, sg.sqrtm, lambda M, floor: sg.powm(M, -0.3, floor=floor)):
        assert found(lambda M, f=function: f(M, floor=floor), torch.tensor(w, dtype=dtype)).isfinite().all()


# A power that overflows.

HUGE = torch.diag(torch.tensor([1e20, 1.0, 2.0]))


@pytest.mark.parametrize(("alpha", "M"), [(2.0, HUGE), (-2.0, 1e-20 * torch.eye(2)), (3.0, 1e13 * torch.ones(2, 2))])
def test_a_power_that_overflows_says_so(alpha: float, M: Tensor) -> None:
    with pytest.raises(NonFiniteError, match=rf"`powm`: the power {alpha:g} of an eigenvalue overflows torch.float32"):
        sg.powm(M, alpha)
    assert sg.powm(M.double(), alpha).isfinite().all()


def test_where_nobody_looks_it_is_cut_to_the_largest_number() -> None:
    largest = torch.finfo(torch.float32).max
    with sg.checks(False):
        M = HUGE.clone().requires_grad_()
        Y = sg.powm(M, 2.0)
        (gradient,) = torch.autograd.grad(Y.sum(), M, create_graph=True)
        (again,) = torch.autograd.grad(gradient.sum(), M)
    mapped = torch.vmap(lambda M: sg.powm(M, 2.0))(HUGE[None])[0]
    by_func = torch.vmap(torch.func.grad(lambda M: sg.powm(M, 2.0).sum()))(HUGE[None])[0]
    for value in (Y, mapped):
        assert torch.equal(value.diagonal(), torch.tensor([largest, 1.0, 4.0]))
    for g in (gradient, by_func):
        torch.testing.assert_close(g[0, 0], torch.tensor(2e20))  # the gradient does not overflow and is right
        torch.testing.assert_close(g[1, 2], torch.tensor(3.0))
        assert g.isfinite().all()
    assert again.isfinite().all()


SEMI = {
    "sqrtm": sg.sqrtm,
    "sqrtm by a rule": partial(sg.sqrtm, gradient=sg.Lorentzian()),
    "powm": partial(sg.powm, alpha=1.5),
    "projector": partial(sg.projector, energy=0.99),
    "spd.distance": lambda M: sg.spd.distance(M, torch.eye(M.shape[-1], dtype=M.dtype), metric="bures"),
}


@pytest.mark.parametrize("name", SEMI)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=cases.ident)
def test_a_singular_covariance_rounded_to_half_precision_is_none_that_is_negative(name: str, dtype: torch.dtype) -> None:
    X = cases.random(5, 12, 4)
    exact = X @ X.mT / 4
    M = exact.to(dtype).requires_grad_()
    assert float(torch.linalg.eigvalsh(M.detach().float())[:, 0].max()) < -1e-5  # far below the rounding of float32
    value = SEMI[name](M)
    value.float().sum().backward()
    assert cases.relative_error(value.detach().float(), SEMI[name](exact)) < torch.finfo(dtype).eps ** 0.5
    assert M.grad is not None
    assert M.grad.isfinite().all()
    for largest in (1.0, -1.0):  # a fifth of the largest one is no rounding
        with pytest.raises(sg.errors.DefinitenessError, match="negative eigenvalue"):
            SEMI[name](torch.diag(torch.tensor([largest, -0.2, 0.5])).to(dtype))
    with pytest.raises(sg.errors.DefinitenessError, match="negative eigenvalue"):
        SEMI[name](M.detach().float())  # the same numbers, which say that they are exact
