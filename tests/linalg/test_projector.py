"""Projectors on leading eigenvectors: what they keep, and a gradient that sees only the gap at the cut."""

from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import spectralgrad as sg
from spectralgrad.errors import DefinitenessError
from support import cases

DTYPES = [torch.float64, torch.complex128]
EXACT = sg.Exact()


def with_values(w: list[float], dtype: torch.dtype = torch.float64) -> Tensor:
    return cases.with_spectrum(torch.tensor(w, dtype=torch.float64), dtype=dtype)


def symmetrised(M: Tensor, **options: Any) -> Tensor:
    """Defined for every matrix, as gradcheck's one-sided steps need it."""
    return sg.projector((M + M.mH) / 2, **options)


def gradient(M: Tensor, **options: Any) -> Tensor:
    M = M.detach().requires_grad_()
    P = sg.projector(M, **options)
    weight = cases.random(*P.shape, dtype=torch.complex128 if P.is_complex() else torch.float64, seed=9).to(P.dtype)
    return torch.autograd.grad((P * weight).real.sum(), M)[0]


# What is kept


@pytest.mark.parametrize("dtype", cases.DTYPES, ids=cases.ident)
@pytest.mark.parametrize("solver", cases.SOLVERS, ids=cases.ident)
def test_projects_on_the_leading_vectors(solver: sg.Solver, dtype: torch.dtype) -> None:
    rounding = 100 * cases.eps(dtype)
    M = cases.with_spectrum(torch.linspace(-1, 1, 5, dtype=torch.float64), 2, 3, dtype=dtype)
    _, V = torch.linalg.eigh(M)
    for rank in range(1, 6):
        P = sg.projector(M, rank=rank, solver=solver)
        assert P.dtype == dtype
        torch.testing.assert_close(P, V[..., -rank:] @ V[..., -rank:].mH, rtol=rounding, atol=rounding)
        torch.testing.assert_close(P @ P, P, rtol=rounding, atol=rounding)
        torch.testing.assert_close(P, P.mH, rtol=rounding, atol=rounding)
        trace = P.diagonal(dim1=-2, dim2=-1).sum(-1).real
        torch.testing.assert_close(trace, torch.full_like(trace, rank), rtol=rounding, atol=rounding)


def fewest(w: list[float], energy: float) -> int:
    """Brute force: the smallest number of leading eigenvalues whose dropped rest is at most 1 - energy of the total."""
    w = sorted(w, reverse=True)
    for kept in range(1, len(w) + 1):
        if sum(w[kept:]) <= (1 - energy) * sum(w):
            return kept
    return len(w)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=cases.ident)
def test_energy_keeps_the_fewest(dtype: torch.dtype) -> None:
    seen = set()
    for seed in range(10):
        w = cases.random(6, seed=seed).square().tolist()
        M = cases.with_spectrum(torch.tensor(w, dtype=torch.float64), seed=seed, dtype=dtype)
        for energy in (0.05, 0.3, 0.5, 0.8, 0.95, 0.99, 0.9999):
            rank = round(float(sg.projector(M, energy=energy).trace()))
            assert rank == fewest(w, energy), (seed, energy)
            torch.testing.assert_close(sg.projector(M, energy=energy), sg.projector(M, rank=rank))
            seen.add(rank)
    assert len(seen) > 3  # the option changes the result


def test_energy_is_chosen_for_each_matrix() -> None:
    M = torch.diag_embed(torch.tensor([[8.0, 1.0, 1.0], [1.0, 1.1, 1.2]]))
    ranks = sg.projector(M, energy=0.75).diagonal(dim1=-2, dim2=-1).sum(-1)
    assert ranks.tolist() == pytest.approx([1, 3])


def test_all_the_energy_is_everything() -> None:
    for w in ([1.0, 2.0, 3.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0], [1e-12, 1.0, 1.0]):
        P = sg.projector(with_values(w), energy=1)
        torch.testing.assert_close(P, torch.eye(3, dtype=torch.float64))
        assert gradient(with_values(w), energy=1).abs().max() == 0


def test_an_energy_cut_keeps_a_whole_tie() -> None:
    for w, rank in (([1.0, 1.0, 1.0, 3.0], 4), ([0.5, 2.0, 2.0, 3.0], 3), ([1.0, 2.0, 2.0 + 1e-15, 2.0], 3)):
        P = sg.projector(with_values(w), energy=0.6)
        assert float(P.trace()) == pytest.approx(rank), w
        torch.testing.assert_close(P @ P, P)
        assert gradient(with_values(w), energy=0.6, gradient=EXACT).abs().max() < 10
    assert float(sg.projector(with_values([0.5, 2.0, 2.0001, 3.0]), energy=0.6).trace()) == pytest.approx(2)


def test_something_is_always_kept() -> None:
    assert float(sg.projector(torch.zeros(3, 3), energy=0.5).trace()) >= 1
    assert float(sg.projector(with_values([0.0, 0.0, 1.0]), energy=1e-6).trace()) == pytest.approx(1)


# The gradient

SPECTRA = {
    "separate": [1.0, 2.0, 4.0, 5.0],
    "tie above": [1.0, 2.0, 4.0, 4.0],
    "tie below": [1.0, 1.0, 4.0, 5.0],
    "ties on both sides": [1.0, 1.0, 4.0, 4.0],
    "zeros": [0.0, 0.0, 4.0, 4.0],
    "indefinite": [-3.0, -3.0, 1.0, 1.0],
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("w", SPECTRA.values(), ids=SPECTRA)
@pytest.mark.parametrize("dtype", DTYPES, ids=cases.ident)
def test_derivatives(dtype: torch.dtype, w: list[float]) -> None:
    M = with_values(w, dtype).requires_grad_()
    assert gradcheck(lambda M: symmetrised(M, rank=2, gradient=EXACT), M, check_forward_ad=True)
    weight = cases.random(4, 4, dtype=dtype, seed=9)

    def weighted(M: Tensor) -> Tensor:
        return (symmetrised(M, rank=2, gradient=EXACT) * weight).sum()

    assert gradgradcheck(weighted, M, check_fwd_over_rev=not dtype.is_complex)


def test_derivatives_by_energy() -> None:
    M = with_values([0.1, 0.1, 4.0, 4.0]).requires_grad_()
    assert gradcheck(lambda M: symmetrised(M, energy=0.9, gradient=EXACT), M, check_forward_ad=True)
    torch.testing.assert_close(gradient(M, energy=0.9), gradient(M, rank=2))


@pytest.mark.parametrize("rule", cases.RULES, ids=cases.ident)
def test_ties_on_one_side_do_not_matter(rule: sg.Rule) -> None:
    """The gradient goes smoothly through a tie, whatever the rule; for the unguarded one too."""
    tied, near = with_values([1.0, 1.0, 4.0, 4.0]), with_values([1.0, 1.0 + 1e-9, 4.0, 4.0 + 1e-9])
    assert cases.relative_error(gradient(tied, rank=2, gradient=rule), gradient(near, rank=2, gradient=rule)) < 1e-7
    diagonal = torch.diag(torch.tensor([1.0, 1.0, 4.0, 4.0]))  # ties that are exact in every bit
    assert gradient(diagonal, rank=2, gradient=rule).isfinite().all()


def high_precision_gradient(M: Tensor, weight: Tensor, rank: int) -> Tensor:
    """Central differences of the projector by mpmath's eigenvectors in 40 digits."""
    n = len(M)
    with mpmath.workdps(40):
        step = mpmath.mpf(10) ** -12

        def loss(i: int, j: int, sign: int) -> Any:
            X = mpmath.matrix(M.tolist())
            X[i, j] += sign * step / 2  # the symmetric part of a step in entry (i, j)
            X[j, i] += sign * step / 2
            _, V = mpmath.eigsy(X)
            columns = range(n - rank, n)
            pairs = ((a, b) for a in range(n) for b in range(n))
            return sum(float(weight[a, b]) * sum(V[a, k] * V[b, k] for k in columns) for a, b in pairs)

        entries = [[float((loss(i, j, 1) - loss(i, j, -1)) / (2 * step)) for j in range(n)] for i in range(n)]
    return torch.tensor(entries, dtype=torch.float64)


@pytest.mark.parametrize("gap", [1.0, 1e-2, 1e-4])
def test_gradient_against_mpmath(gap: float) -> None:
    M = with_values([1.0, 1.0, 1.0 + gap, 2.0])
    M = (M + M.mT) / 2
    want = high_precision_gradient(M, cases.random(4, 4, seed=9), 2)
    assert cases.relative_error(gradient(M, rank=2, gradient=EXACT), want) < 1e-14 / gap * 100
    assert cases.relative_error(gradient(M, rank=2), want) < 1e-6  # the default, as a drop-in
    assert cases.relative_error(gradient(M, rank=2, gradient=sg.Taylor(0)), want) > 1e-3  # the control


@pytest.mark.parametrize("rule", [None, *cases.BOUNDED_RULES], ids=cases.ident)
def test_finite_at_a_tie_across_the_cut(rule: sg.Rule | None) -> None:
    for dtype in cases.DTYPES:
        for w in ([1.0, 2.0, 2.0, 3.0], [2.0, 2.0, 2.0, 2.0], [0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0]):
            for scale in cases.SCALES:
                M = (scale * with_values(w, dtype)).to(dtype).requires_grad_()
                P = sg.projector(M, rank=2, gradient=rule)
                (first,) = torch.autograd.grad((P * cases.random(4, 4, dtype=dtype)).real.sum(), M, create_graph=True)
                assert P.isfinite().all()
                assert first.isfinite().all(), (dtype, w, scale)
    diagonal = torch.diag(torch.tensor([1.0, 2.0, 2.0, 3.0]))
    assert gradient(diagonal, rank=2, gradient=rule).isfinite().all()
    assert not gradient(diagonal, rank=2, gradient=sg.Analytic()).isfinite().all()  # the control


def test_every_rule_has_its_own_gradient_across_a_close_cut() -> None:
    M = with_values([1.0, 2.0, 2.0 + 2e-8, 3.0])
    rules = [*cases.BOUNDED_RULES, sg.Lorentzian(rtol=1e-3), sg.Taylor(3), sg.Clip(10.0)]
    gradients = [gradient(M, rank=2, gradient=rule) for rule in rules]
    for i, one in enumerate(gradients):
        for other in gradients[:i]:
            assert cases.relative_error(one, other) > 1e-3
    assert torch.equal(gradient(M, rank=2), gradient(M, rank=2, gradient=sg.Lorentzian()))


# The papers' iterations


def test_through_the_vectors() -> None:
    """The same function, and the same gradient where nothing ties; a tie on one side meets the bare rule."""
    M, G = with_values([1.0, 2.0, 3.5, 6.0]), cases.random(4, 4, seed=2)

    def gradient(through: Any, rule: sg.Rule) -> Tensor:
        X = M.clone().requires_grad_()
        P = sg.projector(X, rank=2, through=through, gradient=rule)
        torch.testing.assert_close(P, sg.projector(M, rank=2))
        return torch.autograd.grad(P, X, G)[0]

    for rule in (sg.Analytic(), sg.Taylor(1)):
        torch.testing.assert_close(gradient("vectors", rule), gradient("projector", rule))
    tied = torch.diag(torch.tensor([4.0, 4.0, 1.0], dtype=torch.float64)).requires_grad_()
    for through, finite in (("projector", True), ("vectors", False)):
        P = sg.projector(tied, rank=2, through=through, gradient=sg.Analytic())  # type: ignore[arg-type]
        assert bool(torch.autograd.grad((P * G[:3, :3]).sum(), tied)[0].isfinite().all()) == finite
    with pytest.raises(sg.errors.OptionError, match='through must be "projector" or "vectors"'):
        sg.projector(tied, rank=2, through="pairs")  # type: ignore[arg-type]


def test_power_iterations() -> None:
    M = with_values([0.1, 0.2, 2.0, 4.0])
    options: dict[str, Any] = {"rank": 2, "gradient": sg.PowerIteration(30, max_energy=None)}
    torch.testing.assert_close(sg.projector(M, **options), sg.projector(M, rank=2))
    assert cases.relative_error(gradient(M, **options), gradient(M, rank=2)) < 1e-6
    few = sg.PowerIteration(2, max_energy=None)
    assert cases.relative_error(gradient(M, rank=2, gradient=few), gradient(M, rank=2)) > 1e-3
    # What Alg. 1 drops does not come back by a higher rank.
    broken = sg.projector(M, rank=3, gradient=sg.PowerIteration(30, max_energy=0.9))
    assert float(broken.trace()) == pytest.approx(2)


def test_power_deflation() -> None:
    M = with_values([0.1, 0.2, 2.0, 4.0])
    options: dict[str, Any] = {"rank": 2, "solver": sg.PowerDeflation(60, cases.generator(5))}
    torch.testing.assert_close(sg.projector(M, **options), sg.projector(M, rank=2))
    assert cases.relative_error(gradient(M, **options), gradient(M, rank=2)) < 1e-6
    by_energy = sg.projector(M, energy=0.9, solver=sg.PowerDeflation(60, cases.generator(5)))
    torch.testing.assert_close(by_energy, sg.projector(M, energy=0.9))
    few = sg.PowerDeflation(2, cases.generator(5))
    assert cases.relative_error(sg.projector(M, rank=2, solver=few), sg.projector(M, rank=2)) > 1e-3


# The smallest


@pytest.mark.parametrize("dtype", cases.DTYPES, ids=cases.ident)
@pytest.mark.parametrize("solver", cases.SOLVERS, ids=cases.ident)
def test_projects_on_the_last_vectors(solver: sg.Solver, dtype: torch.dtype) -> None:
    rounding = 100 * cases.eps(dtype)
    M = cases.with_spectrum(torch.linspace(-1, 1, 5, dtype=torch.float64), 2, 3, dtype=dtype)
    _, V = torch.linalg.eigh(M)
    for rank in range(1, 6):
        P = sg.projector(M, rank=rank, smallest=True, solver=solver)
        assert P.dtype == dtype
        torch.testing.assert_close(P, V[..., :rank] @ V[..., :rank].mH, rtol=rounding, atol=rounding)
        torch.testing.assert_close(P @ P, P, rtol=rounding, atol=rounding)
        assert not torch.allclose(P, sg.projector(M, rank=rank), atol=1e-3) or rank == 5  # the option changes the result


@pytest.mark.covering(1)
@pytest.mark.parametrize("w", SPECTRA.values(), ids=SPECTRA)
@pytest.mark.parametrize("dtype", DTYPES, ids=cases.ident)
def test_derivatives_of_the_smallest(dtype: torch.dtype, w: list[float]) -> None:
    M = with_values(w, dtype).requires_grad_()
    options: dict[str, Any] = {"rank": 2, "smallest": True, "gradient": EXACT}
    assert gradcheck(lambda M: symmetrised(M, **options), M, check_forward_ad=True)
    weight = cases.random(4, 4, dtype=dtype, seed=9)

    def weighted(M: Tensor) -> Tensor:
        return (symmetrised(M, **options) * weight).sum()

    assert gradgradcheck(weighted, M, check_fwd_over_rev=not dtype.is_complex)


@pytest.mark.parametrize("rule", [None, *cases.BOUNDED_RULES], ids=cases.ident)
def test_the_smallest_are_what_the_largest_leave(rule: sg.Rule | None) -> None:
    for w in (
        [1.0, 1.0, 2.0, 4.0, 4.0],
        [-3.0, -3.0, 0.0, 1.0, 1.0],
        [1.0, 2.0, 2.0, 2.0, 3.0],
    ):  # the last: a tie at the cut
        M = with_values(w)
        for rank in (1, 2, 3, 4):
            rest = sg.projector(M, rank=5 - rank, gradient=rule)
            torch.testing.assert_close(
                sg.projector(M, rank=rank, smallest=True, gradient=rule) + rest, torch.eye(5).double()
            )
            smaller = gradient(M, rank=rank, smallest=True, gradient=rule)
            assert smaller.isfinite().all()
            torch.testing.assert_close(smaller, -gradient(M, rank=5 - rank, gradient=rule))


def test_the_gradient_of_the_smallest_against_mpmath() -> None:
    M = with_values([1.0, 1.0, 1.01, 2.0])
    M = (M + M.mT) / 2
    want = -high_precision_gradient(M, cases.random(4, 4, seed=9), 2)
    assert cases.relative_error(gradient(M, rank=2, smallest=True, gradient=EXACT), want) < 1e-10


def test_all_of_the_smallest_are_everything() -> None:
    M = with_values([1.0, 2.0, 3.0])
    assert torch.equal(sg.projector(M, rank=3, smallest=True), torch.eye(3, dtype=torch.float64))
    assert gradient(M, rank=3, smallest=True).abs().max() == 0
    assert sg.projector(torch.ones(0, 2, 2), rank=1, smallest=True).shape == (0, 2, 2)
    assert sg.projector(torch.ones(1, 1), rank=1, smallest=True).item() == 1


def test_the_smallest_by_the_papers_iterations() -> None:
    """Both find leading vectors: what is left of the space is the rest."""
    M = with_values([0.1, 0.2, 2.0, 4.0])
    want = sg.projector(M, rank=2, smallest=True)
    power: dict[str, Any] = {"gradient": sg.PowerIteration(30, max_energy=None)}
    for make in (lambda: power, lambda: {"solver": sg.PowerDeflation(60, cases.generator(5))}):
        torch.testing.assert_close(sg.projector(M, rank=2, smallest=True, **make()), want)
        assert cases.relative_error(gradient(M, rank=2, smallest=True, **make()), gradient(M, rank=2, smallest=True)) < 1e-6
    # Alg. 1 keeps one of the two largest here: the other counts as small.
    broken = sg.projector(M, rank=2, smallest=True, gradient=sg.PowerIteration(30, max_energy=0.6))
    assert float(broken.trace()) == pytest.approx(3)


@pytest.mark.parametrize("through", ["projector", "vectors"])
def test_energy_of_an_indefinite_matrix_is_refused(through: Any) -> None:
    M = torch.diag(torch.tensor([1.0, 0.5, -0.005]))
    with pytest.raises(DefinitenessError, match="use rank= for an indefinite matrix"):
        sg.projector(M, energy=0.9, through=through)


def test_rough_eigenvalues_of_power_deflation_say_nothing_about_the_matrix() -> None:
    """Deflation leaves small eigenvalues below zero, here by 1e-2: the covariance is none the worse for it."""
    X = cases.random(64, 27, dtype=torch.float32) @ cases.random(27, 256, dtype=torch.float32, seed=1)
    M = X @ X.mT / 256
    solver = sg.PowerDeflation(19, generator=cases.generator())
    assert float(sg.eigh(M, solver=solver)[0].min()) < -1e-3
    P = sg.projector(M, energy=0.99, solver=sg.PowerDeflation(19, generator=cases.generator()))
    assert bool(P.isfinite().all())
    assert cases.relative_error(P @ M, M) < 0.3
