"""Values and derivatives from the smallest denormal to the largest number: right where they fit, cut where they do not."""

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from support import cases, extremes
from support.extremes import (
    FUNCTIONS,
    ONCE_MORE,
    SCALES,
    TOLERANCE,
    Function,
    Homogeneous,
    cotangent_scales,
    direction,
    disagreement,
    resolution,
    times,
)
from support.marks import slow_but

DTYPES = [torch.float32, torch.float64, torch.complex64, torch.complex128]

Pull = Callable[[Function, Tensor, Tensor], Tensor]  # f, x and the cotangent -> the gradient


def backward(f: Function, x: Tensor, G: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    return torch.autograd.grad(f(x), x, G)[0]


def by_func(f: Function, x: Tensor, G: Tensor) -> Tensor:
    return torch.func.vjp(f, x)[1](G)[0].detach()


def by_vmap(f: Function, x: Tensor, G: Tensor) -> Tensor:
    return torch.vmap(lambda x, G: torch.func.vjp(f, x)[1](G)[0])(x[None], G[None])[0].detach()


def forward_mode(f: Function, x: Tensor, T: Tensor) -> Tensor:
    return torch.func.jvp(f, (x,), (T,))[1]


def scaled(case: Homogeneous, dtype: torch.dtype, forward: bool = False) -> Iterator[tuple[int, Tensor]]:
    """k and x 2^k, where f does not overflow (then it may say so)."""
    x = extremes.matrix(case.square, dtype)
    largest = max(SCALES[dtype.to_real()])
    for k in SCALES[dtype.to_real()]:
        overflows = case.degree * k > largest - 2 or (forward and case.modulus and dtype.is_complex and -2 * k > largest)
        if not overflows:
            yield k, times(x, k)


def unit(case: Homogeneous, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """The matrix at scale 1 in float64, its value by torch, and a cotangent."""
    x = extremes.matrix(case.square, torch.complex128 if dtype.is_complex else torch.float64)
    y = case.reference(x)
    return x, y, direction(y.shape, y.dtype, 2).to(y.dtype)


def value_faults(case: Homogeneous, dtype: torch.dtype, run: Callable[[Function, Tensor], Tensor]) -> list[str]:
    _, y, _ = unit(case, dtype)
    faults = []
    for k, X in scaled(case, dtype):
        want = y + k * math.log(2) * torch.eye(3, dtype=torch.float64) if case.logarithm else y
        found = disagreement(run(case.ours, X), want, case.degree * k, resolution(dtype, k))
        faults += [f"value at 2^{k}: {found}"] if found else []
    return faults


def gradient_faults(case: Homogeneous, dtype: torch.dtype, pull: Pull) -> list[str]:
    x, _, G = unit(case, dtype)
    want = backward(case.reference, x, G)
    faults = []
    for k, X in scaled(case, dtype):
        grown = (case.degree - 1) * k
        for g in cotangent_scales(grown, dtype):
            got = pull(case.ours, X, times(G.to(case.ours(X).dtype), g))
            found = disagreement(got, want, grown + g, resolution(dtype, k))
            faults += [f"gradient at 2^{k}, cotangent 2^{g}: {found}"] if found else []
    return faults


def tangent_faults(case: Homogeneous, dtype: torch.dtype) -> list[str]:
    x, _, _ = unit(case, dtype)
    T = direction(x.shape, x.dtype, 4)
    want = forward_mode(case.reference, x, T)
    faults = []
    for k, X in scaled(case, dtype, forward=True):
        grown = (case.degree - 1) * k
        for t in cotangent_scales(grown, dtype):
            found = disagreement(forward_mode(case.ours, X, times(T.to(dtype), t)), want, grown + t, resolution(dtype, k))
            faults += [f"tangent at 2^{k}, direction 2^{t}: {found}"] if found else []
    return faults


def second(f: Function, x: Tensor, G: Tensor, C: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(f(x), x, G, create_graph=True)
    return torch.autograd.grad(first, x, C)[0]


def second_by_func(f: Function, x: Tensor, G: Tensor, C: Tensor) -> Tensor:
    return torch.func.vjp(lambda x: torch.func.vjp(f, x)[1](G)[0], x)[1](C)[0].detach()


def forward_over_reverse(f: Function, x: Tensor, G: Tensor, C: Tensor) -> Tensor:
    return torch.func.jvp(lambda x: torch.func.vjp(f, x)[1](G)[0], (x,), (C,))[1].detach()


Second = Callable[[Function, Tensor, Tensor, Tensor], Tensor]


def second_faults(case: Homogeneous, dtype: torch.dtype, twice: Second) -> list[str]:
    x, _, G = unit(case, dtype)
    C = direction(x.shape, x.dtype, 6)
    want = second(case.reference, x, G, C)
    faults = []
    for k, X in scaled(case, dtype, forward=True):
        got = twice(case.ours, X, G.to(case.ours(X).dtype), C.to(dtype))
        scale, least = (case.degree - 2) * k, resolution(dtype, k)
        found = disagreement(got, want, scale, least, finite=True, tolerance=ONCE_MORE * TOLERANCE)
        faults += [f"second derivative at 2^{k}: {found}"] if found else []
    return faults


# A caller's f has no known scale, and roots by products pass several stages: what comes out is finite, and right unless a
# number on the way is out of range.
FINITE_ONLY = [name for name in FUNCTIONS if "NewtonSchulz" in name or "spectral_map" in name]


def counted(name: str, faults: list[str]) -> list[str]:
    return [fault for fault in faults if name not in FINITE_ONLY or fault.endswith("not finite")]


def every(test: Callable[..., None]) -> Callable[..., None]:
    """Each function in each dtype."""
    of_functions = pytest.mark.parametrize("name", FUNCTIONS)(test)
    return pytest.mark.parametrize("dtype", DTYPES, ids=cases.ident)(of_functions)


@every
def test_values(name: str, dtype: torch.dtype) -> None:
    assert value_faults(FUNCTIONS[name], dtype, lambda f, X: f(X)) == []


@pytest.mark.covering(1)
@every
def test_values_under_vmap(name: str, dtype: torch.dtype) -> None:
    assert value_faults(FUNCTIONS[name], dtype, lambda f, X: torch.vmap(f)(X[None])[0]) == []


@pytest.mark.covering(1)
@every
def test_gradients(name: str, dtype: torch.dtype) -> None:
    assert counted(name, gradient_faults(FUNCTIONS[name], dtype, backward)) == []


@pytest.mark.slow
@every
def test_gradients_by_torch_func(name: str, dtype: torch.dtype) -> None:
    assert counted(name, gradient_faults(FUNCTIONS[name], dtype, by_func)) == []


@pytest.mark.slow
@every
def test_gradients_under_vmap(name: str, dtype: torch.dtype) -> None:
    assert counted(name, gradient_faults(FUNCTIONS[name], dtype, by_vmap)) == []


@pytest.mark.slow
@every
def test_tangents(name: str, dtype: torch.dtype) -> None:
    assert counted(name, tangent_faults(FUNCTIONS[name], dtype)) == []


@pytest.mark.covering(1)
@every
def test_second_derivatives(name: str, dtype: torch.dtype) -> None:
    assert counted(name, second_faults(FUNCTIONS[name], dtype, second)) == []


@pytest.mark.slow
@every
def test_second_derivatives_by_torch_func(name: str, dtype: torch.dtype) -> None:
    assert counted(name, second_faults(FUNCTIONS[name], dtype, second_by_func)) == []


@pytest.mark.slow
@every
def test_second_derivatives_forward_over_reverse(name: str, dtype: torch.dtype) -> None:
    assert counted(name, second_faults(FUNCTIONS[name], dtype, forward_over_reverse)) == []


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_matrix_of_a_batch_has_its_own_scale(name: str) -> None:
    """Two derivatives of a batch are those of its matrices alone."""
    case = FUNCTIONS[name]
    X = torch.stack([X for k, X in scaled(case, torch.float64) if abs(k) <= 300])
    G, C = direction(case.ours(X[0]).shape, X.dtype, 2), direction(X[0].shape, X.dtype, 6)
    batch = (len(X), *(1,) * G.ndim)
    for together, alone in (
        (backward(case.ours, X, G.tile(batch)), lambda x: backward(case.ours, x, G)),
        (second(case.ours, X, G.tile(batch), C.expand_as(X)), lambda x: second(case.ours, x, G, C)),
    ):
        for got, want in zip(together, map(alone, X), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12 * float(want.abs().max()))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_are_linear_in_the_cotangent(name: str) -> None:
    """Right, not only finite, for those of FINITE_ONLY too: nothing on the way is out of range here."""
    case = FUNCTIONS[name]
    x = times(extremes.matrix(case.square, torch.float64), 9)
    G, C = direction(case.ours(x).shape, x.dtype, 2), direction(x.shape, x.dtype, 6)
    first, twice = backward(case.ours, x, G), second(case.ours, x, G, C)
    for k in (-300, 300):
        torch.testing.assert_close(times(backward(case.ours, x, times(G, k)), -k), first, rtol=1e-12, atol=1e-15)
        torch.testing.assert_close(times(second(case.ours, x, times(G, k), C), -k), twice, rtol=1e-12, atol=1e-18)


# Without checks a singular matrix is clamped, and compiled code sees no values: their own faults, at ordinary cotangents.

SAMPLES = {torch.float32: (-140, -100, 0, 100, 125), torch.float64: (-1060, -700, 0, 700, 1021)}
PLAIN = [name for name in FUNCTIONS if "NewtonSchulz" not in name]


def sampled_faults(name: str, dtype: torch.dtype, pull: Pull) -> list[str]:
    case = FUNCTIONS[name]
    x, _, G = unit(case, dtype)
    want = backward(case.reference, x, G)
    faults = []
    for k in SAMPLES[dtype]:
        got = pull(case.ours, times(x.to(dtype), k), G.to(dtype))
        found = disagreement(got, want, (case.degree - 1) * k, resolution(dtype, k))
        faults += [f"gradient at 2^{k}: {found}"] if found else []
    return faults


@pytest.mark.parametrize("dtype", SAMPLES, ids=cases.ident)
@pytest.mark.parametrize("name", PLAIN)
def test_gradients_without_checks(name: str, dtype: torch.dtype) -> None:
    with sg.checks(False):
        assert counted(name, sampled_faults(name, dtype, backward)) == []


@pytest.mark.parametrize("name", slow_but(["eigh"], PLAIN))
def test_gradients_compiled(name: str) -> None:
    torch.compiler.reset()
    function = torch.compile(FUNCTIONS[name].ours, fullgraph=True, backend="aot_eager")
    assert counted(name, sampled_faults(name, torch.float32, lambda _, x, G: backward(function, x, G))) == []


def test_the_measure_can_fail() -> None:
    """What a plain torch.linalg gives at these scales is found to be wrong."""
    for name in ("eigh", "svd", "logm"):
        case = FUNCTIONS[name]
        plain = Homogeneous(case.reference, case.reference, case.degree, case.square)
        assert gradient_faults(plain, torch.float32, backward) != []
    case = FUNCTIONS["sqrtm"]
    doubled = Homogeneous(lambda M: 1.001 * sg.sqrtm(M), case.reference, 0.5)
    assert len(gradient_faults(doubled, torch.float32, backward)) >= len(SCALES[torch.float32])
    assert len(value_faults(doubled, torch.float32, lambda f, X: f(X))) >= len(SCALES[torch.float32]) - 3  # denormals
    assert tangent_faults(doubled, torch.float32) != []
    assert second_faults(doubled, torch.float32, second) != []
