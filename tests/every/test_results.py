"""What a result is: right, of its dtype, for every layout; Hermitian to the last bit, no lazy bits, strides as torch's."""

import itertools

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from support import cases
from support.catalogue import BY_NAME, SQUARE, Case, each, having

LIMITS = {torch.float32: 1e-4, torch.float64: 1e-11, torch.complex64: 1e-4, torch.complex128: 1e-11}
each_dtype = pytest.mark.parametrize("dtype", cases.DTYPES, ids=cases.ident)
REAL = having("real")
# A gradient that reaches the columns that full_matrices=True adds is an error: tests/linalg/test_full_matrices.py.
ALL = {name: case for name, case in BY_NAME.items() if name != "svd(full_matrices)"}
STAY = ("moments", "orthogonal.orthogonal_loss")  # in float32, to be merged or added up
WITH_BATCH = {name: case for name, case in ALL.items() if "whole" not in case.tags and name != "moments"}


def tensors(found: object) -> list[Tensor]:
    return [x for x in tree_leaves(found) if isinstance(x, Tensor)]


def with_gradient(case: Case, x: Tensor) -> tuple[list[Tensor], Tensor]:
    """All outputs, and the gradient of a number in which each entry has a weight; the input is left as it was."""
    copy, leaf = x.clone(), x.detach().requires_grad_()
    out = tensors(case.call(leaf, *case.others(leaf)))
    total = torch.zeros(())
    for i, y in enumerate(out):
        if y.requires_grad:
            weight = cases.random(*y.shape, dtype=torch.complex128 if y.is_complex() else torch.float64, seed=i + 7)
            total = total + (y * weight.to(y.dtype)).real.sum()
    (gradient,) = torch.autograd.grad(total, leaf)
    assert torch.equal(x, copy)
    assert (gradient.dtype, gradient.shape) == (x.dtype, x.shape)
    return [y.detach() for y in out], gradient


@each({name: case for name, case in BY_NAME.items() if case.reference is not None})
@each_dtype
def test_values_and_gradients(case: Case, dtype: torch.dtype) -> None:
    """Against torch's own functions in float64, of the same rounded matrices."""
    if dtype.is_complex and case.name in REAL:
        pytest.skip("of real numbers alone")
    x = case.input(2, dtype=dtype)
    X, Y = x.clone().requires_grad_(), x.to(torch.complex128 if dtype.is_complex else torch.float64).requires_grad_()
    got, want = case(X), case.expected(Y)
    assert cases.relative_error(got.detach(), want.detach()) < LIMITS[dtype]
    G = cases.random(*want.shape, seed=5).to(want.dtype)
    (found,), (expected,) = torch.autograd.grad(got, X, G.to(got.dtype)), torch.autograd.grad(want, Y, G)
    if case.domain in SQUARE:
        expected = (expected + expected.mH) / 2
    assert cases.relative_error(found, expected) < 10 * LIMITS[dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128], ids=cases.ident)
@each(WITH_BATCH)
def test_batches(case: Case, dtype: torch.dtype) -> None:
    if dtype.is_complex and case.name in REAL:
        pytest.skip("of real numbers alone")
    whole = case.input(2, 3, dtype=dtype)
    for batch, x in {(): whole[0, 0], (2,): whole[:, 0], (2, 3): whole, (0,): whole[:0, 0], (0, 3): whole[:0]}.items():
        out, _ = with_gradient(case, x)
        assert not any(y.requires_grad for y in tensors(case.call(x, *case.others(x))))
        for y in out:
            assert y.shape[: len(batch)] == batch
        for where in itertools.product(*map(range, batch)):
            for y, alone in zip(out, with_gradient(case, x[where])[0], strict=True):
                torch.testing.assert_close(y[where], alone, rtol=1e-5, atol=1e-5)


@each(ALL)
def test_layouts(case: Case) -> None:
    x = case.input(2) if "whole" not in case.tags else case.input()
    ndim = case.input().ndim
    layouts = {
        "strided": torch.stack([x, x], -1).flatten(-2)[..., ::2],
        "batch last": x.movedim(0, -1).contiguous().movedim(-1, 0),
        "transposed": x.mT.contiguous().mT,
        "lazy minus": torch._neg_view(-x),
        "expanded": x[0].expand(3, *x.shape[1:]) if x.ndim > ndim else x,
    }
    for layout, z in layouts.items():
        out, gradient = with_gradient(case, z)
        want, want_gradient = with_gradient(case, z.resolve_neg().clone(memory_format=torch.contiguous_format))
        for a, b in zip((*out, gradient), (*want, want_gradient), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11, msg=f"{case.name}, {layout}")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=cases.ident)
@each({name: case for name, case in ALL.items() if name not in STAY})
def test_half_precision(case: Case, dtype: torch.dtype) -> None:
    """Computed in float32, and cast back."""
    x = case.input(2) if "whole" not in case.tags else case.input()
    x = ((x + x.mH) / 2 if case.domain in SQUARE else x).to(dtype)
    out, _ = with_gradient(case, x)
    others = [y.float() for y in case.others(x)]
    for y, want in zip(out, tensors(case.call(x.float(), *others)), strict=True):
        assert y.dtype == dtype
        # A unit in the last place: without a gradient the way may be shorter, and round another last digit of float32.
        torch.testing.assert_close(y, want.to(dtype), rtol=cases.eps(dtype), atol=1e-3 * cases.eps(dtype))


# Hermitian to the last bit


@each(having("hermitian"))
def test_hermitian_to_the_last_bit(case: Case) -> None:
    for dtype in cases.DTYPES[: 2 if case.name in REAL else 4]:
        for n in (3, 8):
            y = case(case.input(5, n=n, dtype=dtype)).resolve_conj()
            assert torch.equal(y, y.mH.resolve_conj())


# No lazy bits: x.numpy() and torch.view_as_real refuse what has them


@each({name: ALL[name] for name in ALL if name not in REAL})
def test_no_lazy_bits(case: Case) -> None:
    for x in (case.input(dtype=torch.complex128), case.input(dtype=torch.complex128).conj()):
        out, gradient = with_gradient(case, x)
        assert not any(y.is_conj() or y.is_neg() for y in (*out, gradient))
        for y in out:
            y.numpy()


# Strides as torch's


@each(having("torch"))
@pytest.mark.parametrize("batch", [(), (2,)], ids=str)
def test_strides_are_torch_s(case: Case, batch: tuple[int, ...]) -> None:
    assert case.reference is not None
    x = case.input(*batch, dtype=torch.float32)
    for y, want in zip(tensors(case.call(x)), tensors(case.reference(x)), strict=True):
        assert y.stride() == want.stride()
