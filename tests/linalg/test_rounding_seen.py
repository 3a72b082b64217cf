"""Rounding is not taken for a gap: losses that see close pairs only through their span, at ties to rounding and just above.

What a loss leaves of such a pair is rounding, which 1/gap would make an error of any size of (`without_rounding`).
"""

import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from support import cases

GAPS = [0.0, 1e-7, 1e-6, 1e-5]  # in float32; 1e-3 and more are left as they are
DTYPES = [torch.float32, torch.complex64]
RIGHT, WRONG = 1e-5, 1e-3  # relative errors, of ours and without it at one gap at least
each_gap = pytest.mark.parametrize("gap", GAPS)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=cases.ident)


def wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float64)


def spectrum(gap: float) -> Tensor:
    return torch.tensor([0.2, 0.3, 0.5, 1 - gap, 1, 1 + gap], dtype=torch.float64)


def basis(seed: int, dtype: torch.dtype) -> Tensor:
    return torch.linalg.qr(cases.random(6, 6, seed=seed, dtype=wide(dtype)))[0]


def gradient(f, x: Tensor, dtype: torch.dtype) -> Tensor:  # type: ignore[no-untyped-def]
    x = x.to(dtype).requires_grad_()
    G = cases.random(6, 6, seed=9, dtype=wide(dtype)).to(dtype)
    return torch.autograd.grad((f(x) * G.conj()).real.sum(), x)[0]


def error(f, exact, x: Tensor, dtype: torch.dtype) -> float:  # type: ignore[no-untyped-def]
    return cases.relative_error(gradient(f, x, dtype), gradient(exact, x.to(dtype), wide(dtype)))


def of_svd(gap: float, dtype: torch.dtype, rule: sg.Rule | None) -> float:
    """U V^H, whose derivative has no gap in it, so that biased rules are right too."""
    A = (basis(1, dtype) * spectrum(gap)) @ basis(2, dtype)

    def joined(A: Tensor) -> Tensor:
        U, _, Vh = sg.svd(A, gradient=rule)
        return U @ Vh

    return error(joined, sg.polar, A, dtype)


def of_eigh(gap: float, dtype: torch.dtype, rule: sg.Rule | None) -> float:
    """The projector on the close three."""
    V = basis(1, dtype)

    def projector(M: Tensor) -> Tensor:
        V = sg.eigh(M, gradient=rule).eigenvectors[..., 3:]
        return V @ V.mH

    M = ((V * spectrum(gap)) @ V.mH).to(dtype)
    return error(projector, lambda M: sg.projector(M, rank=3), (M + M.mH) / 2, dtype)


def of_pencil(gap: float, dtype: torch.dtype, rule: sg.Rule | None) -> float:
    """V V^H of the close three of A V = B V diag(w), B = L L^H: L^-H P L^-1 with the projector P of L^-1 A L^-H."""
    V, L = basis(1, dtype), torch.linalg.cholesky(cases.random_covariance(6, dtype=wide(dtype)))
    A = (L @ (V * spectrum(gap)) @ V.mH @ L.mH).to(dtype)

    def ours(A: Tensor) -> Tensor:
        B = (L @ L.mH).to(A.dtype)
        V = sg.generalized_eigh(A, (B + B.mH) / 2, gradient=rule).eigenvectors[..., 3:]
        return V @ V.mH

    def exact(A: Tensor) -> Tensor:
        inverse = torch.linalg.inv(torch.linalg.cholesky((L @ L.mH).to(dtype).to(A.dtype)))
        return inverse.mH @ sg.projector(inverse @ A @ inverse.mH, rank=3) @ inverse

    return error(ours, exact, (A + A.mH) / 2, dtype)


BOUNDED = [None, sg.Exact(), sg.Taylor(9), sg.Clip(100.0)]


@each_gap
@each_dtype
@pytest.mark.parametrize("rule", BOUNDED, ids=repr)
def test_svd(gap: float, dtype: torch.dtype, rule: sg.Rule | None) -> None:
    assert of_svd(gap, dtype, rule) < RIGHT


@each_gap
@each_dtype
@pytest.mark.parametrize("of", [of_eigh, of_pencil])
@pytest.mark.parametrize("rule", [None, sg.Exact()], ids=repr)
def test_eigenvectors(of, gap: float, dtype: torch.dtype, rule: sg.Rule | None) -> None:  # type: ignore[no-untyped-def]
    assert of(gap, dtype, rule) < RIGHT


@each_dtype
@pytest.mark.parametrize("of", [of_svd, of_eigh, of_pencil])
@pytest.mark.usefixtures("without_native")
def test_control(of, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    """Without it the same losses are wrong."""
    for module in ("eigh", "svd", "generalized"):
        monkeypatch.setattr(f"spectralgrad.linalg.{module}.without_rounding", lambda _, X, *__: X)
    assert max(of(gap, dtype, sg.Exact()) for gap in GAPS) > WRONG


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("rule", [None, sg.Exact()], ids=str)
def test_what_a_tie_cannot_give_is_counted(rule: sg.Rule | None, native: bool, request: pytest.FixtureRequest) -> None:
    """V f(w) V^H by hand at I: the gradient of entry [0, 1] is lost, and a user can see it. What is exact counts nothing."""
    if not native:
        request.getfixturevalue("without_native")
    M = torch.eye(3).requires_grad_()
    sg.reset_counts()
    w, V = sg.eigh(M, gradient=rule)
    ((V * w.sqrt()) @ V.mT).trace().backward()  # the space alone
    sg.sqrtm(M)[0, 1].backward()
    assert "tied_eigenvectors" not in sg.counts()
    w, V = sg.eigh(M, gradient=rule)
    ((V * w.sqrt()) @ V.mT)[0, 1].backward()
    assert sg.counts()["tied_eigenvectors"] == 1
    distinct = torch.diag(torch.tensor([1.0, 2.0, 3.0])).requires_grad_()
    sg.eigh(distinct, gradient=rule)[1][0, 1].backward()
    assert sg.counts()["tied_eigenvectors"] == 1
    sg.reset_counts()
