"""The nearest orthogonal matrix and the nearest rotation: values, two exact derivatives, and where R is not unique."""

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import spectralgrad as sg
from spectralgrad.errors import DtypeError, NonFiniteError, OptionError, ShapeError
from support import cases
from support.marks import slow_but

# The last one carries the sign of the determinant; the second of the pairs is small enough for R to be unique.
SPECTRA = {
    "separate": [3.0, 2.0, 0.7],
    "reflected": [3.0, 2.0, -0.7],
    "pair": [2.0, 2.0, 1.0],
    "reflected pair": [2.0, 2.0, -1.0],
    "equal": [1.0, 1.0, 1.0],
    "planar": [2.0, 1.0, 0.0],
    "four": [2.0, 1.0, 1.0, -0.5],
    "two": [1.0, -0.5],
    "one": [-2.0],
}
NOT_UNIQUE = {
    "collinear": [2.0, 0.0, 0.0],
    "zero": [0.0, 0.0, 0.0],
    "mirror": [2.0, 1.0, -1.0],
    "mirror of a sphere": [1.0, 1.0, -1.0],
}


def special(A: Tensor) -> Tensor:
    return sg.procrustes(A, special=True)


def with_signed_values(s: list[float], seed: int = 0) -> Tensor:
    """A matrix U diag(s) V^T with rotations U and V, so that the sign of its determinant is that of the last number."""
    U, V = (special(cases.random(len(s), len(s), seed=seed + i)) for i in range(2))
    return (U * torch.tensor(s, dtype=torch.float64)) @ V.mT


def plain(A: Tensor) -> Tensor:
    """As one would write it with torch.linalg."""
    U, _, Vh = torch.linalg.svd(A)
    d = torch.linalg.det(U @ Vh)
    return torch.cat([U[..., :-1], U[..., -1:] * d[..., None, None]], -1) @ Vh


def gradient(A: Tensor, function=special) -> Tensor:  # type: ignore[no-untyped-def]
    A = A.detach().requires_grad_()
    R = function(A)
    return torch.autograd.grad((R * cases.random(*R.shape, seed=9).to(R.dtype)).sum(), A)[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=cases.ident)
@pytest.mark.parametrize("n", [1, 2, 3, 5, 12])
def test_the_nearest_rotation(n: int, dtype: torch.dtype) -> None:
    A = cases.random(40, n, n).to(dtype)
    R = special(A)
    limit = 100 * cases.eps(dtype)
    torch.testing.assert_close(R @ R.mT, torch.eye(n, dtype=dtype).expand_as(R), rtol=limit, atol=limit)
    torch.testing.assert_close(torch.linalg.det(R), torch.ones(40, dtype=dtype), rtol=limit, atol=limit)
    torch.testing.assert_close(R, plain(A), rtol=limit, atol=50 * limit)
    for seed in range(20):
        other = special(R + 0.1 * cases.random(40, n, n, seed=1 + seed).to(dtype))
        assert ((R * A).sum((-2, -1)) >= (other * A).sum((-2, -1)) - n * limit).all()


@pytest.mark.parametrize("s", SPECTRA.values(), ids=SPECTRA)
def test_two_derivatives(s: list[float]) -> None:
    A = with_signed_values(s).requires_grad_()
    sg.reset_counts()
    assert gradcheck(special, A, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(special, A, check_fwd_over_rev=True)
    assert sg.counts() == {}


def test_negative_control() -> None:
    """The plain version is right where singular values are apart, and NaN at a tie, where ours is exact."""
    apart, tied = with_signed_values([3.0, 2.0, -0.7]), torch.eye(3, dtype=torch.float64)
    assert cases.relative_error(gradient(apart, plain), gradient(apart)) < 1e-13
    assert gradient(tied, plain).isnan().any()
    G = cases.random(3, 3, seed=9)
    torch.testing.assert_close(gradient(tied), (G - G.mT) / 2, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("gap", [1e-2, 1e-6, 1e-10])
def test_the_closed_form_at_near_ties_and_small_sums(gap: float) -> None:
    """In the signed basis: the skew part over sigma_i + sigma_j, to the rounding that the smallest sum leaves."""
    for s in ([2.0, 2.0 - gap, 1.0], [2.0, 1.0, -1.0 + gap]):
        U, V = (special(cases.random(3, 3, seed=i)) for i in range(2))
        sigma = torch.tensor(s, dtype=torch.float64)
        P = U.mT @ cases.random(3, 3, seed=9) @ V
        want = U @ ((P - P.mT) / (sigma[:, None] + sigma)) @ V.mT
        assert cases.relative_error(gradient((U * sigma) @ V.mT), want) < 20 * cases.eps(torch.float64) / min(
            float(sigma[1] + sigma[2]), 1.0
        )


@pytest.mark.parametrize("scale", [1.0, 1e-8, 1e8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=cases.ident)
@pytest.mark.parametrize("s", NOT_UNIQUE.values(), ids=NOT_UNIQUE)
def test_not_unique(s: list[float], dtype: torch.dtype, scale: float) -> None:
    """The free pair gives 0, the others are exact, and it is counted once."""
    U, V = (special(cases.random(3, 3, seed=i)) for i in range(2))
    sigma = torch.tensor(s, dtype=torch.float64)
    A = (scale * (U * sigma) @ V.mT).to(dtype).requires_grad_()
    sg.reset_counts()
    R = special(A)
    assert sg.counts() == {"rotation_not_unique": 1}
    torch.testing.assert_close(torch.linalg.det(R), torch.ones((), dtype=dtype))
    G = cases.random(3, 3, seed=9).to(dtype)
    (first,) = torch.autograd.grad((R * G).sum(), A, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), A)
    assert second.isfinite().all()
    total = scale * (sigma[:, None] + sigma)
    W = (R.mT @ G - G.mT @ R).double().detach()
    largest = float(torch.where(total > 1e-3 * scale, 1 / total, 0).max())  # what is left of 1/(s_i + s_j)
    assert torch.linalg.norm(first.double()) <= largest * torch.linalg.norm(W) * 1.001


def test_the_sign_is_that_of_the_determinant() -> None:
    """Off the border the one just inside is exact, and counted neither here nor there."""
    sg.reset_counts()
    for sign in (1, -1):
        A = with_signed_values([1.0, 0.5, sign * 1e-5]).requires_grad_()
        assert gradcheck(special, A)
    assert sg.counts() == {}


@pytest.mark.parametrize("shape", [(3, 3), (4, 3), (3, 4), (2, 3, 5, 4), (1, 1), (0, 3, 3), (0, 0)], ids=str)
def test_without_special_it_is_the_polar_factor(shape: tuple[int, ...]) -> None:
    for dtype in cases.DTYPES:
        A = cases.random(*shape, dtype=dtype).requires_grad_()
        assert torch.equal(sg.procrustes(A), sg.polar(A))
        weight = cases.random(*shape, dtype=dtype, seed=1)
        got, want = (torch.autograd.grad((f(A) * weight).real.sum(), A)[0] for f in (sg.procrustes, sg.polar))
        assert torch.equal(got, want)


@pytest.mark.parametrize("backend", slow_but(["aot_eager"], ["aot_eager", "inductor"]))
def test_compiles_whole_and_counts(backend: str) -> None:
    A = torch.stack([with_signed_values(s) for s in ([3.0, 2.0, -0.7], [1.0, 1.0, 1.0], [1.0, 0.0, 0.0])]).requires_grad_()
    compiled = torch.compile(special, fullgraph=True, backend=backend)
    sg.reset_counts()
    R = compiled(A)
    assert sg.counts() == {"rotation_not_unique": 1}
    torch.testing.assert_close(R, special(A))
    (got,) = torch.autograd.grad(R.pow(3).sum(), A)
    torch.testing.assert_close(got, torch.autograd.grad(special(A).pow(3).sum(), A)[0])


def test_bad_input() -> None:
    with pytest.raises(ShapeError, match=r"`procrustes`: with special=True `A` must be square .* got \(4, 3\)"):
        special(torch.ones(4, 3))
    with pytest.raises(DtypeError, match=r"`procrustes`: with special=True `A` must be real, got torch.complex64"):
        special(torch.ones(3, 3, dtype=torch.complex64))
    with pytest.raises(OptionError, match="`procrustes`: special must be True or False, got 1"):
        sg.procrustes(torch.eye(3), special=1)  # type: ignore[arg-type]
    with pytest.raises(NonFiniteError, match="`procrustes`: `A` must be finite, got 9 NaN"):
        special(torch.full((3, 3), torch.nan))
    with pytest.raises(NonFiniteError, match="`procrustes`: `A` must be finite, got 9 NaN"):
        sg.procrustes(torch.full((3, 3), torch.nan))
    with pytest.raises(DtypeError, match=r"`procrustes`: `A` must be a torch.Tensor, got list"):
        sg.procrustes([[1.0]])  # type: ignore[arg-type]
    with sg.checks(False):
        assert special(torch.full((3, 3), torch.nan)).isnan().all()
