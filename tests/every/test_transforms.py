"""torch.func, batched and nested derivatives, hooks, checkpoints, autocast: each on every public function."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import spectralgrad as sg
from support.cases import generator, random
from support.catalogue import BY_NAME, Case, Map, compose, definite, each, having
from support.tracing import IGNORED

ALL = having(but=("of scale",))
EXACT = {name: case for name, case in ALL.items() if "approximate" not in case.tags}
TWICE = {name: case for name, case in EXACT.items() if "once" not in case.tags}
MATRICES = {name: case for name, case in TWICE.items() if case.domain not in ("clouds", "maps") and "whole" not in case.tags}


def weight(shape: torch.Size) -> Tensor:
    """Numbers to weigh a result with; not random ones, which vmap refuses."""
    return torch.cos(1.3 * torch.arange(1.0, 1 + shape.numel(), dtype=torch.float64)).reshape(shape)


def loss_of(f: Map) -> Map:
    """A number that depends on every entry, eigenvectors included."""

    def loss(x: Tensor) -> Tensor:
        out = f(x)
        return (out * weight(out.shape).to(out.dtype)).real.sum() + (out**3).real.sum()

    return loss


def gradient(f: Map, x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    return torch.autograd.grad(loss_of(f)(x), x)[0]


def close(found: Any, expected: Any, rtol: float) -> None:
    """Relative to the largest entry too: a gradient of size 1e3 is not 0 to 1e-12 anywhere."""
    size = max(1.0, float(expected.detach().abs().max())) if isinstance(expected, Tensor) and expected.numel() else 1.0
    torch.testing.assert_close(found, expected, rtol=rtol, atol=rtol * size / 10)


@each(ALL)
@pytest.mark.parametrize("dim", [0, 2])
def test_vmap_is_one_by_one(case: Case, dim: int) -> None:
    x = case.input(3)
    expected = torch.stack([case(z) for z in x])
    close(torch.func.vmap(case, in_dims=dim)(x.movedim(0, dim)), expected, 1e-10)
    if "whole" not in case.tags:
        close(case(x), expected, 1e-10)


@each(ALL)
def test_nested_vmap_and_vmap_of_grad(case: Case) -> None:
    x = case.input(2, 2)
    expected = torch.stack([torch.stack([case(z) for z in row]) for row in x])
    close(torch.func.vmap(torch.func.vmap(case))(x), expected, 1e-10)
    one_by_one = torch.stack([gradient(case, z) for z in x[0]])
    close(torch.func.vmap(torch.func.grad(loss_of(case)))(x[0]), one_by_one, 1e-9)


@each(ALL)
def test_grad_jvp_jacrev_jacfwd(case: Case) -> None:
    x, E = case.input(), case.tangent()
    g = gradient(case, x)
    close(torch.func.grad(loss_of(case))(x), g, 1e-9)
    close(torch.func.jvp(loss_of(case), (x,), (E,))[1], (g * E).sum(), 1e-8)
    if case.domain != "maps":
        close(torch.func.jacrev(case)(x), torch.func.jacfwd(case)(x), 1e-8)


@each(having(but=("of scale", "real", "once")))
def test_complex_under_vmap(case: Case) -> None:
    """torch cannot view the imaginary part of a lazy conjugate there, and matrices and cotangents may be such."""
    x, E = case.input(2, dtype=torch.complex128), case.tangent(2, dtype=torch.complex128)

    def loss(x: Tensor) -> Tensor:
        out = case(x.conj())
        return (out * weight(out.shape)).real.sum()

    def value(x: Tensor, _: Tensor) -> Tensor:
        return case(x.conj())

    def slope(x: Tensor, E: Tensor) -> Tensor:
        return torch.func.jvp(loss, (x,), (E,))[1]

    def second(x: Tensor, E: Tensor) -> Tensor:
        return torch.func.grad(lambda x: (torch.func.grad(loss)(x).conj() * E).real.sum())(x)

    for function in (value, slope, second, torch.func.grad(slope)):
        expected = torch.stack([function(z, e) for z, e in zip(x, E, strict=True)])
        close(torch.func.vmap(function)(x, E), expected, 1e-8)


MANY_STEPS = {"sqrtm(many steps)": Case("sqrtm(many steps)", lambda M: sg.sqrtm(M, gradient=sg.PowerIteration(200)))}


@each(TWICE | MANY_STEPS)
def test_forward_over_forward_along_a_curve(case: Case) -> None:
    """Second derivatives of what goes in count too: what a jvp hands on has a tangent of its own."""
    x, E, C = case.input(), case.tangent(), case.tangent(seed=5)
    zero, one = torch.zeros((), dtype=x.dtype), torch.ones((), dtype=x.dtype)

    def speed(t: Tensor) -> Tensor:
        return torch.func.jvp(lambda t: case(x + t * E + t * t * C), (t,), (one,))[1]

    step = 1e-5
    numeric = (speed(zero + step) - speed(zero - step)) / (2 * step)
    close(torch.func.jvp(speed, (zero,), (one,))[1], numeric, 1e-5)


@each(MATRICES)
def test_reverse_over_forward(case: Case) -> None:
    """Inside jvp torch propagates no tangents through plain operations: the second one would be 0, without a word."""
    x, E = case.input(), case.tangent()

    def pushed(x: Tensor) -> Tensor:
        return torch.func.jvp(case, (x,), (E,))[1]

    expected = torch.func.jvp(pushed, (x,), (E,))[1]
    by_rows = torch.func.jacrev(pushed)(x)
    close((by_rows * E).flatten(expected.ndim).sum(-1), expected, 1e-6)


@pytest.mark.parametrize("function", [sg.spectral_map, sg.singular_map])
def test_forward_over_forward_for_what_f_closes_over(function: Callable[..., Tensor]) -> None:
    M, p = definite(), torch.tensor(0.7, dtype=torch.float64)
    one = torch.ones_like(p)

    def mapped(p: Tensor) -> Tensor:
        return function(M, lambda x: torch.tanh(p * x) + p**3 * x**3)

    def pushed(p: Tensor) -> Tensor:
        return torch.func.jvp(mapped, (p,), (one,))[1]

    step = 1e-5
    numeric = (pushed(p + step) - pushed(p - step)) / (2 * step)
    torch.testing.assert_close(torch.func.jvp(pushed, (p,), (one,))[1], numeric, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(torch.func.hessian(mapped)(p), numeric, rtol=1e-5, atol=1e-5)


@each({name: case for name, case in ALL.items() if case.domain != "maps" and "once" not in case.tags})
def test_hessian_and_double_backward(case: Case) -> None:
    x, E, loss = case.input(), case.tangent(), loss_of(case)
    H = torch.func.hessian(loss)(x)  # forward over reverse
    close(torch.func.jacrev(torch.func.jacrev(loss))(x), H, 1e-7)
    close(torch.autograd.functional.hessian(loss, x, vectorize=True), H, 1e-7)  # a batched backward pass of a backward pass
    X = x.clone().requires_grad_()
    (g,) = torch.autograd.grad(loss(X), X, create_graph=True)
    (EH,) = torch.autograd.grad((g * E).sum(), X)
    close(EH, (E.reshape(-1) @ H.reshape(E.numel(), -1)).reshape(x.shape), 1e-7)
    if "approximate" in case.tags:  # its first gradient is no gradient, so its second one is not that one's derivative
        return
    step = 1e-5
    numeric = (gradient(case, x + step * E) - gradient(case, x - step * E)) / (2 * step)
    close((H.reshape(E.numel(), -1) @ E.reshape(-1)).reshape(x.shape), numeric, 1e-4)


@each(ALL)
@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing(case: Case, reentrant: bool) -> None:
    """Its saved tensors can be unpacked once."""
    X = case.input().requires_grad_()
    loss_of(lambda x: checkpoint(case, x, use_reentrant=reentrant))(X).backward()
    close(X.grad, gradient(case, X.detach()), 1e-10)


@pytest.mark.parametrize("function", [sg.spectral_map, sg.singular_map])
def test_activation_checkpointing_of_what_f_closes_over(function: Callable[..., Tensor]) -> None:
    """torch.func, which differentiates f, refuses to work under checkpointing's hooks."""
    scale, M = torch.tensor(0.5, dtype=torch.float64, requires_grad=True), definite(2)

    def learned(M: Tensor) -> Tensor:
        return function(M, lambda w: torch.atan(w * scale))

    gradients = [
        torch.autograd.grad(loss_of(f)(M), scale) for f in (learned, lambda M: checkpoint(learned, M, use_reentrant=False))
    ]
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=0)


@each(TWICE)
@pytest.mark.filterwarnings(IGNORED)
def test_hooks_on_saved_tensors(case: Case) -> None:
    """Every derivative where tensors are saved somewhere else."""
    X, E = case.input().requires_grad_(), case.tangent()

    def derivatives() -> tuple[Tensor, ...]:
        (g,) = torch.autograd.grad(loss_of(case)(X), X, create_graph=True)
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(X.detach().requires_grad_(), E)
            forward_over_reverse = forward_ad.unpack_dual(torch.autograd.grad(loss_of(case)(dual), dual)[0]).tangent
        return g.detach(), *torch.autograd.grad((g * E).sum(), X), forward_over_reverse

    with torch.autograd.graph.save_on_cpu():
        found = derivatives()
    torch.testing.assert_close(found, derivatives(), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("rule", [sg.Lorentzian(), sg.PowerIteration(3)])
def test_reverse_over_forward_under_hooks_on_saved_tensors(rule: Any) -> None:
    X, E = definite().requires_grad_(), random(4, 4, seed=3)

    def reverse_over_forward() -> tuple[Tensor, ...]:
        with forward_ad.dual_level():
            out = compose(*sg.eigh(forward_ad.make_dual(X, E), gradient=rule))
            return torch.autograd.grad(forward_ad.unpack_dual(out).tangent.square().sum(), X)

    with torch.autograd.graph.save_on_cpu():
        found = reverse_over_forward()
    torch.testing.assert_close(found, reverse_over_forward(), rtol=1e-12, atol=1e-13)


@each(TWICE)
@pytest.mark.filterwarnings(IGNORED)
def test_product_with_a_hessian(case: Case) -> None:
    """`hvp` differentiates a second derivative by its direction, in which it is linear."""
    x, E, loss = case.input(), case.tangent(), loss_of(case)
    expected = torch.autograd.functional.vhp(loss, x, E)[1]
    close(torch.autograd.functional.hvp(loss, x, E)[1], expected, 1e-9)

    X = x.requires_grad_()
    (g,) = torch.autograd.grad(loss(X), X, create_graph=True)
    with forward_ad.dual_level():
        direction = forward_ad.make_dual(torch.zeros_like(E), E)
        pushed = forward_ad.unpack_dual(torch.autograd.grad(g, X, direction)[0]).tangent
    close(pushed, expected, 1e-9)


@each(TWICE)
def test_transforms_of_what_vjp_returned(case: Case) -> None:
    """It holds tensors of the transform that made it, which has ended."""
    x, E, loss = case.input(), case.tangent(), loss_of(case)
    along = torch.func.vjp(torch.func.grad(loss), x)[1]
    expected = along(E)[0]
    pushed = torch.func.jvp(lambda E: along(E)[0], (E,), (E,))[1]
    pulled = torch.func.grad(lambda E: (along(E)[0] * E).sum())(E) / 2
    for found in (pushed, pulled):
        close(found, expected, 1e-9)


@each({name: case for name, case in ALL.items() if case.function not in ("eigvalsh", "svdvals")})  # saved, as torch's are
def test_a_result_may_be_edited_in_place(case: Case) -> None:
    X, Y = case.input().requires_grad_(), case.input().requires_grad_()
    case(X).mul_(2).sum().backward()
    (2 * case(Y)).sum().backward()
    close(X.grad, Y.grad, 1e-10)


@each({name: case for name, case in ALL.items() if case.domain != "maps"})
def test_several_gradients_at_once(case: Case) -> None:
    """A batched backward pass, where no value can be looked at."""
    x = case.input().requires_grad_()
    y = case(x)
    G = random(3, *y.shape, seed=1)
    at_once = torch.autograd.grad(y, x, G, is_grads_batched=True, retain_graph=True)[0]
    close(at_once, torch.stack([torch.autograd.grad(y, x, g, retain_graph=True)[0] for g in G]), 1e-9)


@each(ALL)
def test_autocast_changes_nothing(case: Case) -> None:
    x = case.input().float()
    expected, expected_gradient = case(x), gradient(case, x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = case(x)
        X = x.clone().requires_grad_()
        loss = loss_of(case)(X)
    loss.backward()
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    close(X.grad, expected_gradient, 2e-3)


def test_power_deflation_under_transforms() -> None:
    def f(M: Tensor) -> Tensor:
        w, V = sg.eigh(M, solver=sg.PowerDeflation(60, generator(1)))
        return (V * w.unsqueeze(-2)) @ V.mH

    M = definite()
    close(torch.func.grad(loss_of(f))(M), gradient(f, M), 1e-9)
    batch = torch.func.vmap(f, randomness="same")(definite(3))
    torch.testing.assert_close(batch, definite(3), rtol=1e-3, atol=1e-3)


def test_a_wrong_derivative_would_be_seen() -> None:
    """The control: half of a gradient is lost where a tensor is detached, though not for finite differences."""
    case = BY_NAME["sqrtm"]
    with pytest.raises(AssertionError):
        test_hessian_and_double_backward(Case("half", lambda M: case(M) + case(M.detach())))
