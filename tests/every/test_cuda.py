"""Every function on a GPU: values and gradients of the CPU, no host wait on the way back, several gradients at once."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from support import cases
from support.catalogue import BY_NAME, Case, each, having
from support.gpu import error, no_host_wait

pytestmark = [pytest.mark.cuda, pytest.mark.filterwarnings("default")]  # torch's compiler warns about TF32

Note = Callable[[str, object], None]
LIMITS = {torch.float64: 1e-10, torch.float32: 1e-4}
ALL = having(but=("of scale",))
LINALG = {name: case for name, case in ALL.items() if "." not in name and case.domain not in ("clouds", "samples")}
MATMUL_ONLY = ("sqrtm(NewtonSchulz)", "inv_sqrtm(NewtonSchulz)", "polar(NewtonSchulz)")


def several(case: Case, dtype: torch.dtype = torch.float32, device: str = "cuda", n: int | None = 8) -> Tensor:
    """The same inputs on every device."""
    size = {"n": n} if case.domain not in ("clouds", "maps") else {}
    return case.input(*() if "whole" in case.tags else (3,), **size).to(dtype).to(device)


def gradient(case: Case, x: Tensor) -> tuple[Tensor, Tensor]:
    X = x.clone().requires_grad_()
    out = case(X)
    weight = torch.linspace(-1, 1, out.numel(), device=x.device).to(out).reshape(out.shape)
    (g,) = torch.autograd.grad((out * weight).sum(), X)
    return out.detach(), g


@pytest.mark.parametrize("dtype", LIMITS, ids=cases.ident)
@each(ALL)
def test_values_and_gradients(case: Case, dtype: torch.dtype, record_property: Note) -> None:
    """Against the CPU in float64."""
    expected = gradient(case, several(case, torch.float64, "cpu"))
    found = [error(a, b) for a, b in zip(gradient(case, several(case, dtype)), expected, strict=True)]
    record_property("value", found[0])
    record_property("gradient", found[1])
    assert max(found) <= LIMITS[dtype]


@each({name: case for name, case in LINALG.items() if {"eigen", "triplets"} & case.tags})
def test_gradients_at_the_identity_are_finite(case: Case) -> None:
    assert gradient(case, torch.eye(6, device="cuda").expand(4, 6, 6).contiguous())[1].isfinite().all()


@each(LINALG)
def test_the_host_does_not_wait(case: Case) -> None:
    """In backward; where there are matrix products alone, in forward too."""
    x = several(case, n=16).requires_grad_()
    gradient(case, x.detach())  # warm up
    out = None if case.name in MATMUL_ONLY else case(x)
    with no_host_wait():
        if out is None:
            out = case(x)
        out.backward(torch.ones_like(out))


@each(LINALG)
def test_the_ends_of_the_range(case: Case) -> None:
    """Two derivatives finite where a singular value is near the largest and the smallest number, as on the CPU."""
    if case.degree is None:
        pytest.skip("not homogeneous")
    for scale in (1e-30, 1e30):
        x = (scale * several(case, torch.float64)).float().requires_grad_()
        y = case.call(x, *(z.detach() for z in case.others(x)))
        y = (case.scaled or case.of)(y)
        (first,) = torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)
        assert y.isfinite().all()
        assert first.isfinite().all()
        if first.requires_grad:
            assert torch.autograd.grad(first.sum(), x)[0].isfinite().all()


@pytest.mark.parametrize(
    "name",
    ["sqrtm", "inv_sqrtm(NewtonSchulz)", "eigh", "svd", "polar", "projector(rank)", "covariance", "pinv(tall)", "logdet"],
)
def test_compiled(name: str, record_property: Note) -> None:
    case = BY_NAME[name]
    x = several(case)
    torch.compiler.reset()
    compiled = torch.compile(lambda x: case(x), fullgraph=True)
    found, expected = gradient(Case(name, compiled), x), gradient(case, x)
    worst = [error(a, b) for a, b in zip(found, expected, strict=True)]
    record_property("value", worst[0])
    record_property("gradient", worst[1])
    assert worst[0] <= 1e-5
    assert worst[1] <= 1e-4


def gradients_at_once(case: Case, device: str) -> tuple[Tensor, ...]:
    """By torch.autograd.grad, by torch.func, and with a minus that torch leaves for later."""
    x = several(case, torch.float64, device, n=5).requires_grad_()
    out = case(x)
    G, Z = (
        cases.random(3, *out.shape, seed=1).to(device),
        cases.random(*out.shape, dtype=torch.complex128, seed=2).to(device),
    )
    at_once = torch.autograd.grad(out, x, G, is_grads_batched=True, retain_graph=True)[0]
    mapped = torch.func.vmap(torch.func.vjp(case, x.detach())[1])(G)[0]
    (negated,) = torch.autograd.grad((torch.complex(out.detach(), out).conj() * Z).sum().abs(), x)
    return at_once, mapped, negated


@each(LINALG)
def test_several_gradients_at_once(case: Case, record_property: Note) -> None:
    found, expected = (gradients_at_once(case, device) for device in ("cuda", "cpu"))
    worst = max(map(error, found, expected))
    record_property("error", worst)
    assert worst < LIMITS[torch.float64]


@each({name: case for name, case in LINALG.items() if name in ("sqrtm", "svd", "pinv", "logdet", "nuclear_norm", "polar")})
def test_nan_stays_in_its_matrix(case: Case) -> None:
    x = several(case)
    x[1, 0, 0] = torch.nan
    y = case(x)
    assert y[1].isnan().all()
    assert y[[0, 2]].isfinite().all()
    with sg.checks(True), pytest.raises(sg.errors.NonFiniteError):
        case(x)
