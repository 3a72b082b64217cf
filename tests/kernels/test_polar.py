"""The derivative of polar factors of square matrices in one kernel, compiled for the CPU: against the plain path, at ties
and zeros, at any scale, with NaN, and inside the gradient."""

import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from spectralgrad.align.procrustes import _Nearest
from spectralgrad.kernels import polar
from spectralgrad.kernels.small_svd import Polar
from spectralgrad.linalg.polar import BySVD
from support import cases
from support.on_cpu import on_cpu  # noqa: F401

pytestmark = pytest.mark.usefixtures("on_cpu")
EPS = cases.eps(torch.float64)
SPECTRA = {
    "separated": [5.0, 4.0, 3.0, 2.0, 1.0],
    "equal": [2.0, 2.0, 2.0, 2.0, 2.0],
    "graded": [1.0, 1e-3, 1e-6, 1e-9, 1e-12],
    "deficient": [3.0, 2.0, 1.0, 0.0, 0.0],
    "rounding": [1.0, 1.0, 1.0, 1e-16, 1e-16],  # whose sum counts as zero
    "zero": [0.0, 0.0, 0.0, 0.0, 0.0],
    "mirrored": [3.0, 2.0, 1.0, 1.0, -1.0],  # as a nearest rotation has it
    "reflected": [3.0, 2.5, 2.0, 1.0, -0.5],
}


def factors(S: Tensor, seed: int = 0) -> Polar:
    """Q, S (*B, n) and V of a matrix Q V diag(S) V^T."""
    n = S.shape[-1]
    Q, V = (torch.linalg.qr(cases.random(*S.shape, n, seed=seed + i))[0].to(S.dtype) for i in range(2))
    return Polar(Q, S, V)


def plainly(of: Polar, E: Tensor, eps: float = EPS) -> Tensor:
    return super(BySVD, _Nearest("procrustes", sg.Lapack(), eps, True)).first(of, E)


@pytest.mark.parametrize("name", SPECTRA)
def test_against_the_twin(name: str) -> None:
    of, E = factors(torch.tensor([SPECTRA[name]] * 3, dtype=torch.float64)), cases.random(3, 5, 5, seed=7)
    found, expected = polar.derivative(of, E, EPS), plainly(of, E)
    assert bool(found.isfinite().all())
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-13 * float(expected.abs().max()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("n", [1, 6, 33, 64, 66])
def test_sizes(n: int, dtype: torch.dtype) -> None:
    of, E = factors((1 + cases.random(2, n).abs()).sort(descending=True)[0]), cases.random(2, n, n, seed=7)
    assert polar.runs_on(of.Q)
    found = polar.derivative(Polar(*(x.to(dtype) for x in of)), E.to(dtype), cases.eps(dtype))
    assert cases.relative_error(found.double(), plainly(of, E)) < 30 * n**0.5 * cases.eps(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("n", [1, 2, 5, 8, 34, 66])
def test_the_nearest_rotation(n: int, dtype: torch.dtype) -> None:
    """Against the determinant: matrices of both signs, permutations, and those with a zero at every pivot's place."""
    Q = torch.linalg.qr(cases.random(6, n, n))[0]
    Q[1::2, :, 0] *= -1
    Q[4] = torch.eye(n, dtype=torch.float64).flip(-1)
    Q[5] = torch.eye(n, dtype=torch.float64).roll(1, -1)
    S, V = cases.separated(n).flip(-1).repeat(6, 1), torch.linalg.qr(cases.random(6, n, n, seed=1))[0]
    mirror = torch.linalg.det(Q) < 0
    assert 0 < int(mirror.sum()) < 6
    of = Polar(*(x.to(dtype).clone(memory_format=torch.contiguous_format) for x in (Q, S, V)))
    polar.turn(of)
    assert torch.equal(of.sigma[:, -1] < 0, mirror)
    assert torch.equal(of.sigma.abs(), S.to(dtype))
    v = V[..., -1:]
    expected = torch.where(mirror[:, None, None], Q - 2 * Q @ v @ v.mT, Q)
    torch.testing.assert_close(of.Q.double(), expected, rtol=0, atol=10 * cases.eps(dtype))
    torch.testing.assert_close(
        torch.linalg.det(of.Q.double()), torch.ones(6).double(), rtol=0, atol=100 * n * cases.eps(dtype)
    )


def test_what_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not polar.runs_on(torch.ones(2, 5, 4))
    assert not polar.runs_on(torch.ones(1, 129, 129))
    assert polar.runs_on(torch.ones(1, 80, 80, dtype=torch.float64))
    assert not polar.runs_on(torch.ones(1, 104, 104, dtype=torch.float64))  # four of them need more memory than there is


@pytest.mark.parametrize("slope", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("scale", [1e-35, 1e35])
def test_any_scale(scale: float, slope: float) -> None:
    """dQ scales with the inverse of A; what overflows becomes the largest number."""
    of, E = factors(torch.tensor([SPECTRA["separated"]], dtype=torch.float64) * scale), cases.random(1, 5, 5, seed=7) * slope
    found = polar.derivative(Polar(*(x.float() for x in of)), E.float(), cases.eps(torch.float32)).double()
    largest, expected = torch.finfo(torch.float32).max, plainly(of, E)
    tiny = float(torch.finfo(torch.float32).tiny)
    torch.testing.assert_close(
        found, expected.clamp(-largest, largest), rtol=1e-4, atol=max(1e-5 * float(expected.abs().max()), tiny)
    )


def test_nan_stays_in_its_matrix() -> None:
    of, E = factors(torch.ones(4, 5, dtype=torch.float64)), cases.random(4, 5, 5)
    E[1, 2, 3] = torch.inf
    of.sigma[2, 4] = torch.nan
    found = polar.derivative(of, E, EPS)
    assert found.isnan().flatten(1).all(1).tolist() == [False, True, True, False]
    assert bool(found[[0, 3]].isfinite().all())


@pytest.mark.parametrize("f", [sg.polar, sg.procrustes, lambda A: sg.procrustes(A, special=True)])
def test_gradients_against_differences(f: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """First and second derivatives, where values are not looked at; the first by the kernel."""
    calls = []
    derivative = polar.derivative
    monkeypatch.setattr(polar, "derivative", lambda *args: calls.append(1) or derivative(*args))
    A = cases.random(1, 5, 5, seed=4).requires_grad_()
    with sg.checks(False):
        assert torch.autograd.gradcheck(f, A)  # type: ignore[arg-type]
        assert calls
        assert torch.autograd.gradgradcheck(f, A, fast_mode=True)  # type: ignore[arg-type]


def test_tall_ones_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polar, "derivative", None)
    with sg.checks(False):
        assert torch.autograd.gradcheck(sg.polar, cases.random(2, 6, 5, seed=4).requires_grad_())


def test_the_order_of_threads_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    from support.on_cpu import Kernel

    of, E = factors(cases.separated(34).flip(-1).repeat(2, 1)), cases.random(2, 34, 34)
    found = polar.derivative(of, E, EPS)
    monkeypatch.setattr(Kernel, "backwards", True)
    assert torch.equal(found, polar.derivative(of, E, EPS))
