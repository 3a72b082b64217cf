"""What torch has left to be negated later, as in z.conj().imag, is read with its sign by every CUDA C++ kernel.

Gradients come so too: that of y in torch.complex(x, y).conj() does.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from spectralgrad.kernels import clouds, eigenpairs, jacobi, polar, power, scale, small_svd, spectral, svd
from spectralgrad.kernels.clouds import Clouds, Rounding
from spectralgrad.kernels.eigenpairs import Coefficients, Cotangents
from spectralgrad.kernels.small_svd import Polar
from spectralgrad.kernels.spectral import ScalarFunction
from support import cases
from support.on_cpu import on_cpu  # noqa: F401

pytestmark = pytest.mark.usefixtures("on_cpu")
Lay = Callable[[Tensor], Tensor]


def as_part_of_a_conjugate(x: Tensor) -> Tensor:
    return torch.complex(torch.zeros_like(x), -x).conj().imag


def in_place(x: Tensor) -> Tensor:
    return torch._neg_view(-x)


def count() -> Tensor:
    return torch.zeros((), dtype=torch.int64)


def matrices(n: int, seed: int = 0) -> Tensor:
    M = cases.random(2, n, n, seed=seed).float()
    return M + M.mT


def pairs(n: int) -> tuple[Tensor, Tensor]:
    w, V = torch.linalg.eigh(matrices(n))
    return w.abs().sort(-1)[0], V.contiguous()


def of_polar(lay: Lay, n: int) -> Tensor:
    """The derivative in a direction."""
    of = Polar(torch.linalg.qr(matrices(n, 1))[0].contiguous(), torch.ones(2, n), torch.eye(n).repeat(2, 1, 1))
    kernel = small_svd if n <= small_svd.LARGEST else polar
    return kernel.derivative(of, lay(cases.random(2, n, n).float()), 1e-7)


def of_clouds(lay: Lay) -> Tensor:
    x, y = (cases.random(2, 9, 3, seed=seed).float() for seed in range(2))
    return clouds.align(Clouds(lay(x), lay(y), None), False, False, Rounding(1e-6, 1e-12, 1e-6), count(), count()).t


CALLS: dict[str, Callable[[Lay], Tensor]] = {
    "jacobi": lambda lay: jacobi.eigh(lay(matrices(6)), count())[0],
    "spectral": lambda lay: spectral.derivative(*reversed(pairs(6)), ScalarFunction("SQRT"), None, lay(matrices(6, 1))),
    "eigenpairs": lambda lay: eigenpairs.pullback(
        pairs(6), Cotangents(None, lay(matrices(6, 1))), Coefficients("EXACT"), None, True, eigenpairs.Rounding(1e3, 2.0)
    ),
    "svd": lambda lay: svd.svd(lay(matrices(6)), count())[0],
    "small svd": lambda lay: small_svd.polar(lay(matrices(3)), False, 1e-7, count(), None).Q,
    "small polar": lambda lay: of_polar(lay, 3),
    "polar": lambda lay: of_polar(lay, 6),
    "power": lambda lay: power.quotients(lay(matrices(6)), pairs(6)[1], False),
    "exponent": lambda lay: scale.exponent(lay(matrices(6)), 2),
    "shift": lambda lay: scale.shifted(lay(matrices(6)), torch.ones(2)),
    "clouds": of_clouds,
}


@pytest.mark.parametrize("lay", [as_part_of_a_conjugate, in_place])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_the_sign_is_read(call: Callable[[Lay], Tensor], lay: Lay) -> None:
    assert lay(torch.ones(2, 2)).is_neg()
    torch.testing.assert_close(call(lay), call(torch.clone))


def test_in_a_gradient() -> None:
    A, Z = cases.random(2, 3, 3), cases.random(2, 3, 3, dtype=torch.complex128)
    came, found = [], []
    with sg.checks(False):  # as on CUDA
        for as_it_comes in (True, False):
            leaf = A.clone().requires_grad_()
            Q = sg.polar(leaf)
            Q.register_hook(lambda g: came.append(g.is_neg()))
            if not as_it_comes:
                Q.register_hook(torch.resolve_neg)
            (torch.complex(A, Q).conj() * Z).sum().abs().backward()
            found.append(leaf.grad)
    assert came == [True, True]
    torch.testing.assert_close(*found)
