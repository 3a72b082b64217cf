"""Nuclear and Schatten norms and the log-determinant: values against torch and numpy, two exact derivatives at ties."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.autograd.gradcheck import GradcheckError

import spectralgrad as sg
from support import cases
from support.marks import slow_but

SHAPES = {"square": (3, 3), "tall": (4, 3), "wide": (3, 4)}
DTYPES = [torch.float64, torch.complex128]
NORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "nuclear": sg.nuclear_norm,
    **{f"p = {p}": lambda A, p=p: sg.schatten_norm(A, p) for p in (1, 1.3, 2, 3, 7.5)},  # type: ignore[misc]
}
each_norm = pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)


def with_singular_values(s: list[float], shape: tuple[int, int], dtype: torch.dtype = torch.float64) -> Tensor:
    U, V = (cases.rotation(n, dtype=dtype, seed=i)[:, : len(s)] for i, n in enumerate(shape))
    return (U * torch.tensor(s, dtype=torch.float64)) @ V.mH


@pytest.mark.parametrize("dtype", cases.DTYPES, ids=cases.ident)
def test_values(dtype: torch.dtype) -> None:
    for shape in ((4, 4), (6, 3), (3, 6), (1, 4), (2, 3, 5, 4)):
        A = cases.random(*shape, dtype=dtype, seed=1)
        S = torch.linalg.svdvals(A)
        limit = 100 * cases.eps(dtype)
        torch.testing.assert_close(sg.nuclear_norm(A), torch.linalg.matrix_norm(A, "nuc"), rtol=limit, atol=limit)
        torch.testing.assert_close(sg.schatten_norm(A, 2), torch.linalg.matrix_norm(A), rtol=limit, atol=limit)
        for p in (1, 1.5, 4, 1000):
            want = torch.as_tensor(np.linalg.norm(S.double().numpy(), ord=p, axis=-1)) if p < 1000 else S.double()[..., 0]
            torch.testing.assert_close(
                sg.schatten_norm(A, p).double(), want, rtol=max(limit, 1e-2 * (p == 1000)), atol=limit
            )


@pytest.mark.covering(2)
@each_norm
@pytest.mark.parametrize("s", [[3.0, 2.0, 0.7], [2.0, 2.0, 1.0], [1.0, 1.0, 1.0]], ids=str)
@pytest.mark.parametrize("shape", slow_but(["square", "tall"], SHAPES))
@pytest.mark.parametrize("dtype", slow_but(["float64"], {cases.ident(dtype): dtype for dtype in DTYPES}))
def test_two_derivatives(
    dtype: torch.dtype, shape: tuple[int, int], s: list[float], norm: Callable[[Tensor], Tensor]
) -> None:
    A = with_singular_values(s, shape, dtype).requires_grad_()
    assert gradcheck(norm, A, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(norm, A, check_fwd_over_rev=True)


def test_negative_control() -> None:
    A = with_singular_values([1.0, 1.0, 1.0], (3, 3)).requires_grad_()
    with pytest.raises(GradcheckError):
        gradgradcheck(lambda A: sg.svd(A)[1].pow(3).sum().pow(1 / 3), A)


@pytest.mark.parametrize("p", [2, 3, 4.5])
def test_second_derivatives_at_zero_singular_values(p: float) -> None:
    """Frobenius's norm has a second derivative there, and from p = 3 on the others."""
    for shape in SHAPES.values():
        A = with_singular_values([2.0, 1.0, 0.0], shape).requires_grad_()
        assert gradgradcheck(lambda A: sg.schatten_norm(A, p), A, atol=2e-4)


@pytest.mark.parametrize("p", [1, 1.5])
def test_constant_rank(p: float) -> None:
    """B C has rank 2 whatever B and C are: what reaches them is exact, although the norm has a kink there."""
    B, C = (cases.random(*shape, seed=i).requires_grad_() for i, shape in enumerate(((4, 2), (2, 3))))
    assert gradcheck(lambda B, C: sg.schatten_norm(B @ C, p), (B, C), check_forward_ad=True)
    assert gradgradcheck(lambda B, C: sg.schatten_norm(B @ C, p), (B, C))


def test_gradients_in_closed_form() -> None:
    A = with_singular_values([2.0, 1.0, 0.0], (4, 3)).requires_grad_()
    U, S, Vh = torch.linalg.svd(A.detach(), full_matrices=False)
    (g,) = torch.autograd.grad(sg.nuclear_norm(A), A)
    torch.testing.assert_close(g, U[:, :2] @ Vh[:2])
    (g,) = torch.autograd.grad(sg.schatten_norm(A, 3), A)
    torch.testing.assert_close(g, (U * S**2) @ Vh / 9 ** (2 / 3))
    zero = torch.zeros(4, 3, requires_grad=True)
    for norm in NORMS.values():
        assert torch.equal(torch.autograd.grad(norm(zero), zero)[0], torch.zeros(4, 3))


@each_norm
def test_every_scale(norm: Callable[[Tensor], Tensor]) -> None:
    for s in ([1.0, 0.5, 0.25], [1.0, 1.0, 1.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0], [1.0, 1e-5, 1e-9]):
        for shape in SHAPES.values():
            A = with_singular_values(s, shape)
            for scale in (1e-45, 1e-38, 1e-30, 1e-8, 1e8, 1e30, 3e38):
                X = (scale * A).float().requires_grad_()
                value = norm(X)
                (first,) = torch.autograd.grad(value, X, create_graph=True)
                (second,) = torch.autograd.grad((first * cases.random(*shape).float()).sum(), X)
                assert all(x.isfinite().all() for x in (value, first, second))
                if 1e-38 < scale < 1e38 and s[0] > 0:
                    assert abs(float(value.detach()) / scale / float(norm(A)) - 1) < 1e-5


@pytest.mark.parametrize("dtype", cases.DTYPES, ids=cases.ident)
def test_logdet_values(dtype: torch.dtype) -> None:
    for spectrum in (cases.separated, cases.equal, cases.repeated, cases.near_equal):
        M = cases.with_spectrum(spectrum(6), 2, dtype=dtype)
        limit = 1e3 * cases.eps(dtype)
        torch.testing.assert_close(sg.logdet(M), torch.linalg.slogdet(M).logabsdet, rtol=limit, atol=limit)
        X = M.clone().requires_grad_()
        (g,) = torch.autograd.grad(sg.logdet(X).sum(), X)
        torch.testing.assert_close(g, torch.linalg.inv(M), rtol=limit, atol=limit)


@pytest.mark.covering(2)
@pytest.mark.parametrize("floor", [None, 1.5])
@pytest.mark.parametrize("w", [[0.7, 1.1, 2.3], [2.0, 2.0, 2.0], [1.0, 2.0, 2.0]], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=cases.ident)
def test_logdet_has_two_derivatives(dtype: torch.dtype, w: list[float], floor: float | None) -> None:
    M = cases.with_spectrum(torch.tensor(w, dtype=torch.float64), dtype=dtype).requires_grad_()

    def function(M: Tensor) -> Tensor:
        return sg.logdet((M + M.mH) / 2, floor=floor)

    assert gradcheck(function, M, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(function, M, check_fwd_over_rev=True)


def test_floor_of_logdet() -> None:
    M = torch.diag(torch.tensor([0.0, 1e-9, 2.0])).requires_grad_()
    value = sg.logdet(M, floor=1e-3)
    (g,) = torch.autograd.grad(value, M)
    torch.testing.assert_close(value, 2 * torch.tensor(1e-3).log() + torch.tensor(2.0).log())
    torch.testing.assert_close(g, torch.diag(torch.tensor([0.0, 0.0, 0.5])))
    for solver in (sg.Lapack(), sg.SVD(), sg.Jacobi()):
        torch.testing.assert_close(sg.logdet(M, floor=1e-3, solver=solver), value)


@pytest.mark.usefixtures("without_native")  # a matrix of that range is brought to size 1 there
def test_logdet_of_spectra_wider_than_the_range_of_numbers() -> None:
    """With a floor an eigenvalue may be 1e57 times another: 1/w and -1/(w_i w_j) where they fit, the largest number else."""
    M = torch.diag(torch.tensor([7.5e37, 1.0, 2e-20, 0.0])).requires_grad_()
    (first,) = torch.autograd.grad(sg.logdet(M, floor=1e-20), M, create_graph=True)
    torch.testing.assert_close(first.diagonal(), torch.tensor([0.0, 1.0, 5e19, 0.0]), rtol=1e-4, atol=1e-30)
    (second,) = torch.autograd.grad(first, M, torch.ones(4, 4))
    largest = torch.finfo(torch.float32).max
    assert second.isfinite().all()
    torch.testing.assert_close(second.diagonal()[:3], torch.tensor([0.0, -1.0, -largest]), rtol=1e-5, atol=1e-30)


def test_a_number_times_its_gradient_is_cut_to_the_largest_one() -> None:
    M = (1e-20 * torch.eye(2)).requires_grad_()
    largest = torch.finfo(torch.float32).max
    (g,) = torch.autograd.grad(sg.logdet(M), M, torch.tensor(1e30), create_graph=True)
    assert torch.equal(g, largest * torch.eye(2))
    (broken,) = torch.autograd.grad(sg.logdet(M), M, torch.tensor(torch.inf))
    assert broken.isnan().all()  # nothing is repaired


def test_a_derivative_that_overflows_is_the_largest_number() -> None:
    E = 3e38 * torch.eye(4)
    for function in (*NORMS.values(), sg.logdet):
        found = torch.func.jvp(function, (torch.eye(4),), (E,))[1]
        assert float(found) >= 3e38
        assert found.isfinite()


def test_logdet_at_every_scale() -> None:
    for spectrum in (cases.separated, cases.equal):
        for scale in (1e-38, 1e-30, 1e-8, 1e8, 1e30, 1e38):
            M = cases.with_spectrum(spectrum(3))
            X = (scale * M).float().requires_grad_()
            value = sg.logdet(X)
            (first,) = torch.autograd.grad(value, X, create_graph=True)
            (second,) = torch.autograd.grad((first * cases.random(3, 3).float()).sum(), X)
            assert abs(float(value.detach()) - float(sg.logdet(M)) - 3 * np.log(scale)) < 1e-3
            assert first.isfinite().all()
            assert second.isfinite().all()
            if scale < 1e38:
                assert cases.relative_error(first.detach().double() * scale, torch.linalg.inv(M)) < 1e-5
    if_unchecked = torch.diag(torch.tensor([1.0, 0.0])).requires_grad_()
    with sg.checks(False):
        value = sg.logdet(if_unchecked)
        (g,) = torch.autograd.grad(value, if_unchecked)
    assert value.isfinite()
    assert g.isfinite().all()
