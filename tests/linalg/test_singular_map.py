"""Functions of singular values against spectral functions of the dilation [[0, A], [A^H, 0]], at ties and at zero."""

from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.autograd.gradcheck import GradcheckError

import spectralgrad as sg
from support import cases
from support.marks import slow_but

SHAPES = {"square": (3, 3), "tall": (4, 3), "wide": (3, 5)}
DTYPES = [torch.float64, torch.complex128]
SPECTRA = {
    "separate": [3.0, 2.0, 0.7],
    "pair": [2.0, 1.0, 1.0],
    "equal": [1.0, 1.0, 1.0],
    "near": [1.0, 1.0 - 1e-12, 0.5],
    "zero": [2.0, 1.0, 0.0],
    "two zeros": [2.0, 0.0, 0.0],
    "nearly zero": [1.0, 1e-9, 1e-13],
    "all zero": [0.0, 0.0, 0.0],
}
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "cubic": lambda x: x**3 - x,
    "steep": lambda x: x / (x * x + 1e-4).sqrt(),
    "fast": lambda x: torch.sin(40 * x),
}


def with_singular_values(s: list[float], shape: tuple[int, int], dtype: torch.dtype = torch.float64) -> Tensor:
    U, V = (cases.rotation(n, dtype=dtype, seed=i)[:, : len(s)] for i, n in enumerate(shape))
    return (U * torch.tensor(s, dtype=torch.float64)) @ V.mH


def by_dilation(A: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
    """The off-diagonal block of f([[0, A], [A^H, 0]])."""
    m, n = A.shape[-2:]
    left, right = A.new_zeros(*A.shape[:-2], m, m), A.new_zeros(*A.shape[:-2], n, n)
    J = torch.cat([torch.cat([left, A], -1), torch.cat([A.mH, right], -1)], -2)
    return sg.spectral_map(J, f)[..., :m, m:]


def two_gradients(function: Callable[[Tensor], Tensor], A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    A = A.detach().requires_grad_()
    Y = function(A)
    wide = torch.complex128 if A.is_complex() else torch.float64
    weights = (cases.random(*A.shape, dtype=wide, seed=i).to(A.dtype) for i in (8, 9))
    (first,) = torch.autograd.grad((Y * next(weights)).real.sum(), A, create_graph=True)
    (second,) = torch.autograd.grad((first * next(weights)).real.sum(), A)
    return Y.detach(), first.detach(), second


@pytest.mark.covering(2)
@pytest.mark.parametrize("f", FUNCTIONS.values(), ids=FUNCTIONS)
@pytest.mark.parametrize("s", SPECTRA.values(), ids=SPECTRA)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("dtype", DTYPES, ids=cases.ident)
def test_as_the_dilation(dtype: torch.dtype, shape: tuple[int, int], s: list[float], f: Any) -> None:
    A = with_singular_values(s, shape, dtype)
    got, want = two_gradients(lambda A: sg.singular_map(A, f), A), two_gradients(lambda A: by_dilation(A, f), A)
    for x, y, limit in zip(got, want, (1e-13, 1e-11, 1e-9), strict=True):
        assert float((x - y).abs().max()) <= limit * (1 + float(y.abs().max()))


@pytest.mark.covering(1)
@pytest.mark.parametrize("s", SPECTRA.values(), ids=SPECTRA)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("dtype", DTYPES, ids=cases.ident)
def test_gradcheck(dtype: torch.dtype, shape: tuple[int, int], s: list[float]) -> None:
    A = with_singular_values(s, shape, dtype).requires_grad_()
    assert gradcheck(lambda A: sg.singular_map(A, torch.tanh), A, check_forward_ad=True, check_batched_grad=True)


@pytest.mark.covering(1)
@pytest.mark.parametrize("s", [[2.0, 1.0], [1.0, 1.0], [1.0, 0.0], [0.0, 0.0]], ids=str)
@pytest.mark.parametrize("shape", [(2, 2), (3, 2), (2, 3)], ids=SHAPES)
@pytest.mark.parametrize("dtype", DTYPES, ids=cases.ident)
def test_second_derivatives(dtype: torch.dtype, shape: tuple[int, int], s: list[float]) -> None:
    A, weight = with_singular_values(s, shape, dtype).requires_grad_(), cases.random(*shape, dtype=dtype, seed=9)
    assert gradgradcheck(lambda A: (weight * sg.singular_map(A, torch.tanh)).sum(), A, check_fwd_over_rev=True)


@pytest.mark.parametrize("s", slow_but(["tie"], {"apart": [2.0, 1.0], "tie": [1.0, 1.0], "zero": [1.0, 0.0]}))
@pytest.mark.parametrize("shape", slow_but(["tall"], {"square": (2, 2), "tall": (3, 2)}))
@pytest.mark.parametrize("dtype", DTYPES, ids=cases.ident)
def test_tensors_that_f_closes_over(dtype: torch.dtype, shape: tuple[int, int], s: list[float]) -> None:
    A = with_singular_values(s, shape, dtype).requires_grad_()
    p = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)

    def function(A: Tensor, p: Tensor) -> Tensor:
        return sg.singular_map(A, lambda x: torch.tanh(p * x) + p * p * x**3)

    assert gradcheck(function, (A, p), check_forward_ad=True, check_batched_grad=True)
    weight = cases.random(*shape, dtype=dtype, seed=9)
    weighed = lambda A, p: (weight * function(A, p)).real.sum()  # noqa: E731
    assert gradgradcheck(weighed, (A, p), check_fwd_over_rev=True, check_rev_over_rev=True)


@pytest.mark.parametrize("shape", [(4, 2), (2, 4)], ids=str)
def test_the_solver_is_the_one_asked_for(shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.Size] = []
    monkeypatch.setattr(sg.SVD, "triplets", lambda _, A: asked.append(A.shape))
    A = cases.random(*shape)
    torch.testing.assert_close(sg.singular_map(A, torch.tanh, solver=sg.SVD()), sg.singular_map(A, torch.tanh))
    assert asked == [(4, 2)]


def test_negative_control() -> None:
    """Through singular vectors the derivative inside a tie is lost: the check sees it."""
    A = with_singular_values(SPECTRA["equal"], (3, 3)).requires_grad_()

    def through_vectors(A: Tensor) -> Tensor:
        U, S, Vh = sg.svd(A, gradient=sg.Exact())
        return (U * S.tanh().unsqueeze(-2)) @ Vh

    with pytest.raises(GradcheckError):
        gradcheck(through_vectors, A)
    assert gradcheck(lambda A: sg.singular_map(A, torch.tanh), A)


@pytest.mark.parametrize("gap", [0.0, 1e-15, 1e-9, 1e-5, 1e-3, 3e-2, 0.3])
@pytest.mark.parametrize("base", [1.0, 1e-6, 1e-12])
@pytest.mark.parametrize("rate", [1.0, 1000.0])
def test_differences_against_60_digits(rate: float, base: float, gap: float) -> None:
    """diag(a, b) with a symmetric and a skew direction: f[a, b] and f[a, -b]; f[a, 0] from a third row."""
    a, b = base, base * (1 - gap)
    A = torch.tensor([[a, 0.0], [0.0, b], [0.0, 0.0]], dtype=torch.float64)
    E = torch.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    W = torch.tensor([[0.0, 1.0], [-1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)

    def function(A: Tensor) -> Tensor:
        return sg.singular_map(A, lambda x: torch.sin(rate * x))

    with mpmath.workdps(60):
        x, y, r = mpmath.mpf(a), mpmath.mpf(b), mpmath.mpf(rate)
        less = r * mpmath.cos(r * x) if x == y else (mpmath.sin(r * x) - mpmath.sin(r * y)) / (x - y)
        total, single = (mpmath.sin(r * x) + mpmath.sin(r * y)) / (x + y), mpmath.sin(r * x) / x
        want = [float(v) for v in (less, total, single)]
    along = torch.func.jvp(function, (A,), (E,))[1]
    around = torch.func.jvp(function, (A,), (W,))[1]
    for got, exact in zip((along[0, 1], around[0, 1], along[2, 0]), want, strict=True):
        assert abs(float(got) - exact) <= 1e-12 * rate


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=cases.ident)
@pytest.mark.parametrize("s", SPECTRA.values(), ids=SPECTRA)
def test_single_precision(s: list[float], dtype: torch.dtype) -> None:
    wide = torch.complex128 if dtype.is_complex else torch.float64
    A = with_singular_values(s, (4, 3), wide).to(dtype)
    got = two_gradients(lambda A: sg.singular_map(A, torch.tanh), A)
    want = two_gradients(lambda A: sg.singular_map(A, torch.tanh), A.to(wide))
    for x, y, limit in zip(got, want, (1e-6, 1e-5, 1e-4), strict=True):
        assert x.dtype == dtype
        assert float((x - y).abs().max()) <= limit * 5


@pytest.mark.covering(2)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("s", SPECTRA.values(), ids=SPECTRA)
@pytest.mark.parametrize("scale", [1e-40, 1e-30, 1e-8, 1e8, 1e30, 1e38])
def test_every_scale(scale: float, s: list[float], shape: tuple[int, int]) -> None:
    """f(x) = c g(x / c) commutes with the scale: the first derivative stays, the second goes with 1/c."""
    A = with_singular_values(s, shape) / 4
    got = two_gradients(lambda A: sg.singular_map(A, lambda x: scale * torch.tanh(x / scale)), (scale * A).float())
    assert all(x.isfinite().all() for x in got)
    if scale > 1e-38:
        want = two_gradients(lambda A: sg.singular_map(A, torch.tanh), A)
        assert float((got[0].double() / scale - want[0]).abs().max()) < 1e-5
        assert float((got[1] - want[1]).abs().max()) < 1e-4


def test_a_gradient_that_overflows_is_the_largest_number() -> None:
    A = torch.diag(torch.tensor([1e-30, 1e-30, 0.0])).requires_grad_()
    (g,) = torch.autograd.grad(sg.singular_map(A, lambda x: torch.tanh(x.double() * 1e50).to(x.dtype)).trace(), A)
    assert g.isfinite().all()
    assert g[2, 2] == torch.finfo(torch.float32).max


def test_kinks_between_singular_values() -> None:
    """Soft thresholding is odd and smooth but for two points: away from them its gradient is exact too."""
    A = with_singular_values([2.0, 1.0 + 1e-6, 1.0 - 1e-6], (4, 3))

    def soft(x: Tensor) -> Tensor:
        return x.sign() * (x.abs() - 1).relu()

    E = cases.random(4, 3, seed=4)
    tangent = torch.func.jvp(lambda A: sg.singular_map(A, soft), (A,), (E,))[1]
    step = 1e-9
    numeric = (sg.singular_map(A + step * E, soft) - sg.singular_map(A - step * E, soft)) / (2 * step)
    assert cases.relative_error(tangent, numeric) < 1e-5

    def pushed(A: Tensor) -> Tensor:
        return torch.func.jvp(lambda A: sg.singular_map(A, soft), (A,), (E,))[1]

    second = torch.func.jvp(pushed, (A,), (E,))[1]  # f'' is 0 on both sides, but f[a, b, c] across the kink is not
    assert cases.relative_error(second, (pushed(A + step * E) - pushed(A - step * E)) / (2 * step)) < 1e-4


def test_third_derivatives_are_refused() -> None:
    A = torch.eye(2, dtype=torch.float64).requires_grad_()
    (g,) = torch.autograd.grad(sg.singular_map(A, torch.tanh).pow(3).sum(), A, create_graph=True)
    (h,) = torch.autograd.grad(g.pow(2).sum(), A, create_graph=True)
    with pytest.raises(NotImplementedError, match="not third"):
        torch.autograd.grad(h.sum(), A)


def test_spectral_map_of_a_fast_function() -> None:
    """A fixed distance between near and far knew nothing of f: sin(1000 x) at 1 and 1.009 was 7 % off."""
    M = torch.diag(torch.tensor([1.0, 1.009], dtype=torch.float64))
    E = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    got = torch.func.jvp(lambda M: sg.spectral_map(M, lambda x: torch.sin(1000 * x)), (M,), (E,))[1][0, 1]
    with mpmath.workdps(40):
        a, b = mpmath.mpf(1.0), mpmath.mpf(1.009)
        want = float((mpmath.sin(1000 * a) - mpmath.sin(1000 * b)) / (a - b))
    assert abs(float(got) - want) < 1e-9
