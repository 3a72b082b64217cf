"""Differences of a user's function: at many points at once, or one after the other."""

from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from spectralgrad.linalg import elementwise
from support import cases

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "smooth": torch.sin,
    "a kink": lambda x: (x - 1).relu() + x,
    "steep": lambda x: (x * 300).tanh(),
}


def derivatives(f: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """First and second, at a tie and across the kink, and by a number of f's own."""
    V = torch.linalg.qr(cases.random(5, 5))[0]
    M = (V * torch.tensor([0.2, 1.0, 1.0, 1.0 + 1e-9, 3.0]).double()) @ V.mT
    M, own = (M + M.mT).div(2).requires_grad_(), torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    G = cases.random(5, 5, seed=1)
    first = torch.autograd.grad((sg.spectral_map(M, lambda x: f(x) * own) * G).sum(), (M, own), create_graph=True)
    return [*first, *torch.autograd.grad(first[0].square().sum(), (M, own))]


@pytest.mark.parametrize("f", FUNCTIONS.values(), ids=FUNCTIONS)
def test_at_once_is_one_after_the_other(f: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[int] = []

    def counted(x: Tensor) -> Tensor:
        called.append(x.numel())
        return f(x)

    at_once = derivatives(counted)
    calls = len(called)
    monkeypatch.setattr(elementwise, "_FEW", 0)
    for got, want in zip(at_once, derivatives(counted), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    assert len(called) > 2.5 * calls


# What bends between two eigenvalues, and where no point of a rule lies.

BENT: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "clamp": lambda x: x.clamp(max=1),
    "sign": torch.sign,
    **{f"tanh({k} x)": lambda x, k=k: torch.tanh(k * x) for k in (20, 100, 1000, 10000)},
}


@pytest.mark.parametrize("f", BENT.values(), ids=BENT)
def test_a_bend_between_far_points_is_seen(f: Callable[[Tensor], Tensor]) -> None:
    """relu of {-3, 0.1}: f' is 0 at all points of the integral but the last, and at four of a step no steep one shows."""
    low, high = -3 * torch.rand(50, generator=cases.generator(1)), 3 * torch.rand(50, generator=cases.generator(2))
    w = torch.stack([low, high], -1).double()
    M = torch.diag_embed(w).requires_grad_()
    (g,) = torch.autograd.grad(sg.spectral_map(M, f)[:, 0, 1].sum(), M)
    difference = (f(w[:, 0]) - f(w[:, 1])) / (w[:, 0] - w[:, 1])
    torch.testing.assert_close(g[:, 0, 1] + g[:, 1, 0], difference, rtol=1e-12, atol=1e-14)


def test_singular_values_are_clipped() -> None:
    U, V, G, E = cases.rotation(4)[:, :3], cases.rotation(3), cases.random(4, 3, seed=1), cases.random(4, 3, seed=2)
    A = ((U * torch.tensor([3.0, 2.5, 0.9]).double()) @ V.mT).requires_grad_()

    def clipped(A: Tensor) -> Tensor:
        return (sg.singular_map(A, lambda s: s.clamp(-1, 1)) * G).sum()

    (g,) = torch.autograd.grad(clipped(A), A)
    step = 1e-6
    numeric = (clipped(A.detach() + step * E) - clipped(A.detach() - step * E)) / (2 * step)
    torch.testing.assert_close((g * E).sum(), numeric, rtol=1e-7, atol=1e-8)


# What is no function of one number


COUPLED: dict[str, Callable[[Tensor], Tensor]] = {
    "of trace 1": lambda x: x / x.sum(-1, keepdim=True),
    "largest 1": lambda x: x / x.amax(),
    "centred": lambda x: x - x.mean(),
    "softmax": lambda x: x.softmax(-1),
    "sums": lambda x: x.cumsum(-1),
    "a factor each": lambda x: x * torch.arange(1.0, 5.0, dtype=x.dtype),
    "an exponent for each matrix": lambda x: x ** torch.tensor([[1.0], [2.0], [3.0]]),
    "the largest two": lambda x: torch.where(torch.arange(x.shape[-1]) >= x.shape[-1] - 2, x, 0),
}


@pytest.mark.parametrize("f", COUPLED.values(), ids=COUPLED)
def test_f_of_several_numbers_is_refused(f: Callable[[Tensor], Tensor]) -> None:
    """Its differences would be taken of one number alone: the gradient would be wrong without a word."""
    M = cases.with_spectrum(torch.tensor([0.3, 1.0, 2.0, 5.0], dtype=torch.float64), 3).requires_grad_()
    with pytest.raises(sg.errors.OptionError, match=r"`spectral_map`: f must act on each number alone"):
        sg.spectral_map(M, f)
    with pytest.raises(sg.errors.OptionError, match=r"`singular_map`: f must "):
        sg.singular_map(M, lambda x: f(x.abs()) * x.sign())
    with pytest.raises(sg.errors.OptionError, match="each number alone"):
        torch.func.grad(lambda M: sg.spectral_map(M, f).sum())(M.detach())
    torch.testing.assert_close(sg.eigvalsh(sg.spectral_map(M.detach(), f)), f(sg.eigvalsh(M.detach())).sort().values)


@pytest.mark.parametrize("n", [2, 3])
def test_f_of_several_numbers_is_refused_for_few(n: int) -> None:
    M = torch.diag(torch.arange(1.0, n + 1)).requires_grad_()
    with pytest.raises(sg.errors.OptionError, match="each number alone"):
        sg.spectral_map(M, COUPLED["largest 1"])
    sg.spectral_map(M[:1, :1], COUPLED["largest 1"])  # one number is alone


def test_what_f_cancels_is_no_coupling() -> None:
    """torch rounds some functions of float32 by their place in memory."""
    for n in range(2, 100):
        M = (torch.eye(n) + 1e-6 * torch.diag(torch.rand(n, generator=cases.generator(n)))).requires_grad_()
        sg.spectral_map(M, lambda x: x**0.37 - 1)
        sg.spectral_map(M, lambda x: torch.sigmoid(x) - 0.7310586)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_number_with_dimensions_is_closed_over(shape: tuple[int, ...]) -> None:
    M, p = torch.eye(3).repeat(2, 1, 1).requires_grad_(), torch.full(shape, 2.0)
    torch.testing.assert_close(sg.spectral_map(2 * M, lambda x: x**p), 4 * M)


def test_what_eigenvalues_share_is_closed_over() -> None:
    """As the error advises: the gradient through the sum is there."""

    def normalised(M: Tensor) -> Tensor:
        total = sg.eigvalsh(M).sum()
        return sg.spectral_map(M, lambda x: x / total)

    M = cases.with_spectrum(torch.tensor([1.0, 1.0, 2.0, 5.0], dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(lambda M: normalised((M + M.mT) / 2), M)
    torch.testing.assert_close(normalised(M), M / M.trace())


# Against 60 digits, in units of what f itself can give.

Known = tuple[Callable[[Tensor], Tensor], Callable[[Any], Any]]

OFFSET: dict[str, Known] = {  # a constant, or a straight part, hides how a rule errs
    "decay": (lambda x: 1e6 + x + 0.05 * (-8 * x).exp(), lambda x: 10**6 + x + mpmath.mpf(0.05) * mpmath.exp(-8 * x)),
    "sin": (lambda x: 1e3 + x.sin(), lambda x: 1000 + mpmath.sin(x)),
    "tanh": (lambda x: 1e4 + (x - 2).tanh(), lambda x: 10**4 + mpmath.tanh(x - 2)),
    "rational": (lambda x: 50 + x / (1 + x * x), lambda x: 50 + x / (1 + x * x)),
}
TRIPLES = ((1.0, 1.0, 3.0), (2.7, 3.5, 3.5), (1.0, 1.3, 2.0), (2.7, 2.75, 2.9), (0.3, 0.30001, 0.31), (1.0, 3.5, 4.0))


def _largest(f: Callable[[Any], Any], order: int, low: Any, high: Any) -> float:
    return max(abs(float(mpmath.diff(f, low + (high - low) * k / 8, order))) for k in range(9))


@pytest.mark.parametrize("points", TRIPLES, ids=str)
@pytest.mark.parametrize("pair", OFFSET.values(), ids=OFFSET)
def test_as_good_as_the_better_way(pair: Known, points: tuple[float, ...]) -> None:
    f, exact = pair
    eps = torch.finfo(torch.float64).eps
    w = torch.tensor(points, dtype=torch.float64)
    E = torch.ones(3, 3, dtype=torch.float64)
    F = torch.func.jvp(lambda M: sg.spectral_map(M, f), (torch.diag(w),), (E,))[1]
    second = elementwise.Elementwise(function=f).second_differences(w, *torch.arange(3).unsqueeze(-1))
    with mpmath.workdps(60):
        x = [mpmath.mpf(p) for p in points]

        def difference(i: int, j: int) -> Any:
            return mpmath.diff(exact, x[i]) if x[i] == x[j] else (exact(x[j]) - exact(x[i])) / (x[j] - x[i])

        off = {ij: abs(float(float(F[ij]) - difference(*ij))) for ij in ((0, 1), (1, 2), (0, 2))}
        off2 = abs(float(float(second) - (difference(1, 2) - difference(0, 1)) / (x[2] - x[0])))
        rounding = {}
        for i, j in off:
            slope, gap = _largest(exact, 1, x[i], x[j]), points[j] - points[i]
            rounding[i, j] = eps * (2 * slope + (2 * abs(float(exact(x[j]))) / gap if gap else 0))
            assert off[i, j] <= 100 * eps * slope + rounding[i, j]
        allowed = 100 * eps * _largest(exact, 2, x[0], x[2])
    assert off2 <= allowed + 2 * (rounding[0, 1] + rounding[1, 2]) / (points[2] - points[0])
