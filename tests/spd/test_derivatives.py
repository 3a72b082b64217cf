"""Derivatives of every function in every metric, in both modes and twice; vmap, torch.compile."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import spectralgrad as sg
from support import cases
from support.spd import EVERY, arguments, function

each_function = pytest.mark.parametrize(("measure", "metric"), EVERY, ids=["-".join(each) for each in EVERY])


def prepared(measure: str, metric: str, n: int = 3, dtype: torch.dtype = torch.float64) -> tuple[Callable[..., Any], Any]:
    return function(measure, metric), tuple(x.requires_grad_() for x in arguments(measure, n, dtype))


@pytest.mark.covering(1)
@each_function
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=cases.ident)
def test_first_derivatives(measure: str, metric: str, dtype: torch.dtype) -> None:
    f, args = prepared(measure, metric, dtype=dtype)
    assert gradcheck(f, args, check_forward_ad=True, fast_mode=True)


@each_function
def test_second_derivatives(measure: str, metric: str) -> None:
    f, args = prepared(measure, metric, n=2)
    if (measure, metric) == ("transport", "logeuclid"):  # those by A alone would need third derivatives of the logarithm
        with pytest.raises(NotImplementedError, match="third"):
            gradgradcheck(f, args, fast_mode=True)
        return
    assert gradgradcheck(f, args, fast_mode=True)


@pytest.mark.parametrize(
    ("measure", "metric"),
    [("geodesic", "affine"), ("geodesic", "logeuclid"), ("mean", "affine"), ("mean", "logeuclid"), ("mean", "bures")],
)
def test_slopes_near_the_largest_number_are_finite(measure: str, metric: str) -> None:
    """The result fits, and on the way back sums of its slopes must: within 2^12 of the end they are
    shorter, of the right direction, and before it exact."""
    f, args = prepared(measure, metric, n=5)

    def slopes(scale: float) -> torch.Tensor:
        scaled = (scale * args[0].detach()).requires_grad_()
        rest = [scale * x.detach() if x.ndim >= 2 else x.detach() for x in args[1:]]
        out = f(scaled, *rest)
        return torch.autograd.grad(out, scaled, 4 * cases.random(*out.shape, seed=9))[0]

    largest = torch.finfo(torch.float64).max / 2 / max(float(x.detach().abs().max()) for x in args)
    found, exact = slopes(largest), slopes(1.0)
    assert found.isfinite().all()
    torch.testing.assert_close(found / found.norm(), exact / exact.norm(), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(slopes(largest / 2**20), exact, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("measure", "metric"), [("distance", "affine"), ("distance", "logeuclid"), ("geodesic", "affine"), ("mean", "affine")]
)
@pytest.mark.parametrize("k", [-1011, -1020, -1060])
def test_second_derivatives_of_the_smallest_numbers_are_finite(measure: str, metric: str, k: int) -> None:
    """Their slopes are of size 2^-k, and torch adds them up between our nodes."""
    f, args = prepared(measure, metric, n=3)
    half = torch.tensor(k // 2), torch.tensor(k - k // 2)  # 2^k itself may be no number
    X, *rest = (torch.ldexp(torch.ldexp(x, half[0]), half[1]) if x.ndim >= 2 else x for x in map(torch.Tensor.detach, args))
    out = f(X.requires_grad_(), *rest)
    (g,) = torch.autograd.grad(out, X, cases.random(*out.shape, seed=9), create_graph=True)
    (h,) = torch.autograd.grad(g, X, cases.random(*g.shape, seed=10))
    assert g.isfinite().all()
    assert h.isfinite().all()


def test_a_bures_mean_of_the_largest_numbers_has_a_gradient() -> None:
    """Weights of zero, and a matrix 1e40 times as small: there slopes and the mean meet in a product."""
    X = torch.tensor([7e267, 1e308], dtype=torch.float64).reshape(2, 1, 1).requires_grad_()
    (g,) = torch.autograd.grad(sg.spd.mean(X, torch.tensor([0.0, 1.0], dtype=torch.float64), "bures"), X)
    assert g.isfinite().all()
    assert g[0] == 0
    assert 0 < g[1] <= 1


@pytest.mark.parametrize("metric", ["affine", "logeuclid"])
def test_slopes_of_a_transport_between_far_scales_are_finite(metric: str) -> None:
    """Of an ill-conditioned tiny A to a huge B. A result below 2^931 has exact slopes, and one above them shorter."""
    T, _, B = arguments("transport")
    A = cases.with_spectrum(torch.tensor([1e-12, 1.0, 2.0], dtype=torch.float64))

    def slopes(scale: float) -> list[torch.Tensor]:
        args = [(x * c).requires_grad_() for x, c in ((T, 1e-36), (A, 1e-36), (B, scale))]
        out = sg.spd.transport(*args, metric=metric)
        return list(torch.autograd.grad(out.sum(), args))

    assert all(g.isfinite().all() for g in slopes(1e288))
    far, near = slopes(1e240), slopes(1e200)
    for found, exact in zip(far, (near[0] * 1e40, near[1] * 1e40, near[2]), strict=True):
        torch.testing.assert_close(found, exact, rtol=1e-8, atol=1e-8 * float(exact.abs().max()))


BURES = [each for each in EVERY if each[1] == "bures" and each[0] != "mean"]


@pytest.mark.parametrize("measure", [measure for measure, _ in BURES])
def test_second_derivatives_by_what_a_singular_matrix_is_made_of(measure: str) -> None:
    """Bures's metric takes singular matrices; they have derivatives by samples."""
    f, (_, *others) = prepared(measure, "bures")
    samples = cases.random(3, 2, seed=7).requires_grad_()
    assert gradgradcheck(lambda X: f(X @ X.mT, *(x.detach() for x in others)), samples, check_fwd_over_rev=True)
