"""`svd(full_matrices=True)`: the added columns are constants, and a gradient that reaches them is an error."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from spectralgrad.errors import OptionError
from support import cases

pytestmark = pytest.mark.usefixtures("fresh_compiler")
every_dtype = pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=cases.ident)
SHAPES = [(5, 3), (3, 5), (4, 4), (2, 5, 3), (5, 1), (0, 5, 3)]


def gradient(f: Callable[[Tensor], Tensor], x: Tensor, seed: int = 5) -> Tensor:
    x = x.detach().clone().requires_grad_()
    y = f(x)
    return torch.autograd.grad(y, x, cases.random(*y.shape, dtype=y.dtype, seed=seed))[0]


@pytest.mark.parametrize("dtype", cases.DTYPES, ids=cases.ident)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_full_matrices(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    A = cases.random(*shape, dtype=dtype)
    full, want = sg.svd(A, full_matrices=True), torch.linalg.svd(A, full_matrices=True)
    assert [x.shape for x in full] == [x.shape for x in want]
    close = {"rtol": 0.0, "atol": 30 * cases.eps(dtype)}
    for Q in (full.U, full.Vh):
        torch.testing.assert_close(Q.mH @ Q, torch.eye(Q.shape[-1], dtype=dtype).expand_as(Q), **close)
    for x, y in zip(full, sg.svd(A), strict=True):
        assert torch.equal(x[..., : y.shape[-2], : y.shape[-1]] if x.ndim == A.ndim else x, y)


def test_full_matrices_of_deficient_and_empty_ones() -> None:
    for A in (torch.zeros(4, 2), torch.ones(4, 2), torch.zeros(4, 0), 1e-44 * torch.ones(3, 2), 3e38 * torch.ones(2, 4)):
        U, _, Vh = sg.svd(A, full_matrices=True)
        torch.testing.assert_close(U.mT @ U, torch.eye(len(A)), rtol=0, atol=1e-5)
        torch.testing.assert_close(Vh @ Vh.mT, torch.eye(A.shape[1]), rtol=0, atol=1e-5)


@every_dtype
def test_a_gradient_that_reaches_the_added_columns_is_an_error(dtype: torch.dtype) -> None:
    for shape, which in (((5, 3), 0), ((3, 5), 2)):
        A = cases.random(*shape, dtype=dtype).requires_grad_()
        with pytest.raises(OptionError, match="the added columns of U and rows of Vh are constants"):
            sg.svd(A, full_matrices=True)[which].abs().sum().backward()
        whole = sg.svd(A, full_matrices=True)[which]
        part = (slice(None), slice(3)) if which == 0 else (slice(3),)
        (got,) = torch.autograd.grad(whole[part].abs().sum(), A, retain_graph=True)
        (want,) = torch.autograd.grad(sg.svd(A)[which].abs().sum(), A)
        torch.testing.assert_close(got, want)
        mask = torch.zeros_like(whole.real)
        mask[part] = 1
        (got,) = torch.autograd.grad((whole.abs() * mask).sum(), A)  # zeros reach them: fine
        torch.testing.assert_close(got, want)
        with sg.checks(False):  # nobody looks: NaN, not silence
            assert torch.autograd.grad(sg.svd(A, full_matrices=True)[which].abs().sum(), A)[0].isnan().all()


def leading(A: Tensor) -> Tensor:
    return sg.svd(A, full_matrices=True).U[..., :3].abs()


def test_full_matrices_compile() -> None:
    A = cases.random(5, 3)
    compiled = torch.compile(leading, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(gradient(compiled, A), gradient(leading, A))
