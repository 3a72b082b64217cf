"""Tensors without memory of their own, and factors that vmap has repeated, beside the CUDA C++ kernels: several gradients
at once, by torch.func and by torch.autograd.grad, are those without the kernels."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from spectralgrad.kernels import nvrtc
from support import cases
from support.on_cpu import on_cpu  # noqa: F401

pytestmark = pytest.mark.usefixtures("on_cpu")
Function = Callable[[Tensor], Tensor]


def by_jacobi(M: Tensor) -> Tensor:
    V = sg.eigh(M, solver=sg.Jacobi()).eigenvectors[..., :2]
    return V @ V.mT


def by_triplets(A: Tensor) -> Tensor:
    U, _, Vh = sg.svd(A)
    return U[..., :2] @ Vh[..., :2, :]


def rotation(A: Tensor) -> Tensor:
    return sg.procrustes(A, special=True)


DEFINITE = cases.random_covariance(5, 2)
SQUARE, SMALL = cases.random(2, 5, 5), cases.random(2, 3, 3)
FUNCTIONS: dict[str, tuple[Function, Tensor]] = {
    "inv_sqrtm": (sg.inv_sqrtm, DEFINITE),
    "spectral_map": (lambda M: sg.spectral_map(M, torch.tanh), DEFINITE),
    "eigh": (by_jacobi, DEFINITE),
    "svd": (by_triplets, SQUARE),
    "pinv": (sg.pinv, SQUARE),
    "polar": (sg.polar, SQUARE),
    "small polar": (sg.polar, SMALL),
    "rotation": (rotation, SQUARE),
    "small rotation": (rotation, SMALL),
}


def gradients_at_once(f: Function, x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    out = f(x)
    return torch.autograd.grad(out, x, cases.random(3, *out.shape, seed=1), is_grads_batched=True)[0]


def mapped_gradients(f: Function, x: Tensor) -> Tensor:
    out, pullback = torch.func.vjp(f, x)
    found: Tensor = torch.func.vmap(pullback)(cases.random(3, *out.shape, seed=1))[0]
    return found


def mapped(f: Function, x: Tensor) -> Tensor:
    return torch.func.vmap(f)(torch.stack([x, 2 * x], 1))


@pytest.mark.parametrize("way", [gradients_at_once, mapped_gradients, mapped])
@pytest.mark.parametrize(("f", "x"), FUNCTIONS.values(), ids=FUNCTIONS)
def test_as_without_kernels(
    f: Function, x: Tensor, way: Callable[[Function, Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    with sg.checks(False):  # as on CUDA
        found = way(f, x)
        monkeypatch.setattr(nvrtc, "lies_on_a_gpu", lambda _: False)
        torch.testing.assert_close(found, way(f, x), rtol=1e-9, atol=1e-9)
