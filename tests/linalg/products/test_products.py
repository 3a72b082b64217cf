"""Roots by products as a GPU computes them, on the CPU: a fixed schedule, no look at a value, products counted."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from spectralgrad.linalg.choices import roots_by_products
from spectralgrad.linalg.products import roots
from spectralgrad.linalg.products.inverse import shifted_inverse
from spectralgrad.linalg.products.iteration import hermitian_norm_bound, norm_bound, product_dtype
from spectralgrad.linalg.products.lyapunov import lyapunov
from support import cases
from support.products import Products
from support.roots import ROOTS, each_root, errors, value_and_gradient

Root = Callable[..., Tensor]
NEWTON = sg.NewtonSchulz()


def condition_1e5(n: int) -> Tensor:
    return torch.logspace(-5, 0, n, dtype=torch.float64)


def nearly_rank_deficient(n: int) -> Tensor:
    return cases.rank_deficient(n) + 1e-5


SPECTRA = [cases.separated, cases.equal, cases.repeated, cases.near_equal, condition_1e5, nearly_rank_deficient]


@pytest.mark.parametrize("scale", cases.SCALES)
@pytest.mark.parametrize("spectrum", SPECTRA, ids=lambda f: f.__name__)
@each_root
def test_a_fixed_schedule_is_as_good(root: Root, spectrum: Any, scale: float, unwatched: None) -> None:
    """float32 is computed in float64 and loses nothing at condition 1e5, where float32 eigenvectors keep two digits."""
    M = scale * cases.with_spectrum(spectrum(24), 2)
    assert max(errors(root, M.float(), solver=NEWTON)) < 1e-6
    assert max(errors(root, M, solver=NEWTON)) < 1e-10
    assert not sg.counts()


@pytest.mark.parametrize("n", [64, 128, 256])
def test_random_covariances_in_float32(n: int, unwatched: None) -> None:
    for root in ROOTS.values():
        assert max(errors(root, cases.random_covariance(n, dtype=torch.float32), solver=NEWTON)) < 1e-6


def test_without_float64_it_is_as_good_as_float32_eigenvectors(unwatched: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """On GPUs whose float64 is slow."""
    monkeypatch.setattr(roots, "product_dtype", lambda x: x.dtype)
    for root in ROOTS.values():
        assert max(errors(root, cases.random_covariance(64, dtype=torch.float32), solver=NEWTON)) < 1e-5
        M = cases.with_spectrum(condition_1e5(64), dtype=torch.float32)
        for got, eigen in zip(errors(root, M, solver=NEWTON), errors(root, M, solver=sg.Lapack()), strict=True):
            assert 2e-7 < got < eigen


def test_against_forty_digits() -> None:
    """Value and derivative of the inverse root of a Hilbert matrix, which float64 knows to 1e-12."""
    with mpmath.workdps(40):
        H = mpmath.matrix([[mpmath.mpf(1) / (i + j + 1) for j in range(4)] for i in range(4)])
        w, V = mpmath.eigsy(H)
        want = V * mpmath.diag([1 / mpmath.sqrt(x) for x in w]) * V.T
        want = torch.tensor([[float(want[i, j]) for j in range(4)] for i in range(4)], dtype=torch.float64)
    M = torch.tensor([[1 / (i + j + 1) for j in range(4)] for i in range(4)], dtype=torch.float64)
    assert cases.relative_error(sg.inv_sqrtm(M, solver=NEWTON), want) < 1e-11


# Outside the domain, where nothing may be raised.

BAD = {
    "negative": torch.tensor([-1.0, 1, 1, 2]),
    "slightly negative": torch.tensor([-1e-3, 1, 1, 2]),
    "all negative": torch.tensor([-4.0, -3, -2, -1]),
    "rank one": torch.tensor([0.0, 0, 0, 1]),
    "zero": torch.zeros(4),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=cases.ident)
@pytest.mark.parametrize("w", BAD.values(), ids=BAD)
@each_root
def test_unconverged_is_finite_and_counted(root: Root, w: Tensor, dtype: torch.dtype, unwatched: None) -> None:
    good = cases.random_covariance(4)
    M = torch.stack([good, cases.with_spectrum(w.double())]).to(dtype)
    value, gradient = value_and_gradient(root, M, solver=NEWTON)
    assert value.isfinite().all()
    assert gradient.isfinite().all()
    assert sg.counts() == {"root_unconverged": 1}
    assert cases.relative_error(value[0], root(good)) < 1e-6  # the other does not suffer


@each_root
def test_unconverged_is_counted_where_values_are_not_to_be_looked_at(root: Root) -> None:
    M = torch.stack([cases.random_covariance(4), cases.with_spectrum(BAD["negative"].double())])
    sg.reset_counts()
    torch.func.vmap(lambda M: root(M, solver=NEWTON))(M)
    assert sg.counts() == {"root_unconverged": 1}
    with sg.checks(False):
        root(M, solver=NEWTON)
        root(M[:1], solver=NEWTON)  # the control
    assert sg.counts() == {"root_unconverged": 2}
    sg.reset_counts()


def test_nan_gives_nan_and_leaves_the_others_alone(unwatched: None) -> None:
    M = cases.random_covariance(4, 2)
    want = sg.inv_sqrtm(M[0])
    M[1, 0, 0] = torch.nan
    got = sg.inv_sqrtm(M, solver=NEWTON)
    assert got[1].isnan().all()
    torch.testing.assert_close(got[0], want)


OF_PRODUCTS: dict[str, Root] = {
    "sqrtm": sg.sqrtm,
    "inv_sqrtm": sg.inv_sqrtm,
    "inv_root": partial(sg.inv_root, p=4),
    "powm": partial(sg.powm, alpha=-0.5),
    "polar": sg.polar,
}


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("f", OF_PRODUCTS.values(), ids=OF_PRODUCTS)
def test_derivatives_of_one_nan_leave_the_others_alone(f: Root, bad: float) -> None:
    """Where the host looks: the schedule of the Lyapunov equation comes from the largest norm of the batch."""

    def gradients(M: Tensor) -> list[Tensor]:
        G = cases.random(4, 4, seed=3)
        first = torch.func.grad(lambda X: (f(X, solver=NEWTON) * G).sum())
        second = torch.func.grad(lambda X: first(X).square().sum())
        with sg.checks(False):
            X = M.clone().requires_grad_()
            (plain,) = torch.autograd.grad((f(X, solver=NEWTON) * G).sum(), X)
        return [torch.func.vmap(first)(M), torch.func.vmap(second)(M), plain]

    M = torch.stack([cases.random_covariance(4, seed=seed) for seed in (1, 2, 3)])
    want = gradients(M)
    M[1, 0, 0] = bad
    for got, expected in zip(gradients(M), want, strict=True):
        assert got[1].isnan().all()
        torch.testing.assert_close(got[::2], expected[::2], rtol=1e-9, atol=1e-9)
    sg.reset_counts()


def test_a_layer_passes_the_nan_of_one_group_on_alone() -> None:
    x = cases.random(6, 4, 3, 3)
    x[0, 0, 0, 0] = torch.nan
    layer = sg.nn.DecorrelatedBatchNorm2d(4, 2, solver=NEWTON).double()
    with sg.checks(False):
        layer(x.requires_grad_()).square().sum().backward()
    assert x.grad is not None
    assert x.grad[:, :2].isnan().all()
    assert x.grad[:, 2:].isfinite().all()
    sg.reset_counts()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=cases.ident)
@pytest.mark.parametrize("watched", [True, False])
def test_what_reaches_the_samples_of_a_singular_covariance(
    watched: bool, dtype: torch.dtype, request: pytest.FixtureRequest
) -> None:
    """Two digits, in either dtype, as docs/newton.md says: the null space is large in Z, and rounding turns it a little.

    `CovariancePool2d` and eigenvectors are exact there.
    """
    if not watched:
        request.getfixturevalue("unwatched")

    def through(X: Tensor, solver: Any) -> Tensor:
        X = X.detach().requires_grad_()
        Y = sg.sqrtm(X @ X.mT, solver=solver)
        return torch.autograd.grad((Y * cases.random(12, 12, seed=9).to(X.dtype)).sum(), X)[0]

    X = cases.random(12, 6).to(dtype)
    want = through(X.double(), sg.Lapack())
    assert cases.relative_error(through(X, NEWTON), want) < 0.02


# The Lyapunov equation.


@pytest.mark.parametrize("skew", [False, True])
@pytest.mark.parametrize("condition", [1.0, 10.0, 1e3])
def test_lyapunov(condition: float, skew: bool) -> None:
    n = 12
    y = torch.logspace(0, -float(torch.tensor(condition).log10()), n, dtype=torch.float64)
    V = cases.rotation(n)
    E = cases.random(n, n, seed=1)
    E = E - E.mT if skew else E + E.mT
    want = V @ ((V.mT @ E @ V) / (y[:, None] + y)) @ V.mT
    Y, Z = (V * y) @ V.mT, (V / y) @ V.mT
    assert cases.relative_error(lyapunov(Y, Z, E, 1e-4, 1e-15, skew), want) < 1e-13 * condition
    rough = cases.relative_error(lyapunov(Y, Z, E, 1e-4, 1e-3, skew), want)  # accuracy is an option that acts
    assert rough < 1e-3
    assert condition == 1 or rough > 1e-12


@pytest.mark.parametrize("condition", [10.0, 2e3])
def test_lyapunov_reaches_the_smallest_eigenvalues_of_large_matrices(condition: float, unwatched: None) -> None:
    """With a fixed schedule for the condition number that it has: |B|_F would be too far above the largest eigenvalue."""
    n = 512
    y = torch.logspace(0, -float(torch.tensor(condition).log10()), n, dtype=torch.float64)
    V = cases.rotation(n)
    E = cases.random(n, n, seed=1)
    E = E + E.mT
    want = V @ ((V.mT @ E @ V) / (y[:, None] + y)) @ V.mT
    got = lyapunov((V * y) @ V.mT, (V / y) @ V.mT, E, 1 / condition, 1e-8, False)
    assert cases.relative_error(got, want) < 1e-7


@pytest.mark.parametrize("skew", [False, True])
def test_lyapunov_where_rounding_left_an_inverse_negative(skew: bool, unwatched: None) -> None:
    """What a singular matrix may leave of Z: without a guard the terms of the sum grow, to Inf and NaN."""
    y, V, E = torch.tensor([1.0, 0.5, 0.25]).double(), cases.rotation(3), cases.random(3, 3, seed=1)
    E = E - E.mT if skew else E + E.mT
    Y, Z = (V * y) @ V.mT, (V / y) @ V.mT
    singular = torch.tensor([1.0, 1e-6, -5e-6]).double(), torch.tensor([1.0, 1e11, -4e8]).double()
    singular_Y, singular_Z = ((V * x) @ V.mT for x in singular)
    Ys, Zs = torch.stack([Y, singular_Y, Y]), torch.stack([Z, singular_Z, Z])
    Ys[2, 0, 0] = torch.nan
    got = lyapunov(Ys, Zs, E.expand(3, 3, 3), 1e-8, 1e-15, skew)
    torch.testing.assert_close(got[0], V @ ((V.mT @ E @ V) / (y[:, None] + y)) @ V.mT)
    assert not got[1].any()
    assert got[2].isnan().all()


def test_lyapunov_is_zero_once_what_is_below_zero_has_grown() -> None:
    """Between Y that is singular and an inverse that is negative: bounded, until the powers of U leave the unit ball."""
    E, sizes = torch.ones(2, 2, dtype=torch.float64), []
    for z in (-0.1, -0.5, -0.6, -0.9):
        Y, Z = (torch.diag(torch.tensor(d, dtype=torch.float64)) for d in ([1.0, 0.0], [1.0, z]))
        sizes.append(float(lyapunov(Y, Z, E, 1e-3, 1e-8, False).abs().max()))
    assert 0 < sizes[0] < sizes[1] < 100
    assert sizes[2:] == [0, 0]


# The inverse of B + shift I.


@pytest.mark.parametrize("shift", [0.02, 0.5])
@pytest.mark.parametrize("lower", [1e-4, 0.1, 0.9])
def test_shifted_inverse(lower: float, shift: float) -> None:
    b = torch.linspace(lower, 1, 9, dtype=torch.float64)
    V = cases.rotation(9)
    B = (V * b) @ V.mT
    want = (V / (b + shift)) @ V.mT
    for accuracy in (1e-15, 1e-3):
        with Products() as products:
            got = shifted_inverse(B.clone()[None], (B @ B)[None], shift, lower, accuracy)[0]
        error = torch.linalg.matrix_norm((got - want) @ (B + shift * torch.eye(9)), 2)  # relative to each eigenvalue
        assert error < max(accuracy, 1e-13)
        assert products.shapes.total() == _products_of_an_inverse((lower + shift) / (1 + shift), accuracy)


def _products_of_an_inverse(ratio: float, accuracy: float) -> int:
    """Three for each step from 1 / T_3 on, with Chebyshev's polynomial by its cosh."""
    away, count = 1 / math.cosh(3 * math.acosh((1 + ratio) / (1 - ratio))), 0
    while away > max(accuracy, cases.eps(torch.float64)):
        away, count = 1 / math.cosh(3 * math.acosh(1 / away)), count + 3
    return count


def test_shifted_inverse_of_what_it_does_not_reach_is_no_larger_than_the_inverse() -> None:
    b = torch.tensor([-0.05, 0.0, 0.01, 1.0], dtype=torch.float64)
    B = torch.diag(b)[None]
    got = shifted_inverse(B.clone(), B @ B, 0.1, 0.1, 1e-15).diagonal(dim1=-2, dim2=-1)[0]
    assert (got > 0).all()
    assert (got <= 1 / (b + 0.1) * (1 + 1e-14)).all()


# Products, and where they are taken.


@pytest.mark.parametrize(
    ("root", "dtype", "forward", "backward"),
    [
        pytest.param(sg.inv_sqrtm, torch.float32, 30, 27, id="inv_sqrtm float32"),
        pytest.param(sg.sqrtm, torch.float32, 30, 25, id="sqrtm float32"),
        pytest.param(sg.inv_sqrtm, torch.float64, 62, 48, id="inv_sqrtm float64"),
        pytest.param(sg.sqrtm, torch.float64, 103, 46, id="sqrtm float64, corrected"),
    ],
)
def test_number_of_products(root: Root, dtype: torch.dtype, forward: int, backward: int, unwatched: None) -> None:
    """What docs/newton.md says."""
    M = cases.random_covariance(8, 2, dtype=dtype).requires_grad_()
    with Products() as products:
        Y = root(M, solver=NEWTON)
    assert products.shapes == {(8, 8, 8): forward}
    with Products() as products:
        Y.sum().backward()
    assert products.shapes == {(8, 8, 8): backward}


def test_well_conditioned_matrices_need_fewer_where_the_host_may_look() -> None:
    def count(M: Tensor) -> int:
        with Products() as products:
            sg.inv_sqrtm(M, solver=NEWTON)
        return products.shapes.total()

    easy, hard = cases.with_spectrum(cases.separated(8), 2), cases.with_spectrum(cases.graded(8), 2)
    assert count(easy) < 32 < count(hard)


def test_norm_bound_is_a_bound() -> None:
    for x in (cases.random(3, 6, 6), cases.random(2, 7, 4), cases.random_covariance(5, 2), torch.eye(9).double()[None]):
        assert (norm_bound(x)[..., 0, 0] >= torch.linalg.matrix_norm(x, 2) * (1 - 1e-14)).all()
        assert (norm_bound(x) <= torch.linalg.matrix_norm(x, keepdim=True) * (1 + 1e-14)).all()
    assert norm_bound(torch.eye(9)) == 1  # where the Frobenius norm is 3
    assert norm_bound(torch.zeros(2, 2)).item() == 0.5  # 1 times the least that it is taken for
    assert norm_bound(torch.full((2, 2), 1e30)).isfinite().all()


def test_large_hermitian_matrices_have_a_nearer_norm() -> None:
    w = torch.ones(300, dtype=torch.float64)
    w[:150] = 1e-3
    large, small = cases.with_spectrum(w, 2), cases.random_covariance(5, 2)
    near = hermitian_norm_bound(large)[..., 0, 0]
    assert (near >= torch.linalg.matrix_norm(large, 2) * (1 - 1e-14)).all()
    assert (near < 0.6 * norm_bound(large)[..., 0, 0]).all()
    torch.testing.assert_close(hermitian_norm_bound(small), norm_bound(small))
    assert hermitian_norm_bound(torch.zeros(300, 300)).item() > 0
    assert hermitian_norm_bound(torch.eye(300)).item() == 1  # its rows; the norm of its square is 300^(1/4)
    assert hermitian_norm_bound(torch.zeros(2, 2)).item() == 1
    assert hermitian_norm_bound(torch.full((300, 300), 1e30)).isfinite().all()


def test_where_roots_go_by_products(monkeypatch: pytest.MonkeyPatch) -> None:
    M = torch.eye(300).expand(4, 300, 300)
    assert not roots_by_products(M)

    class OnCuda:
        device = torch.device("cuda", 0)

        def __init__(self, *shape: int, dtype: torch.dtype = torch.float32) -> None:
            self.shape, self.dtype = torch.Size(shape), dtype

        def is_complex(self) -> bool:
            return self.dtype.is_complex

    assert roots_by_products(OnCuda(4, 300, 300))
    assert roots_by_products(OnCuda(300, 300))
    assert not roots_by_products(OnCuda(4, 64, 64))
    assert not roots_by_products(OnCuda(4, 300, 300, dtype=torch.complex64))
    assert product_dtype(M) == torch.float64
    assert product_dtype(M.to(torch.complex64)) == torch.complex128
    for capability, dtype in (((9, 0), torch.float64), ((8, 9), torch.float32)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, capability=capability: capability)
        assert product_dtype(OnCuda(2, 2)) == dtype
