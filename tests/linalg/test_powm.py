"""`powm` with an exponent that is a tensor: the value of a number, gradients to it, and the same domain."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import spectralgrad as sg
from support import cases

SPECTRA = {"separate": [0.3, 1.0, 2.5], "tied": [2.0, 2.0, 2.0], "near": [1.0, 1.0 + 1e-9, 3.0]}
ALPHAS = [-1.7, -0.5, 0.0, 0.3, 1.0, 2.2]


def number(alpha: float, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor(alpha, dtype=dtype, requires_grad=True)


@pytest.mark.parametrize("w", SPECTRA.values(), ids=SPECTRA)
@pytest.mark.parametrize("alpha", ALPHAS)
def test_gradients_to_both(alpha: float, w: list[float]) -> None:
    M, p = cases.with_spectrum(torch.tensor(w, dtype=torch.float64)).requires_grad_(), number(alpha)
    G = cases.random(3, 3, seed=5)
    torch.testing.assert_close(sg.powm(M, p), sg.powm(M, alpha), rtol=1e-12, atol=1e-12)
    got, want = (torch.autograd.grad((sg.powm(M, a) * G).sum(), M)[0] for a in (p, alpha))
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)

    def both(M: Tensor, p: Tensor) -> Tensor:
        return (sg.powm((M + M.mT) / 2, p) * G).sum()

    assert gradcheck(both, (M, p), check_forward_ad=True)
    assert gradgradcheck(both, (M, p))


@pytest.mark.parametrize("alpha", [0.3, 0.999, 1.0, 1.5, 2.0])
def test_singular_matrices(alpha: float) -> None:
    """What reaches X through X X^T is that of a number; the exponent gets the sum of x^alpha log x over what is not 0."""
    X, G = cases.random(4, 2).requires_grad_(), cases.random(4, 4, seed=5)
    p = number(alpha)
    got = torch.autograd.grad((sg.powm(X @ X.mT, p) * G).sum(), (X, p))
    (want,) = torch.autograd.grad((sg.powm(X @ X.mT, alpha) * G).sum(), X)
    torch.testing.assert_close(got[0], want, rtol=1e-7, atol=1e-7)
    w, V = torch.linalg.eigh((X @ X.mT).detach())
    slopes = torch.where(w > 1e-9, w.clamp(min=1e-9) ** alpha * w.clamp(min=1e-9).log(), 0)
    torch.testing.assert_close(got[1], ((V * slopes) @ V.mT * G).sum())


@pytest.mark.parametrize("alpha", ALPHAS)
def test_a_floor(alpha: float) -> None:
    M = torch.diag(torch.tensor([-1.0, 0.2, 3.0], dtype=torch.float64)).requires_grad_()
    got, want = (torch.autograd.grad(sg.powm(M, a, floor=0.5).sum(), M)[0] for a in (number(alpha), alpha))
    torch.testing.assert_close(got, want)


def test_the_domain_is_that_of_a_number() -> None:
    for M, alpha, error in (
        (torch.diag(torch.tensor([1.0, -1.0])), 0.5, sg.errors.DefinitenessError),
        (torch.diag(torch.tensor([1.0, 0.0])), -1.0, sg.errors.DefinitenessError),
        (1e30 * torch.eye(2), 3.0, sg.errors.NonFiniteError),
    ):
        for a in (alpha, torch.tensor(alpha)):
            with pytest.raises(error, match="`powm`"):
                sg.powm(M, a)
            with pytest.raises(error, match="`powm`"):
                torch.func.grad(lambda M, a=a: sg.powm(M, a).sum())(M)
    sg.reset_counts()
    with sg.checks(False):
        assert sg.powm(torch.diag(torch.tensor([1.0, 0.0])), torch.tensor(-1.0)).isfinite().all()
    assert sg.counts() == {"clamped_eigenvalue": 1}
    sg.reset_counts()


@pytest.mark.parametrize(
    "options", [{"gradient": sg.Exact()}, {"gradient": sg.Lorentzian()}, {"solver": sg.Jacobi()}], ids=str
)
def test_options(options: Any) -> None:
    M = cases.random_covariance(4).requires_grad_()
    got, want = (torch.autograd.grad(sg.powm(M, a, **options).sum(), M)[0] for a in (number(0.3), 0.3))
    torch.testing.assert_close(got, want, rtol=1e-7, atol=1e-7)
    with pytest.raises(sg.errors.OptionError, match="`powm`"):
        sg.powm(M, number(0.5), solver=sg.NewtonSchulz())


def test_dtypes_and_transforms() -> None:
    M = cases.random_covariance(4, 3)
    p = number(0.3, torch.float32)
    assert torch.autograd.grad(sg.powm(M.bfloat16(), p).sum(), p)[0].dtype == torch.float32
    each = torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64)
    want = torch.stack([sg.powm(m, float(a)) for m, a in zip(M, each, strict=True)])
    torch.testing.assert_close(torch.func.vmap(sg.powm)(M, each), want)
    torch.testing.assert_close(
        torch.func.vmap(torch.func.grad(lambda a, m: sg.powm(m, a).trace()))(each, M),
        torch.stack([torch.func.grad(lambda a, m=m: sg.powm(m, a).trace())(a) for m, a in zip(M, each, strict=True)]),
    )


def test_second_derivatives_of_a_batch_with_clamped_eigenvalues() -> None:
    """Those of its matrices alone, in `spectral_map` too: indices of three eigenvalues are one for each matrix."""
    w = torch.tensor([[0.1, 1.0, 2.0, 3.0], [0.2, 0.3, 1.0, 4.0], [1.0, 2.0, 3.0, 5.0]], dtype=torch.float64)
    M = torch.stack([cases.with_spectrum(x) for x in w])

    def twice(M: Tensor) -> Tensor:
        X = M.clone().requires_grad_()
        (g,) = torch.autograd.grad(sg.spectral_map(X, torch.sin, floor=0.5).square().sum(), X, create_graph=True)
        return torch.autograd.grad(g.square().sum(), X)[0]

    torch.testing.assert_close(twice(M), torch.stack([twice(m) for m in M]))
