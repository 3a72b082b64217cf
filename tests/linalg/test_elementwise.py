"""Differences of a user's function: at many points at once, or one after the other."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from spectralgrad.linalg import elementwise
from support import cases

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "smooth": torch.sin,
    "a kink": lambda x: (x - 1).relu() + x,
    "steep": lambda x: (x * 300).tanh(),
}


def derivatives(f: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """First and second, at a tie and across the kink, and by a number of f's own."""
    V = torch.linalg.qr(cases.random(5, 5))[0]
    M = (V * torch.tensor([0.2, 1.0, 1.0, 1.0 + 1e-9, 3.0]).double()) @ V.mT
    M, own = (M + M.mT).div(2).requires_grad_(), torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    G = cases.random(5, 5, seed=1)
    first = torch.autograd.grad((sg.spectral_map(M, lambda x: f(x) * own) * G).sum(), (M, own), create_graph=True)
    return [*first, *torch.autograd.grad(first[0].square().sum(), (M, own))]


@pytest.mark.parametrize("f", FUNCTIONS.values(), ids=FUNCTIONS)
def test_at_once_is_one_after_the_other(f: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[int] = []

    def counted(x: Tensor) -> Tensor:
        called.append(x.numel())
        return f(x)

    at_once = derivatives(counted)
    calls = len(called)
    monkeypatch.setattr(elementwise, "_FEW", 0)
    for got, want in zip(at_once, derivatives(counted), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    assert len(called) > 2.5 * calls
