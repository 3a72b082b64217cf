"""The exponential of a skew matrix by series and doublings: values, gradients, reach."""

import mpmath
import pytest
import torch
from torch import Tensor

from spectralgrad.orthogonal.exponential import REACH, _coefficients, _doubled, _exponential, skew_exponential
from support.cases import random, relative_error
from support.host_reads import HostReads

SHAPES = [(1, 1), (6, 6), (7, 4), (9, 2), (5, 1)]  # square, m <= 2k, m > 2k
EPS = float(torch.finfo(torch.float64).eps)


def norm_of(A: Tensor) -> float:
    """The bound of |S| that decides."""
    return float((2 * A.detach().square().sum()).sqrt())


def reference(A: Tensor) -> Tensor:
    """exp of the m x m skew matrix, its first k columns."""
    full = torch.cat([A, A.new_zeros(A.shape[0], A.shape[0] - A.shape[1])], 1)
    return torch.matrix_exp(full - full.mT)[:, : A.shape[1]]


def exact(A: Tensor) -> Tensor:
    """The same by 40 digits."""
    m, k = A.shape
    with mpmath.workdps(40):
        full = mpmath.zeros(m)
        for i in range(m):
            for j in range(k):
                full[i, j] = mpmath.mpf(float(A[i, j]))
        W = mpmath.expm(full - full.T, method="taylor")
        return torch.tensor([[float(W[i, j]) for j in range(k)] for i in range(m)], dtype=torch.float64)


def off_orthogonal(W: Tensor) -> float:
    return float((W.mT @ W - torch.eye(W.shape[1], dtype=W.dtype)).abs().max())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", [0.0, 1e-9, 1e-3, 0.3, 3.0, 12.0])
def test_error_is_what_the_derivation_says(shape: tuple[int, int], size: float) -> None:
    A = size * random(*shape)
    W = skew_exponential(A)
    assert norm_of(A) < REACH
    assert float((W - exact(A)).abs().max()) <= 10 * EPS * max(norm_of(A), 1)
    assert off_orthogonal(W) <= 10 * EPS * max(norm_of(A), 1)


def test_factorials_are_exact() -> None:
    expected = [1 / float(mpmath.factorial(i)) for i in range(1, 17)]
    assert _coefficients(torch.zeros((), dtype=torch.float64)).flatten().tolist() == expected


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("excess", [1.5, 1e3, 1e30, 1e200])
def test_beyond_the_reach_it_is_the_exponential_at_the_reach(shape: tuple[int, int], excess: float) -> None:
    A = random(*shape)
    A = A * (REACH / norm_of(A))
    near = skew_exponential(A * (1 - 1e-12))
    W = skew_exponential(far := (A * excess).requires_grad_())
    if excess < 1e150:  # where the square of the norm is a number; beyond, the weight starts again at the identity
        torch.testing.assert_close(W.detach(), near, rtol=0, atol=1e-8)
    assert off_orthogonal(W.detach()) <= 1e-11
    (g,) = torch.autograd.grad(W.square().sum() + W.sum(), far)
    assert g.isfinite().all()


def test_nan_is_not_repaired() -> None:
    A = random(9, 2)
    A[0, 0] = float("nan")
    assert skew_exponential(A).isnan().any()


@pytest.mark.parametrize("shape", [*SHAPES, (64, 27)])
@pytest.mark.parametrize("size", [0.0, 1e-6, 0.1, 3.0])
def test_gradient_is_that_of_matrix_exp(shape: tuple[int, int], size: float) -> None:
    A = (size * random(*shape)).requires_grad_()
    C = random(*shape, seed=1)
    (g,) = torch.autograd.grad((skew_exponential(A) * C).sum(), A)
    (expected,) = torch.autograd.grad((reference(A) * C).sum(), A)
    if shape != (1, 1):  # where the weight is constant
        assert relative_error(g, expected) < 1e-11
    else:
        assert float(g.abs().max()) == 0


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", [0.0, 0.5])
def test_both_derivatives(shape: tuple[int, int], size: float) -> None:
    A = (size * random(*shape)).requires_grad_()
    assert torch.autograd.gradcheck(skew_exponential, A)
    assert torch.autograd.gradgradcheck(skew_exponential, A)


def test_a_doubling_is_differentiated_as_autograd_does() -> None:
    E = random(4, 4).requires_grad_()
    G = random(4, 4, seed=1)
    (g,) = torch.autograd.grad(_doubled(E), E, G)
    (expected,) = torch.autograd.grad(2 * E + E @ E, E, G)
    torch.testing.assert_close(g, expected)
    assert torch.autograd.gradgradcheck(_doubled, E)


@pytest.mark.parametrize("shape", [(4, 4), (9, 2)])
def test_transforms(shape: tuple[int, int]) -> None:
    A, T = 0.5 * random(*shape), random(*shape, seed=1)
    plain = A.clone().requires_grad_()
    (expected,) = torch.autograd.grad(skew_exponential(plain).sum(), plain)
    torch.testing.assert_close(torch.func.grad(lambda X: skew_exponential(X).sum())(A), expected)
    _, tangent = torch.func.jvp(skew_exponential, (A,), (T,))
    step = 1e-6
    differences = (skew_exponential(A + step * T) - skew_exponential(A - step * T)) / (2 * step)
    torch.testing.assert_close(tangent, differences, rtol=1e-7, atol=1e-8)
    both = torch.func.vmap(skew_exponential)(torch.stack([A, T]))
    torch.testing.assert_close(both, torch.stack([skew_exponential(A), skew_exponential(T)]))


@pytest.mark.parametrize("shape", SHAPES)
def test_host_reads_nothing(shape: tuple[int, int]) -> None:
    A = random(*shape).requires_grad_()
    with HostReads() as reads:
        skew_exponential(A).sum().backward()
    assert reads.found == []


def test_no_digit_is_lost_to_the_identity() -> None:
    """Control: with I + E squared in the place of E doubled a small angle has lost twelve bits."""
    S = torch.tensor([[0.0, 1e-5], [-1e-5, 0.0]], dtype=torch.float64)
    X = torch.eye(2, dtype=torch.float64) + S / 2**8
    for _ in range(8):
        X = X @ X
    sine = float(mpmath.sin(mpmath.mpf(1e-5)))
    assert abs(float(_exponential(S / 2**8)[0, 1]) - sine) <= 10 * EPS * 1e-5
    assert abs(float(X[0, 1]) - sine) > 100 * EPS * 1e-5
