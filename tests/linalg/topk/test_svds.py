"""`svds`: triplets and their gradient, against full decompositions."""

import pytest
import torch
from torch import Tensor

import spectralgrad as sg

SHAPES = {"tall": (300, 200), "wide": (200, 300), "square": (220, 220), "small": (30, 20)}


def matrix(m: int, n: int, *first: float, dtype: torch.dtype = torch.float64) -> Tensor:
    """Singular values: these, and the others below 0.9."""
    g, r = torch.Generator().manual_seed(0), min(m, n)
    U, V = (torch.linalg.qr(torch.randn(size, r, dtype=dtype, generator=g))[0] for size in (m, n))
    s = torch.cat([torch.tensor(first, dtype=torch.float64), torch.linspace(0.9, 0, r - len(first), dtype=torch.float64)])
    return (U * s.to(dtype)) @ V.mH


def loss(U: Tensor, S: Tensor, Vh: Tensor) -> Tensor:
    """Of the space on both sides, and of the values."""
    B = torch.cos(torch.arange(U.shape[-2] ** 2).double()).reshape(U.shape[-2], -1).to(U.dtype)
    C = torch.sin(torch.arange(U.shape[-2] * Vh.shape[-1]).double()).reshape(U.shape[-2], -1).to(U.dtype)
    return ((U @ Vh) * C + 0).sum().real + ((U @ U.mH) * B).sum().real + (S**2).sum()


def exact(A: Tensor, k: int) -> Tensor:
    wide = A.detach().to(torch.complex128 if A.is_complex() else torch.float64).requires_grad_()
    U, S, Vh = sg.svd(wide, gradient=sg.Exact())
    return torch.autograd.grad(loss(U[:, :k], S[:k], Vh[:k]), wide)[0]


@pytest.mark.parametrize("way", ["dense", "coo", "csr", "map"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.complex128], ids=str)
def test_triplets_and_gradient_with_a_tie_inside(way: str, shape: str, dtype: torch.dtype) -> None:
    A = matrix(*SHAPES[shape], 3, 2, 2, 1.4, 1.2, dtype=dtype)
    leaf = A.clone() if way in ("dense", "map") else A.to_sparse() if way == "coo" else A.to_sparse_csr()
    leaf.requires_grad_()
    given: Tensor | sg.LinearMap = leaf
    if way == "map":
        given = sg.LinearMap(lambda X: leaf @ X, SHAPES[shape], rmatmul=lambda Y: leaf.mH @ Y, dtype=dtype)
    U, S, Vh = sg.svds(given, 4, gradient=sg.Exact())
    eps = torch.finfo(dtype).eps
    assert (S - torch.tensor([3, 2, 2, 1.4], dtype=torch.float64).to(S)).abs().max() < 100 * eps
    assert (A @ Vh.mH - U * S).abs().max() < 1000 * eps
    (g,) = torch.autograd.grad(loss(U, S, Vh), leaf)
    reference = exact(A, 4)
    assert (g.to_dense() - reference).abs().max() < (1e-4 if dtype == torch.float32 else 1e-9) * reference.abs().max()


def test_small_singular_values_are_not_squared() -> None:
    """1e-9 of the norm: A^H A has it at 1e-18, below rounding."""
    A = matrix(300, 200)
    U, _, Vh = torch.linalg.svd(A, full_matrices=False)
    s = torch.cat([torch.tensor([1, 1e-9, 5e-10], dtype=torch.float64), torch.linspace(1e-10, 0, 197).double()])
    found = sg.svds((U * s) @ Vh, 3)[1]
    torch.testing.assert_close(found, s[:3], atol=1e-14, rtol=0)


def test_rank_below_k_and_zero() -> None:
    for A in (torch.zeros(300, 200).double(), matrix(300, 200)[:, :1] @ torch.ones(1, 200).double()):
        X = A.clone().requires_grad_()
        sg.reset_counts()
        with pytest.warns(UserWarning, match="ties"):
            U, S, Vh = sg.svds(X, 3)
        assert sg.counts() == {"tie_across_cut": 1}
        torch.testing.assert_close(S, torch.linalg.svdvals(A)[:3])
        torch.testing.assert_close(U.mT @ U, torch.eye(3).double())
        (U.sum() + Vh.sum()).backward()
        assert X.grad is not None
        assert X.grad.isfinite().all()


def test_second_derivatives_and_forward_mode() -> None:
    A, B = matrix(70, 60, 3, 2, 1.5), matrix(70, 60, 1)

    def f(t: Tensor) -> Tensor:
        return loss(*sg.svds(A + t * B, 2, gradient=sg.Exact()))

    t = torch.zeros((), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(f, t, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(f, t)


def test_bad_input() -> None:
    with pytest.raises(sg.errors.OptionError, match="rmatmul"):
        sg.svds(sg.LinearMap(lambda X: X, (3, 3)), 1)
    with pytest.raises(sg.errors.OptionError, match="from 1 to 2"):
        sg.svds(torch.ones(2, 3), 3)
    with pytest.raises(sg.errors.ShapeError, match="start"):
        sg.svds(torch.ones(5, 3), 1, start=torch.ones(5, 1))
    with pytest.raises(sg.errors.ShapeError, match="rmatmul"):
        sg.svds(sg.LinearMap(lambda X: X, (300, 300), rmatmul=lambda Y: Y[1:]), 1)
