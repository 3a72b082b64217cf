"""torch.linalg's own names: `eigvalsh`, `svdvals`, UPLO=, and the fields of the results."""

import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import spectralgrad as sg
from spectralgrad.errors import OptionError
from support import cases

pytestmark = pytest.mark.usefixtures("fresh_compiler")
DTYPES = [torch.float64, torch.complex128]
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=cases.ident)
uplo = pytest.mark.parametrize("UPLO", ["L", "U"])


def hermitian(*batch: int, n: int = 4, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    X = cases.random(*batch, n, n, dtype=dtype, seed=seed)
    return (X + X.mH) / 2


def half_filled(M: Tensor, UPLO: str, other: float = math.nan) -> Tensor:
    """One triangle of ``M``; in the other one, and in the imaginary part of the diagonal, stands something else."""
    kept = M.tril() if UPLO == "L" else M.triu()
    hidden = torch.ones_like(M.real).triu(1) if UPLO == "L" else torch.ones_like(M.real).tril(-1)
    filled = torch.where(hidden.bool(), torch.full_like(M, other), kept)
    if M.is_complex() and not math.isnan(other):
        filled = filled + 0.3j * torch.eye(M.shape[-1])
    return filled


def gradient(f: Callable[[Tensor], Tensor], x: Tensor, seed: int = 5) -> Tensor:
    x = x.detach().clone().requires_grad_()
    y = f(x)
    return torch.autograd.grad(y, x, cases.random(*y.shape, dtype=y.dtype, seed=seed))[0]


# eigvalsh, svdvals


@every_dtype
def test_values_alone(dtype: torch.dtype) -> None:
    M, A = hermitian(2, dtype=dtype), cases.random(2, 5, 3, dtype=dtype)
    torch.testing.assert_close(sg.eigvalsh(M), torch.linalg.eigvalsh(M))
    torch.testing.assert_close(sg.svdvals(A), torch.linalg.svdvals(A))
    torch.testing.assert_close(gradient(sg.eigvalsh, M), gradient(torch.linalg.eigvalsh, M))
    torch.testing.assert_close(gradient(sg.svdvals, A), gradient(torch.linalg.svdvals, A))
    for solver in cases.SOLVERS:
        torch.testing.assert_close(sg.eigvalsh(M, solver=solver), torch.linalg.eigvalsh(M))


@every_dtype
def test_values_alone_are_differentiable_twice_and_forward(dtype: torch.dtype) -> None:
    M, A = hermitian(dtype=dtype).requires_grad_(), cases.random(4, 3, dtype=dtype).requires_grad_()
    for f, x in ((lambda X: sg.eigvalsh((X + X.mH) / 2), M), (sg.svdvals, A)):
        assert gradcheck(f, x, check_forward_ad=True)
        assert gradgradcheck(f, x)


def test_values_alone_at_ties_and_zero() -> None:
    """dM = V diag(gw) V^H divides by nothing: symmetric functions are right inside a tie."""
    M = torch.diag(torch.tensor([2.0, 2.0, 0.0, 0.0], dtype=torch.float64)).requires_grad_()
    (got,) = torch.autograd.grad(sg.eigvalsh(M).pow(2).sum(), M)
    torch.testing.assert_close(got, 2 * M.detach())
    (got,) = torch.autograd.grad(sg.svdvals(M).pow(2).sum(), M)
    torch.testing.assert_close(got, 2 * M.detach())
    for f in (sg.eigvalsh, sg.svdvals):
        assert gradient(f, torch.zeros(3, 3)).isfinite().all()
        assert gradient(f, torch.zeros(0, 3, 3)).shape == (0, 3, 3)
        assert f(torch.ones(1, 1)).tolist() == [1.0]
    assert sg.svdvals(torch.zeros(2, 3, 0)).shape == (2, 0)


@pytest.mark.usefixtures("without_native")
@every_dtype
def test_values_alone_need_no_vectors(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody asks for a gradient, on a CPU, and the batch is not spread over threads."""
    M, A = cases.random_covariance(4, 2, dtype=dtype), cases.random(2, 5, 3, dtype=dtype)
    w, S = sg.eigh(M).eigenvalues, sg.svd(A).S
    expected = w, w.log().sum(-1), S, S.sum(-1)

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("vectors were computed")

    monkeypatch.setattr(torch.linalg, "eigh", refuse)
    monkeypatch.setattr(torch.linalg, "svd", refuse)
    torch.testing.assert_close((sg.eigvalsh(M), sg.logdet(M), sg.svdvals(A), sg.nuclear_norm(A)), expected)
    with torch.no_grad():
        torch.testing.assert_close(sg.eigvalsh(M.requires_grad_()), w)
    with pytest.raises(AssertionError, match="vectors"):  # the control
        sg.eigvalsh(M)


# UPLO


@uplo
@every_dtype
def test_one_triangle_is_read(dtype: torch.dtype, UPLO: str) -> None:
    M = hermitian(2, dtype=dtype)
    for other in (math.nan, math.inf, 7.0):
        X = half_filled(M, UPLO, other)
        w, V = sg.eigh(X, UPLO=UPLO)
        torch.testing.assert_close(w, torch.linalg.eigvalsh(M))
        torch.testing.assert_close((V * w.unsqueeze(-2)) @ V.mH, M)
        torch.testing.assert_close(sg.eigvalsh(X, UPLO=UPLO), torch.linalg.eigvalsh(M))
        with pytest.raises(sg.errors.SpectralError):  # the control: all of it is read by default
            sg.eigh(X)


def invariant(w: Tensor, V: Tensor) -> Tensor:
    return torch.cat([w.unsqueeze(-2), V.abs()], -2)


@uplo
@every_dtype
def test_gradient_of_a_triangle_is_torch_s(dtype: torch.dtype, UPLO: str) -> None:
    X = half_filled(hermitian(dtype=dtype), UPLO, 7.0)
    got = gradient(lambda X: invariant(*sg.eigh(X, UPLO=UPLO, gradient=sg.Exact())), X)
    want = gradient(lambda X: invariant(*torch.linalg.eigh(X, UPLO=UPLO)), X)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(got, got.mH)
    assert got.triu(1).abs().max() > 0.01
    torch.testing.assert_close(
        gradient(lambda X: sg.eigvalsh(X, UPLO=UPLO), X), gradient(lambda X: torch.linalg.eigvalsh(X, UPLO=UPLO), X)
    )
    assert gradient(lambda X: invariant(*sg.eigh(X, UPLO=UPLO)), half_filled(hermitian(dtype=dtype), UPLO)).isfinite().all()


@uplo
def test_a_triangle_under_transforms(UPLO: str) -> None:
    X = half_filled(hermitian(3), UPLO)

    def f(X: Tensor) -> Tensor:
        return invariant(*sg.eigh(X, UPLO=UPLO))

    torch.testing.assert_close(torch.vmap(f)(X), f(X))
    torch.testing.assert_close(torch.vmap(f, in_dims=1)(X.movedim(0, 1)), f(X))
    torch.testing.assert_close(torch.func.jacrev(f)(X[0]), torch.func.jacfwd(f)(X[0]))
    Y = half_filled(hermitian(), UPLO, 7.0).requires_grad_()
    (first,) = torch.autograd.grad(f(Y).sum(), Y, create_graph=True)
    assert torch.autograd.grad(first.pow(2).sum(), Y)[0].isfinite().all()


@uplo
def test_a_triangle_compiles(UPLO: str) -> None:
    X = half_filled(hermitian(), UPLO, 7.0)
    compiled = torch.compile(lambda X: invariant(*sg.eigh(X, UPLO=UPLO)), fullgraph=True, backend="aot_eager")
    want = gradient(lambda X: invariant(*sg.eigh(X, UPLO=UPLO)), X)
    torch.testing.assert_close(gradient(compiled, X), want)


def test_uplo_is_validated() -> None:
    for bad in ("l", "lower", 1, True, ""):
        with pytest.raises(OptionError, match="UPLO must be None"):
            sg.eigh(torch.eye(2), UPLO=bad)
        with pytest.raises(OptionError, match="`eigvalsh`: UPLO"):
            sg.eigvalsh(torch.eye(2), UPLO=bad)


def test_torch_s_arguments_by_position() -> None:
    """What torch.linalg takes without a name."""
    M, A = hermitian(), cases.random(4, 3)
    X = half_filled(M, "U")
    torch.testing.assert_close(sg.eigh(X, "U").eigenvalues, torch.linalg.eigh(X, "U").eigenvalues)
    torch.testing.assert_close(sg.eigvalsh(X, "U"), torch.linalg.eigvalsh(X, "U"))
    for full in (False, True):
        for ours, torch_s in zip(sg.svd(A, full), torch.linalg.svd(A, full), strict=True):
            assert ours.shape == torch_s.shape
    with pytest.raises(OptionError, match="full_matrices must be True or False"):
        sg.svd(A, sg.Exact())  # type: ignore[arg-type]


def test_what_may_be_meant_where_the_matrix_is_not_hermitian() -> None:
    """(M + M^H) / 2 of one triangle alone would halve what is beside the diagonal."""
    for function in (sg.eigh, sg.eigvalsh):
        with pytest.raises(sg.errors.SymmetryError, match=r'pass UPLO="L"\.'):
            function(torch.tensor([[1.0, 0.0], [5.0, 1.0]]))
    with pytest.raises(sg.errors.SymmetryError, match="`frechet_distance`"):  # what FID takes the root of
        sg.sqrtm(torch.tensor([[1.0, 0.0], [5.0, 1.0]]))
    with pytest.raises(sg.errors.SymmetryError, match=r"\.mH\) / 2\.$"):  # the control: others take no triangle
        sg.expm(torch.tensor([[1.0, 0.0], [5.0, 1.0]]))


# Fields


def test_results_have_torch_s_fields() -> None:
    M, A = hermitian(2), cases.random(2, 4, 3)
    for ours, torch_s in ((sg.eigh(M), torch.linalg.eigh(M)), (sg.svd(A), torch.linalg.svd(A, full_matrices=False))):
        names = [name for name, value in inspect.getmembers(torch_s) if isinstance(value, Tensor)]
        assert isinstance(ours, tuple)
        assert len(ours) == len(names)
        for name in names:
            assert getattr(ours, name).shape == getattr(torch_s, name).shape
    assert sg.eigh(M).eigenvalues is not None
    assert torch.equal(sg.eigh(M).eigenvectors, sg.eigh(M)[1])
    assert torch.equal(sg.svd(A).Vh, sg.svd(A)[2])
    half = sg.svd(A.bfloat16())
    assert half.U.dtype == half.S.dtype == half.Vh.dtype == torch.bfloat16


def test_fields_under_transforms_and_compiled() -> None:
    M, A = hermitian(3), cases.random(3, 4, 3)
    torch.testing.assert_close(torch.vmap(sg.eigh)(M)[0], sg.eigh(M)[0])
    torch.testing.assert_close(torch.vmap(sg.svd)(A)[1], sg.svd(A)[1])
    torch.testing.assert_close(torch.vmap(sg.svd, out_dims=1)(A)[1], sg.svd(A).S.mT)
    torch.testing.assert_close(torch.vmap(lambda M: sg.eigh(M).eigenvalues)(M), sg.eigh(M).eigenvalues)
    jacobian = torch.func.jacrev(sg.eigh)(M[0])
    torch.testing.assert_close(jacobian[0], torch.func.jacfwd(lambda M: sg.eigh(M).eigenvalues)(M[0]))
    assert len(torch.func.jacfwd(sg.svd)(A[0])) == 3
    assert torch.func.jvp(sg.svd, (A,), (A,))[1][1].shape == (3, 3)
    w, V = torch.compile(sg.eigh, fullgraph=True, backend="aot_eager")(M)
    torch.testing.assert_close((V * w.unsqueeze(-2)) @ V.mT, M)
    compiled = torch.compile(lambda A: sg.svd(A).S, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(gradient(compiled, A), gradient(sg.svdvals, A))
