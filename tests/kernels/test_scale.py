"""The kernels of scaling under the emulator, against their twins in plain torch."""

import math

import pytest
import torch
from torch import Tensor

from spectralgrad.kernels import nvrtc, scale
from spectralgrad.linalg import scaling
from support import cases
from support.on_cpu import on_cpu  # noqa: F401

pytestmark = pytest.mark.usefixtures("on_cpu")
REALS = [torch.float32, torch.float64]


def matrices(dtype: torch.dtype) -> Tensor:
    """(7, 3, 5): ordinary, zeros, denormal, near the largest number, NaN, Inf, a power of two."""
    x = cases.random(7, 3, 5, dtype=dtype)
    info = torch.finfo(dtype)
    x[1], x[2], x[3], x[6] = 0, x[2] * info.tiny / 8, x[3] / x[3].abs().max() * info.max, 0.25
    x[4, 1, 2], x[5, 0, 0] = torch.nan, -torch.inf
    return x


def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "takes", lambda _: False)


@pytest.mark.parametrize("dtype", REALS, ids=cases.ident)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_exponents(dims: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    x = matrices(dtype)
    for y in (x, x[:, :, ::2], x.mT, x[:1].expand(4, 3, 5)):
        found = scale.exponent(y, dims)
        assert scale.runs_on(y)
        with monkeypatch.context() as m:
            plain(m)
            assert torch.equal(found, scaling.exponent(y, dims))


@pytest.mark.parametrize("dtype", REALS, ids=cases.ident)
@pytest.mark.parametrize("power", [0, 1, -3, 60, -60, 150, 700, -700, 3000, -9000])
def test_powers(power: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    x = matrices(dtype)
    x[2] = 0  # a denormal number is rounded once here, and in plain torch twice
    k = torch.full((7,), power, dtype=dtype) + torch.arange(7, dtype=dtype)
    for y, by in ((x, k), (x.mT, k), (x, k[:, None].expand(7, 3)), (x[0], k[0])):
        found = scaling.shifted(y, by)
        with monkeypatch.context() as m:
            plain(m)
            torch.testing.assert_close(found, scaling.shifted(y, by), rtol=0, atol=0, equal_nan=True)


def test_a_denormal_number_is_rounded_once() -> None:
    x = torch.tensor([[3 * math.ldexp(1.0, -149)]], dtype=torch.float32)
    assert float(scale.shifted(x, torch.tensor([0.0]))) == float(x)
    assert float(scale.shifted(x, torch.tensor([149.0]))) == 3.0


def test_what_autograd_has_to_see_goes_the_plain_way() -> None:
    x = cases.random(2, 3, 3).requires_grad_()
    assert not scale.runs_on(x)
    (g,) = torch.autograd.grad(scaling.shifted(x, torch.tensor([1.0, 2.0], dtype=torch.float64)).sum(), x)
    assert g[:, 0, 0].tolist() == [2.0, 4.0]
    with torch.no_grad():
        assert scale.runs_on(x)


def test_powers_of_another_shape_or_dtype_go_the_plain_way() -> None:
    x = cases.random(2, 3, 3, dtype=torch.float64)
    for k in (torch.tensor([1.0, 2.0], dtype=torch.float32), torch.tensor([1.0], dtype=torch.float64)):
        assert not scale.takes_powers(x, k)
        assert scaling.shifted(x, k)[0, 0, 0] == 2 * x[0, 0, 0]
