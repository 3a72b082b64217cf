"""Least squares and null spaces: values by torch, gradients at every rank, at ties and at every scale."""

from typing import Any

import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from spectralgrad.errors import DtypeError, OptionError, ShapeError
from support import cases

SHAPES = [(5, 3), (3, 5), (4, 4)]
SIZES = [1.0, 1e-8, 1e8, 1e-200, 1e200]


def of_rank(m: int, n: int, rank: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Factors of a matrix (m, n)."""
    return cases.random(m, rank, dtype=dtype, seed=1), cases.random(rank, n, dtype=dtype, seed=2)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=cases.ident)
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_values(m: int, n: int, rank: int, dtype: torch.dtype, size: float) -> None:
    U, V = of_rank(m, n, rank, dtype)
    A, b = U @ V, cases.random(m, 2, dtype=dtype)
    want = torch.linalg.lstsq(A, b, driver="gelsd").solution
    torch.testing.assert_close(sg.lstsq(size * A, size * b), want, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(sg.lstsq(A, b[:, 0]), want[:, 0], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(sg.lstsq(A.expand(3, m, n), b), want.expand(3, n, 2), rtol=1e-10, atol=1e-10)
    for N in (sg.nullspace(size * A), sg.nullspace(size * A, rank=rank)):
        torch.testing.assert_close(N, torch.eye(n, dtype=dtype) - torch.linalg.pinv(A) @ A, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(N, N.mH, rtol=0, atol=0)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_gradients_while_the_rank_stays(m: int, n: int, rank: int) -> None:
    U, V, b = (z.requires_grad_() for z in (*of_rank(m, n, rank), cases.random(m, 2)))
    assert torch.autograd.gradcheck(lambda U, V, b: sg.lstsq(U @ V, b, rtol=1e-9), (U, V, b))
    assert torch.autograd.gradcheck(lambda U, V: sg.nullspace(U @ V, rtol=1e-9), (U, V))
    assert torch.autograd.gradcheck(lambda U, V: sg.nullspace(U @ V, rank=rank), (U, V))
    assert torch.autograd.gradgradcheck(lambda U, V, b: sg.lstsq(U @ V, b, rtol=1e-9), (U, V, b))


def test_ties_and_graded_singular_values() -> None:
    Q, _ = torch.linalg.qr(cases.random(4, 4))
    for s in ([2.0, 2.0, 2.0, 0.0], [1.0, 1e-2, 1e-4, 0.0]):
        A = (Q * torch.tensor(s, dtype=torch.float64)) @ Q.roll(1, 0).mT
        (g,) = torch.autograd.grad(sg.nullspace(A.requires_grad_(), rank=3)[0, 1], A)
        (h,) = torch.autograd.grad(sg.nullspace(A, rtol=1e-12)[0, 1], A)
        assert cases.relative_error(g, h) < 1e-6


def test_the_options_change_the_result() -> None:
    A = torch.diag(torch.tensor([1.0, 1e-3], dtype=torch.float64))
    b = torch.ones(2, dtype=torch.float64)
    assert sg.lstsq(A, b).tolist() == pytest.approx([1.0, 1e3])
    assert sg.lstsq(A, b, rtol=1e-2).tolist() == pytest.approx([1.0, 0.0])
    assert sg.nullspace(A).diagonal().tolist() == pytest.approx([0.0, 0.0])
    assert sg.nullspace(A, rtol=1e-2).diagonal().tolist() == pytest.approx([0.0, 1.0])
    assert sg.nullspace(A, rank=1).diagonal().tolist() == pytest.approx([0.0, 1.0])
    assert sg.nullspace(A, rank=0).diagonal().tolist() == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: sg.lstsq(torch.eye(3), torch.ones(4)), ShapeError, r"`lstsq`: `b` must be \(\*batch, 3, k\)"),
        (lambda: sg.lstsq(torch.eye(3), torch.ones(3).double()), DtypeError, "one dtype"),
        (lambda: sg.lstsq(torch.eye(3), 3.0), DtypeError, "`b` must be a torch.Tensor"),
        (lambda: sg.nullspace(torch.eye(3), rank=4), OptionError, "rank must be a whole number from 0 to 3"),
        (lambda: sg.nullspace(torch.eye(3), rank=1, rtol=0.1), OptionError, "either rank= or rtol="),
        (lambda: sg.nullspace(torch.eye(3), rtol=-1.0), OptionError, "rtol must be"),
    ],
)
def test_bad_input(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()
