"""Polar factors of many 3 x 3 matrices at once: those of LAPACK, and the same derivative."""

import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from spectralgrad.errors import NonFiniteError
from spectralgrad.linalg import polar_3x3
from support import cases

MANY = polar_3x3._FROM
FULL = [torch.float32, torch.float64]


def special(A: Tensor) -> Tensor:
    return sg.procrustes(A, special=True)


def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polar_3x3, "takes", lambda _: False)


def hard(dtype: torch.dtype) -> Tensor:
    """All kinds of spectra, each with both signs of the determinant, in random bases."""
    spectra = torch.tensor(
        [[3, 2, 1], [2, 2, 1], [2, 1, 1], [1, 1, 1], [1, 1e-4, 1e-4], [1, 1, 1e-9], [1, 1e-7, 1e-9], [2, 1, 0]]
    ).double()
    spectra = torch.cat([spectra, spectra * torch.tensor([1.0, 1.0, -1.0])]).repeat(-(-MANY // 16), 1)
    bases = [sg.procrustes(cases.random(3, 3, seed=i), special=True) for i in range(20)]
    U, V = (torch.stack([bases[(k * i + i // 20) % 20] for i in range(len(spectra))]) for k in (1, 7))
    return ((U * spectra.unsqueeze(-2)) @ V.mT).to(dtype)


def value_and_slope(function, A: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[no-untyped-def]
    A = A.detach().requires_grad_()
    R = function(A)
    weights = torch.cos(torch.arange(1.0, 1 + R.numel(), dtype=torch.float64)).reshape(R.shape).to(R.dtype)
    return R.detach(), torch.autograd.grad(R, A, weights)[0]


@pytest.mark.parametrize("function", [special, sg.procrustes, sg.polar], ids=["special", "procrustes", "polar"])
@pytest.mark.parametrize("dtype", FULL, ids=cases.ident)
def test_it_is_what_lapack_finds(dtype: torch.dtype, function, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    A, eps = hard(dtype), cases.eps(dtype)
    assert polar_3x3.takes(A)
    R, slope = value_and_slope(function, A)
    torch.testing.assert_close(R.mT @ R, torch.eye(3, dtype=dtype).expand_as(R), rtol=0, atol=50 * eps)
    A64 = A.double()
    H = R.double().mT @ A64
    assert float((H - H.mT).abs().max()) < 20 * eps  # LAPACK leaves 85
    one_by_one(monkeypatch)
    want, exact = value_and_slope(function, A64)
    S = torch.linalg.svdvals(A64)
    sign = torch.linalg.det(A64).sign() if function is special else torch.ones(len(A))
    smallest = S[:, 1] + sign * S[:, 2]
    unique = (smallest if function is special else S[:, 2]) > 1e3 * eps
    error = (R - want).abs().amax((-2, -1)) * smallest  # of R, and of its slope: rounding over the smallest sum
    assert float(error[unique].max()) < 100 * eps
    well = unique & (smallest > 0.1)
    difference = torch.linalg.norm((slope - exact)[well], dim=(-2, -1))
    assert float((difference / torch.linalg.norm(exact[well], dim=(-2, -1))).max()) < 300 * eps


@pytest.mark.parametrize("dtype", FULL, ids=cases.ident)
def test_scales(dtype: torch.dtype) -> None:
    A = cases.random(MANY, 3, 3).to(dtype)
    R, slope = value_and_slope(special, A)
    for k in (-27, 27):  # 1e-8 and 1e8, without rounding
        got, sloped = value_and_slope(special, A * 2.0**k)
        assert torch.equal(got, R)
        torch.testing.assert_close(sloped * 2.0**k, slope)


def test_the_ends_of_the_range_and_nan_go_another_way() -> None:
    A = cases.random(MANY, 3, 3)
    for scale in (1e-300, 1e300):
        assert polar_3x3.polar(A * scale, True) is None
        torch.testing.assert_close(special(A * scale), special(A), rtol=1e-9, atol=1e-9)
    A[5, 1, 2] = torch.nan
    with pytest.raises(NonFiniteError, match=r"index \(5, 1, 2\)"):
        special(A)
    sg.reset_counts()
    with sg.checks(False):
        R = special(A)
    assert R[5].isnan().all()
    assert R.isnan().sum() == 9
    assert sg.counts() == {"nonfinite_input": 1}


def test_lines_and_zeros_among_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a second direction is missing LAPACK finds one, and each is counted."""
    A = cases.random(MANY, 3, 3)
    A[3], A[7] = 0, torch.outer(torch.tensor([1.0, 2, 3]), torch.tensor([3.0, 1, 0]))
    A[9] = torch.diag(torch.tensor([2.0, 1.0, -1.0]))
    sg.reset_counts()
    R, slope = value_and_slope(special, A)
    assert sg.counts() == {"rotation_not_unique": 3}
    torch.testing.assert_close(R.mT @ R, torch.eye(3).double().expand_as(R))
    torch.testing.assert_close(torch.linalg.det(R), torch.ones(MANY).double())
    assert slope.isfinite().all()
    one_by_one(monkeypatch)
    want, exact = value_and_slope(special, A)
    torch.testing.assert_close(R[3], want[3])
    torch.testing.assert_close(R[7].mT @ A[7], want[7].mT @ A[7])  # H, which is unique
    few = [i for i in range(20) if i not in (7, 9)]
    torch.testing.assert_close(slope[few], exact[few], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_and_transforms(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polar_3x3, "_ROWS", MANY // 3)  # what fits into one chunk is not shared out
    A, before = cases.random(2, MANY, 3, 3).transpose(0, 1), torch.get_num_threads()  # not contiguous
    want = torch.stack([special(A[i]) for i in range(MANY)])
    try:
        torch.set_num_threads(threads)
        torch.testing.assert_close(special(A), want)
        torch.testing.assert_close(torch.func.vmap(special)(A), want)
        _, pushed = torch.func.jvp(special, (A,), (A.flip(0),))
        ends = [special(A + h * A.flip(0)) for h in (1e-6, -1e-6)]
        wide = torch.linalg.svdvals(A)[..., 1:].sum(-1) > 0.5  # where differences are good
        torch.testing.assert_close(pushed[wide], ((ends[0] - ends[1]) / 2e-6)[wide], rtol=1e-4, atol=1e-4)
    finally:
        torch.set_num_threads(before)


def test_second_derivatives() -> None:
    A = cases.random(MANY, 3, 3).requires_grad_()
    weights = cases.random(MANY, 3, 3, seed=1)
    (first,) = torch.autograd.grad((special(A) * weights).sum(), A, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), A)
    few = A[:4].detach().requires_grad_()
    (first,) = torch.autograd.grad((special(few) * weights[:4]).sum(), few, create_graph=True)
    torch.testing.assert_close(second[:4], torch.autograd.grad(first.square().sum(), few)[0])
