"""`eigh(start=)`: a guess of the eigenvectors never changes accuracy; a good one saves Jacobi sweeps."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from spectralgrad.errors import DtypeError, ShapeError
from spectralgrad.linalg.solvers import jacobi
from support import cases

pytestmark = pytest.mark.usefixtures("fresh_compiler")
STARTS: dict[str, Callable[[Tensor], Tensor]] = {
    "good": lambda M: torch.linalg.eigh(M)[1],
    "identity": lambda M: torch.eye(M.shape[-1]),
    "random": lambda M: cases.random(*M.shape, seed=8),
    "singular": lambda M: torch.ones_like(M),
    "zero": lambda M: torch.zeros_like(M),
    "huge": lambda M: 1e300 * cases.random(*M.shape, seed=9),
    "NaN": lambda M: torch.full_like(M, math.nan),
    "Inf": lambda M: torch.full_like(M, math.inf),
    "one NaN": lambda M: torch.where(torch.ones_like(M).cumsum(-1).cumsum(-2) == 1, math.nan, torch.linalg.eigh(M)[1]),
}


def hermitian(*batch: int, n: int = 4, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    X = cases.random(*batch, n, n, dtype=dtype, seed=seed)
    return (X + X.mH) / 2


def gradient(f: Callable[[Tensor], Tensor], x: Tensor, seed: int = 5) -> Tensor:
    x = x.detach().clone().requires_grad_()
    y = f(x)
    return torch.autograd.grad(y, x, cases.random(*y.shape, dtype=y.dtype, seed=seed))[0]


@pytest.mark.covering(1)
@pytest.mark.parametrize("solver", [sg.Auto(), sg.Lapack(), sg.Jacobi(), sg.SVD()], ids=cases.ident)
@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_no_guess_changes_accuracy(start: Callable[[Tensor], Tensor], solver: sg.Solver) -> None:
    for dtype in (torch.float32, torch.float64):
        for n in (1, 4, 7):
            M = hermitian(2, n=n).to(dtype)
            for check in (True, False):
                with sg.checks(check):
                    w, V = sg.eigh(M, start=start(M.double()), solver=solver)
                rounding = {"rtol": 0.0, "atol": 30 * n * cases.eps(dtype)}
                torch.testing.assert_close((V * w.unsqueeze(-2)) @ V.mT, M, **rounding)
                torch.testing.assert_close(V.mT @ V, torch.eye(n, dtype=dtype).expand_as(V), **rounding)
                torch.testing.assert_close(w, torch.linalg.eigvalsh(M), **rounding)
    M = hermitian()
    got = gradient(lambda M: sg.eigh(M, start=start(M.detach()), solver=solver)[1].abs(), M)
    torch.testing.assert_close(got, gradient(lambda M: sg.eigh(M)[1].abs(), M))


def test_a_guess_gets_no_gradient() -> None:
    M, start = hermitian().requires_grad_(), torch.eye(4, dtype=torch.float64).requires_grad_()
    sg.eigh(M, start=start, solver=sg.Jacobi())[1].abs().sum().backward()
    assert start.grad is None
    assert M.grad is not None


def test_a_guess_broadcasts() -> None:
    M = hermitian(2, 3)
    for start in (torch.eye(4), torch.eye(4).expand(3, 4, 4), torch.linalg.eigh(M)[1]):
        torch.testing.assert_close(sg.eigh(M, start=start, solver=sg.Jacobi())[0], torch.linalg.eigvalsh(M))


def test_a_guess_under_transforms_and_compiled() -> None:
    M = hermitian(3)
    V = torch.linalg.eigh(M)[1]
    for solver in (sg.Auto(), sg.Jacobi()):
        got = torch.vmap(lambda M, V, s=solver: sg.eigh(M, start=V, solver=s).eigenvalues)(M, V)
        torch.testing.assert_close(got, torch.linalg.eigvalsh(M))
        got = torch.vmap(lambda M, s=solver: sg.eigh(M, start=V[0], solver=s).eigenvalues)(M)
        torch.testing.assert_close(got, torch.linalg.eigvalsh(M))
    compiled = torch.compile(lambda M, V: sg.eigh(M, start=V)[1].abs(), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(gradient(lambda M: compiled(M, V), M), gradient(lambda M: sg.eigh(M)[1].abs(), M))


def test_a_guess_of_the_wrong_kind_is_refused() -> None:
    M = hermitian(2)
    for bad in (torch.eye(3), torch.eye(4)[:3], torch.ones(4), torch.ones(2, 4)):
        with pytest.raises(ShapeError, match="`eigh`: start must have the shape of `M`"):
            sg.eigh(M, start=bad)
    for wrong in ("eye", 1.0, [[1.0]]):
        with pytest.raises(DtypeError, match=r"`eigh`: start must be a torch\.Tensor or None"):
            sg.eigh(M, start=wrong)


@pytest.mark.parametrize("shape", [(3, 4, 4), (1, 2, 4, 4)], ids=str)
def test_a_guess_of_another_batch_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match="`eigh`: start must have the shape of `M`"):
        sg.eigh(hermitian(2), start=torch.eye(4).expand(shape))


def sweeps(M: Tensor, start: Tensor | None) -> int:
    """How many rounds `Jacobi` takes on the CPU."""
    taken = 0
    real = jacobi._round

    def counting(*args: Any) -> Any:
        nonlocal taken
        taken += 1
        return real(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jacobi, "_round", counting)
        sg.eigh(M, start=start, solver=sg.Jacobi())
    return taken


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=cases.ident)
def test_a_good_guess_saves_sweeps(dtype: torch.dtype) -> None:
    M = hermitian(n=8, dtype=dtype)
    near = torch.linalg.eigh(M + 1e-6 * hermitian(n=8, dtype=dtype, seed=1))[1]
    cold = sweeps(M, None)
    assert sweeps(M, near) <= cold / 2
    assert sweeps(M, near.to(torch.complex128)) <= cold / 2
    assert sweeps(M + 1e-12 * cases.random(8, 8, dtype=dtype), near) <= cold / 2  # Hermitian but for rounding
    assert sweeps(M, torch.full_like(M, math.nan)) <= 2 * cold
