"""SVD-PI: K + 1 power iterations are degree-K Taylor, the bound of NIPS19, and the three breaking conditions."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from spectralgrad.errors import DefinitenessError, OptionError
from spectralgrad.linalg.choices import for_eigenpairs
from spectralgrad.linalg.eigh import eigenpairs
from support import cases

DEGREES = [0, 1, 4, 9, 19]
BREAKS_OFF: dict[str, Any] = {"min_eigenvalue": None, "max_rayleigh_error": None, "max_energy": None}
DEFLATIONS = ["two-sided", "printed"]
REAL = [torch.float32, torch.float64]


def without_breaks(steps: int, **options: Any) -> sg.PowerIteration:
    return sg.PowerIteration(steps, **BREAKS_OFF, **options)


def eigh_gradient(M: Tensor, gradient: Any, gw: Tensor | None, gV: Tensor | None) -> Tensor:
    """dM for the cotangents of eigh's results."""
    X = M.detach().clone().requires_grad_()
    pairs = [(out, g) for out, g in zip(sg.eigh(X, gradient=gradient), (gw, gV), strict=True) if g is not None]
    return torch.autograd.grad([out for out, _ in pairs], X, [g for _, g in pairs])[0]


def worst(x: Tensor, reference: Tensor) -> float:
    """The largest relative error over the batch (B, n, n)."""
    return float((torch.linalg.matrix_norm(x - reference) / torch.linalg.matrix_norm(reference)).max())


def random_matrices(n: int, batch: int, dtype: torch.dtype, seed: int) -> Tensor:
    """(batch, n, n) with eigenvalues log-uniform in [1e-6, 1], rotated at random."""
    w = 10 ** (-6 * torch.rand(batch, n, dtype=torch.float64, generator=cases.generator(seed)))
    V = cases.rotation(n, batch, dtype=dtype, seed=seed)
    M = (V * w.unsqueeze(-2)) @ V.mH
    return (M + M.mH) / 2


@dataclass(frozen=True)
class PrintedTaylor(sg.Rule):
    """What M - M v v^T makes of `Taylor(degree)`: degree - 1 for the pairs that are reached through the deflation.

    Column i holds the gradient of v_i. Its components along smaller eigenvalues, above the diagonal of an ascending
    spectrum, come from its own iterations; those along larger ones from the deflations, which lose one power.
    """

    degree: int

    def coefficients(self, eigenvalues: Tensor) -> Tensor:
        direct = sg.Taylor(self.degree).coefficients(eigenvalues).triu(1)
        if self.degree == 0:
            return direct
        return direct + sg.Taylor(self.degree - 1).coefficients(eigenvalues).tril(-1)


# PAMI's proposition.


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=cases.ident)
@pytest.mark.parametrize("n", [2, 3, 6, 12])
@pytest.mark.parametrize("degree", DEGREES)
def test_power_iterations_are_taylor(degree: int, n: int, dtype: torch.dtype) -> None:
    """All eigenvectors and eigenvalues at once; with one step more it is another degree."""
    M = random_matrices(n, 20, dtype, seed=n)
    gV, gw = cases.random(20, n, n, dtype=dtype, seed=1), cases.random(20, n, seed=2)
    iterated = eigh_gradient(M, without_breaks(degree + 1), gw, gV)
    assert worst(iterated, eigh_gradient(M, sg.Taylor(degree), gw, gV)) < 1e-8
    assert worst(iterated, eigh_gradient(M, sg.Taylor(degree + 1), gw, gV)) > 1e-5


@pytest.mark.parametrize("degree", DEGREES)
def test_the_proposition_to_the_last_digit(degree: int) -> None:
    """Two-sided deflation is `Taylor(degree)`; as printed the pairs reached through the deflation have degree - 1."""
    w = torch.tensor([0.2, 0.35, 0.5, 0.8, 1.0], dtype=torch.float64)
    M, gV = cases.with_spectrum(w, 20, seed=5), cases.random(20, 5, 5, seed=6)
    exact = {"two-sided": sg.Taylor(degree), "printed": PrintedTaylor(degree)}
    for deflation, rule in exact.items():
        iterated = eigh_gradient(M, without_breaks(degree + 1, deflation=deflation), None, gV)
        assert worst(iterated, eigh_gradient(M, rule, None, gV)) < 5e-14
        other = exact["printed" if deflation == "two-sided" else "two-sided"]
        assert worst(iterated, eigh_gradient(M, other, None, gV)) > 1e-3


@pytest.mark.parametrize("spectrum", cases.POSITIVE_SPECTRA, ids=lambda s: s.__name__)
@pytest.mark.parametrize("degree", DEGREES)
def test_power_iterations_are_taylor_at_ties_too(degree: int, spectrum: Any) -> None:
    w = torch.logspace(-6, 0, 6, dtype=torch.float64) if spectrum is cases.graded else spectrum(6)
    M, gV = cases.with_spectrum(w, 5, seed=3), cases.random(5, 6, 6, seed=4)
    iterated = eigh_gradient(M, without_breaks(degree + 1), None, gV)
    assert worst(iterated, eigh_gradient(M, sg.Taylor(degree), None, gV)) < 1e-8


@pytest.mark.parametrize("n", [2, 3, 6, 12])
@pytest.mark.parametrize("degree", DEGREES)
def test_printed_deflation_loses_a_degree(degree: int, n: int) -> None:
    M, gV = random_matrices(n, 20, torch.float64, seed=n), cases.random(20, n, n, seed=1)
    printed = eigh_gradient(M, without_breaks(degree + 1, deflation="printed"), None, gV)
    assert worst(printed, eigh_gradient(M, PrintedTaylor(degree), None, gV)) < 1e-8
    assert worst(printed, eigh_gradient(M, sg.Taylor(degree), None, gV)) > 1e-5
    # For the largest eigenvalue alone nothing is reached through deflation.
    first = gV.clone()
    first[..., :-1] = 0
    printed = eigh_gradient(M, without_breaks(degree + 1, deflation="printed"), None, first)
    assert worst(printed, eigh_gradient(M, sg.Taylor(degree), None, first)) < 1e-8


# Bounded and finite.


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", REAL, ids=cases.ident)
@pytest.mark.parametrize("steps", [1, 9, 19])
@pytest.mark.parametrize("rule", ["breaks on", "breaks off"])
def test_bound_of_nips19(rule: str, steps: int, dtype: torch.dtype) -> None:
    """|dM| <= n K / eps |g| for the leading eigenvector of any matrix with eigenvalues >= eps, ties included."""
    n, eps, count = 6, 1e-3, 400
    uniform = torch.rand(count, n, dtype=torch.float64, generator=cases.generator(1))
    kinds = [uniform, (3 * uniform).round(), uniform * 1e-6, torch.zeros(count, n), uniform * torch.logspace(-8, 0, n)]
    w = torch.cat([eps + kind for kind in kinds]).sort(-1).values
    V = cases.rotation(n, len(w), seed=2)
    M = ((V * w.unsqueeze(-2)) @ V.mH).to(dtype)
    M = (M + M.mH) / 2
    gV = torch.zeros_like(M)
    gV[..., -1] = cases.random(len(w), n, seed=3).to(dtype)

    def ratio(gradient: Any) -> float:
        """The largest |dM| / (K / eps |g|)."""
        size = torch.linalg.matrix_norm(eigh_gradient(M, gradient, None, gV)).double()
        return float((size * eps / (steps * torch.linalg.matrix_norm(gV).double())).nan_to_num(nan=torch.inf).max())

    chosen = sg.PowerIteration(steps) if rule == "breaks on" else without_breaks(steps)
    assert ratio(chosen) <= n
    assert ratio(chosen) > 0.5  # all equal eps: the bound is of the right order
    assert ratio(sg.Analytic()) > 100 * n  # negative control


@pytest.mark.covering(2)
@pytest.mark.parametrize("deflation", DEFLATIONS)
@pytest.mark.parametrize("dtype", cases.DTYPES, ids=cases.ident)
@pytest.mark.parametrize("scale", cases.SCALES)
@pytest.mark.parametrize("spectrum", cases.SPECTRA, ids=lambda s: s.__name__)
def test_finite_everywhere(spectrum: Any, scale: float, dtype: torch.dtype, deflation: Any) -> None:
    """And bounded by K / (eps l_max) |g|: the bound of NIPS19 where directions below n eps l_max are void."""
    for n in (1, 2, 7):
        M = cases.with_spectrum(spectrum(n), 3, dtype=dtype, seed=2) * scale
        gw, gV = torch.ones(3, n, dtype=M.real.dtype), cases.random(3, n, n, dtype=dtype, seed=4)
        for rule in (sg.PowerIteration(19, deflation=deflation), without_breaks(19, deflation=deflation)):
            assert bool(eigh_gradient(M, rule, gw, gV).isfinite().all())
            of_vectors = torch.linalg.matrix_norm(eigh_gradient(M, rule, None, gV) * scale)
            limit = 19 / cases.eps(dtype) * torch.linalg.matrix_norm(gV) / max(float(spectrum(n).max()), cases.eps(dtype))
            assert bool((of_vectors <= limit).all())


@pytest.mark.parametrize("dtype", cases.DTYPES, ids=cases.ident)
@pytest.mark.parametrize(
    "rule", [sg.PowerIteration(19), without_breaks(19), without_breaks(19, deflation="printed")], ids=str
)
def test_zero_and_empty_matrices(rule: sg.PowerIteration, dtype: torch.dtype) -> None:
    for shape in [(3, 3), (2, 1, 1), (0, 3, 3), (2, 0, 0)]:
        M = torch.zeros(shape, dtype=dtype)
        gw, gV = torch.ones(shape[:-1], dtype=M.real.dtype), torch.ones_like(M)
        gradient = eigh_gradient(M, rule, gw, gV)
        assert gradient.shape == M.shape
        assert bool(gradient.isfinite().all())


def test_forward_is_the_decomposition() -> None:
    M = cases.random_covariance(8, 3)
    w, V = sg.eigh(M, gradient=sg.PowerIteration(19))
    torch.testing.assert_close(w, torch.linalg.eigvalsh(M), rtol=1e-13, atol=1e-14)
    assert torch.equal(V, sg.eigh(M)[1])


# The breaking conditions.


def kept(M: Tensor, rule: sg.PowerIteration, solver: sg.Solver | None = None) -> list[bool]:
    """Which pairs are kept, ascending."""
    flags = eigenpairs("test", M, for_eigenpairs("test", rule, solver or sg.Lapack()), None)[2]
    assert flags is not None
    return flags.tolist()


def test_as_printed_drops_the_null_space_of_the_first_convolution() -> None:
    """64 channels of 27 inputs, eps I added: the paper's break stands at eps, ours lets half of the null space pass."""
    g = cases.generator(3)
    inputs = torch.randn(27, 4096, generator=g) * torch.logspace(0, -1.5, 27).unsqueeze(-1)
    C = sg.covariance(torch.randn(64, 27, generator=g) @ inputs)
    M = C / C.trace() + 1e-4 * torch.eye(64)
    printed, ours = kept(M, sg.PowerIteration.printed(19, eps=1e-4)), kept(M, sg.PowerIteration(19))
    assert sum(printed) == 27 < sum(ours)
    assert sum(kept(M, sg.PowerIteration.printed(19, eps=1e-3))) < 27
    assert sg.PowerIteration.printed(5).steps == 5
    for bad in ({"steps": 0}, {"eps": -1.0}):
        with pytest.raises(OptionError, match=r"`PowerIteration`: "):
            sg.PowerIteration.printed(**bad)  # type: ignore[arg-type]


def partial_inverse_root(M: Tensor, keep: list[bool]) -> Tensor:
    w, V = torch.linalg.eigh(M)
    return (V * (w.rsqrt() * torch.tensor(keep))) @ V.mH


@dataclass(frozen=True)
class OffBy(sg.Solver):
    """LAPACK with one eigenvalue, counted from the smallest, wrong by a factor."""

    index: int
    factor: float

    def solve(self, H: Tensor) -> tuple[Tensor, Tensor]:
        w, V = torch.linalg.eigh(H)
        w[..., self.index] *= self.factor
        return w, V


BREAKS = [
    ({"min_eigenvalue": 1e-2}, sg.Lapack(), [False, True, True, True]),
    ({"min_eigenvalue": 0.7}, sg.Lapack(), [False, False, True, True]),
    ({"max_energy": 0.9}, sg.Lapack(), [False, False, True, True]),  # 6 of 9.501, then 9: reached after inclusion
    ({"max_energy": 0.6}, sg.Lapack(), [False, False, False, True]),
    ({"max_energy": 0.9999}, sg.Lapack(), [True, True, True, True]),
    ({"max_energy": 0.9998}, sg.Lapack(), [False, True, True, True]),
    ({"max_rayleigh_error": 0.1}, OffBy(1, 1.2), [False, False, True, True]),
    ({"max_rayleigh_error": 0.5}, OffBy(1, 1.2), [True, True, True, True]),
    ({"max_rayleigh_error": 0.1}, OffBy(0, 0.5), [False, True, True, True]),
    ({"min_eigenvalue": 100.0}, sg.Lapack(), [False, False, False, True]),  # at least one
    ({"max_energy": 1e-9}, sg.Lapack(), [False, False, False, True]),
    ({"max_rayleigh_error": 1e-9}, OffBy(3, 1.5), [False, False, False, True]),
]


@pytest.mark.parametrize(("condition", "solver", "expected"), BREAKS, ids=str)
def test_each_break(condition: dict[str, float], solver: sg.Solver, expected: list[bool]) -> None:
    """The kept set, what a spectral function is made of, and which eigenvectors have a gradient."""
    M = cases.with_spectrum(torch.tensor([1e-3, 0.5, 3.0, 6.0], dtype=torch.float64), seed=1)
    on, off = sg.PowerIteration(5, **{**BREAKS_OFF, **condition}), without_breaks(5)
    assert kept(M, on, solver) == expected
    assert kept(M, off, solver) == [True] * 4
    true_inverse_root = partial_inverse_root(M, [True] * 4)
    if isinstance(solver, sg.Lapack):
        torch.testing.assert_close(sg.inv_sqrtm(M, gradient=on), partial_inverse_root(M, expected), rtol=0, atol=1e-11)
        torch.testing.assert_close(sg.inv_sqrtm(M, gradient=off), true_inverse_root, rtol=0, atol=1e-11)
    changed = not torch.allclose(
        sg.inv_sqrtm(M, gradient=on, solver=solver), sg.inv_sqrtm(M, gradient=off, solver=solver), atol=1e-3
    )
    assert changed == (not all(expected))


@pytest.mark.parametrize("condition", [{"min_eigenvalue": 1.0}, {"max_energy": 0.9}], ids=str)
def test_dropped_eigenvectors_have_no_gradient(condition: dict[str, float]) -> None:
    M = cases.with_spectrum(torch.tensor([1e-3, 0.5, 3.0, 6.0], dtype=torch.float64), 2, seed=1)
    gw, gV = cases.random(2, 4, seed=2), cases.random(2, 4, 4, seed=3)
    broken = eigh_gradient(M, sg.PowerIteration(5, **{**BREAKS_OFF, **condition}), gw, gV)
    gw[:, :2] = 0
    gV[..., :2] = 0
    torch.testing.assert_close(broken, eigh_gradient(M, without_breaks(5), gw, gV), rtol=0, atol=1e-13)


def test_rounding_alone_triggers_the_rayleigh_break() -> None:
    """float32, eigenvalues 1 to 1e-12: the deflated matrix holds nothing but rounding in the last directions."""
    M = cases.with_spectrum(cases.graded(13), dtype=torch.float32, seed=1)
    M = M + 1e-9 * torch.eye(13)  # no eigenvalue is exactly 0
    on = kept(M, sg.PowerIteration(5, **{**BREAKS_OFF, "max_rayleigh_error": 0.1}))
    assert on[-1]
    assert not on[0]
    assert on == sorted(on)  # a break drops all smaller ones too
    assert all(kept(M, without_breaks(5)))


def test_a_zero_eigenvalue_is_dropped_by_default() -> None:
    M = torch.diag(torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64))
    energy_off = {"max_rayleigh_error": None, "max_energy": None}
    assert kept(M, sg.PowerIteration(5, **energy_off)) == [False, True, True]
    assert kept(M, without_breaks(5)) == [True, True, True]
    assert kept(torch.zeros(3, 3), sg.PowerIteration(5)) == [False, False, True]


@pytest.mark.parametrize("dtype", REAL, ids=cases.ident)
@pytest.mark.parametrize(("channels", "positions"), [(256, 49), (64, 28), (16, 9)])
def test_a_null_space_that_was_shifted_is_dropped_whole(channels: int, positions: int, dtype: torch.dtype) -> None:
    """Rounding puts half of the eigenvalues at eps above eps: NIPS19's lambda <= eps counts them as eps."""
    X = cases.random(2, channels, positions, dtype=dtype, seed=channels)
    M = sg.covariance(X) + 1e-2 * torch.eye(channels, dtype=dtype)
    flags = torch.tensor(kept(M, sg.PowerIteration(2, **{**BREAKS_OFF, "min_eigenvalue": 1e-2})))
    assert flags.sum(-1).tolist() == [positions - 1] * 2
    assert int((torch.linalg.eigvalsh(M) > 1e-2).sum()) > 2 * (positions - 1)  # control: as floating point has it


def test_breaks_are_decided_matrix_by_matrix() -> None:
    w = torch.tensor([[1e-3, 0.5, 3.0], [1.0, 2.0, 3.0]], dtype=torch.float64)
    M = torch.stack([cases.with_spectrum(row, seed=1) for row in w])
    assert kept(M, sg.PowerIteration(5, **{**BREAKS_OFF, "min_eigenvalue": 0.1})) == [[False, True, True], [True] * 3]


def test_steps_change_the_gradient() -> None:
    M, gV = cases.with_spectrum(cases.separated(5), 1, seed=1), cases.random(1, 5, 5, seed=2)
    assert worst(eigh_gradient(M, without_breaks(5), None, gV), eigh_gradient(M, without_breaks(6), None, gV)) > 1e-3
    exact = eigh_gradient(M, sg.Exact(), None, gV)
    errors = [worst(eigh_gradient(M, without_breaks(steps), None, gV), exact) for steps in (1, 5, 20, 100, 300)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-12


def test_spectral_functions_have_the_exact_gradient_in_the_limit() -> None:
    G = cases.random(2, 5, 5, seed=2)
    for function in (sg.sqrtm, sg.inv_sqrtm, sg.logm):
        M, N = (cases.with_spectrum(cases.separated(5), 2, seed=1).requires_grad_() for _ in range(2))
        (iterated,) = torch.autograd.grad(function(M, gradient=without_breaks(300)), M, G)
        (exact,) = torch.autograd.grad(function(N), N, G)
        assert cases.relative_error(iterated, exact) < 1e-12


# Transforms.


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=cases.ident)
@pytest.mark.parametrize("deflation", DEFLATIONS)
@pytest.mark.parametrize("breaks", [{}, BREAKS_OFF, {"max_energy": 0.8}], ids=["default", "off", "energy"])
def test_jvp_is_the_adjoint_of_backward(breaks: dict[str, Any], deflation: Any, dtype: torch.dtype) -> None:
    """<g, d(w, V)[E]> = <dM(g), E> for any cotangent g and any E."""
    rule = sg.PowerIteration(4, deflation=deflation, **breaks)
    M = cases.random_covariance(5, 3, dtype=dtype)
    E, gV = cases.random(3, 5, 5, dtype=dtype, seed=1), cases.random(3, 5, 5, dtype=dtype, seed=2)
    E, gw = (E + E.mH) / 2, cases.random(3, 5, seed=3)
    _, (dw, dV) = torch.func.jvp(lambda X: sg.eigh(X, gradient=rule), (M,), (E,))
    gM = eigh_gradient(M, rule, gw, gV)

    def inner(a: Tensor, b: Tensor) -> Tensor:
        return (a.conj() * b).real.flatten(1).sum(-1)

    torch.testing.assert_close(inner(gw, dw) + inner(gV, dV), inner(gM, E), rtol=1e-10, atol=1e-10)
    assert bool((inner(gV, dV).abs() > 1e-3).all())


@pytest.mark.parametrize("rule", [sg.PowerIteration(6), without_breaks(6), without_breaks(6, deflation="printed")], ids=str)
def test_batch_and_vmap_equal_one_by_one(rule: sg.PowerIteration) -> None:
    M = cases.random_covariance(5, 2, 3)
    gV, gw = cases.random(2, 3, 5, 5, seed=2), cases.random(2, 3, 5, seed=3)
    batched = eigh_gradient(M, rule, gw, gV)
    for i in range(2):
        for j in range(3):
            torch.testing.assert_close(
                eigh_gradient(M[i, j], rule, gw[i, j], gV[i, j]), batched[i, j], rtol=1e-10, atol=1e-12
            )
    w, V = torch.func.vmap(lambda X: sg.eigh(X, gradient=rule), in_dims=1, out_dims=1)(M)
    torch.testing.assert_close(w, sg.eigh(M, gradient=rule)[0], rtol=1e-12, atol=1e-13)
    assert V.shape == M.shape

    def loss(X: Tensor, gw: Tensor, gV: Tensor) -> Tensor:
        w, V = sg.eigh(X, gradient=rule)
        return (w * gw).sum() + (V * gV).sum()

    per_matrix = torch.func.vmap(torch.func.vmap(torch.func.grad(loss)))(M, gw, gV)
    torch.testing.assert_close(per_matrix, batched, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("deflation", DEFLATIONS)
def test_double_backward(deflation: Any) -> None:
    """With many steps on a separated spectrum it is the exact rule's."""
    weights = cases.random(5, 5, seed=1)

    def second(gradient: Any) -> Tensor:
        M = cases.with_spectrum(cases.separated(5), seed=1).requires_grad_()
        w, V = sg.eigh(M, gradient=gradient)
        (first,) = torch.autograd.grad((V.square() * weights * w.square()).sum(), M, create_graph=True)
        return torch.autograd.grad(first.square().sum(), M)[0]

    exact = second(sg.Exact())
    assert cases.relative_error(second(without_breaks(300, deflation=deflation)), exact) < 1e-9
    few = second(sg.PowerIteration(3, deflation=deflation))
    assert bool(few.isfinite().all())
    assert cases.relative_error(few, exact) > 1e-2


def test_indefinite_matrices_are_refused() -> None:
    M = cases.with_spectrum(torch.tensor([-0.5, 1.0, 2.0], dtype=torch.float64), 2)
    with pytest.raises(DefinitenessError, match=r"`eigh with PowerIteration`: .* 2 of 2 matrices have a negative"):
        sg.eigh(M, gradient=sg.PowerIteration(5))
    with pytest.raises(DefinitenessError, match="`sqrtm with PowerIteration`"):
        sg.sqrtm(M, gradient=sg.PowerIteration(5))
    with sg.checks(False):
        assert bool(eigh_gradient(M, sg.PowerIteration(5), None, torch.ones_like(M)).isfinite().all())
    barely = cases.with_spectrum(torch.tensor([-1e-16, 1.0, 2.0], dtype=torch.float64))
    sg.eigh(barely, gradient=sg.PowerIteration(5))  # rounding is no indefiniteness
