"""What the core promises on a GPU: values, gradients, no host wait, CUDA graphs, flags, bad input, compile."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from support import cases
from support.gpu import captured, error, no_host_wait
from support.precision import matmul_precision

pytestmark = [pytest.mark.cuda, pytest.mark.filterwarnings("default")]  # torch's compiler warns about TF32

Note = Callable[[str, object], None]
Function = Callable[[Tensor], Tensor]


def sine_by_eigenvectors(M: Tensor, **options: Any) -> Tensor:
    w, V = sg.eigh(M, **options)
    return (V * w.unsqueeze(-2).sin()) @ V.mH


def sine_by_singular_vectors(M: Tensor) -> Tensor:
    U, S, Vh = sg.svd(M)
    return (U * S.sin().unsqueeze(-2)) @ Vh


FUNCTIONS: dict[str, Function] = {
    "sqrtm": sg.sqrtm,
    "inv_sqrtm": sg.inv_sqrtm,
    "powm": lambda M: sg.powm(M, 0.3),
    "logm": sg.logm,
    "expm": sg.expm,
    "spectral_map": lambda M: sg.spectral_map(M, torch.sin),
    "projector": lambda M: sg.projector(M, rank=2),
    "polar": sg.polar,
    "sqrtm Taylor": lambda M: sg.sqrtm(M, gradient=sg.Taylor(9)),
    "sqrtm PowerIteration": lambda M: sg.sqrtm(M, gradient=sg.PowerIteration(5)),
    "sqrtm NewtonSchulz": lambda M: sg.sqrtm(M, solver=sg.NewtonSchulz()),
    "inv_sqrtm NewtonSchulz": lambda M: sg.inv_sqrtm(M, solver=sg.NewtonSchulz()),
    "polar NewtonSchulz": lambda M: sg.polar(M, solver=sg.NewtonSchulz()),
    "eigh": sine_by_eigenvectors,
    "eigh Jacobi": lambda M: sine_by_eigenvectors(M, solver=sg.Jacobi()),
    "svd": sine_by_singular_vectors,
    "covariance": lambda M: sg.covariance(M),
}
MATMUL_ONLY = ("sqrtm NewtonSchulz", "inv_sqrtm NewtonSchulz", "polar NewtonSchulz", "covariance")
LIMITS = {torch.float64: 1e-10, torch.float32: 1e-4}


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


@pytest.mark.parametrize("dtype", LIMITS, ids=cases.ident)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients(name: str, dtype: torch.dtype, record_property: Note) -> None:
    """Against the CPU in float64."""
    expected, expected_gradient = gradient(FUNCTIONS[name], spd(3, 8, torch.float64, "cpu"))
    out, g = gradient(FUNCTIONS[name], spd(3, 8, dtype))
    of_value, of_gradient = error(out, expected), error(g, expected_gradient)
    record_property("value", of_value)
    record_property("gradient", of_gradient)
    assert of_value <= LIMITS[dtype]
    assert of_gradient <= LIMITS[dtype]


@pytest.mark.parametrize("name", ["sqrtm", "inv_sqrtm", "eigh", "projector", "polar", "svd"])
def test_gradients_at_the_identity_are_finite(name: str) -> None:
    _, g = gradient(FUNCTIONS[name], torch.eye(6, device="cuda").expand(4, 6, 6).contiguous())
    assert g.isfinite().all()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_host_does_not_wait(name: str) -> None:
    """In backward; where there are matrix products alone, in forward too."""
    f, M = FUNCTIONS[name], spd(4, 16, torch.float32)
    X = M.clone().requires_grad_()
    gradient(f, M)  # warm up
    out = None if name in MATMUL_ONLY else f(X)
    with no_host_wait():
        if out is None:
            out = f(X)
        out.backward(torch.ones_like(out))


def test_a_captured_root_is_the_eager_one() -> None:
    """Forward and backward, bit for bit."""
    M = spd(4, 16, torch.float32).requires_grad_()
    expected, written, replay = captured(lambda: torch.autograd.grad(FUNCTIONS["inv_sqrtm NewtonSchulz"](M).sum(), M)[0])
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


def with_nan() -> Tensor:
    M = spd(3, 4, torch.float32)
    M[1, 0, 0] = torch.nan
    return M


def test_nan_stays_in_its_matrix() -> None:
    out = sg.sqrtm(with_nan())
    assert out[1].isnan().all()
    assert out[0].isfinite().all()
    assert out[2].isfinite().all()


def test_checks_raise() -> None:
    with sg.checks(True), pytest.raises(sg.errors.NonFiniteError):
        sg.sqrtm(with_nan())


def test_a_singular_inverse_root_is_finite() -> None:
    assert sg.inv_sqrtm(torch.zeros(2, 3, 3, device="cuda")).isfinite().all()


@pytest.mark.parametrize("name", ["sqrtm", "inv_sqrtm NewtonSchulz", "eigh", "svd", "polar", "projector", "covariance"])
def test_compiled(name: str, record_property: Note) -> None:
    f, M = FUNCTIONS[name], spd(2, 8, torch.float32)
    torch.compiler.reset()
    out, g = gradient(torch.compile(f, fullgraph=True), M)
    expected, expected_gradient = gradient(f, M)
    of_value, of_gradient = error(out, expected), error(g, expected_gradient)
    record_property("value", of_value)
    record_property("gradient", of_gradient)
    assert of_value <= 1e-5
    assert of_gradient <= 1e-4


def gradients_at_once(f: Function, device: str) -> tuple[Tensor, ...]:
    """By torch.autograd.grad, by torch.func, and with a minus that torch leaves for later."""
    M = spd(2, 5, torch.float64, device).requires_grad_()
    out = f(M)
    G, Z = (
        cases.random(3, *out.shape, seed=1).to(device),
        cases.random(*out.shape, dtype=torch.complex128, seed=2).to(device),
    )
    at_once = torch.autograd.grad(out, M, G, is_grads_batched=True, retain_graph=True)[0]
    mapped = torch.func.vmap(torch.func.vjp(f, M.detach())[1])(G)[0]
    (negated,) = torch.autograd.grad((torch.complex(out.detach(), out).conj() * Z).sum().abs(), M)
    return at_once, mapped, negated


@pytest.mark.parametrize("name", FUNCTIONS)
def test_several_gradients_at_once(name: str, record_property: Note) -> None:
    found, expected = (gradients_at_once(FUNCTIONS[name], device) for device in ("cuda", "cpu"))
    worst = max(map(error, found, expected))
    record_property("error", worst)
    assert worst < LIMITS[torch.float64]
