"""Square roots by both ways, and how far they are from the truth."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from support import cases

Root = Callable[..., Tensor]


ROOTS: dict[str, Root] = {"sqrtm": sg.sqrtm, "inv_sqrtm": sg.inv_sqrtm}


each_root = pytest.mark.parametrize("root", ROOTS.values(), ids=ROOTS)


def value_and_gradient(root: Root, M: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    M = M.detach().requires_grad_()
    Y = root(M, **options)
    weight = cases.random(*M.shape, seed=9).to(M.dtype)
    return Y.detach(), torch.autograd.grad((Y * weight).sum(), M)[0]


def errors(root: Root, M: Tensor, **options: Any) -> list[float]:
    """Relative errors of value and gradient against eigenvectors in float64."""
    got, want = value_and_gradient(root, M, **options), value_and_gradient(root, M.double())
    return [cases.relative_error(x, y) for x, y in zip(got, want, strict=True)]
