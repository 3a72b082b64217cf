"""The kernels for V f(L) V^T and its derivative, compiled for the CPU, against their plain-torch twin."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from spectralgrad.kernels import spectral
from spectralgrad.linalg.elementary import Exp, InverseSqrt, Log, Power, Sqrt
from spectralgrad.linalg.precision import in_basis, sandwich
from spectralgrad.linalg.scalars import Scalar
from support import cases
from support.catalogue import BY_NAME
from support.on_cpu import on_cpu  # noqa: F401

pytestmark = pytest.mark.usefixtures("on_cpu")

SCALARS: list[Scalar] = [
    Sqrt(),
    InverseSqrt(),
    InverseSqrt(checked=True),
    Log(),
    Exp(),
    Power(alpha=0.3),
    Power(alpha=0.3, checked=True),
    Power(alpha=-1.7),
    Power(alpha=2.2),
    Power(alpha=1.0),
]
FLOOR = 1.2
SPECTRA = [*cases.SPECTRA]


def ident(x: object) -> str:
    return cases.ident(getattr(x, "__name__", x))


def twin(scalar: Scalar, w: Tensor, V: Tensor, G: Tensor) -> tuple[Tensor, Tensor]:
    y = scalar.f(scalar.clamp(w)[0])
    return (V * y.unsqueeze(-2)) @ V.mT, sandwich(V, scalar.loewner(w) * in_basis(V, G))


def assert_same(scalar: Scalar, w: Tensor, V: Tensor, G: Tensor, tolerance: float) -> None:
    function = scalar.in_kernel()
    assert function.kind != "GIVEN"
    value, derivative = twin(scalar, w, V, G)
    assert cases.relative_error(spectral.value(V, w, function, None, None)[0], value) < tolerance
    assert cases.relative_error(spectral.derivative(V, w, function, None, G), derivative) < tolerance


@pytest.mark.parametrize("spectrum", SPECTRA, ids=ident)
@pytest.mark.parametrize("scalar", SCALARS, ids=ident)
def test_against_the_twin(scalar: Scalar, spectrum: Callable[[Tensor], Tensor]) -> None:
    if isinstance(scalar, InverseSqrt) and scalar.checked and spectrum is cases.rank_deficient:
        pytest.skip("checked means that there are no zeros")
    w = spectrum(6).repeat(2, 1)  # type: ignore[arg-type]
    assert_same(scalar, w, cases.rotation(6, 2), cases.random(2, 6, 6), 1e-12)


@pytest.mark.parametrize("scalar", SCALARS, ids=ident)
def test_floor(scalar: Scalar) -> None:
    """Some eigenvalues lie below the floor, some above, one on it; and the floor changes the result."""
    w = torch.tensor([[0.3, 0.9, FLOOR, 1.5, 1.5]], dtype=torch.float64)
    V, G = cases.rotation(5, 1), cases.random(1, 5, 5)
    floored = replace(scalar, floor=FLOOR)
    assert_same(floored, w, V, G, 1e-13)
    assert cases.relative_error(twin(floored, w, V, G)[1], twin(scalar, w, V, G)[1]) > 1e-3


@pytest.mark.parametrize("n", [1, 4, 7, 20, 33, 64, 66, 70])
def test_sizes(n: int) -> None:
    """Both tiles, with and without a remainder, and more than one warp."""
    w = cases.separated(n).repeat(2, 1)
    assert_same(Sqrt(), w, cases.rotation(n, 2), cases.random(2, n, n), 1e-12)


@pytest.mark.parametrize("few", [True, False], ids=["few matrices", "many"])
@pytest.mark.parametrize("n", [24, 36, 64])
def test_single_precision(n: int, few: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few matrices are shared out among more threads, and the sums stay the same."""
    monkeypatch.setattr(spectral, "MANY", 3 if few else 1)
    threads = spectral.shape(n, 4, few).THREADS
    assert threads % 32 == 0
    assert (
        threads
        == {(24, True): 288, (36, True): 672, (64, True): 1024, (24, False): 128, (36, False): 128, (64, False): 256}[n, few]
    )
    w, V, G = (
        cases.separated(n).repeat(2, 1).float(),
        cases.rotation(n, 2).float(),
        cases.random(2, n, n, dtype=torch.float32),
    )
    assert_same(InverseSqrt(), w, V, G, 2e-6)
    found = spectral.derivative(V, w, InverseSqrt().in_kernel(), None, G)
    monkeypatch.setattr(spectral, "MANY", 1 if few else 3)
    assert torch.equal(spectral.derivative(V, w, InverseSqrt().in_kernel(), None, G), found)


@pytest.mark.parametrize("place", [(0, 0), (2, 5), (5, 4)], ids=str)  # the warp's first lane, its upper half, the next warp
def test_the_largest_entry_is_found_wherever_it_is(place: tuple[int, int]) -> None:
    """A direction of denormal numbers keeps its digits: it is brought to scale 1 first."""
    w, V, G = 1e-4 * cases.separated(6).unsqueeze(0), cases.rotation(6, 1), torch.zeros(1, 6, 6, dtype=torch.float64)
    G[0][place] = 1e-42
    G = G.float()
    expected = twin(InverseSqrt(), w, V, G.double())[1]
    found = spectral.derivative(V.float(), w.float(), InverseSqrt().in_kernel(), None, G)
    assert cases.relative_error(1e38 * found.double(), 1e38 * expected) < 1e-5


def test_given_numbers() -> None:
    V, w, G = cases.rotation(6, 2), cases.separated(6).repeat(2, 1), cases.random(2, 6, 6)
    y, F = cases.random(2, 6, seed=1), cases.random(2, 6, 6, seed=2)
    F = F + F.mT
    value = spectral.value(V, w, spectral.GIVEN, y, None)[0]
    derivative = spectral.derivative(V, w, spectral.GIVEN, F, G)
    torch.testing.assert_close(value, (V * y.unsqueeze(-2)) @ V.mT)
    torch.testing.assert_close(derivative, sandwich(V, F * in_basis(V, G)))


def test_clamped_eigenvalues_are_counted() -> None:
    counter = torch.zeros((), dtype=torch.int64)
    w = torch.tensor([[-1e-18, 0.0, 0.5, 1.0], [0.1, 0.2, 0.3, 0.4]], dtype=torch.float64)
    spectral.value(cases.rotation(4, 2), w, InverseSqrt().in_kernel(), None, counter)[0]
    assert int(counter) == 2


@pytest.mark.parametrize(
    "name", ["sqrtm", "inv_sqrtm", "powm(0.3)", "powm(-1.7)", "powm(2.2)", "logm", "expm", "spectral_map"]
)
def test_public_functions_go_through_the_kernels(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Value, gradient and double backward; with checks the value comes from the twin."""
    kernels = ["derivative"] if name == "spectral_map" else ["value", "derivative"]  # that one evaluates f in torch
    calls: list[str] = []
    launch = spectral._launch
    monkeypatch.setattr(spectral, "_launch", lambda kind, *args: (calls.append(kind), launch(kind, *args))[1])
    function, M, G = BY_NAME[name], cases.random_covariance(5, 2), cases.random(2, 5, 5)

    def derivatives() -> list[Tensor]:
        x = M.clone().requires_grad_()
        y = function(x)
        (g,) = torch.autograd.grad(y, x, G, create_graph=True)
        (h,) = torch.autograd.grad(g, x, G)
        return [y.detach(), g.detach(), h]

    expected = derivatives()
    calls.clear()
    with sg.checks(False):
        found = derivatives()
    assert calls[: len(kernels)] == kernels
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-9)


@pytest.mark.covering(1)
@pytest.mark.parametrize("size", [1e-42, 1e-38, 1e-30, 1e-10, 1e10, 1e30, 1e38])
@pytest.mark.parametrize("scalar", [Sqrt(), InverseSqrt(), Log(), Power(alpha=0.3), Power(alpha=-1.7)], ids=ident)
def test_derivative_at_any_scale(scalar: Scalar, size: float) -> None:
    """Against float64, in which none of this over- or underflows; what overflows float32 is the largest number."""
    V, G = cases.rotation(5, 1).float(), cases.random(1, 5, 5, dtype=torch.float32)
    w = (torch.linspace(0.5, 2, 5, dtype=torch.float64)[None] * size).float()
    largest = torch.finfo(torch.float32).max
    for cotangent in (1e-30, 1.0, 1e30):
        got = spectral.derivative(V, w, scalar.in_kernel(), None, cotangent * G).double()
        F = scalar.loewner(w.double())
        want = sandwich(V.double(), F * in_basis(V.double(), (cotangent * G).double())).clamp(-largest, largest)
        noise = 1e-5 * want.abs().max() + 2e-45  # the smallest number is 1.4e-45
        assert got.isfinite().all()
        assert (got - want).abs().max() <= noise


def test_a_broken_cotangent_is_not_repaired() -> None:
    G = torch.ones(2, 3, 3)
    G[1, 0, 0] = torch.inf
    out = spectral.derivative(cases.rotation(3, 2).float(), torch.ones(2, 3), Sqrt().in_kernel(), None, G)
    assert out[0].isfinite().all()
    assert out[1].isnan().all()


def test_a_value_that_overflows_is_cut() -> None:
    w, V = torch.tensor([[1.0, 200.0]]), cases.rotation(2, 1).float()
    assert spectral.value(V, w, Exp().in_kernel(), None, None)[0].isfinite().all()
