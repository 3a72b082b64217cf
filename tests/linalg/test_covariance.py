"""Covariances to full working accuracy, grouped, and from moments that merge exactly."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import spectralgrad as sg
from spectralgrad.errors import NonFiniteError
from support import cases
from support.precision import matmul_precision

CHANNELS, MANY = 16, 100_000
ACCURATE = 1e-6  # relative, in float32, whatever the flags say


@contextmanager
def medium() -> Iterator[None]:
    """float32 products may be taken in bf16."""
    with matmul_precision("medium"):
        yield
        assert torch.get_float32_matmul_precision() == "medium"


def autocast() -> AbstractContextManager[None]:
    return torch.autocast("cpu", dtype=torch.bfloat16)


FLAGS = {"plain": nullcontext, "medium": medium, "autocast": autocast}


def many_samples(mean: float) -> Tensor:
    """Correlated float32 channels (16, 1e5) with standard deviations near 1."""
    mix = torch.eye(CHANNELS) + 0.3 * cases.random(CHANNELS, CHANNELS, dtype=torch.float32)
    return mix @ cases.random(CHANNELS, MANY, dtype=torch.float32, seed=1) + mean


def reference(X: Tensor) -> Tensor:
    centred = X.double() - X.double().mean(-1, keepdim=True)
    return centred @ centred.mT / X.shape[-1]


def one_pass(X: Tensor) -> Tensor:
    """E[x x^T] - E[x] E[x]^T, which cancels where the mean is large."""
    mean = X.mean(-1, keepdim=True)
    return X @ X.mT / X.shape[-1] - mean @ mean.mT


@pytest.mark.parametrize("correction", [0, 1])
def test_matches_numpy(correction: int) -> None:
    X = cases.random(4, 9)
    got = sg.covariance(X, correction=correction)
    np.testing.assert_allclose(got.numpy(), np.cov(X.numpy(), ddof=correction), rtol=1e-12, atol=1e-14)
    Z = cases.random(4, 9, dtype=torch.complex128)
    got = sg.covariance(Z, correction=correction)
    np.testing.assert_allclose(got.numpy(), np.cov(Z.numpy(), ddof=correction), rtol=1e-12, atol=1e-14)
    moments = sg.moments(X)
    assert moments.samples == 9
    np.testing.assert_allclose(moments.mean.numpy(), X.numpy().mean(1), rtol=1e-12)


@pytest.mark.parametrize("flags", FLAGS)
def test_full_float32_accuracy(flags: str) -> None:
    X = many_samples(3.0).requires_grad_()
    weight = cases.random(CHANNELS, CHANNELS, dtype=torch.float32, seed=2)
    wide = X.detach().double().requires_grad_()
    (want_grad,) = torch.autograd.grad((reference(wide) * weight.double()).sum(), wide)
    with FLAGS[flags]():
        C = sg.covariance(X)
        (inside,) = torch.autograd.grad((C * weight).sum(), X, retain_graph=True)
    (outside,) = torch.autograd.grad((C * weight).sum(), X)
    assert C.dtype == inside.dtype == outside.dtype == torch.float32
    assert cases.relative_error(C.detach(), reference(X.detach())) <= ACCURATE
    assert cases.relative_error(inside, want_grad) <= ACCURATE
    assert cases.relative_error(outside, want_grad) <= ACCURATE
    assert not torch.is_autocast_enabled("cpu")


def test_a_plain_product_under_autocast_is_not_accurate() -> None:
    X = many_samples(0.0)
    with autocast():
        C = (X @ X.mT).float() / X.shape[-1]
    assert cases.relative_error(C, reference(X)) > 100 * ACCURATE


def test_a_large_mean_costs_no_digits() -> None:
    X = many_samples(1e4)
    assert cases.relative_error(sg.covariance(X), reference(X)) <= ACCURATE
    assert cases.relative_error(sg.moments(X).mean, X.double().mean(-1)) <= ACCURATE
    assert cases.relative_error(one_pass(X), reference(X)) > 1  # the control: nothing is left


def test_groups_are_separate_covariances() -> None:
    X = cases.random(2, 6, 9)
    C = sg.covariance(X, group_size=2, correction=1, eps=0.1)
    moments = sg.moments(X, group_size=2)
    assert C.shape == (2, 3, 2, 2)
    assert moments.mean.shape == (2, 3, 2)
    for g in range(3):
        part = X[:, 2 * g : 2 * g + 2]
        torch.testing.assert_close(C[:, g], sg.covariance(part, correction=1, eps=0.1))
        torch.testing.assert_close(moments.mean[:, g], part.mean(-1))
    torch.testing.assert_close(sg.covariance(X, group_size=6)[:, 0], sg.covariance(X))
    torch.testing.assert_close(sg.covariance(X, group_size=1)[..., 0, 0], X.var(-1, correction=0))


def test_every_option_changes_the_result() -> None:
    X = cases.random(4, 9)
    C = sg.covariance(X)
    torch.testing.assert_close(sg.covariance(X, eps=0.5), C + 0.5 * torch.eye(4))
    torch.testing.assert_close(sg.covariance(X, correction=1), C * 9 / 8)
    torch.testing.assert_close(sg.covariance(X, correction=-1), C * 9 / 10)
    assert not torch.allclose(sg.covariance(X, group_size=2)[0], C[2:, 2:])


SPLITS = {"one": (9,), "two": (2, 7), "three": (4, 1, 4), "empty": (0, 9), "empties": (3, 0, 6, 0)}


@pytest.mark.parametrize("group_size", [None, 2])
@pytest.mark.parametrize("sizes", SPLITS.values(), ids=SPLITS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=cases.ident)
def test_merged_moments_are_those_of_the_union(sizes: tuple[int, ...], group_size: int | None, dtype: torch.dtype) -> None:
    X = (cases.random(2, 4, 9, dtype=dtype) + 3).requires_grad_()
    whole = sg.moments(X, group_size=group_size)
    merged = sg.merge_moments([sg.moments(part, group_size=group_size) for part in X.split(sizes, -1)])
    assert merged.samples == 9
    torch.testing.assert_close(merged.mean, whole.mean)
    torch.testing.assert_close(merged.scatter, whole.scatter)
    weight = cases.random(*whole.scatter.shape, dtype=dtype, seed=2)

    def gradient(moments: sg.Moments) -> Tensor:
        loss = (moments.covariance(correction=1) * weight).real.sum() + (moments.mean**3).real.sum()
        return torch.autograd.grad(loss, X)[0]

    torch.testing.assert_close(gradient(merged), gradient(whole))


def test_merging_keeps_float32_accuracy() -> None:
    """Parts with very different means, as ranks that see different classes have."""
    X = many_samples(0.0) + torch.linspace(0, 100, MANY)
    merged = sg.merge_moments([sg.moments(part) for part in X.split(MANY // 7, -1)])
    assert cases.relative_error(merged.covariance(), reference(X)) <= ACCURATE
    averaged = torch.stack([sg.covariance(part) for part in X.split(MANY // 7, -1)]).mean(0)
    assert cases.relative_error(averaged, reference(X)) > 0.1  # the control: covariances do not merge by averaging


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=cases.ident)
def test_gradients(dtype: torch.dtype) -> None:
    X = cases.random(2, 3, dtype=dtype).requires_grad_()

    def function(X: Tensor) -> tuple[Tensor, Tensor]:
        moments = sg.merge_moments([sg.moments(X[..., :1], group_size=1), sg.moments(X[..., 1:], group_size=1)])
        return sg.covariance(X, correction=1, eps=0.1), moments.covariance()

    assert gradcheck(function, X, check_forward_ad=True)
    assert gradgradcheck(function, X, check_fwd_over_rev=True)


def test_half_precision() -> None:
    X = many_samples(0.0)[:, :500].bfloat16()
    C = sg.covariance(X)
    assert C.dtype == torch.bfloat16
    assert torch.equal(C, reference(X).float().bfloat16())
    assert sg.moments(X).scatter.dtype == torch.float32


def test_small_shapes() -> None:
    assert torch.equal(sg.covariance(torch.full((3, 1), 5.0)), torch.zeros(3, 3))
    torch.testing.assert_close(sg.covariance(torch.tensor([[1.0, 2.0, 6.0]])), torch.tensor([[14 / 3]]))
    for shape in ((0, 3, 5), (2, 0, 3, 5), (2, 0, 5)):
        X = torch.zeros(shape, requires_grad=True)
        C = sg.covariance(X)
        assert C.shape == (*shape[:-1], shape[-2])
        C.sum().backward()
        assert X.grad is not None
        assert X.grad.shape == shape
    empty = sg.moments(torch.zeros(3, 0))
    assert empty.samples == 0
    assert torch.equal(empty.mean, torch.zeros(3))
    assert torch.equal(empty.scatter, torch.zeros(3, 3))


def test_transforms() -> None:
    X, tangent = cases.random(5, 4, 9), cases.random(5, 4, 9, seed=1)

    def function(X: Tensor) -> Tensor:
        return sg.merge_moments([sg.moments(X[..., :4], group_size=2), sg.moments(X[..., 4:], group_size=2)]).covariance()

    want = sg.covariance(X, group_size=2)
    torch.testing.assert_close(torch.func.vmap(function)(X), want)
    torch.testing.assert_close(torch.func.vmap(function, in_dims=1)(X.movedim(0, 1)), want)
    _, pushed = torch.func.jvp(function, (X,), (tangent,))
    difference = (function(X + 1e-6 * tangent) - function(X - 1e-6 * tangent)) / 2e-6
    torch.testing.assert_close(pushed, difference, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiles_whole(backend: str) -> None:
    def function(X: Tensor) -> Tensor:
        merged = sg.merge_moments([sg.moments(X[..., :4], group_size=2), sg.moments(X[..., 4:], group_size=2)])
        return merged.covariance(correction=1) + sg.covariance(X, group_size=2, eps=0.1)

    X = cases.random(4, 9).requires_grad_()
    compiled = torch.compile(function, fullgraph=True, backend=backend)
    torch.testing.assert_close(compiled(X), function(X))
    (got,) = torch.autograd.grad(compiled(X).pow(2).sum(), X)
    (want,) = torch.autograd.grad(function(X).pow(2).sum(), X)
    torch.testing.assert_close(got, want)


def test_a_covariance_that_overflows_is_an_error() -> None:
    with pytest.raises(NonFiniteError, match=r"`covariance`: the covariance of `X` overflows torch\.float32"):
        sg.covariance(1e20 * torch.randn(2, 5, generator=cases.generator()))
    with pytest.raises(NonFiniteError, match="`X` must be finite"):
        sg.covariance(torch.full((2, 5), torch.nan))
