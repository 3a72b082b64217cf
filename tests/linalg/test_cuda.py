"""What the core promises on a GPU: values, gradients, no host wait, CUDA graphs, flags, bad input, compile."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from support import cases
from support.gpu import captured, error
from support.precision import matmul_precision

pytestmark = [pytest.mark.cuda, pytest.mark.filterwarnings("default")]  # torch's compiler warns about TF32

Note = Callable[[str, object], None]
Function = Callable[[Tensor], Tensor]


def spd(batch: int, n: int, dtype: torch.dtype, device: str = "cuda") -> Tensor:
    """The same matrices on every device, with eigenvalues apart."""
    X = cases.random(batch, n, 4 * n, seed=n)
    return (X @ X.mT / (4 * n) + torch.diag(torch.linspace(0, 1, n, dtype=torch.float64))).to(dtype).to(device)


def gradient(f: Function, M: Tensor) -> tuple[Tensor, Tensor]:
    X = M.clone().requires_grad_()
    out = f(X)
    weight = torch.linspace(-1, 1, out[0].numel(), device=M.device).to(out).reshape(out.shape[1:])
    (g,) = torch.autograd.grad((out * weight).sum(), X)
    return out.detach(), g


def test_a_captured_root_is_the_eager_one() -> None:
    """Forward and backward, bit for bit."""
    M = spd(4, 16, torch.float32).requires_grad_()
    expected, written, replay = captured(lambda: torch.autograd.grad(sg.inv_sqrtm(M, solver=sg.NewtonSchulz()).sum(), M)[0])
    replay()
    torch.cuda.synchronize()
    assert torch.equal(written, expected)


def test_precision_flags_change_nothing(record_property: Note) -> None:
    X = cases.random(64, 20000, dtype=torch.float32).cuda() + 3
    M = spd(2, 64, torch.float32)
    plain = [sg.covariance(X), *gradient(sg.inv_sqrtm, M)]
    reference = sg.covariance(X.double())
    with matmul_precision("medium"):
        centred = X - X.mean(1, keepdim=True)
        record_property("a plain product", error(centred @ centred.mT / 20000, reference))
        with torch.autocast("cuda", dtype=torch.bfloat16):
            flagged = [sg.covariance(X), *gradient(sg.inv_sqrtm, M)]
    worst, of_covariance = max(map(error, flagged, plain)), error(plain[0], reference)
    record_property("flags", worst)
    record_property("covariance", of_covariance)
    assert worst <= 5e-6
    assert of_covariance <= 1e-6


def test_a_singular_inverse_root_is_finite() -> None:
    assert sg.inv_sqrtm(torch.zeros(2, 3, 3, device="cuda")).isfinite().all()
