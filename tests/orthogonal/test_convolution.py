"""The orthogonal convolution: it keeps norms, is the exponential of a skew map, and has its gradient."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from spectralgrad.errors import DtypeError, OptionError, ShapeError
from spectralgrad.orthogonal import OrthogonalConv2d
from support import cases

BOTH: Any = pytest.mark.parametrize("mode", ["zeros", "circular"])


def made(*sizes: int, mode: Any = "zeros", dtype: torch.dtype = torch.float64, size: float = 1.0) -> OrthogonalConv2d:
    torch.manual_seed(0)
    conv = OrthogonalConv2d(*sizes, padding_mode=mode, dtype=dtype)
    with torch.no_grad():
        conv.weight.mul_(size)
    return conv


def as_matrix(conv: OrthogonalConv2d, function: Any, side: int) -> Tensor:
    """The map of images (C, side, side) as a matrix."""
    count = conv.weight.shape[0] * side * side
    images = torch.eye(count, dtype=conv.weight.dtype).view(count, -1, side, side)
    return function(images).detach().flatten(1).mT  # type: ignore[no-any-return]


@BOTH
@pytest.mark.parametrize("size", [0.01, 1.0, 100.0])  # below and above the bound of the norm
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=cases.ident)
def test_norms_are_kept(mode: str, size: float, dtype: torch.dtype) -> None:
    rounding = 20 * torch.finfo(dtype).eps
    for sizes in ((5, 5, 3), (3, 8, 3), (2, 4, 1), (3, 3, 5)):
        conv, x = made(*sizes, mode=mode, dtype=dtype, size=size), cases.random(2, sizes[0], 7, 6, dtype=dtype)
        y = conv(x).detach()
        assert y.shape == (2, sizes[1], 7, 6)
        before, after = (torch.linalg.vector_norm(z.double(), dim=(1, 2, 3)) for z in (x, y))
        torch.testing.assert_close(after, before, rtol=rounding, atol=0)
        assert float((y[:, : sizes[0]] - x).abs().max()) > 1e-3  # it is not the identity


@BOTH
def test_it_is_the_exponential_of_a_skew_matrix(mode: str) -> None:
    conv = made(3, 3, 3, mode=mode)
    L = as_matrix(conv, lambda x: conv._convolve(x, conv.skew_kernel()), 4)
    torch.testing.assert_close(L, -L.mT)
    assert 0.2 < float(torch.linalg.matrix_norm(L, ord=2)) <= 1
    torch.testing.assert_close(as_matrix(conv, conv, 4), torch.matrix_exp(L), rtol=0, atol=1e-14)
    with torch.no_grad():
        free = conv.weight - conv.weight.transpose(0, 1)  # control: without the flip it is skew in the channels alone
    J = as_matrix(conv, lambda x: conv._convolve(x, free), 4)
    assert float((J + J.mT).abs().max()) > 0.01


def test_fewer_outputs_let_no_norm_grow() -> None:
    conv, x = made(6, 2, 3), cases.random(3, 6, 5, 5)
    before, after = (torch.linalg.vector_norm(z, dim=(1, 2, 3)) for z in (x, conv(x).detach()))
    assert bool((after < before).all())


def test_padding_changes_the_map() -> None:
    x = cases.random(1, 3, 5, 5)
    assert not torch.allclose(made(3, 3, 3)(x), made(3, 3, 3, mode="circular")(x), atol=1e-3)


@BOTH
@pytest.mark.parametrize("size", [0.02, 1.0])  # without and with the scaling
def test_gradient(mode: str, size: float) -> None:
    conv = made(2, 3, 3, mode=mode, size=size)
    x = cases.random(1, 2, 4, 3).requires_grad_()
    scaled = float((conv.weight - conv.weight.transpose(0, 1).flip(-2, -1)).detach().norm()) > 1
    assert scaled == (size == 1)

    def function(x: Tensor, weight: Tensor) -> Tensor:
        return torch.func.functional_call(conv, {"weight": weight}, (x,))

    assert gradcheck(function, (x, conv.weight))


def test_as_a_module() -> None:
    conv = made(3, 4, 3, dtype=torch.float32)
    assert "3, 4, kernel_size=3" in repr(conv)
    again = OrthogonalConv2d(3, 4, 3)
    again.load_state_dict(conv.state_dict())
    x = cases.random(2, 3, 5, 5, dtype=torch.float32)
    assert torch.equal(again(x), conv(x))
    assert conv(x[:0]).shape == (0, 4, 5, 5)
    assert conv.to(torch.bfloat16)(x.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"in_channels": 0}, "in_channels must be a whole number"),
        ({"out_channels": 2.5}, "out_channels must be a whole number"),
        ({"kernel_size": 4}, "kernel_size must be an odd"),
        ({"padding_mode": "reflect"}, 'padding_mode must be "zeros" or "circular"'),
    ],
)
def test_bad_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=f"`OrthogonalConv2d`: {words}"):
        OrthogonalConv2d(**{"in_channels": 2, "out_channels": 2, "kernel_size": 3, **options})


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int64], ids=str)
def test_a_dtype_that_is_not_real_is_refused_by_name(dtype: torch.dtype) -> None:
    with pytest.raises(DtypeError, match=f"`OrthogonalConv2d`: dtype must be real and floating point, got {dtype}"):
        OrthogonalConv2d(2, 2, 3, dtype=dtype)


@pytest.mark.parametrize("size", [1e10, 1e19, 1e38])
def test_large_weights_do_not_overflow(size: float) -> None:
    conv, x = OrthogonalConv2d(3, 4, 3), torch.randn(2, 3, 5, 5)
    with torch.no_grad():
        conv.weight.mul_(size / conv.weight.abs().max())
    torch.testing.assert_close(conv(x).norm(), x.norm(), rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("input", "words"),
    [
        (torch.zeros(3, 5, 5), r"images \(N, 3, H, W\), got \(3, 5, 5\)"),
        (torch.zeros(5, 3, 5), r"images \(N, 3, H, W\), got \(5, 3, 5\)"),
        ([[0.0]], r"images \(N, 3, H, W\), got list"),
        (torch.zeros(1, 4, 5, 5), r"images \(N, 3, H, W\), got \(1, 4, 5, 5\)"),
        (torch.zeros(1, 3, 1, 1), "at least 2 high and wide"),
        (torch.zeros(1, 3, 5, 5, dtype=torch.float64), "dtype of the weight"),
    ],
)
def test_bad_input(input: Any, words: str) -> None:
    with pytest.raises((ShapeError, DtypeError), match=words):
        OrthogonalConv2d(3, 4, 5, padding_mode="circular")(input)
