"""Rules: antisymmetric, bounded, scale-relative; and the figures that the papers and the design promise."""

import math
import re

import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from spectralgrad.errors import OptionError
from support import cases

REAL = [torch.float32, torch.float64]
RELATIVE_RULES = [sg.Exact(), sg.Lorentzian(), sg.Lorentzian(rtol=1e-2), sg.Taylor(9), sg.Taylor(0)]
SIGNED_AT_TIES = [sg.Taylor(9), sg.Taylor(0), sg.Clip(100.0), sg.Analytic()]  # the others give 0 there
BATCHES = [(), (1,), (2, 3), (0,), (2, 0)]

every_rule = pytest.mark.parametrize("rule", cases.RULES, ids=cases.ident)
bounded_rule = pytest.mark.parametrize("rule", cases.BOUNDED_RULES, ids=cases.ident)
every_dtype = pytest.mark.parametrize("dtype", REAL, ids=cases.ident)


class TieByAddition(sg.Rule):
    """A known fault, for the negative controls: + tiny in the denominator gives both sides of a tie the same sign."""

    def coefficients(self, eigenvalues: Tensor) -> Tensor:
        gap = eigenvalues.unsqueeze(-2) - eigenvalues.unsqueeze(-1)
        return (1 / (gap + 1e-10)).masked_fill(torch.eye(gap.shape[-1], dtype=torch.bool), 0)


def is_antisymmetric(K: Tensor) -> bool:
    return torch.equal(K, -K.mT) and bool((K.diagonal(dim1=-2, dim2=-1) == 0).all())


def spectra(dtype: torch.dtype, count: int = 4000, n: int = 5) -> Tensor:
    """(kinds * count, n) spectra of every kind that has ever made trouble, unsorted, of unit scale."""
    uniform = torch.rand(count, n, dtype=torch.float64, generator=cases.generator(1))
    normal = cases.random(count, n, seed=2)
    grades = torch.logspace(-12, 0, n, dtype=torch.float64)
    few = (3 * uniform).round() / 3  # exact ties, zeros among them
    eps = cases.eps(dtype)
    near = uniform[:, :1] * (1 + eps * (4 * normal).round())  # some ulps apart
    kinds = [uniform, normal, few, near, near * normal.sign(), few * normal.sign(), uniform * grades, normal * grades]
    kinds += [torch.ones(count, n, dtype=torch.float64) * uniform[:, :1], normal.abs() * (uniform > 0.5)]
    return torch.cat(kinds).to(dtype)


def scaled_spectra(dtype: torch.dtype) -> list[Tensor]:
    """The same at scales from the smallest normal number to near overflow; n = 1 to 9."""
    info = torch.finfo(dtype)
    scales = [1.0, 1e-8, 1e8, math.sqrt(info.tiny), math.sqrt(info.max), 10 * info.tiny, info.max / 20]
    return [spectra(dtype, 250, n) * scale for n in (1, 2, 5, 9) for scale in scales]


def coefficients(rule: sg.Rule, w: Tensor) -> Tensor:
    """K for thousands of spectra (B, n); a wrong broadcast is found on two of them, before it fills the memory."""
    assert rule.coefficients(w[:2]).shape == (*w[:2].shape, w.shape[-1])
    return rule.coefficients(w)


# What every rule is.


@every_dtype
@every_rule
def test_antisymmetric_with_zero_diagonal(rule: sg.Rule, dtype: torch.dtype) -> None:
    for w in scaled_spectra(dtype):
        assert is_antisymmetric(coefficients(rule, w))
    for spectrum in cases.SPECTRA:
        assert is_antisymmetric(rule.coefficients(spectrum(7).to(dtype)))


def test_a_faulty_rule_is_not_antisymmetric() -> None:
    w = cases.repeated(7)
    assert not is_antisymmetric(TieByAddition().coefficients(w))
    assert is_antisymmetric(TieByAddition().coefficients(w).triu(1) - TieByAddition().coefficients(w).triu(1).mT)
    assert not is_antisymmetric(sg.Exact().coefficients(w) + torch.eye(7))


@every_dtype
@pytest.mark.parametrize("n", [0, 1, 4])
@pytest.mark.parametrize("batch", BATCHES, ids=str)
@every_rule
def test_batch_shapes(rule: sg.Rule, batch: tuple[int, ...], n: int, dtype: torch.dtype) -> None:
    w = cases.random(*batch, n, dtype=dtype)
    K = rule.coefficients(w)
    assert K.shape == (*batch, n, n)
    assert K.dtype == dtype
    for index in torch.cartesian_prod(*(torch.arange(b) for b in batch)).reshape(-1, len(batch)).tolist() if batch else []:
        assert torch.equal(K[tuple(index)], rule.coefficients(w[tuple(index)]))
    if n == 1:
        assert bool((K == 0).all())


@every_dtype
@every_rule
def test_permutations(rule: sg.Rule, dtype: torch.dtype) -> None:
    """K(P w) = P K(w) P^T; where eigenvalues tie, up to the sign, which is the index's."""
    for kind in spectra(dtype, 100).chunk(10):
        for seed in range(5):
            order = torch.randperm(5, generator=cases.generator(seed))
            K, permuted = coefficients(rule, kind), coefficients(rule, kind[:, order])
            expected = K[:, order][:, :, order]
            tie = kind[:, order].unsqueeze(-1) == kind[:, order].unsqueeze(-2)
            torch.testing.assert_close(torch.where(tie, 0, permuted), torch.where(tie, 0, expected), rtol=0, atol=0)
            torch.testing.assert_close(permuted.abs(), expected.abs(), rtol=0, atol=0)


def above(K: Tensor) -> Tensor:
    """The entries above the diagonal."""
    row, column = torch.triu_indices(*K.shape, 1)
    return K[row, column]


def orders_ties(rule: sg.Rule, ascending: Tensor) -> bool:
    """K_ij >= 0 for i < j in an ascending spectrum, and <= 0 in the same one descending."""
    return bool(
        (above(rule.coefficients(ascending)) >= 0).all() and (above(rule.coefficients(ascending.flip(-1))) <= 0).all()
    )


@every_dtype
@every_rule
def test_ties_are_ordered_as_their_neighbours(rule: sg.Rule, dtype: torch.dtype) -> None:
    for values in ([0.5, 1.0, 1.0, 2.0], [1.0, 1.0, 1.0, 2.0], [0.5, 2.0, 2.0, 2.0], [-1.0, -1.0, 0.5, 0.5]):
        w = torch.tensor(values, dtype=dtype)
        assert orders_ties(rule, w)
        assert torch.equal(rule.coefficients(w.flip(-1)), rule.coefficients(w).flip(-1, -2))
        tie = above(w.unsqueeze(-1) == w.unsqueeze(-2))
        assert bool((above(rule.coefficients(w))[tie] != 0).all()) == (rule in SIGNED_AT_TIES)
    everywhere = above(rule.coefficients(torch.ones(4, dtype=dtype)))
    assert bool((everywhere > 0).all()) if rule in SIGNED_AT_TIES else bool((everywhere == 0).all())


def test_a_rule_with_symmetric_ties_does_not_order_them() -> None:
    assert orders_ties(TieByAddition(), torch.tensor([1.0, 1.5, 2.0], dtype=torch.float64))
    assert not orders_ties(TieByAddition(), torch.tensor([1.0, 1.0, 2.0], dtype=torch.float64))


# Where the exact coefficient is not bounded.


@every_dtype
@bounded_rule
def test_finite_at_every_scale(rule: sg.Rule, dtype: torch.dtype) -> None:
    info = torch.finfo(dtype)
    shapes = torch.cat(
        [spectra(dtype, 200), torch.tensor([[1.0, -1.0, 1.0, 0.5, -0.5], [0.0, 0.0, 0.0, 1.0, 1.0]]).to(dtype)]
    )
    shapes = shapes / shapes.abs().amax(-1, keepdim=True).clamp(min=info.tiny)
    subnormal = [info.smallest_normal * 2.0**-k for k in (0, 1, 8, 20)]
    near_overflow = [info.max * f for f in (0.1, 0.25, 0.4, 0.9, 1.0)]
    for scale in (0.0, *subnormal, *near_overflow):
        assert bool(coefficients(rule, shapes * scale).isfinite().all()), f"at scale {scale:.3g}"
    assert bool((rule.coefficients(torch.full((4,), info.smallest_normal * cases.eps(dtype), dtype=dtype))).isfinite().all())


def test_the_analytic_rule_is_the_one_that_is_not() -> None:
    K = sg.Analytic().coefficients(torch.tensor([1.0, 1.0, 3.0]))
    assert K[0, 1] == torch.inf
    assert K[1, 0] == -torch.inf
    assert not any(isinstance(rule, sg.Analytic) for rule in cases.BOUNDED_RULES)


@pytest.mark.parametrize("scale", [2.0**20, 2.0**-20, 1e8, 1e-8, 1e-30, 1e30])
@every_dtype
@pytest.mark.parametrize("rule", RELATIVE_RULES, ids=cases.ident)
def test_scale_equivariance(rule: sg.Rule, dtype: torch.dtype, scale: float) -> None:
    """K(c w) = K(w) / c: exactly for powers of two, elsewhere where rounding in c w leaves the gaps alone."""
    if math.log2(scale).is_integer():
        w = spectra(dtype, 300)
        torch.testing.assert_close(coefficients(rule, w * scale) * scale, coefficients(rule, w), rtol=0, atol=0)
    w = torch.tensor([[0.25, 0.5, 1.0, 1.75], [-1.0, 0.5, 0.5, 2.0], [0.0, 0.0, 1.0, 3.0]], dtype=dtype)
    c = torch.tensor(scale, dtype=dtype)
    torch.testing.assert_close(rule.coefficients(w * c) * c, rule.coefficients(w), rtol=40 * cases.eps(dtype), atol=0)


def test_clip_is_absolute() -> None:
    w = torch.tensor([1.0, 1.02, 3.0], dtype=torch.float64)
    K, scaled = sg.Clip(10.0).coefficients(w), sg.Clip(10.0).coefficients(100 * w) * 100
    assert K[0, 1] == 10
    torch.testing.assert_close(scaled[0, 1], torch.tensor(50.0, dtype=torch.float64))


@pytest.mark.parametrize(("dtype", "threshold"), [(torch.float32, 3e38), (torch.float32, 1e300), (torch.float64, 1.7e308)])
def test_a_threshold_near_the_largest_number_gives_no_nan(dtype: torch.dtype, threshold: float) -> None:
    M = torch.diag(torch.tensor([1.0, 1.0, 2.0], dtype=dtype)).requires_grad_()
    V = sg.eigh(M, gradient=sg.Clip(threshold))[1]
    (g,) = torch.autograd.grad((V * torch.arange(9, dtype=dtype).view(3, 3)).sum(), M)
    assert bool(g.isfinite().all())
    assert float(g.abs().max()) > 1e28


# Bounds, over 1e5 spectra.


def slack(dtype: torch.dtype) -> float:
    return 1 + 4 * cases.eps(dtype)


@every_dtype
@pytest.mark.parametrize("degree", [0, 1, 2, 9, 19, 100])
def test_taylor_bound(degree: int, dtype: torch.dtype) -> None:
    for w in [spectra(dtype, 10_000 if degree == 9 else 1000), *scaled_spectra(dtype)]:
        K = coefficients(sg.Taylor(degree), w).double()
        larger = torch.maximum(w.unsqueeze(-1).abs(), w.unsqueeze(-2).abs()).double()
        assert bool((K.abs() * larger <= (degree + 1) * slack(dtype)).all())


@every_dtype
@pytest.mark.parametrize("threshold", [1e-3, 1.0, 100.0, 1e6])
def test_clip_bound(threshold: float, dtype: torch.dtype) -> None:
    for w in [spectra(dtype, 10_000 if threshold == 100 else 1000), *scaled_spectra(dtype)]:
        K = coefficients(sg.Clip(threshold), w).double()
        assert bool((K.abs() <= threshold * slack(dtype)).all())


@every_dtype
@pytest.mark.parametrize("rtol", [None, 1e-4, 1e-2, 1.0])
def test_lorentzian_bound(rtol: float | None, dtype: torch.dtype) -> None:
    """|K| <= 1/(2 w), w = rtol * scale; compared as K * scale, since the bound itself overflows at the smallest scales."""
    relative = {torch.float32: 1e-6, torch.float64: 1e-8}[dtype] if rtol is None else rtol
    for w in [spectra(dtype, 10_000 if rtol is None else 1000), *scaled_spectra(dtype)]:
        K = coefficients(sg.Lorentzian(rtol), w).double()
        size = w.abs().amax(-1)[:, None, None].double()
        assert bool((K.abs() * size <= slack(dtype) / (2 * relative)).all())


@every_dtype
def test_exact_bound(dtype: torch.dtype) -> None:
    """1/gap wherever the gap is more than rounding, so |K| < 1/(n eps scale)."""
    for w in [spectra(dtype, 10_000), *scaled_spectra(dtype)]:
        K = coefficients(sg.Exact(), w).double()
        size = w.abs().amax(-1)[:, None, None].double()
        assert bool((K.abs() * size <= slack(dtype) / (w.shape[-1] * cases.eps(dtype))).all())


@every_dtype
def test_bounds_are_reached_and_would_be_noticed(dtype: torch.dtype) -> None:
    """Negative control: with one part in a thousand less each bound fails, and so does the analytic rule."""
    w = spectra(dtype, 2000)
    size = w.abs().amax(-1)[:, None, None]
    larger = torch.maximum(w.unsqueeze(-1).abs(), w.unsqueeze(-2).abs())
    taylor, clip = coefficients(sg.Taylor(9), w), coefficients(sg.Clip(100.0), w)
    lorentzian = coefficients(sg.Lorentzian(rtol=1e-2), w)
    assert bool((taylor.abs() * larger > 10 * 0.999).any())
    assert bool((clip.abs() > 100 * 0.999).any())
    assert bool((lorentzian.abs() * size > 0.999 / (2 * 1e-2)).any())
    assert not bool((sg.Analytic().coefficients(w).abs() * larger <= 10).all())


# Figures.


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-6), (torch.float64, 1e-10)], ids=cases.ident)
def test_lorentzian_is_exact_from_a_relative_gap_of_1e_3(dtype: torch.dtype, error: float) -> None:
    """Against 1/gap of the same rounded eigenvalues in float64, at every scale."""
    for scale in (1.0, 1e-8, 1e8):
        for w in (spectra(dtype, 4000), torch.linspace(0, 1, 1001, dtype=torch.float64)[None].to(dtype)):
            x = (w * scale).double()
            gap = (x.unsqueeze(-2) - x.unsqueeze(-1)).abs()
            size = x.abs().amax(-1)[:, None, None]
            far = (gap >= 1e-3 * size) & (size > 0)
            assert int(far.sum()) > 1e5
            deviation = coefficients(sg.Lorentzian(), w * scale).double().abs() * gap - 1
            assert float(deviation[far].abs().max()) <= error + 4 * cases.eps(dtype)


@every_dtype
@pytest.mark.parametrize("descending", [True, False])
def test_the_worked_example_of_pami(descending: bool, dtype: torch.dtype) -> None:
    """PAMI 7.2: at (0.02, 0.01, 0.01) Taylor turns the smallest eigenvalue's column by 5.71 degrees, clipping by 45."""
    w = torch.tensor([0.02, 0.01, 0.01], dtype=dtype)
    if not descending:
        w = w.flip(-1)
    smallest = 2 if descending else 0

    def column(rule: sg.Rule) -> Tensor:
        """The two entries of the column, the larger eigenvalue's first, then the twin's."""
        K = rule.coefficients(w)[:, smallest]
        return K[[0, 1]] if descending else K[[2, 1]]

    def angle(rule: sg.Rule) -> float:
        """To the true column, which as the twins meet has the direction of their pair."""
        across, twin = column(rule).abs().tolist()
        return math.degrees(math.atan2(across, twin))

    assert column(sg.Taylor(9)).abs().tolist() == pytest.approx([99.90234375, 1000.0], rel=1e-5)
    assert column(sg.Clip(100.0)).abs().tolist() == pytest.approx([100.0, 100.0], rel=1e-5)
    assert angle(sg.Taylor(9)) == pytest.approx(5.71, abs=5e-3)
    assert angle(sg.Clip(100.0)) == pytest.approx(45.0, abs=1e-3)
    assert is_antisymmetric(sg.Taylor(9).coefficients(w))  # eq. 61 prints +1000 on both sides
    signs = column(sg.Taylor(9)).sign().tolist()
    assert signs == [-1.0, -1.0]  # the smallest is smaller than both: l_column - l_row < 0, in either order


@pytest.mark.parametrize("ratio", [0.0, 0.3, 0.9, 1.0, -0.3, -0.9, -1.0])
@pytest.mark.parametrize("degree", [0, 1, 2, 3, 7, 9, 19, 100])
def test_taylor_is_the_truncated_series(degree: int, ratio: float) -> None:
    K = sg.Taylor(degree).coefficients(torch.tensor([2.0 * ratio, 2.0], dtype=torch.float64))
    expected = sum(ratio**k for k in range(degree + 1)) / 2
    assert float(K[0, 1]) == pytest.approx(expected, rel=1e-14, abs=1e-16)


def test_taylor_at_opposite_signs_and_two_zeros() -> None:
    pair = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    assert float(sg.Taylor(9).coefficients(pair)[0, 1]) == 0
    assert float(sg.Taylor(8).coefficients(pair)[0, 1]) == 1  # against the true 1/2: crude there
    assert bool((sg.Taylor(9).coefficients(torch.zeros(3)) == 0).all())


@every_dtype
def test_exact_is_one_over_the_gap_down_to_rounding(dtype: torch.dtype) -> None:
    eps = cases.eps(dtype)
    w = torch.tensor([1.0, 1 + 2 * eps, 1 + 4 * eps, 2 - 8 * eps, 2.0], dtype=dtype)
    K = sg.Exact().coefficients(w)
    assert float(K[0, 1]) == 0  # 2 eps <= n eps scale
    assert float(K[3, 4]) == 0
    assert float(K[0, 4]) == 1
    apart = torch.tensor([1.0, 1 + 64 * eps, 2.0], dtype=dtype)
    assert float(sg.Exact().coefficients(apart)[0, 1]) == pytest.approx(1 / (64 * eps), rel=1e-6)


# Options.


def test_every_option_changes_the_result() -> None:
    w = torch.tensor([1.0, 1.001, 2.0], dtype=torch.float64)
    for one, other in [
        (sg.Lorentzian(rtol=1e-3), sg.Lorentzian(rtol=1e-2)),
        (sg.Lorentzian(rtol=1e-3), sg.Lorentzian()),
        (sg.Taylor(degree=9), sg.Taylor(degree=10)),
        (sg.Clip(threshold=100.0), sg.Clip(threshold=200.0)),
    ]:
        assert not torch.equal(one.coefficients(w), other.coefficients(w))
        assert one != other
        assert hash(one) == hash(type(one)(*vars(one).values()))
        with pytest.raises(AttributeError):
            one.rtol = one.degree = one.threshold = 1


def test_the_default_rtol_depends_on_the_dtype() -> None:
    w = torch.tensor([1.0, 1 + 2.0**-20], dtype=torch.float32)
    single, double = (float(sg.Lorentzian().coefficients(w.to(dtype))[0, 1]) for dtype in REAL)
    assert single == pytest.approx(2.0**-20 / (2.0**-40 + 1e-12), rel=1e-3)
    assert double == pytest.approx(2.0**20, rel=1e-3)


@pytest.mark.parametrize(
    ("rule", "option", "values", "message"),
    [
        (sg.Lorentzian, "rtol", [0, -1e-3, math.inf, math.nan, "1e-3"], r"a positive number <= 1e\+15 or None"),
        (sg.Taylor, "degree", [-1, 1.5, None, "9", math.nan], "a whole number >= 0"),
        (sg.Clip, "threshold", [0, -1.0, math.inf, math.nan, None, "100"], "a positive finite number"),
        (sg.PowerIteration, "steps", [0, -1, 1.5, None, "19"], "a whole number >= 1"),
        (sg.PowerIteration, "min_eigenvalue", [-1e-3, math.nan], ">= 0 or None"),
        (sg.PowerIteration, "max_rayleigh_error", [0, -0.1, math.nan], "> 0 or None"),
        (sg.PowerIteration, "max_energy", [0, -0.5, 1.5, math.nan], r"lie in \(0, 1\] or be None"),
        (sg.PowerIteration, "min_eigenvalue", ["0", True, [0]], "a number or None"),
        (sg.PowerIteration, "max_rayleigh_error", ["0.1", True], "a number or None"),
        (sg.PowerIteration, "max_energy", ["1", True], "a number or None"),
        (sg.PowerIteration, "deflation", ["left", None, 2], '"two-sided" or "printed"'),
    ],
    ids=lambda x: x.__name__ if isinstance(x, type) else x if isinstance(x, str) else "",
)
def test_options_are_validated(rule: type, option: str, values: list[object], message: str) -> None:
    for value in values:
        with pytest.raises(
            OptionError, match=rf"`{rule.__name__}`: {option} must (be )?{message}, got {re.escape(repr(value))}\."
        ):
            rule(**{option: value})


@pytest.mark.parametrize("gradient", ["exact", sg.Exact, 9, sg.Lapack()], ids=repr)
def test_eigh_and_svd_refuse_what_is_no_rule(gradient: object) -> None:
    for who, function in {"eigh": sg.eigh, "svd": sg.svd}.items():
        with pytest.raises(OptionError, match=f"`{who}`: gradient must be a rule"):
            function(torch.eye(2), gradient=gradient)
