"""The kernel for the gradient through eigenpairs, compiled for the CPU, against its plain-torch twin."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from spectralgrad.kernels import eigenpairs
from spectralgrad.linalg.choices import AUTO
from spectralgrad.linalg.decomposition import _pull_scaled
from spectralgrad.linalg.eigh import _Eigh
from support import cases
from support.on_cpu import on_cpu  # noqa: F401

pytestmark = pytest.mark.usefixtures("on_cpu")


def ident(x: object) -> str:
    return str(cases.ident(getattr(x, "__name__", x)))


class Own(sg.Clip):
    """A user's: the kernel takes what it says."""

    def coefficients(self, eigenvalues: Tensor) -> Tensor:
        return 2 * super().coefficients(eigenvalues)


class OwnAtAnyScale(sg.Exact):
    def coefficients(self, eigenvalues: Tensor) -> Tensor:
        return 2 * super().coefficients(eigenvalues)


RULES = [sg.Taylor(), sg.Taylor(2), sg.Clip(), sg.Clip(3.0), sg.Lorentzian(), sg.Lorentzian(0.1), sg.Exact()]
RULES += [Own(), OwnAtAnyScale()]


@pytest.mark.parametrize("rule", cases.RULES, ids=ident)
def test_rules_of_ours_are_computed_in_the_kernel_and_only_those(rule: sg.Rule) -> None:
    assert rule.in_kernel(torch.float32).kind == type(rule).__name__.upper()
    assert type("Own", (type(rule),), {})().in_kernel(torch.float32) is eigenpairs.GIVEN


def pulled(w: Tensor, V: Tensor, gw: Tensor | None, gV: Tensor, rule: sg.Rule) -> Tensor:
    with torch.no_grad():
        return _pull_scaled(_Eigh("eigh", rule, AUTO), (w, V), (gw, gV))[0]


def assert_same(
    monkeypatch: pytest.MonkeyPatch, w: Tensor, V: Tensor, gw: Tensor | None, gV: Tensor, rule: sg.Rule, tolerance: float
) -> Tensor:
    with torch.no_grad():
        assert eigenpairs.runs_on(V, gw, gV)
    got = pulled(w, V, gw, gV, rule)
    monkeypatch.setattr(eigenpairs, "runs_on", lambda *_: False)
    assert cases.relative_error(got, pulled(w, V, gw, gV, rule)) < tolerance
    return got


@pytest.mark.parametrize("spectrum", [*cases.SPECTRA], ids=ident)
@pytest.mark.parametrize("rule", RULES, ids=ident)
def test_against_the_twin(
    rule: sg.Rule, spectrum: Callable[[torch.Tensor], torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    w = spectrum(6).repeat(2, 1)  # type: ignore[arg-type]
    gw, gV = cases.random(2, 6), cases.random(2, 6, 6, seed=1)
    assert_same(monkeypatch, w, cases.rotation(6, 2), gw, gV, rule, 1e-12)


@pytest.mark.parametrize("n", [1, 4, 7, 33, 66])
def test_sizes(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    w = cases.separated(n).repeat(2, 1)
    assert_same(monkeypatch, w, cases.rotation(n, 2), None, cases.random(2, n, n), sg.Lorentzian(), 1e-12)


def test_rounding_of_close_pairs_counts_as_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss that sees two close vectors through their plane alone."""
    w = torch.tensor([[1.0, 1.0 + 1e-9, 2.0]], dtype=torch.float64)
    V = cases.rotation(3, 1)
    P = cases.random(1, 3, 3)
    gV = (P + P.mT) @ V
    gV[..., 2] = 0
    got = assert_same(monkeypatch, w, V, None, gV, sg.Exact(), 1e-10)
    assert float(got.abs().max()) < 100


@pytest.mark.parametrize("scale", [1e-30, 1e30])
@pytest.mark.parametrize("slope", [1e-30, 1e30])
def test_ends_of_the_range(scale: float, slope: float, monkeypatch: pytest.MonkeyPatch) -> None:
    w, V = (cases.separated(8).repeat(2, 1) * scale).float(), cases.rotation(8, 2).float()
    gV = cases.random(2, 8, 8).mul(slope).float()
    gw = cases.random(2, 8).mul(slope / scale).clamp(-1e38, 1e38).float()
    got = assert_same(monkeypatch, w, V, gw, gV, sg.Taylor(), 2e-5)
    assert got.isfinite().all()


def test_one_bad_matrix() -> None:
    """NaN in one matrix leaves the others; an infinite coefficient gives no finite gradient."""
    w, V, gV = cases.separated(5).repeat(3, 1), cases.rotation(5, 3), cases.random(3, 5, 5)
    gV[1, 2, 3] = torch.nan
    got = pulled(w, V, None, gV, sg.Taylor())
    assert got[1].isnan().all()
    assert got[[0, 2]].isfinite().all()
    tied = torch.ones(1, 5, dtype=torch.float64)
    assert not pulled(tied, V[:1], None, gV[:1], sg.Analytic()).isfinite().any()
