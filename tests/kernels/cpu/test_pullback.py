"""The native gradient through eigenpairs against its plain-torch twin in float64, and against divided differences."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from spectralgrad.kernels.cpu import eigh, pullback
from spectralgrad.kernels.eigenpairs import GIVEN, Cotangents, Rounding
from spectralgrad.linalg.choices import AUTO
from spectralgrad.linalg.decomposition import _pull_scaled
from spectralgrad.linalg.eigh import _Eigh
from spectralgrad.linalg.precision import NOISE
from spectralgrad.linalg.rules.base import CLOSE
from support import cases
from support.lanes import DTYPES, level, needs_native, same_bits  # noqa: F401

pytestmark = needs_native
ROUNDING = Rounding(CLOSE, NOISE)
RULES = [sg.Taylor(), sg.Taylor(2), sg.Clip(), sg.Clip(3.0), sg.Lorentzian(), sg.Lorentzian(0.1), sg.Exact()]


def ident(x: object) -> str:
    return cases.ident(getattr(x, "__name__", x))


def twin(w: Tensor, V: Tensor, gw: Tensor | None, gV: Tensor, rule: sg.Rule) -> Tensor:
    with torch.no_grad():
        return _pull_scaled(_Eigh("eigh", rule, AUTO), (w, V), (gw, gV))[0]


def pulled(w: Tensor, V: Tensor, gw: Tensor | None, gV: Tensor, rule: sg.Rule) -> Tensor:
    with torch.no_grad():
        assert pullback.runs_on(V, gw, gV)
    return pullback.pullback((w, V), Cotangents(gw, gV), rule.in_kernel(w.dtype), None, rule.scale_free, ROUNDING)


@pytest.mark.parametrize("spectrum", cases.SPECTRA, ids=ident)
@pytest.mark.parametrize("rule", RULES, ids=ident)
def test_against_the_twin(rule: sg.Rule, spectrum: Callable[[Tensor], Tensor], level: str) -> None:  # noqa: F811
    for n in (3, 4, 6):
        w, V = spectrum(n).repeat(19, 1), cases.rotation(n, 19)  # type: ignore[arg-type]
        gw, gV = cases.random(19, n), cases.random(19, n, n, seed=1)
        expected = twin(w, V, gw, gV, rule)
        got = pulled(w, V, gw, gV, rule)
        assert same_bits(got, got.mT)
        assert cases.relative_error(got, expected) < 1e-12
        assert same_bits(pulled(w, V.mT.contiguous().mT, gw, gV.mT.contiguous().mT, rule), got)
        given = pullback.pullback((w, V), Cotangents(gw, gV), GIVEN, rule.coefficients(w), False, ROUNDING)
        assert cases.relative_error(given, expected) < 1e-12


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 16, 17, 33, 64])
def test_sizes_places_and_precision(n: int, level: str) -> None:  # noqa: F811
    for dtype in DTYPES:
        w, V = cases.separated(n).repeat(37, 1).to(dtype), cases.rotation(n, 37).to(dtype)
        gw, gV = cases.random(37, n).to(dtype), cases.random(37, n, n, seed=1).to(dtype)
        got = pulled(w, V, gw, gV, sg.Lorentzian(1e-3))
        expected = twin(w.double(), V.double(), gw.double(), gV.double(), sg.Lorentzian(1e-3))
        assert cases.relative_error(got, expected) < (1e-12 if dtype == torch.float64 else 1e-3)
        for some in ([3], [36, 1, 5], list(range(17, 36))):
            assert same_bits(pulled(w[some], V[some], gw[some], gV[some], sg.Lorentzian(1e-3)), got[some])


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_against_divided_differences(n: int, level: str) -> None:  # noqa: F811
    """Of a loss of native eigenpairs that does not see their signs."""
    X, A, step = cases.random(4, n, n), cases.random(n, seed=2), 1e-6
    M, E = X + X.mT, cases.random(4, n, n, seed=3)
    E = E + E.mT

    def loss(w: Tensor, V: Tensor) -> Tensor:
        return (A * w.sin()).sum(-1) + (V**4 * A).sum((-2, -1))

    w, V, _ = eigh.eigh(M)
    w, V = w.requires_grad_(), V.requires_grad_()
    gw, gV = torch.autograd.grad(loss(w, V).sum(), (w, V))
    got = (pulled(w.detach(), V.detach(), gw, gV, sg.Exact()) * E).sum((-2, -1))
    ends = [loss(*eigh.eigh(M + sign * step * E)[:2]) for sign in (1, -1)]
    assert cases.relative_error(got, (ends[0] - ends[1]) / (2 * step)) < 1e-6


def test_rounding_of_close_pairs_counts_as_zero(level: str) -> None:  # noqa: F811
    """A loss that sees two close vectors through their plane alone."""
    w = torch.tensor([[1.0, 1.0 + 1e-9, 2.0]], dtype=torch.float64)
    V, P = cases.rotation(3, 1), cases.random(1, 3, 3)
    gV = (P + P.mT) @ V
    gV[..., 2] = 0
    got = pulled(w, V, None, gV, sg.Exact())
    assert float(got.abs().max()) < 100
    assert cases.relative_error(got, twin(w, V, None, gV, sg.Exact())) < 1e-10
    bare = pullback.pullback((w, V), Cotangents(None, gV), sg.Exact().in_kernel(w.dtype), None, True, Rounding(CLOSE, 0.0))
    assert cases.relative_error(bare, got) > 1e-9  # what rounding alone would add


@pytest.mark.parametrize("scale", [1e-30, 1e30])
@pytest.mark.parametrize("slope", [1e-30, 1e30])
def test_ends_of_the_range(scale: float, slope: float, level: str) -> None:  # noqa: F811
    w, V = (cases.separated(8).repeat(2, 1) * scale).float(), cases.rotation(8, 2).float()
    gV = cases.random(2, 8, 8).mul(slope).float()
    gw = cases.random(2, 8).mul(slope / scale).clamp(-1e38, 1e38).float()
    got = pulled(w, V, gw, gV, sg.Taylor())
    assert bool(got.isfinite().all())
    assert cases.relative_error(got, twin(w, V, gw, gV, sg.Taylor())) < 2e-5


def test_zero_gradients(level: str) -> None:  # noqa: F811
    w, V = cases.separated(3).repeat(2, 1), cases.rotation(3, 2)
    gw, none = cases.random(2, 3), torch.zeros(2, 3, 3, dtype=torch.float64)
    assert cases.relative_error(pulled(w, V, gw, none, sg.Lorentzian()), (V * gw.unsqueeze(-2)) @ V.mT) < 1e-14
    assert not pulled(w, V, 0 * gw, none, sg.Lorentzian()).any()


def test_one_bad_matrix(level: str) -> None:  # noqa: F811
    """NaN in one matrix leaves the others; an infinite coefficient gives no finite gradient."""
    for n in (3, 4, 5):
        w, V, gV = cases.separated(n).repeat(3, 1), cases.rotation(n, 3), cases.random(3, n, n)
        fine = pulled(w, V, None, gV, sg.Taylor())
        gV[1, 2, 1] = torch.nan
        got = pulled(w, V, None, gV, sg.Taylor())
        assert bool(got[1].isnan().all())
        assert same_bits(got[[0, 2]], fine[[0, 2]])
        tied = torch.ones(1, n, dtype=torch.float64)
        assert not pulled(tied, V[:1], None, gV[:1], sg.Analytic()).isfinite().any()
