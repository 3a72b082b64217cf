"""The Moore-Penrose inverse: values against torch and scipy, gradients exact where the rank stays, finite everywhere."""

import pytest
import scipy.linalg
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import spectralgrad as sg
from support import cases

SHAPES = {"square": (3, 3), "tall": (4, 3), "wide": (3, 4)}
DTYPES = [torch.float64, torch.complex128]


def factors(m: int, r: int, n: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    return cases.random(m, r, dtype=dtype, seed=1), cases.random(r, n, dtype=dtype, seed=2)


@pytest.mark.parametrize("dtype", cases.DTYPES, ids=cases.ident)
def test_values(dtype: torch.dtype) -> None:
    for shape in ((4, 4), (6, 3), (3, 6), (1, 4), (2, 3, 5, 4)):
        A = cases.random(*shape, dtype=dtype, seed=1)
        limit = 1e4 * cases.eps(dtype)
        torch.testing.assert_close(sg.pinv(A), torch.linalg.pinv(A), rtol=limit, atol=limit)
    B, C = factors(6, 2, 4, dtype)
    limit = 1e3 * cases.eps(dtype)
    torch.testing.assert_close(
        sg.pinv(B @ C, rtol=1e-4), torch.from_numpy(scipy.linalg.pinv((B @ C).numpy(), rtol=1e-4)), rtol=limit, atol=limit
    )


@pytest.mark.covering(1)
@pytest.mark.parametrize("s", [[3.0, 2.0, 0.7], [2.0, 2.0, 1.0], [1.0, 1.0, 1.0]], ids=str)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("dtype", DTYPES, ids=cases.ident)
def test_gradcheck(dtype: torch.dtype, shape: tuple[int, int], s: list[float]) -> None:
    U, V = (cases.rotation(n, dtype=dtype, seed=i)[:, :3] for i, n in enumerate(shape))
    A = ((U * torch.tensor(s, dtype=torch.float64)) @ V.mH).requires_grad_()
    assert gradcheck(sg.pinv, A, check_forward_ad=True, check_batched_grad=True)
    weight = cases.random(shape[1], shape[0], dtype=dtype, seed=9)
    assert gradgradcheck(lambda A: (sg.pinv(A) * weight).sum(), A, check_fwd_over_rev=True)


@pytest.mark.covering(1)
@pytest.mark.parametrize("shape", [(3, 2, 3), (4, 2, 3), (3, 2, 4), (3, 1, 2)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=cases.ident)
def test_constant_rank(dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    """B C has rank r whatever B and C are: the gradient that reaches them is exact, twice."""
    B, C = (x.requires_grad_() for x in factors(*shape, dtype))
    weight = cases.random(shape[2], shape[0], dtype=dtype, seed=9)
    assert gradcheck(lambda B, C: sg.pinv(B @ C), (B, C), check_forward_ad=True)
    assert gradgradcheck(lambda B, C: (sg.pinv(B @ C) * weight).sum(), (B, C), check_fwd_over_rev=True)


def test_rtol_decides_what_counts() -> None:
    A = torch.diag(torch.tensor([1.0, 1e-3, 1e-5], dtype=torch.float64)).requires_grad_()
    for rtol, kept in ((None, 3), (1e-6, 3), (1e-5, 2), (1e-4, 2), (1e-2, 1), (1.0, 0)):
        P = sg.pinv(A, rtol=rtol)
        torch.testing.assert_close(sg.pinv(torch.cat([A, torch.zeros_like(A)], -1), rtol=rtol)[:3], P)  # wide
        want = torch.where(torch.arange(3) < kept, 1 / A.detach().diagonal(), 0)
        torch.testing.assert_close(P.diagonal(), want)
        (g,) = torch.autograd.grad(P.trace(), A)
        torch.testing.assert_close(g.diagonal(), -want * want)


def test_atol_decides_what_counts() -> None:
    """As in torch: the larger of the two counts, and with an atol the default rtol is 0."""
    for s in ([1.0, 1e-3, 1e-5], [1e6, 1.0, 1e-13]):
        A = torch.diag(torch.tensor(s, dtype=torch.float64)).requires_grad_()
        kept: set[int] = set()
        for atol, rtol in ((0.0, None), (1e-20, None), (1e-6, None), (1e-4, None), (1e-4, 1e-2), (2e6, None)):
            P, want = sg.pinv(A, atol=atol, rtol=rtol), torch.linalg.pinv(A.detach(), atol=atol, rtol=rtol)
            torch.testing.assert_close(P, want)
            torch.testing.assert_close(sg.pinv(torch.cat([A, torch.zeros_like(A)], -1), atol=atol, rtol=rtol)[:3], want)
            torch.testing.assert_close(torch.autograd.grad(P.trace(), A)[0], -want @ want)
            kept.add(int(want.count_nonzero()))
        assert len(kept) == 4 if s[0] == 1 else len(kept) >= 3


@pytest.mark.parametrize("w", [[3.0, -1.0, 0.5], [2.0, -2.0, 1.0], [1.0, 1.0, 0.0]], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=cases.ident)
def test_hermitian(dtype: torch.dtype, w: list[float]) -> None:
    V = cases.rotation(3, dtype=dtype)
    H = (V * torch.tensor(w, dtype=torch.float64)) @ V.mH
    H = ((H + H.mH) / 2).requires_grad_()
    P = sg.pinv(H, hermitian=True)
    assert torch.equal(P, P.mH)
    torch.testing.assert_close(P, sg.pinv(H))
    G = cases.random(3, 3, dtype=dtype, seed=5)
    got, whole = (torch.autograd.grad(x, H, G)[0] for x in (P, sg.pinv(H)))
    assert torch.equal(got, got.mH)
    torch.testing.assert_close(got, (whole + whole.mH) / 2)
    assert not torch.allclose(got, whole)  # the option acts
    B = cases.random(3, 3 if w[2] else 2, dtype=dtype, seed=6).requires_grad_()
    indefinite = torch.tensor([1.0, -2.0, 3.0][: B.shape[1]], dtype=dtype)

    def through(B: Tensor) -> Tensor:
        return (sg.pinv((B * indefinite) @ B.mH, hermitian=True) * G).sum()

    assert gradcheck(through, B, check_forward_ad=True)
    assert gradgradcheck(through, B, check_fwd_over_rev=True)


def test_hermitian_takes_no_other_matrix() -> None:
    A = cases.random(3, 3)
    sg.pinv(A)
    with pytest.raises(sg.errors.SymmetryError, match="`pinv`"):
        sg.pinv(A, hermitian=True)
    with pytest.raises(sg.errors.ShapeError, match="`pinv`"):
        sg.pinv(A[:2], hermitian=True)


def test_it_is_as_accurate_as_the_singular_values() -> None:
    """Condition 1e6 in float64 against the closed form of a diagonal matrix with rows below it."""
    A = torch.cat([torch.diag(torch.tensor([1.0, 1e-3, 1e-6], dtype=torch.float64)), torch.zeros(2, 3, dtype=torch.float64)])
    E = cases.random(5, 3, seed=3)
    tangent = torch.func.jvp(sg.pinv, (A,), (E,))[1].mT
    inverse = 1 / A.diagonal()
    want = torch.cat([-inverse[:, None] * E[:3].mT * inverse, E[3:] * inverse**2])
    assert float(((tangent - want) / want).abs().max()) < 1e-12


SPECTRA = {
    "separate": [1.0, 0.5, 0.25],
    "equal": [1.0, 1.0, 1.0],
    "zero": [1.0, 1.0, 0.0],
    "all zero": [0.0, 0.0, 0.0],
    "graded": [1.0, 1e-5, 1e-9],
}


@pytest.mark.covering(2)
@pytest.mark.parametrize("rtol", [None, 0.0], ids=["default", "0"])
@pytest.mark.parametrize("s", SPECTRA.values(), ids=SPECTRA)
@pytest.mark.parametrize("scale", [1e-45, 1e-38, 1e-30, 1e-8, 1e8, 1e30, 3e38])
def test_finite_at_every_scale(scale: float, s: list[float], rtol: float | None) -> None:
    for dtype in (torch.float32, torch.complex64):
        for m, n in SHAPES.values():
            U, V = (cases.rotation(k, dtype=dtype, seed=i)[:, :3] for i, k in enumerate((m, n)))
            A = (scale * ((U * torch.tensor(s, dtype=torch.float64)) @ V.mH)).to(dtype).requires_grad_()
            P = sg.pinv(A, rtol=rtol)
            (first,) = torch.autograd.grad((P * cases.random(n, m, dtype=dtype)).real.sum(), A, create_graph=True)
            (second,) = torch.autograd.grad((first * cases.random(m, n, dtype=dtype)).real.sum(), A)
            assert all(x.isfinite().all() for x in (P, first, second))
