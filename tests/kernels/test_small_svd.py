"""Polar factors of small matrices in one kernel, compiled for the CPU: against the plain path, gradients, scales, NaN."""

import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from spectralgrad.align.procrustes import _Nearest
from spectralgrad.kernels import small_svd
from spectralgrad.linalg.polar import BySVD
from support import cases
from support.on_cpu import on_cpu  # noqa: F401

pytestmark = pytest.mark.usefixtures("on_cpu")
SHAPES = [(1, 1), (2, 1), (2, 2), (4, 2), (3, 3), (4, 4)]
EPS = cases.eps(torch.float64)


def count() -> Tensor:
    return torch.zeros((), dtype=torch.int64)


def plain(special: bool) -> BySVD:
    """The path of torch operations alone."""
    return _Nearest("procrustes", sg.Lapack(), EPS, special)


def reference(A: Tensor, special: bool) -> tuple[Tensor, Tensor, Tensor]:
    """R, sigma and V from torch's SVD."""
    U, S, Vh = torch.linalg.svd(A, full_matrices=False)
    if special:
        d = torch.linalg.det(U @ Vh).sign()
        U, S = U.clone(), S.clone()
        U[..., -1] *= d.unsqueeze(-1)
        S[..., -1] *= d
    return U @ Vh, S, Vh.mT


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_polar_and_its_derivative(m: int, n: int, special: bool) -> None:
    if special and m != n:
        pytest.skip("a rotation is square")
    A, E = cases.random(9, m, n), cases.random(9, m, n, seed=1)
    R, sigma, V = reference(A, special)
    found = small_svd.polar(A, special, EPS, count(), None)
    torch.testing.assert_close(found.Q, R, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.sigma, sigma, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close((found.V * found.sigma.unsqueeze(-2)) @ found.V.mT, (V * sigma.unsqueeze(-2)) @ V.mT)
    if special:
        torch.testing.assert_close(torch.linalg.det(found.Q), torch.ones(9, dtype=torch.float64))
    expected = super(BySVD, plain(special)).first((R, sigma, V), E)
    torch.testing.assert_close(small_svd.derivative(found, E, EPS), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("check", [True, False], ids=["checked", "as on CUDA"])
@pytest.mark.parametrize("f", [sg.polar, sg.procrustes, lambda A: sg.procrustes(A, special=True)])
def test_gradients_against_differences(f: object, check: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """First and second derivatives; the first by the kernel. Without checks the node is the kernel's own."""
    calls = []
    derivative = small_svd.derivative
    monkeypatch.setattr(small_svd, "derivative", lambda *args: calls.append(1) or derivative(*args))
    A = cases.random(2, 3, 3, seed=4).requires_grad_()
    with sg.checks(check):
        assert (type(f(A).grad_fn.step).__name__ == "_InKernel") is not check  # type: ignore[operator]
        assert torch.autograd.gradcheck(f, A)  # type: ignore[arg-type]
        assert calls
        assert torch.autograd.gradgradcheck(f, A)  # type: ignore[arg-type]


def test_where_it_is_not_unique() -> None:
    """Pairs whose divisor is zero to rounding give 0, are counted, and nothing is NaN."""
    A = torch.stack([torch.diag(torch.tensor(d)) for d in ([3.0, 1.0, -1.0], [0.0, 0.0, 0.0], [3.0, 2.0, 1.0])])
    not_unique = count()
    found = small_svd.polar(A, True, cases.eps(torch.float32), count(), not_unique)
    assert int(not_unique) == 2
    torch.testing.assert_close(torch.linalg.det(found.Q), torch.ones(3))
    G = small_svd.derivative(found, cases.random(3, 3, 3, dtype=torch.float32), cases.eps(torch.float32))
    assert bool(G.isfinite().all())
    assert float(G[1].abs().max()) == 0
    assert float(G[0].abs().max()) < 2.0  # not 1/rounding


@pytest.mark.parametrize("scale", [1e-40, 1e-20, 1e30])
def test_derivative_at_any_scale(scale: float) -> None:
    """dQ scales with the inverse of A; what overflows becomes the largest number."""
    A, E = cases.random(4, 3, 3), cases.random(4, 3, 3, seed=1)
    found = small_svd.polar((A * scale).float(), False, cases.eps(torch.float32), count(), None)
    G = small_svd.derivative(found, E.float(), cases.eps(torch.float32)).double()
    expected = super(BySVD, plain(False)).first(reference((A * scale).float().double(), False), E)
    largest = torch.finfo(torch.float32).max
    torch.testing.assert_close(G, expected.clamp(-largest, largest), rtol=2e-4, atol=1e-5 * float(expected.abs().max()))


def test_nan_stays_in_its_matrix() -> None:
    A = cases.random(5, 3, 3, dtype=torch.float32)
    A[2, 1, 1] = torch.inf
    broken = count()
    found = small_svd.polar(A, True, cases.eps(torch.float32), broken, None)
    assert int(broken) == 1
    E = torch.ones(1, 1, 1).expand(5, 3, 3).clone()
    E[4, 0, 0] = torch.nan
    G = small_svd.derivative(found, E, cases.eps(torch.float32))
    bad = torch.tensor([False, False, True, False, False])
    assert bool(found.Q[bad].isnan().all())
    assert bool(found.Q[~bad].isfinite().all())
    assert G.flatten(1).isnan().any(1).tolist() == [False, False, True, False, True]


def test_an_expanded_direction_is_read_where_it_lies() -> None:
    """The gradient of a sum is one number, expanded."""
    A = cases.random(4, 3, 2)
    found = small_svd.polar(A, False, EPS, count(), None)
    ones = torch.ones(()).double().expand(4, 3, 2)
    assert torch.equal(small_svd.derivative(found, ones, EPS), small_svd.derivative(found, ones.contiguous(), EPS))
