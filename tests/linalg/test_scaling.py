"""Powers of two: exact, cut to the largest number, and nothing repaired."""

import math

import pytest
import torch

import spectralgrad as sg
from spectralgrad.linalg.moves import cast
from spectralgrad.linalg.scaling import bounded, exponent, is_ordinary, scaled_back, shifted
from support import cases

every_dtype = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128], ids=cases.ident
)


@every_dtype
def test_shifted_is_exact_and_cuts(dtype: torch.dtype) -> None:
    info = torch.finfo(dtype)
    x = cases.random(50, 3, dtype=dtype)
    k = torch.arange(50) - 25
    assert torch.equal(shifted(shifted(x, k), -k), x)
    top = torch.full((1, 2), info.max, dtype=dtype)
    assert torch.equal(shifted(top, torch.tensor([1])).real, top.real)
    assert torch.equal(shifted(-top, torch.tensor([4000])).real, -top.real)
    tiny = torch.full((1, 1), info.smallest_normal * info.eps, dtype=dtype)  # the smallest denormal
    assert torch.equal(shifted(shifted(tiny, torch.tensor([200])), torch.tensor([-200])), tiny)
    assert shifted(tiny, torch.tensor([-1])).abs() == 0
    for bad in (math.nan, math.inf):
        assert not shifted(torch.full((1, 1), bad, dtype=dtype), torch.tensor([-300])).isfinite().any()


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.float64,
    ],
    ids=cases.ident,
)
def test_zero_stays_zero_however_far_it_is_shifted(dtype: torch.dtype) -> None:
    assert (shifted(torch.zeros(1, 2, dtype=dtype), torch.tensor([9000])) == 0).all()
    tiny = torch.finfo(dtype).smallest_normal / 1000
    M = torch.diag(tiny * torch.tensor([1, 2, 3], dtype=dtype)).requires_grad_()
    G = torch.zeros(3, 3, dtype=dtype)
    G[0, 1] = 0.9 * torch.finfo(dtype).max
    assert torch.autograd.grad(sg.eigh(M)[1], M, G)[0].isfinite().all()


def test_exponent_bounds_its_matrix() -> None:
    for x in (1.0, 0.75, 3e38, 1e-45, 1e-38, 2.0**-126):
        (k,) = exponent(torch.full((1, 2, 2), x)).tolist()
        assert 2.0 ** (k - 1) <= float(torch.tensor(x)) < 2.0**k
    assert exponent(torch.tensor([[math.nan]])) == exponent(torch.tensor([[math.inf]])) == exponent(torch.zeros(2, 2)) == 0
    assert exponent(torch.zeros(3, 0, 0)).tolist() == [0, 0, 0]


@every_dtype
def test_one_matrix_at_an_end_of_the_range_is_not_ordinary(dtype: torch.dtype) -> None:
    """Each matrix of a batch has a scale of its own; zeros have none, and what is small beside the rest does not count."""
    x = cases.random(3, 4, 4, dtype=dtype)
    far = 2.0**21 if torch.finfo(dtype).bits == 32 else 2.0**161
    assert is_ordinary(x)
    assert is_ordinary(x * torch.tensor([0, 1, 0]).view(3, 1, 1))
    assert is_ordinary(x[:0])
    x[1, 2, 3] /= far
    assert is_ordinary(x)
    assert is_ordinary(x / far * 100)
    for factor in (far, 1 / far / 10, math.nan, math.inf):
        y = x.clone()
        y[1] *= factor
        assert not is_ordinary(y)
        assert not is_ordinary(y * torch.tensor([0, 1, 1]).view(3, 1, 1))
        assert is_ordinary(y, 3) == (factor < 1)  # as one
        assert not is_ordinary(y[1])
        assert not is_ordinary(y[1:2])
        assert is_ordinary(y[0])
    assert is_ordinary(torch.zeros(1, 2, 2))


def test_scaled_back_takes_exponents_that_are_not_whole() -> None:
    x = cases.random(4, 3)
    for q in (-700.3, -0.5, 0.25, 900.75):
        got = scaled_back(x, torch.full((4,), q, dtype=torch.float64))
        torch.testing.assert_close(got, x * 2.0**q, rtol=1e-12, atol=0)
    assert torch.equal(scaled_back(x, torch.full((4,), 5000.5)), x.sign() * torch.finfo(x.dtype).max)


def test_cast_and_bounded_cut_but_repair_nothing() -> None:
    x = torch.tensor([1e300, -1e300, 1.0, math.nan, math.inf], dtype=torch.float64, requires_grad=True)
    largest = torch.finfo(torch.float32).max
    y = cast(x, torch.float32)
    assert y[:3].tolist() == [largest, -largest, 1.0]
    assert not y[3:].isfinite().any()
    (back,) = torch.autograd.grad(y, x, torch.full((5,), math.inf))
    assert not back.isfinite().any()
    assert bounded(torch.tensor([math.inf, -math.inf])).tolist() == [largest, -largest]
    assert bounded(torch.tensor(math.nan)).isnan()
