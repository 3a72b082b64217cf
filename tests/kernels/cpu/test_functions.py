"""Native functions of eigenvalues and their derivatives against the plain-torch twin, mpmath and divided differences."""

from collections.abc import Callable
from dataclasses import replace

import mpmath
import pytest
import torch
from torch import Tensor

from spectralgrad.kernels.cpu import functions as native
from spectralgrad.kernels.spectral import GIVEN, ScalarFunction
from spectralgrad.linalg.elementary import Exp, InverseSqrt, Log, Power, Sqrt
from spectralgrad.linalg.precision import in_basis, sandwich
from spectralgrad.linalg.scalars import Scalar
from support import cases
from support.lanes import DTYPES, level, needs_native, same_bits  # noqa: F401

pytestmark = needs_native
SCALARS: list[Scalar] = [Sqrt(), InverseSqrt(), InverseSqrt(checked=True), Log(), Log(checked=True), Exp(), Power(alpha=0.3)]
SCALARS += [Power(alpha=a) for a in (0.0, 0.5, 1.0, 2.2, -1.7)] + [
    Power(alpha=0.3, checked=True),
    Power(alpha=-2, checked=True),
]
FLOOR = 1.2


def ident(x: object) -> str:
    return cases.ident(getattr(x, "__name__", x))


def columns(V: Tensor) -> Tensor:
    """The same matrices as LAPACK leaves them."""
    return V.mT.contiguous().mT


def twin(scalar: Scalar, w: Tensor, V: Tensor, G: Tensor) -> tuple[Tensor, Tensor]:
    w, V, G = w.double(), V.double(), G.double()
    return (V * scalar.f(scalar.clamp(w)[0]).unsqueeze(-2)) @ V.mT, sandwich(V, scalar.loewner(w) * in_basis(V, G))


def assert_same(scalar: Scalar, w: Tensor, V: Tensor, G: Tensor, tolerance: float) -> None:
    function = scalar.in_kernel()
    for place in (V, columns(V)):
        got = native.value(place, w, function, None, None)[0], native.derivative(place, w, function, None, G)
        for found, expected in zip(got, twin(scalar, w, V, G), strict=True):
            assert same_bits(found, found.mT)
            assert cases.relative_error(found, expected) < tolerance


@pytest.mark.parametrize("spectrum", cases.SPECTRA, ids=ident)
@pytest.mark.parametrize("scalar", SCALARS, ids=ident)
def test_against_the_twin(scalar: Scalar, spectrum: Callable[[Tensor], Tensor], level: str) -> None:  # noqa: F811
    if getattr(scalar, "checked", False) and spectrum is cases.rank_deficient:
        pytest.skip("checked means that there are no zeros")
    for n in (3, 4, 6):
        w = spectrum(n).repeat(19, 1)  # type: ignore[arg-type]
        assert_same(scalar, w, cases.rotation(n, 19), cases.random(19, n, n), 1e-12)


@pytest.mark.parametrize("scalar", SCALARS, ids=ident)
def test_floor(scalar: Scalar, level: str) -> None:  # noqa: F811
    """Some eigenvalues lie below the floor, some above, one on it; and the floor changes the result."""
    w = torch.tensor([[0.3, 0.9, FLOOR, 1.5, 1.5]], dtype=torch.float64)
    V, G = cases.rotation(5, 1), cases.random(1, 5, 5)
    floored = replace(scalar, floor=FLOOR)
    assert_same(floored, w, V, G, 1e-13)
    if getattr(scalar, "alpha", 1) != 0:
        assert cases.relative_error(twin(floored, w, V, G)[1], twin(scalar, w, V, G)[1]) > 1e-3


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 33, 64])
def test_sizes_and_places(n: int, level: str) -> None:  # noqa: F811
    """Whatever the lane and the batch, the same bits."""
    for dtype in DTYPES:
        w, V, G = (
            cases.separated(n).repeat(37, 1).to(dtype),
            cases.rotation(n, 37).to(dtype),
            cases.random(37, n, n).to(dtype),
        )
        tolerance = 1e-12 if dtype == torch.float64 else 1e-5
        for scalar in (Sqrt(), Log()):
            assert_same(scalar, w, V, G, tolerance)
            function = scalar.in_kernel()
            whole = native.value(V, w, function, None, None)[0], native.derivative(V, w, function, None, G)
            for some in ([3], [36, 1, 5], list(range(17, 36))):
                assert same_bits(native.value(V[some], w[some], function, None, None)[0], whole[0][some])
                assert same_bits(native.derivative(V[some], w[some], function, None, G[some]), whole[1][some])


@pytest.mark.parametrize("scalar", [s for s in SCALARS if not s.can_overflow or isinstance(s, Power)], ids=ident)
@pytest.mark.parametrize("scale", [1e-8, 1e8, 1e-30, 1e30])
def test_scales_in_single_precision(scalar: Scalar, scale: float, level: str) -> None:  # noqa: F811
    """Of the matrix: the derivative neither over- nor underflows before it must."""
    w = (torch.tensor([1.0, 1.0, 1.5, 4.0]).double() * scale).float().repeat(5, 1)
    V, G = cases.rotation(4, 5).float(), cases.random(5, 4, 4).float()
    _, expected = twin(scalar, w, V, G)
    got = native.derivative(V, w, scalar.in_kernel(), None, G)
    largest = torch.finfo(torch.float32).max
    assert bool(got.isfinite().all())
    inside = float(expected.abs().max()) < largest and float(expected.abs().min()) > 1e-36
    if inside:
        assert cases.relative_error(got, expected) < 3e-5
    else:
        assert float((got.double() - expected.clamp(-largest, largest)).abs().max()) <= 1e-3 * largest


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_large_and_small_gradients(scale: float, level: str) -> None:  # noqa: F811
    w, V, G = cases.separated(4).repeat(3, 1).float(), cases.rotation(4, 3).float(), cases.random(3, 4, 4).float()
    small = native.derivative(V, w, Sqrt().in_kernel(), None, G)
    assert torch.allclose(native.derivative(V, w, Sqrt().in_kernel(), None, G * scale) / scale, small, rtol=1e-5, atol=1e-7)


DIFFERENCES = {
    "SQRT": lambda x: mpmath.sqrt(x),
    "INVERSE_SQRT": lambda x: 1 / mpmath.sqrt(x),
    "LOG": lambda x: mpmath.log(x),
    "EXP": lambda x: mpmath.exp(x),
    "POWER": lambda x: x ** mpmath.mpf(-1.7),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=ident)
@pytest.mark.parametrize("kind", DIFFERENCES)
def test_divided_differences_are_right_to_the_last_digits(kind: str, dtype: torch.dtype, level: str) -> None:  # noqa: F811
    """With V = I and G of ones the derivative is the Loewner matrix itself: against 60 digits, near ties and far apart."""
    gaps = [0.0, 1e-15, 1e-12, 1e-8, 1e-5, 1e-3, 0.1, 0.3, 0.41, 0.42, 0.9, 1.0, 3.0, 20.0]
    w = torch.stack(
        [torch.tensor([x, x + x * gap], dtype=torch.float64) for gap in gaps for x in (0.7, 1.0, 3.1, 1.3e-5)]
    ).to(dtype)
    V = torch.eye(2, dtype=dtype).expand(len(w), 2, 2)
    got = native.derivative(V, w, ScalarFunction(kind, alpha=-1.7), None, torch.ones(len(w), 2, 2, dtype=dtype))
    f = DIFFERENCES[kind]
    with mpmath.workdps(60):
        for i, (a, b) in enumerate(w.tolist()):
            a, b = mpmath.mpf(a), mpmath.mpf(b)
            expected = (f(b) - f(a)) / (b - a) if a != b else mpmath.diff(f, a)
            assert abs(float((mpmath.mpf(float(got[i, 0, 1])) - expected) / expected)) < 12 * cases.eps(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=ident)
@pytest.mark.parametrize("kind", ["LOG", "EXP"])
def test_values_are_right_to_the_last_digits(kind: str, dtype: torch.dtype, level: str) -> None:  # noqa: F811
    exponents = torch.linspace(-80, 80, 301, dtype=torch.float64)
    w = (exponents if kind == "EXP" else torch.exp(exponents)).to(dtype)
    near = 1 + torch.tensor([0, 1e-7, -1e-7, 1e-3, -1e-3, 0.4, -0.3], dtype=torch.float64).to(dtype)
    w = torch.cat([w, near]).view(-1, 1)
    got = native.value(torch.ones(len(w), 1, 1, dtype=dtype), w, ScalarFunction(kind), None, None)[0].flatten().double()
    expected = (torch.exp if kind == "EXP" else torch.log)(w.double()).flatten()
    error = (got - expected).abs() / expected.abs().clamp(min=1e-300)
    assert float(torch.where(expected == 0, got.abs(), error).max()) < 3 * cases.eps(dtype)


@pytest.mark.parametrize("scalar", [Sqrt(), InverseSqrt(), Log(), Exp(), Power(alpha=-0.7)], ids=ident)
def test_against_divided_differences_of_the_matrix(scalar: Scalar, level: str) -> None:  # noqa: F811
    M, E = cases.random_covariance(5, 3) + torch.eye(5).double(), cases.random(3, 5, 5, seed=4)
    E, step = E + E.mT, 1e-5

    def f(X: Tensor) -> Tensor:
        w, V = torch.linalg.eigh(X)
        return native.value(V, w, scalar.in_kernel(), None, None)[0]

    w, V = torch.linalg.eigh(M)
    got = native.derivative(V, w, scalar.in_kernel(), None, E)
    assert cases.relative_error(got, (f(M + step * E) - f(M - step * E)) / (2 * step)) < 1e-7


def test_given_numbers(level: str) -> None:  # noqa: F811
    for n in (2, 3, 4, 9):
        w, V, G = cases.separated(n).repeat(5, 1), cases.rotation(n, 5), cases.random(5, n, n)
        y, F = torch.sin(w), cases.random(5, n, n, seed=2)
        F = F + F.mT
        assert cases.relative_error(native.value(V, w, GIVEN, y, None)[0], (V * y.unsqueeze(-2)) @ V.mT) < 1e-13
        assert cases.relative_error(native.derivative(V, w, GIVEN, F, G), sandwich(V, F * in_basis(V, G))) < 1e-13


def test_zeros_are_counted(level: str) -> None:  # noqa: F811
    w = torch.tensor([[-1e-20, 0.0, 1e-17, 1.0]], dtype=torch.float64).repeat(21, 1)
    counter = torch.full((), 5, dtype=torch.int64)
    native.value(cases.rotation(4, 21), w, Sqrt().in_kernel(), None, counter)[0]
    assert int(counter) == 5 + 3 * 21


def test_a_broken_matrix_leaves_the_others_alone(level: str) -> None:  # noqa: F811
    for n in (3, 4, 6):
        w, V, G = cases.separated(n).repeat(40, 1), cases.rotation(n, 40), cases.random(40, n, n)
        for scalar in (Sqrt(), Log(), Exp(), Power(alpha=0.3)):
            f = scalar.in_kernel()
            value, derivative = native.value(V, w, f, None, None)[0], native.derivative(V, w, f, None, G)
            bad_w, bad_G = w.clone(), G.clone()
            bad_w[3], bad_G[20, 0, 1] = torch.nan, torch.inf
            found, slope = native.value(V, bad_w, f, None, None)[0], native.derivative(V, bad_w, f, None, bad_G)
            well = torch.ones(40, dtype=torch.bool)
            well[[3, 20]] = False
            assert same_bits(found[well], value[well])
            assert same_bits(slope[well], derivative[well])
            assert bool(found[3].isnan().all())
            assert bool(slope[[3, 20]].isnan().all())
