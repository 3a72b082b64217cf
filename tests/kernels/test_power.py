"""The kernels of the power iterations, compiled for the CPU, against their plain-torch twins."""

from typing import Any

import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from spectralgrad.kernels import power
from spectralgrad.linalg.power import deflation, iteration
from spectralgrad.nn import DecorrelatedBatchNorm2d
from support import cases
from support.on_cpu import on_cpu  # noqa: F401

pytestmark = pytest.mark.usefixtures("on_cpu")

SIZES = [1, 2, 3, 5, 16, 33]
DEFLATIONS = ["two-sided", "printed"]
OFF: dict[str, Any] = {"min_eigenvalue": None, "max_rayleigh_error": None, "max_energy": None}
ROUNDING = {torch.float64: 1e-12, torch.float32: 2e-5}
LOGARITHMIC = torch.logspace(-3, 0, 6, dtype=torch.float64)
SPECTRA = {
    "separated": cases.separated(6),
    "equal": cases.equal(6),
    "repeated": cases.repeated(6),
    "near equal": cases.near_equal(6),
    "logarithmic": LOGARITHMIC,
    "rank-deficient": cases.rank_deficient(6),
    "zero": torch.zeros(6, dtype=torch.float64),
    "small": 1e-8 * LOGARITHMIC,
    "large": 1e8 * LOGARITHMIC,
}


def cotangents(batch: int, n: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    return cases.random(batch, n, seed=1).to(dtype), cases.random(batch, n, n, seed=2).to(dtype)


def close(found: Tensor, expected: Tensor, tolerance: float) -> bool:
    """Relative in the Frobenius norm; what should be zero is zero."""
    return float((found.double() - expected.double()).norm()) <= tolerance * float(expected.double().norm())


# SVD-PI.


def test_deflations_and_steps_change_the_gradient() -> None:
    """The control of the tests below: each of these is another gradient."""
    w, V, kept, gV = cases.separated(6)[None], cases.rotation(6, 1), torch.ones(1, 6, dtype=torch.bool), cotangents(1, 6)[1]
    found = [power.pullback(w, V, kept, None, gV, steps, two_sided) for steps in (4, 5) for two_sided in (False, True)]
    assert not any(close(x, y, 1e-2) for i, x in enumerate(found) for y in found[:i])


def assert_svd_pi(rule: sg.PowerIteration, w: Tensor, V: Tensor, kept: Tensor, dtype: torch.dtype = torch.float64) -> None:
    """Quotients and gradient of float64 eigenpairs, by kernels in ``dtype`` and by the twin in float64."""
    two_sided, M = rule.deflation == "two-sided", (V * w.unsqueeze(-2)) @ V.mT
    gw, gV = cotangents(len(w), w.shape[-1])
    quotients = power.quotients(M.to(dtype), V.to(dtype), two_sided)
    assert (quotients - iteration.quotients(rule, M, w, V)).abs().max() <= ROUNDING[dtype] * w.abs().max()
    expected = iteration.pullback(rule, w, V, kept, gw, gV)
    assert expected is not None
    arguments = w.to(dtype), V.to(dtype), kept, gw.to(dtype), gV.to(dtype)
    found = power.pullback(*arguments, rule.steps, two_sided)
    assert close(found, expected, ROUNDING[dtype] * rule.steps)


@pytest.mark.covering(1)
@pytest.mark.parametrize("deflation", DEFLATIONS)
@pytest.mark.parametrize("spectrum", SPECTRA)
def test_svd_pi_at_every_spectrum(spectrum: str, deflation: Any) -> None:
    w = SPECTRA[spectrum].repeat(2, 1)
    assert_svd_pi(sg.PowerIteration(9, deflation=deflation), w, cases.rotation(6, 2), torch.ones(2, 6, dtype=torch.bool))


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", ROUNDING, ids=cases.ident)
@pytest.mark.parametrize("deflation", DEFLATIONS)
@pytest.mark.parametrize("n", SIZES)
def test_svd_pi_of_every_size(n: int, deflation: Any, dtype: torch.dtype) -> None:
    w, kept = cases.separated(n).repeat(3, 1), torch.ones(3, n, dtype=torch.bool)
    assert_svd_pi(sg.PowerIteration(4, deflation=deflation), w, cases.rotation(n, 3), kept, dtype)


@pytest.mark.parametrize("deflation", DEFLATIONS)
@pytest.mark.parametrize("steps", [1, 2, 3, 40])
def test_svd_pi_with_every_number_of_steps(steps: int, deflation: Any) -> None:
    w, V = LOGARITHMIC.repeat(2, 1), cases.rotation(6, 2)
    assert_svd_pi(sg.PowerIteration(steps, deflation=deflation), w, V, torch.ones(2, 6, dtype=torch.bool))


@pytest.mark.parametrize("deflation", DEFLATIONS)
def test_what_was_dropped_has_no_gradient(deflation: Any) -> None:
    kept = torch.tensor([[False, False, True, True, True, True], [False, True, True, True, True, True]])
    assert_svd_pi(sg.PowerIteration(5, deflation=deflation), LOGARITHMIC.repeat(2, 1), cases.rotation(6, 2), kept)


@pytest.mark.parametrize("deflation", DEFLATIONS)
def test_one_cotangent_may_be_missing(deflation: Any) -> None:
    rule, w, V = sg.PowerIteration(5, deflation=deflation), LOGARITHMIC.repeat(2, 1), cases.rotation(6, 2)
    kept, (gw, gV) = torch.ones_like(w, dtype=torch.bool), cotangents(2, 6)
    for given in ((gw, None), (None, gV)):
        found = power.pullback(w, V, kept, *given, rule.steps, deflation == "two-sided")
        expected = iteration.pullback(rule, w, V, kept, *given)
        assert expected is not None
        assert close(found, expected, 1e-12)


@pytest.mark.parametrize("deflation", DEFLATIONS)
@pytest.mark.parametrize("void", [1, 3])
def test_void_eigenvalues_take_no_step(void: int, deflation: Any) -> None:
    """Also one that lies above others: a Rayleigh quotient that is not in order. Negative ones count as zero."""
    w = LOGARITHMIC.clone()
    w[void], w[0] = 1e-18, -0.1
    assert_svd_pi(
        sg.PowerIteration(5, deflation=deflation), w[None], cases.rotation(6, 1), torch.ones(1, 6, dtype=torch.bool)
    )


@pytest.mark.parametrize("deflation", DEFLATIONS)
def test_quotients_of_any_vectors(deflation: Any) -> None:
    """Vectors that are not orthonormal show every term of the deflation."""
    rule, M, V = (
        sg.PowerIteration(5, deflation=deflation),
        cases.random_covariance(5, 2),
        0.3 * cases.random(2, 5, 5, seed=9),
    )
    found = power.quotients(M, V, deflation == "two-sided")
    torch.testing.assert_close(found, iteration.quotients(rule, M, M[..., 0], V))


BREAKS: list[dict[str, float]] = [
    {"min_eigenvalue": 0.02},
    {"max_energy": 0.9},
    {"max_rayleigh_error": 1e-18},
    {"min_eigenvalue": 100.0},
]


@pytest.mark.parametrize("deflation", DEFLATIONS)
@pytest.mark.parametrize("condition", [{}, *BREAKS], ids=str)
def test_svd_pi_through_the_door(condition: dict[str, float], deflation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Value and gradient of eigh and inv_sqrtm with each breaking condition, and that the kernels did it."""
    rule = sg.PowerIteration(7, deflation=deflation, **{**OFF, **condition})
    M, G, (gw, gV) = cases.with_spectrum(LOGARITHMIC, 2, seed=3), cases.random(2, 6, 6, seed=4), cotangents(2, 6)

    def results() -> list[Tensor]:
        x = M.clone().requires_grad_()
        w, V = sg.eigh(x, gradient=rule)
        y = sg.inv_sqrtm(x, gradient=rule)
        return [w.detach(), y.detach(), *torch.autograd.grad((w, V, y), x, (gw, gV, G))]

    launched = record_launches(monkeypatch)
    found = results()
    assert launched == ["quotients", "quotients", "pullback", "pullback"]
    monkeypatch.setattr(power, "runs_on", lambda _: False)
    for x, y in zip(found, results(), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-9)
    assert len(launched) == 4


def record_launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels, as they are launched."""
    launched: list[str] = []
    launch = power._launch
    monkeypatch.setattr(power, "_launch", lambda name, *rest: (launched.append(name), launch(name, *rest))[1])
    return launched


# PI.


def assert_pi(H: Tensor, steps: int, dtype: torch.dtype = torch.float64, tolerance: float | None = None) -> Tensor:
    """Pairs and gradient of H (B, n, n) by kernels in ``dtype`` and by autograd through the twin in float64."""
    n, tolerance = H.shape[-1], tolerance or ROUNDING[dtype]
    start, (gw, gV) = cases.random(len(H), n, n, seed=7), cotangents(len(H), n)
    w, V, kept = power.iterate(H.to(dtype), start.to(dtype), steps, keep=True)
    X = H.clone().requires_grad_()
    pairs = deflation.iterated(X, start, steps)
    (expected,) = torch.autograd.grad(pairs, X, (gw, gV))
    assert close(w, pairs[0].detach(), tolerance)
    assert close(V, pairs[1].detach(), tolerance)
    found = power.retrace(H.to(dtype), kept, gw.to(dtype), gV.to(dtype), steps)
    assert close(found, expected, 10 * tolerance)
    again = power.iterate(H.to(dtype), start.to(dtype), steps, keep=False)
    assert torch.equal(again[1], V)
    assert again[2].rows is None
    return found


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", ROUNDING, ids=cases.ident)
@pytest.mark.parametrize("n", SIZES)
def test_pi_of_every_size(n: int, dtype: torch.dtype) -> None:
    assert_pi(cases.random_covariance(n, 3), 4, dtype)


@pytest.mark.parametrize("steps", [1, 2, 7, 30])
def test_pi_with_every_number_of_steps(steps: int) -> None:
    """The rows on their way from memory come round in a ring of eight."""
    found = assert_pi(cases.random_covariance(5, 2), steps, tolerance=1e-11)
    other = assert_pi(cases.random_covariance(5, 2), steps + 1, tolerance=1e-11)
    assert not close(found, other, 1e-6)


@pytest.mark.parametrize("spectrum", ["separated", "logarithmic", "small", "large"])
def test_pi_at_every_spectrum(spectrum: str) -> None:
    assert_pi(cases.with_spectrum(SPECTRA[spectrum], 2, seed=3), 6)


@pytest.mark.parametrize("spectrum", ["equal", "repeated", "near equal"])
def test_pi_at_ties(spectrum: str) -> None:
    """Rounding alone orders the vectors of a tie: V V^T and a loss that does not know the order."""
    H, start = cases.with_spectrum(SPECTRA[spectrum], 2, seed=3), cases.random(2, 6, 6, seed=7)
    gw, gV = cases.random(2, 1, seed=1).expand(2, 6), cases.random(2, 6, 1, seed=2).expand(2, 6, 6)
    w, V, kept = power.iterate(H, start, 3, keep=True)
    X = H.clone().requires_grad_()
    values, U = deflation.iterated(X, start, 3)
    (expected,) = torch.autograd.grad((values, U), X, (gw, gV))
    torch.testing.assert_close(w, values.detach())
    torch.testing.assert_close(V @ V.mT, (U @ U.mT).detach())
    assert close(power.retrace(H, kept, gw, gV, 3), expected, 1e-11)


def test_pi_stops_where_nothing_is_left() -> None:
    """Entries for which all is exact: after its one direction the matrix is zero, and vectors stay at their starts."""
    H = torch.zeros(2, 4, 4, dtype=torch.float64)
    H[0, 2, 2] = 4.0
    found = assert_pi(H, 3)
    assert bool((found[0] != 0).any())
    w, V, kept = power.iterate(H, cases.random(2, 4, 4, seed=7), 3, keep=True)
    assert w.tolist() == [[0, 0, 0, 4], [0, 0, 0, 0]]
    torch.testing.assert_close(V.norm(dim=-2), torch.ones(2, 4, dtype=torch.float64))
    assert kept.rows is not None
    assert bool((kept.rows[1, :, 1:4, 16] == 0).all())  # no step was taken


def test_pi_of_a_matrix_that_dies_on_the_way() -> None:
    """H^3 = 0: two steps move v, the others leave it, and its gradient goes on to those two. H need not be symmetric."""
    assert_pi(torch.diag(torch.tensor([2.0, 3.0], dtype=torch.float64), 1).repeat(2, 1, 1), 5)


def test_pi_with_a_start_of_zeros() -> None:
    H, start = cases.random_covariance(4, 1), cases.random(1, 4, 4, seed=7)
    start[..., 1] = 0
    for x, y in zip(power.iterate(H, start, 3, keep=False)[:2], deflation.iterated(H, start, 3), strict=True):
        torch.testing.assert_close(x, y)


def test_a_broken_matrix_leaves_the_others_alone() -> None:
    M, start = cases.random_covariance(5, 3), cases.random(3, 5, 5, seed=7)
    broken = M.clone()
    broken[1, 2, 3] = torch.nan
    gw, gV = cotangents(3, 5)
    w, V, kept = power.iterate(broken, start, 3, keep=True)
    g = power.retrace(broken, kept, gw, gV, 3)
    right = power.iterate(M, start, 3, keep=True)
    for i in (0, 2):
        assert torch.equal(w[i], right[0][i])
        assert torch.equal(V[i], right[1][i])
        assert torch.equal(g[i], power.retrace(M, right[2], gw, gV, 3)[i])
    assert w[1].isnan().all()
    values, U = torch.linalg.eigh(M)
    U[1] = torch.nan
    kept_pairs = torch.ones_like(values, dtype=torch.bool)
    gM, quotients = power.pullback(values, U, kept_pairs, gw, gV, 3, True), power.quotients(broken, U, True)
    for x in (gM, quotients):
        assert x[1].isnan().all()
        assert x[[0, 2]].isfinite().all()


def solve(M: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    return sg.eigh(M, solver=sg.PowerDeflation(4, cases.generator(1)), **options)


def test_pi_through_the_door(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same random numbers, pairs, gradient and second derivative as by the plain path."""
    M, (gw, gV) = cases.random_covariance(5, 2), cotangents(2, 5)

    def results() -> list[Tensor]:
        x = M.clone().requires_grad_()
        w, V = solve(x)
        (g,) = torch.autograd.grad((w, V), x, (gw, gV), retain_graph=True)
        (again,) = torch.autograd.grad((w, V), x, (gw, gV), create_graph=True)
        (h,) = torch.autograd.grad(again, x, M)
        (of_w,) = torch.autograd.grad(solve(x)[0].sum(), x)
        return [w.detach(), V.detach(), g, again.detach(), h, of_w]

    launched = record_launches(monkeypatch)
    found = results()
    assert launched == ["iterate", "retrace", "iterate", "retrace"]
    monkeypatch.setattr(power, "runs_on", lambda _: False)
    for x, y in zip(found, results(), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-10)
    assert len(launched) == 4


def test_what_the_kernels_leave_to_plain_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.func, forward mode, batched cotangents, complex and large matrices give what they gave without kernels."""
    M, (gw, gV) = cases.random_covariance(4, 2), cotangents(2, 4)

    def loss(x: Tensor) -> Tensor:
        w, V = solve(x)
        return (w * gw).sum() + (V * gV).sum()

    def results() -> list[Tensor]:
        x = M.clone().requires_grad_()
        _, V = solve(x)
        several = torch.autograd.grad(V, x, torch.stack([gV, 2 * gV]), is_grads_batched=True, retain_graph=True)
        tangent = torch.func.jvp(loss, (M,), (M,))[1]
        mapped = torch.func.vmap(lambda x: solve(x)[0], randomness="same")(M)
        return [several[0], torch.func.grad(loss)(M), tangent, mapped, solve(M.to(torch.complex128))[0]]

    launched = record_launches(monkeypatch)
    found = results()
    assert launched == ["iterate"]
    monkeypatch.setattr(power, "runs_on", lambda _: False)
    for x, y in zip(found, results(), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-10)


def test_what_is_too_large() -> None:
    assert power.runs_on(torch.zeros(128, 128))
    assert not power.runs_on(torch.zeros(129, 129))
    assert power.runs_on(torch.zeros(64, 64, dtype=torch.float64))
    assert not power.runs_on(torch.zeros(65, 65, dtype=torch.float64))
    assert not power.runs_on(torch.zeros(2, 0, 0))
    assert not power.runs_on(torch.zeros(2, 2, dtype=torch.complex64))


@pytest.mark.parametrize("largest", power.LARGEST.items(), ids=str)
def test_the_largest_fit_into_shared_memory(largest: tuple[torch.dtype, int]) -> None:
    dtype, n = largest
    for name in ("quotients", "pullback", "iterate", "retrace"):
        layout = power.shape(name, n, dtype.itemsize)
        assert layout.shared <= 226 << 10  # of a Hopper, less what is left alone
        assert layout.threads <= 1024


@pytest.mark.slow
@pytest.mark.parametrize("n", [66, 100])
def test_more_than_64_rows(n: int) -> None:
    """Rows are rounded up to multiples of 32 there, and tiles of products are larger."""
    H = cases.random_covariance(n, 1)
    start = cases.random(1, n, n, seed=7, dtype=torch.float32)
    _, V, kept = power.iterate(H.float(), start, 1, keep=True)
    X, (gw, gV) = H.clone().requires_grad_(), cotangents(1, n)
    pairs = deflation.iterated(X, start.double(), 1)
    (expected,) = torch.autograd.grad(pairs, X, (gw, gV))
    assert close(V, pairs[1].detach(), 1e-3)
    assert close(power.retrace(H.float(), kept, gw.float(), gV.float(), 1), expected, 1e-2)
    w, every = cases.separated(n)[None], torch.ones(1, n, dtype=torch.bool)
    assert_svd_pi(sg.PowerIteration(2), w, cases.rotation(n, 1), every, torch.float32)


OPTIONS: dict[str, dict[str, Any]] = {
    "svd-pi": {"gradient": sg.PowerIteration(5)},
    "svd-pi, pca": {"gradient": sg.PowerIteration(5), "whitening": "pca"},
    "pi": {"solver": sg.PowerDeflation(5)},
    "pi, pca": {"solver": sg.PowerDeflation(5), "whitening": "pca"},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_layer(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    x, g = cases.random(4, 6, 3, 3), cases.random(4, 6, 3, 3, seed=1)

    def results() -> list[Tensor]:
        torch.manual_seed(0)
        layer, X = DecorrelatedBatchNorm2d(6, group_size=3, dtype=torch.float64, **options), x.clone().requires_grad_()
        y = layer(X)
        return [y.detach(), *torch.autograd.grad(y, [X, *layer.parameters()], g)]

    launched = record_launches(monkeypatch)
    found = results()
    assert len(launched) == 2
    monkeypatch.setattr(power, "runs_on", lambda _: False)
    for a, b in zip(found, results(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
