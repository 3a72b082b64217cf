"""`svd(full_matrices=True)`: the added columns have the gradient of the space that they span."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import spectralgrad as sg
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


def outside(A: Tensor, which: int) -> Tensor:
    """The projector on the space that the added columns of U, or rows of Vh, span."""
    full = sg.svd(A, full_matrices=True)
    N = full.U[..., 3:] if which == 0 else full.Vh[..., 3:, :].mH
    return N @ N.mH


@every_dtype
@pytest.mark.parametrize(("shape", "which"), [((5, 3), 0), ((3, 5), 2)])
def test_the_added_columns_have_the_gradient_of_their_space(shape: tuple[int, int], which: int, dtype: torch.dtype) -> None:
    """That of I - U U^H, which torch, for one, takes for 0; two derivatives."""

    def by_the_others(A: Tensor) -> Tensor:
        U, _, Vh = sg.svd(A)
        Q = U if which == 0 else Vh.mH
        return torch.eye(5, dtype=dtype) - Q @ Q.mH

    A = cases.random(*shape, dtype=dtype).requires_grad_()
    torch.testing.assert_close(gradient(lambda A: outside(A, which), A), gradient(by_the_others, A))
    assert torch.autograd.gradcheck(lambda A: outside(A, which), A)
    assert torch.autograd.gradgradcheck(lambda A: outside(A, which), A)


def test_a_null_vector_has_its_gradient() -> None:
    """Up to its sign: the last row of Vh of a matrix of rank 8, as in the eight-point algorithm."""
    A = cases.random(8, 9).requires_grad_()

    def vector(A: Tensor) -> Tensor:
        v = sg.svd(A, full_matrices=True).Vh[-1]
        return v * v[0].sign()

    assert torch.autograd.gradcheck(vector, A)
    dA = cases.random(8, 9, seed=3)
    dv = torch.func.jvp(vector, (A.detach(),), (dA,))[1]
    torch.testing.assert_close(A.detach() @ dv, -(dA @ vector(A.detach())))


def leading(A: Tensor) -> Tensor:
    return sg.svd(A, full_matrices=True).U[..., :3].abs()


def test_full_matrices_compile() -> None:
    A = cases.random(5, 3)
    compiled = torch.compile(leading, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(gradient(compiled, A), gradient(leading, A))
