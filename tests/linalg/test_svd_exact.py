"""`svd`'s rule acts on gaps alone. Sums of singular values and 1/s are exact: where gaps cancel it is as good as torch."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from spectralgrad.linalg import svd as module
from spectralgrad.linalg.scaling import bounded
from support import cases

Svd = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]
OURS: dict[str, Svd] = {"default": lambda A: sg.svd(A), "Exact": lambda A: sg.svd(A, gradient=sg.Exact())}
RULES: dict[str, sg.Rule] = {"default": sg.Lorentzian(), "Exact": sg.Exact()}
FACTOR = 3.0  # times torch's error
ROUNDING = 30  # times eps, where torch is lucky
ours = pytest.mark.parametrize("name", OURS)


def torchs(A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(torch.linalg.svd(A, full_matrices=False))


def joined(svd: Svd, A: Tensor) -> Tensor:
    U, _, Vh = svd(A)
    return U @ Vh


def by(f: Callable[[Tensor], Tensor], x: Tensor, G: Tensor) -> Tensor:
    """The gradient of Re <G, f(x)>."""
    x = x.detach().clone().requires_grad_()
    return torch.autograd.grad((f(x) * G.conj()).real.sum(), x)[0]


def polar_gradient(A: Tensor, G: Tensor) -> Tensor:
    """In closed form: U (skew(U^H G V) / (s_i + s_j)) V^H 2, and the part outside divided by s."""
    U, S, Vh = torchs(A)
    P = U.mH @ G @ Vh.mH
    inner = (P - P.mH) / (S.unsqueeze(-1) + S.unsqueeze(-2))
    outer = (G - U @ (U.mH @ G)) @ (Vh.mH / S) if len(U) > len(Vh) else torch.zeros_like(P)
    return U @ inner @ Vh + outer @ Vh


@contextmanager
def old_formulas(rule: sg.Rule) -> Iterator[None]:
    """What stood here before: the rule applied to s^2 padded with 0, and with it to 1/s and 1/(s_i + s_j)."""

    def old(S: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        size = S.detach()[..., :1]
        s = S / size
        K = rule.coefficients(torch.nn.functional.pad(s * s, (0, 1)))
        inverse = s * K[..., -1, :-1] / size
        row, column = s.unsqueeze(-1), s.unsqueeze(-2)
        D = K[..., :-1, :-1] * (row + column) / size.unsqueeze(-1)
        leads = row >= column
        ratio = torch.where(leads, column, row) / torch.where(leads, row, column)
        F = torch.where(leads, inverse.unsqueeze(-1), inverse.unsqueeze(-2)) / (1 + ratio)
        return bounded(D), bounded(F), bounded(inverse)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module._Svd, "_gaps", lambda _, S: old(S)[0])
        patch.setattr(module, "reciprocal_sums", lambda S: old(S)[1])
        patch.setattr(module, "reciprocal_values", lambda S: old(S)[2])
        yield


def largest_derivative(svd: Svd) -> float:
    A = torch.diag(torch.tensor([1.0, 1e-3, 7e-4], dtype=torch.float64))
    return float(torch.func.jacrev(lambda A: joined(svd, A))(A).abs().max())


@ours
def test_the_figure_of_the_issue(name: str) -> None:
    """1/(1e-3 + 7e-4) = 588.2."""
    want = 1 / (1e-3 + 7e-4)
    assert largest_derivative(OURS[name]) == pytest.approx(want, rel=1e-10)
    assert largest_derivative(torchs) == pytest.approx(want, rel=1e-10)


def test_the_figure_of_the_issue_in_float32() -> None:
    A = torch.diag(torch.tensor([1.0, 1e-3, 7e-4]))
    for svd in OURS.values():
        assert float(torch.func.jacfwd(lambda A, svd=svd: joined(svd, A))(A).abs().max()) == pytest.approx(588.235, rel=1e-6)


def test_the_old_formula_misses_the_figure() -> None:
    """In float64 it takes a wide Lorentzian; in float32 the default one: 1e-6 against s^2 of 1e-6."""
    A = torch.diag(torch.tensor([1.0, 1e-3, 7e-4]))
    got = {}
    for name, rule in RULES.items():
        with old_formulas(rule):
            got[name] = float(torch.func.jacrev(lambda A, name=name: joined(OURS[name], A))(A).abs().max())
    assert got["default"] == pytest.approx(294.1, rel=1e-3)
    assert got["Exact"] == pytest.approx(0.999, rel=1e-3)


def cloud(aspect: float, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Points (100, 3) along a needle, the same turned with a little noise, and weights of a loss; all fit into float32."""
    x = cases.random(100, 3, seed=seed) * torch.tensor([1.0, aspect, 0.7 * aspect], dtype=torch.float64)
    y = x @ cases.rotation(3, seed=seed + 50) + 1e-3 * aspect * cases.random(100, 3, seed=seed + 100)
    x, y, G = (t.float().double() for t in (x, y, cases.random(3, 3, seed=seed + 150)))
    return x, y, G


def kabsch_errors(svd: Svd, aspect: float) -> Tensor:
    """The relative errors in float32 of the gradient of a Kabsch rotation by the points, for several clouds."""
    errors = []
    for seed in range(8):
        x, y, G = cloud(aspect, seed)
        want = by(lambda x, y=y: joined(torchs, x.mT @ y), x, G)
        got = by(lambda x, y=y: joined(svd, x.mT @ y.float()), x.float(), G.float())
        errors.append(cases.relative_error(got, want))
    return torch.tensor(errors)


def as_torch(got: Tensor, torch_s: Tensor, dtype: torch.dtype = torch.float32) -> bool:
    """Whether the errors are about torch's, over several matrices."""
    return bool(got.max() <= FACTOR * torch_s.max() + ROUNDING * cases.eps(dtype))


@pytest.mark.parametrize("aspect", [1.0, 0.3, 0.1, 0.03, 0.01])
@ours
def test_kabsch_on_an_elongated_cloud(name: str, aspect: float) -> None:
    assert as_torch(kabsch_errors(OURS[name], aspect), kabsch_errors(torchs, aspect))


@ours
def test_kabsch_shows_the_old_formula(name: str) -> None:
    reference = kabsch_errors(torchs, 0.03)
    with old_formulas(RULES[name]):
        got = kabsch_errors(OURS[name], 0.03)
    assert not as_torch(got, reference)
    assert got.max() > 0.1


def absolute(svd: Svd, A: Tensor) -> Tensor:
    """Scores and directions but for their signs, (25, 5)."""
    U, _, Vh = svd(A)
    return torch.cat([U.abs(), Vh.mT.abs()])


def pca_errors(svd: Svd, smallest: float) -> Tensor:
    """Of the gradient of the principal components of data (20, 5), with singular values from 1 down to ``smallest``."""
    errors = []
    for seed in range(8):
        s = torch.logspace(0, torch.tensor(smallest).log10(), 5, dtype=torch.float64)
        U, V = cases.rotation(20, seed=seed)[:, :5], cases.rotation(5, seed=seed + 20)
        A = ((U * s) @ V.mH).float()
        G = cases.random(25, 5, seed=seed + 40).float()
        want = by(lambda A: absolute(torchs, A), A.double(), G.double())
        errors.append(cases.relative_error(by(lambda A: absolute(svd, A), A, G), want))
    return torch.tensor(errors)


@pytest.mark.parametrize("smallest", [0.1, 1e-2, 1e-3, 1e-4])
@ours
def test_pca_of_a_graded_spectrum(name: str, smallest: float) -> None:
    assert as_torch(pca_errors(OURS[name], smallest), pca_errors(torchs, smallest))


@ours
def test_pca_shows_the_old_formula(name: str) -> None:
    reference = pca_errors(torchs, 1e-3)
    with old_formulas(RULES[name]):
        assert not as_torch(pca_errors(OURS[name], 1e-3), reference)


RATIOS = [1.0, 0.1, 1e-2, 1e-3, 1e-4]
DTYPES = [torch.float32, torch.float64, torch.complex64, torch.complex128]


def polar_errors(svd: Svd, ratio: float, dtype: torch.dtype, shape: tuple[int, int] = (5, 3)) -> Tensor:
    """Of the gradient of U V^H with singular values (1, 0.9 ratio, 0.7 ratio), against its closed form in float64."""
    wide = torch.complex128 if dtype.is_complex else torch.float64
    errors = []
    for seed in range(6):
        s = torch.tensor([1.0, 0.9 * ratio, 0.7 * ratio], dtype=torch.float64)
        U, V = (cases.rotation(n, dtype=wide, seed=seed + n)[:, :3] for n in shape)
        A = ((U * s) @ V.mH).to(dtype)
        G = cases.random(*shape, dtype=wide, seed=seed).to(dtype)
        errors.append(cases.relative_error(by(lambda A: joined(svd, A), A, G), polar_gradient(A.to(wide), G.to(wide))))
    return torch.tensor(errors)


@pytest.mark.parametrize("dtype", DTYPES, ids=cases.ident)
@pytest.mark.usefixtures("without_native")  # formulas are compared, so of the same factors
@ours
def test_sums_and_inverses_are_exact(name: str, dtype: torch.dtype) -> None:
    for ratio in RATIOS:
        for shape in ((3, 3), (5, 3)):
            got, torch_s = (polar_errors(svd, ratio, dtype, shape) for svd in (OURS[name], torchs))
            assert as_torch(got, torch_s, dtype), (ratio, shape, got, torch_s)
            assert got.max() <= 100 * cases.eps(dtype) / ratio, (ratio, shape, got)  # LAPACK's error in s_3 is eps s_1


@ours
def test_sums_and_inverses_show_the_old_formula(name: str) -> None:
    with old_formulas(RULES[name]):
        assert not as_torch(polar_errors(OURS[name], 1e-3, torch.float32), polar_errors(torchs, 1e-3, torch.float32))


TIES = {"all": [2.0, 2.0, 2.0], "upper": [2.0, 2.0, 1.0], "lower": [2.0, 1e-2, 1e-2], "wide": [1.0, 1e-4, 1e-4]}


@pytest.mark.parametrize("s", TIES.values(), ids=TIES)
@pytest.mark.parametrize("shape", [(3, 3), (5, 3)], ids=str)
@ours
def test_right_at_ties_where_torch_is_not(name: str, shape: tuple[int, int], s: list[float]) -> None:
    """Singular values that tie to the last bit: a diagonal matrix."""
    for dtype in DTYPES:
        A = torch.zeros(shape, dtype=torch.float64)
        A.diagonal().copy_(torch.tensor(s).to(dtype).real.double())
        G = cases.random(*shape, dtype=dtype, seed=3)
        wide = torch.complex128 if dtype.is_complex else torch.float64
        want = polar_gradient(A.to(wide), G.to(wide))
        got = by(lambda A: joined(OURS[name], A), A.to(dtype), G)
        assert cases.relative_error(got, want) <= ROUNDING * cases.eps(dtype)
        assert not by(lambda A: joined(torchs, A), A.to(dtype), G).isfinite().all()  # the control


@ours
def test_near_ties_cost_no_more_than_the_rule_s_coefficient(name: str) -> None:
    """The gaps cancel but for rounding, which the rule's 1/gap multiplies: eps / (2 rtol) at worst."""
    for gap in (1, 4, 16, 64, 1e3, 1e5):
        for dtype in (torch.float32, torch.float64):
            s = torch.tensor([1.0, 1.0 - gap * cases.eps(dtype), 0.3], dtype=torch.float64).to(dtype)
            A, G = torch.diag(s), cases.random(3, 3, dtype=dtype, seed=4)
            got = by(lambda A: joined(OURS[name], A), A, G)
            amplified = 1 + float(RULES[name].coefficients(s).abs().max())
            assert cases.relative_error(got, polar_gradient(A.double(), G.double())) <= 4 * amplified * cases.eps(dtype)


def vectors_error(name: str, s: list[float], shape: tuple[int, int], dtype: torch.dtype) -> float:
    """Of the gradient of a loss of U and Vh apart, in which gaps do not cancel, against torch's in float64.

    The singular values of a diagonal matrix are exact, so that both see the same.
    """
    A = torch.zeros(shape, dtype=dtype)
    A.diagonal().copy_(torch.tensor(s, dtype=torch.float64).to(dtype))

    def gradient(svd: Svd, A: Tensor) -> Tensor:
        A = A.clone().requires_grad_()
        U, _, Vh = svd(A)
        G = [cases.random(*x.shape, dtype=dtype, seed=i).to(A.dtype) for i, x in enumerate((U, Vh))]
        return torch.autograd.grad((U * G[0]).sum() + (Vh * G[1]).sum(), A)[0]

    want = gradient(torchs, A.double())
    return cases.relative_error(gradient(OURS[name], A), want)


SHAPES = [(3, 3), (4, 3), (3, 4)]
GAP_ERROR = {torch.float32: 1e-6, torch.float64: 1e-10}


def torch_s_own(gap: float) -> float:
    """torch takes the gap of squares, in float64."""
    return 4 * cases.eps(torch.float64) / gap


@pytest.mark.parametrize("dtype", GAP_ERROR, ids=cases.ident)
def test_the_default_is_torch_s_at_relative_gaps_of_a_thousandth(dtype: torch.dtype) -> None:
    allowed = GAP_ERROR[dtype] + ROUNDING * cases.eps(dtype)
    for shape in SHAPES:
        for gap in (1e-3, 1e-2, 0.1):
            s = [1.0, 1.0 - 1.001 * gap, 1e-3 + 0.1 * gap]  # a little more, so that rounding leaves the gap
            assert vectors_error("default", s, shape, dtype) <= allowed + torch_s_own(gap), (shape, gap)
    assert vectors_error("default", [1.0, 1.0 - 1e-7, 0.5], (3, 3), dtype) > allowed  # the control: this one it bounds


@pytest.mark.parametrize("dtype", GAP_ERROR, ids=cases.ident)
def test_exact_is_torch_s_at_every_gap_above_rounding(dtype: torch.dtype) -> None:
    for shape in SHAPES:
        for gap in (32 * cases.eps(dtype), 1e3 * cases.eps(dtype), 1e-3):
            error = vectors_error("Exact", [1.0, 1.0 - gap, 0.5], shape, dtype)
            assert error <= ROUNDING * cases.eps(dtype) + torch_s_own(gap), (shape, gap, error)
    assert vectors_error("Exact", [1.0, 1.0 - 8 * cases.eps(dtype), 0.5], (3, 3), dtype) > 0.5  # a tie to rounding: left out
