"""Distances, geodesics and transport: values by their definitions, gradients at ties, at A = B and at every scale."""

import math
from typing import Any

import pytest
import scipy.linalg
import torch
from torch import Tensor

import spectralgrad as sg
from spectralgrad.errors import NonFiniteError
from support import cases
from support.spd import METRICS, definite, hermitian

each_metric = pytest.mark.parametrize("metric", METRICS)
DTYPES = [torch.float64, torch.complex128]


def by_definition(A: Tensor, B: Tensor, metric: str) -> float:
    a, b = A.numpy(), B.numpy()
    if metric == "affine":
        return float((torch.from_numpy(scipy.linalg.eigvalsh(a, b)).log().square().sum()).sqrt())
    if metric == "logeuclid":
        return float(abs(scipy.linalg.norm(scipy.linalg.logm(a) - scipy.linalg.logm(b))))
    return float(abs((a + b).trace() - 2 * scipy.linalg.sqrtm(a @ b).trace()) ** 0.5)


@each_metric
@pytest.mark.parametrize("dtype", DTYPES, ids=cases.ident)
def test_distances_are_those_of_their_definitions(metric: str, dtype: torch.dtype) -> None:
    A, B = definite(n=5, dtype=dtype, seed=1), definite(n=5, dtype=dtype, seed=2)
    want = by_definition(A, B, metric)
    found = sg.spd.distance(A, B, metric)  # type: ignore[arg-type]
    assert found.dtype == torch.float64
    assert float(found) == pytest.approx(want, rel=1e-11)
    assert float(sg.spd.distance(B, A, metric)) == pytest.approx(want, rel=1e-11)  # type: ignore[arg-type]
    assert float(sg.spd.distance(A, B, metric, squared=True)) == pytest.approx(want**2, rel=1e-11)  # type: ignore[arg-type]


@each_metric
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=cases.ident)
@pytest.mark.parametrize("t", [1e20, 3e38, 1e300, -1e300, 1.7e308, -1.7e308])
def test_a_geodesic_ends_where_numbers_do(metric: Any, t: float, dtype: torch.dtype) -> None:
    """Far from [0, 1] there is a point with finite derivatives, or an error that says so."""
    A, B = (definite(n=3, seed=seed).to(dtype).requires_grad_() for seed in (1, 2))
    place = torch.tensor(t, dtype=torch.float64, requires_grad=True)
    if metric == "bures" and abs(t) < 1e150:  # it is a polynomial in t
        G = sg.spd.geodesic(A, B, place, metric)
        assert all(bool(z.isfinite().all()) for z in (G, *torch.autograd.grad(G.sum(), (A, B, place))))
        return
    with pytest.raises(NonFiniteError, match=r"the point is beyond the range of .* Take t nearer to \[0, 1\]"):
        sg.spd.geodesic(A, B, place, metric)


@each_metric
def test_a_geodesic_runs_at_constant_speed(metric: str) -> None:
    A, B = definite(n=4, seed=1), definite(n=4, seed=2)
    t = torch.linspace(0, 1, 5, dtype=torch.float64)
    G = sg.spd.geodesic(A, B, t, metric)  # type: ignore[arg-type]
    torch.testing.assert_close(G[0], A, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(G[-1], B, rtol=1e-12, atol=1e-11)
    whole = sg.spd.distance(A, B, metric)  # type: ignore[arg-type]
    torch.testing.assert_close(sg.spd.distance(A, G, metric), t * whole, rtol=1e-9, atol=1e-12)  # type: ignore[arg-type]
    torch.testing.assert_close(G[1], sg.spd.geodesic(A, B, 0.25, metric), rtol=1e-13, atol=1e-13)  # type: ignore[arg-type]
    torch.testing.assert_close(G, G.mH, rtol=0, atol=0)


def test_the_affine_distance_knows_no_congruence_and_no_inversion() -> None:
    A, B, C = definite(n=4, seed=1), definite(n=4, seed=2), cases.random(4, 4, seed=3)
    want = sg.spd.distance(A, B)
    torch.testing.assert_close(sg.spd.distance(hermitian(C @ A @ C.mT), hermitian(C @ B @ C.mT)), want, rtol=1e-9, atol=0)
    torch.testing.assert_close(sg.spd.distance(hermitian(A.inverse()), hermitian(B.inverse())), want, rtol=1e-10, atol=0)


def inner(T: Tensor, A: Tensor, metric: str) -> Tensor:
    """<T, T>_A."""
    if metric == "affine":
        X = torch.linalg.solve(A, T)
        return (X @ X).diagonal(dim1=-2, dim2=-1).sum(-1)
    D = torch.func.jvp(sg.logm, (A,), (T,))[1]
    return D.square().sum((-2, -1))


@pytest.mark.parametrize("metric", METRICS[:2])
def test_transport_keeps_lengths_and_comes_back(metric: str) -> None:
    A, B, T = definite(n=4, seed=1), definite(n=4, seed=2), hermitian(cases.random(3, 4, 4, seed=3))
    moved = sg.spd.transport(T, A, B, metric)  # type: ignore[arg-type]
    torch.testing.assert_close(
        inner(moved, B.repeat(3, 1, 1), metric), inner(T, A.repeat(3, 1, 1), metric), rtol=1e-10, atol=0
    )
    torch.testing.assert_close(sg.spd.transport(moved, B, A, metric), T, rtol=1e-10, atol=1e-10)  # type: ignore[arg-type]
    torch.testing.assert_close(sg.spd.transport(T, A, A, metric), T, rtol=1e-10, atol=1e-11)  # type: ignore[arg-type]


def test_affine_transport_carries_the_velocity_along() -> None:
    """A geodesic's velocity is transported along itself: the definition, by finite differences."""
    A, B = definite(n=3, seed=1), definite(n=3, seed=2)
    step = 1e-5

    def velocity(t: float) -> Tensor:
        return (sg.spd.geodesic(A, B, t + step) - sg.spd.geodesic(A, B, t - step)) / (2 * step)

    torch.testing.assert_close(sg.spd.transport(velocity(0.0), A, B), velocity(1.0), rtol=1e-7, atol=1e-7)


# At A = B.


@each_metric
@pytest.mark.parametrize("spectrum", [cases.equal, cases.repeated, cases.separated], ids=lambda f: f.__name__)
def test_the_square_is_exact_at_equal_matrices(metric: str, spectrum: object) -> None:
    A = cases.with_spectrum(spectrum(4))  # type: ignore[operator]
    E = hermitian(cases.random(4, 4, seed=5))

    def f(X: Tensor) -> Tensor:
        return sg.spd.distance(X, A, metric, squared=True)  # type: ignore[arg-type]

    X = A.clone().requires_grad_()
    (g,) = torch.autograd.grad(f(X), X, create_graph=True)
    assert float(g.detach().abs().max()) < 1e-12
    (gg,) = torch.autograd.grad((g * E).sum(), X)
    step = 1e-4
    numeric = (f(A + step * E) + f(A - step * E) - 2 * f(A)) / step**2
    assert float((gg * E).sum()) == pytest.approx(float(numeric), rel=1e-5)


@each_metric
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=cases.ident)
def test_the_distance_has_gradient_zero_at_equal_matrices(metric: str, dtype: torch.dtype) -> None:
    A = torch.cat([definite(6, n=5, condition=1e3), torch.eye(5, dtype=torch.float64)[None], 1e-3 * definite(2, n=5)]).to(
        dtype
    )
    X = A.clone().requires_grad_()
    d = sg.spd.distance(X, A, metric)  # type: ignore[arg-type]
    d.sum().backward()
    assert bool((d == 0).all())
    assert X.grad is not None
    assert bool((X.grad == 0).all())


def test_affine_rounding_has_no_direction() -> None:
    """C A C^T computed in two ways differs by rounding: the distance is rounding, and its gradient 0, not a random unit."""
    A, C = definite(40, n=6), cases.random(6, 6, seed=8)
    X, Y = hermitian((C @ A) @ C.mT), hermitian(C @ (A @ C.mT))
    assert not torch.equal(X, Y)
    X.requires_grad_()
    sg.spd.distance(X, Y).sum().backward()
    assert X.grad is not None
    assert bool((X.grad == 0).all())


def plain(A: Tensor, B: Tensor) -> Tensor:
    """The affine distance, squared, as one writes it with torch.linalg."""
    w, V = torch.linalg.eigh(A)
    P = (V / w.sqrt().unsqueeze(-2)) @ V.mT
    w, V = torch.linalg.eigh(P @ B @ P)
    L = (V * w.log().unsqueeze(-2)) @ V.mT
    return (L * L).sum((-2, -1))


def test_ties_and_a_control_that_fails() -> None:
    A, B = torch.eye(4, dtype=torch.float64), 2 * torch.eye(4, dtype=torch.float64)
    E = hermitian(cases.random(4, 4, seed=5))

    def gradient(f: object) -> Tensor:
        X = A.clone().requires_grad_()
        return torch.autograd.grad(f(X, B), X)[0]  # type: ignore[operator]

    g = gradient(lambda X, Y: sg.spd.distance(X, Y, squared=True))
    torch.testing.assert_close(g, -2 * math.log(2) * A)
    step = 1e-6
    numeric = (sg.spd.distance(A + step * E, B, squared=True) - sg.spd.distance(A - step * E, B, squared=True)) / (2 * step)
    assert float((g * E).sum()) == pytest.approx(float(numeric), rel=1e-7)
    assert gradient(plain).isnan().any()


def test_a_small_bures_distance_keeps_its_digits() -> None:
    """By traces it would be lost: d^2 is below the rounding of tr A."""
    A = torch.eye(3, dtype=torch.float64)
    B = (1 + 1e-9) ** 2 * A
    assert float(sg.spd.distance(A, B, "bures")) == pytest.approx(3**0.5 * 1e-9, rel=1e-6)
    lost = float((A.trace() + B.trace() - 2 * sg.sqrtm(B).trace()).clamp(min=0).sqrt())
    assert abs(lost / (3**0.5 * 1e-9) - 1) > 0.1  # the control


def test_bures_takes_singular_matrices() -> None:
    A = cases.with_spectrum(cases.rank_deficient(4)).requires_grad_()
    B = definite(n=4)
    d = sg.spd.distance(A, B, "bures")
    assert float(d.detach()) == pytest.approx(by_definition(A.detach(), B, "bures"), rel=1e-6)
    d.backward()
    assert A.grad is not None
    assert A.grad.isfinite().all()
    torch.testing.assert_close(sg.spd.distance(B, A.detach(), "bures"), d.detach())
    assert sg.spd.geodesic(A.detach(), B, 0.5, "bures").isfinite().all()


# Scales, dtypes, shapes.


@each_metric
@pytest.mark.parametrize("k", [-1000, -240, 240, 1000])
def test_a_geodesic_loses_no_digit_to_a_scale(metric: str, k: int) -> None:
    """A logarithm of a far scale is a large number, whose rounding an exponential makes a relative one."""
    A, B = definite(n=4, seed=1), definite(n=4, seed=2)
    scaled = [torch.ldexp(X, torch.tensor(k)) for X in (A, B)]
    want = sg.spd.geodesic(A, B, 0.3, metric)  # type: ignore[arg-type]
    found = torch.ldexp(sg.spd.geodesic(*scaled, 0.3, metric), torch.tensor(-k))  # type: ignore[arg-type]
    torch.testing.assert_close(found, want, rtol=0, atol=4e-15 * float(want.abs().max()))


@each_metric
def test_a_far_member_of_a_batch_changes_no_bit_of_the_others(metric: str) -> None:
    A, B = definite(3, n=4, seed=1), definite(3, n=4, seed=2)
    far = torch.tensor([1.0, 1e-200, 1.0], dtype=torch.float64).reshape(3, 1, 1)
    want, found = (sg.spd.geodesic(c * A, c * B, 0.3, metric)[::2] for c in (1, far))  # type: ignore[arg-type]
    torch.testing.assert_close(found, want, rtol=0, atol=0)


@each_metric
@pytest.mark.parametrize("scale", [1e-8, 1e8, 1e-150, 1e150, 1e-300, 1e300])
def test_scales(metric: str, scale: float) -> None:
    """Both matrices times c: nothing, or c^(1/2) for "bures"."""
    A, B = definite(n=4, seed=1), definite(n=4, seed=2)
    want = sg.spd.distance(A, B, metric)  # type: ignore[arg-type]
    factor = scale**0.5 if metric == "bures" else 1.0
    X, Y = (scale * A).requires_grad_(), scale * B
    d = sg.spd.distance(X, Y, metric)  # type: ignore[arg-type]
    torch.testing.assert_close(d.detach() / factor, want, rtol=1e-10, atol=0)
    d.backward()
    assert X.grad is not None
    assert X.grad.isfinite().all()
    G = sg.spd.geodesic(scale * A, scale * B, 0.3, metric)  # type: ignore[arg-type]
    torch.testing.assert_close(G / scale, sg.spd.geodesic(A, B, 0.3, metric), rtol=1e-9, atol=1e-10)  # type: ignore[arg-type]
    if metric != "bures":
        G = sg.spd.geodesic(A, scale * B, 0.3, metric)  # type: ignore[arg-type]
        torch.testing.assert_close(G / scale**0.3, sg.spd.geodesic(A, B, 0.3, metric), rtol=1e-9, atol=1e-10)  # type: ignore[arg-type]
    if metric != "bures":
        T = hermitian(cases.random(4, 4, seed=3))
        want = sg.spd.transport(T, A, B, metric)  # type: ignore[arg-type]
        torch.testing.assert_close(sg.spd.transport(T, scale * A, scale * B, metric), want, rtol=1e-9, atol=1e-9)  # type: ignore[arg-type]


@each_metric
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=cases.ident)
def test_matrices_at_opposite_ends_of_the_range(metric: str, dtype: torch.dtype) -> None:
    top = torch.finfo(dtype).max / 16
    low = torch.finfo(dtype).tiny * 64
    A, B = (low * torch.eye(3, dtype=dtype)).requires_grad_(), (top * torch.eye(3, dtype=dtype)).requires_grad_()
    d = sg.spd.distance(A, B, metric)  # type: ignore[arg-type]
    want = {"bures": (3 * top) ** 0.5}.get(metric, 3**0.5 * (math.log(top) - math.log(low)))
    assert float(d.detach()) == pytest.approx(want, rel=1e-5)
    d.backward()
    for X in (A, B):
        assert X.grad is not None
        assert X.grad.isfinite().all()
    middle = sg.spd.geodesic(A.detach(), B.detach(), 0.5, metric)  # type: ignore[arg-type]
    value = {"bures": (low**0.5 + top**0.5) ** 2 / 4}.get(metric, low**0.5 * top**0.5)
    torch.testing.assert_close(middle, value * torch.eye(3, dtype=dtype), rtol=1e-4, atol=0)


WEIGHTS = hermitian(cases.random(3, 3, seed=5))
OF_TWO: dict[str, tuple[Any, Tensor]] = {  # and what is left of the gradient for A where B is 0
    "squared": (lambda A, B: sg.spd.distance(A, B, "bures", squared=True), torch.eye(3, dtype=torch.float64)),
    "geodesic": (lambda A, B: (WEIGHTS * sg.spd.geodesic(A, B, 0.5, "bures")).sum(), WEIGHTS / 4),
    "mean": (lambda A, B: (WEIGHTS * sg.spd.mean(torch.stack([A, B]), metric="bures")).sum(), WEIGHTS / 4),
}


@pytest.mark.parametrize("size", [1e10, 1e100, 1e300])
@pytest.mark.parametrize("name", OF_TWO)
def test_bures_gradients_of_matrices_of_very_different_sizes(name: str, size: float) -> None:
    """Each is a(A) + b(B) + c(A, B) with a and b linear, c homogeneous: of degree 1/2 in A."""
    f, alone = OF_TWO[name]
    A, B = definite(seed=1), definite(seed=2)

    def slope(small: float, large: float) -> Tensor:
        leaf = (small * A).requires_grad_()
        (g,) = torch.autograd.grad(f(leaf, large * B), leaf)
        return hermitian(g)

    for small, large in ((1 / size, size), (size, 1 / size)):
        ratio = large**0.5 / small**0.5
        want = alone / max(ratio, 1) + (slope(1, 1) - alone) * min(ratio, 1)
        assert cases.relative_error(slope(small, large) / max(ratio, 1), want) < 1e-12


@each_metric
@pytest.mark.parametrize("condition", [10.0, 1e4])
def test_float32_has_its_digits(metric: str, condition: float) -> None:
    """A^(-1/2) B A^(-1/2) has the product of both condition numbers: in float32 one digit would be left at 1e4."""
    A, B = definite(20, n=6, condition=condition, seed=1).float(), definite(20, n=6, condition=condition, seed=2).float()
    X, Y = A.clone().requires_grad_(), A.double().requires_grad_()
    found, want = sg.spd.distance(X, B, metric), sg.spd.distance(Y, B.double(), metric)  # type: ignore[arg-type]
    torch.testing.assert_close(found.double(), want, rtol=1e-6, atol=0)
    found.sum().backward()
    want.sum().backward()
    assert X.grad is not None
    assert Y.grad is not None
    assert cases.relative_error(X.grad, Y.grad) < 1e-6


@each_metric
def test_batches_broadcast(metric: str) -> None:
    A, B, t = definite(4, 1, n=3, seed=1), definite(5, n=3, seed=2), torch.rand(2, 1, 1, dtype=torch.float64)
    d, G = sg.spd.distance(A, B, metric), sg.spd.geodesic(A, B, t, metric)  # type: ignore[arg-type]
    assert d.shape == (4, 5)
    assert G.shape == (2, 4, 5, 3, 3)
    torch.testing.assert_close(d[2, 3], sg.spd.distance(A[2, 0], B[3], metric), rtol=1e-12, atol=0)  # type: ignore[arg-type]
    torch.testing.assert_close(G[1, 2, 3], sg.spd.geodesic(A[2, 0], B[3], float(t[1]), metric))  # type: ignore[arg-type]
    if metric != "bures":
        T = hermitian(cases.random(2, 1, 1, 3, 3))
        moved = sg.spd.transport(T, A, B, metric)  # type: ignore[arg-type]
        torch.testing.assert_close(moved[1, 2, 3], sg.spd.transport(T[1, 0, 0], A[2, 0], B[3], metric))  # type: ignore[arg-type]
