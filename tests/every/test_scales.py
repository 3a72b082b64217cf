"""Values and derivatives from the smallest denormal to the largest number: right where they fit, cut where they do not."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from support import cases, extremes
from support.catalogue import BY_NAME, Case, Map, each
from support.extremes import ONCE_MORE, SCALES, TOLERANCE, cotangent_scales, direction, disagreement, resolution, times
from support.marks import slow_but

DOUBLE = (torch.float64, torch.complex128)
HOMOGENEOUS = {name: case for name, case in BY_NAME.items() if case.degree is not None}

Pull = Callable[[Map, Tensor, Tensor], Tensor]  # f, x and the cotangent -> the gradient


def degree(case: Case) -> float:
    assert case.degree is not None
    return case.degree


def alone(case: Case, call: Callable[..., Any]) -> Map:
    """By the first argument: torch adds the slopes of several up, and two that were cut may overflow."""
    of = case.scaled or case.of
    return lambda x: of(call(x, *(y.detach() for y in case.others(x))))


def ours(case: Case) -> Map:
    return alone(case, case.call)


def reference(case: Case) -> Map:
    """By torch; where there is none, ours at scale 1, of which homogeneity says the rest."""
    return alone(case, case.reference or case.call)


def backward(f: Map, x: Tensor, G: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    return torch.autograd.grad(f(x), x, G)[0]


def by_func(f: Map, x: Tensor, G: Tensor) -> Tensor:
    return torch.func.vjp(f, x)[1](G)[0].detach()


def by_vmap(f: Map, x: Tensor, G: Tensor) -> Tensor:
    return torch.vmap(lambda x, G: torch.func.vjp(f, x)[1](G)[0])(x[None], G[None])[0].detach()


def forward_mode(f: Map, x: Tensor, T: Tensor) -> Tensor:
    return torch.func.jvp(f, (x,), (T,))[1]


def scaled(case: Case, dtype: torch.dtype, forward: bool = False) -> Iterator[tuple[int, Tensor]]:
    """k and x 2^k, where f does not overflow (then it may say so)."""
    x = extremes.matrix(case, dtype)
    largest = max(SCALES[dtype.to_real()])
    for k in SCALES[dtype.to_real()]:
        overflows = degree(case) * k > largest - 2 or (
            forward and "modulus" in case.tags and dtype.is_complex and -2 * k > largest
        )
        if not overflows:
            yield k, times(x, k)


def unit(case: Case, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """The matrix at scale 1 in float64, its value by torch, and a cotangent."""
    x = extremes.matrix(case, torch.complex128 if dtype.is_complex else torch.float64)
    y = reference(case)(x)
    return x, y, direction(y.shape, y.dtype, 2).to(y.dtype)


def value_faults(case: Case, dtype: torch.dtype, run: Callable[[Map, Tensor], Tensor]) -> list[str]:
    _, y, _ = unit(case, dtype)
    faults = []
    for k, X in scaled(case, dtype):
        want = y + case.offset * k * math.log(2) * torch.eye(y.shape[-1], dtype=torch.float64) if case.offset else y
        found = disagreement(run(ours(case), X), want, degree(case) * k, resolution(dtype, k))
        faults += [f"value at 2^{k}: {found}"] if found else []
    return faults


def gradient_faults(case: Case, dtype: torch.dtype, pull: Pull) -> list[str]:
    x, _, G = unit(case, dtype)
    want = backward(reference(case), x, G)
    faults = []
    for k, X in scaled(case, dtype):
        grown = (degree(case) - 1) * k
        for g in cotangent_scales(grown, dtype):
            got = pull(ours(case), X, times(G.to(ours(case)(X).dtype), g))
            found = disagreement(got, want, grown + g, resolution(dtype, k))
            faults += [f"gradient at 2^{k}, cotangent 2^{g}: {found}"] if found else []
    return faults


def tangent_faults(case: Case, dtype: torch.dtype) -> list[str]:
    x, _, _ = unit(case, dtype)
    T = direction(x.shape, x.dtype, 4)
    want = forward_mode(reference(case), x, T)
    faults = []
    for k, X in scaled(case, dtype, forward=True):
        grown = (degree(case) - 1) * k
        for t in cotangent_scales(grown, dtype):
            found = disagreement(forward_mode(ours(case), X, times(T.to(dtype), t)), want, grown + t, resolution(dtype, k))
            faults += [f"tangent at 2^{k}, direction 2^{t}: {found}"] if found else []
    return faults


def second(f: Map, x: Tensor, G: Tensor, C: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(f(x), x, G, create_graph=True)
    return torch.autograd.grad(first, x, C)[0]


def second_by_func(f: Map, x: Tensor, G: Tensor, C: Tensor) -> Tensor:
    return torch.func.vjp(lambda x: torch.func.vjp(f, x)[1](G)[0], x)[1](C)[0].detach()


def forward_over_reverse(f: Map, x: Tensor, G: Tensor, C: Tensor) -> Tensor:
    return torch.func.jvp(lambda x: torch.func.vjp(f, x)[1](G)[0], (x,), (C,))[1].detach()


Second = Callable[[Map, Tensor, Tensor, Tensor], Tensor]


def second_faults(case: Case, dtype: torch.dtype, twice: Second) -> list[str]:
    x, _, G = unit(case, dtype)
    C = direction(x.shape, x.dtype, 6)
    want = second(reference(case), x, G, C)
    faults = []
    for k, X in scaled(case, dtype, forward=True):
        got = twice(ours(case), X, G.to(ours(case)(X).dtype), C.to(dtype))
        scale, least = (degree(case) - 2) * k, resolution(dtype, k)
        found = disagreement(got, want, scale, least, finite=True, tolerance=ONCE_MORE * TOLERANCE)
        faults += [f"second derivative at 2^{k}: {found}"] if found else []
    return faults


# A caller's f has no known scale, and roots by products pass several stages ("finite only"): what comes out is finite, and
# right unless a number on the way is out of range.


KNOWN = {  # test and case -> what fails in which dtypes, until it is mended
    ("test_gradients", "logdet"): (cases.DTYPES, "1 / w is cut to the largest number before the cotangent makes it fit"),
    ("test_tangents", "spd.transport(affine)"): (DOUBLE, "not finite at the smallest numbers"),
    ("forward_over_reverse", "spd.transport(affine)"): (DOUBLE, "not finite at the smallest numbers"),
}


@pytest.fixture(autouse=True)
def _known(request: pytest.FixtureRequest) -> None:
    params = getattr(getattr(request.node, "callspec", None), "params", {})
    if "case" in params and "real" in params["case"].tags and params.get("dtype", torch.float32).is_complex:
        pytest.skip("of real numbers alone")
    for what in (request.node.originalname, getattr(params.get("twice"), "__name__", "")):
        dtypes, reason = KNOWN.get((what, getattr(params.get("case"), "name", "")), ((), ""))
        if params.get("dtype") in dtypes:
            request.node.add_marker(pytest.mark.xfail(strict=True, reason=reason))


def counted(case: Case, faults: list[str]) -> list[str]:
    return [fault for fault in faults if "finite only" not in case.tags or fault.endswith("not finite")]


each_case = each(HOMOGENEOUS)
TWICE = {name: case for name, case in HOMOGENEOUS.items() if "once" not in case.tags}
each_dtype = pytest.mark.parametrize("dtype", cases.DTYPES, ids=cases.ident)
slow = pytest.mark.slow


@each_case
@each_dtype
def test_values(case: Case, dtype: torch.dtype) -> None:
    assert value_faults(case, dtype, lambda f, X: f(X)) == []


@pytest.mark.covering(1)
@each_case
@each_dtype
def test_values_under_vmap(case: Case, dtype: torch.dtype) -> None:
    assert value_faults(case, dtype, lambda f, X: torch.vmap(f)(X[None])[0]) == []


@pytest.mark.covering(1)
@each_case
@each_dtype
@pytest.mark.parametrize("pull", [backward, *(pytest.param(way, marks=slow) for way in (by_func, by_vmap))])
def test_gradients(case: Case, dtype: torch.dtype, pull: Pull) -> None:
    assert counted(case, gradient_faults(case, dtype, pull)) == []


@slow
@each_case
@each_dtype
def test_tangents(case: Case, dtype: torch.dtype) -> None:
    assert counted(case, tangent_faults(case, dtype)) == []


@pytest.mark.covering(1)
@each(TWICE)
@each_dtype
@pytest.mark.parametrize(
    "twice", [second, *(pytest.param(way, marks=slow) for way in (second_by_func, forward_over_reverse))]
)
def test_second_derivatives(case: Case, dtype: torch.dtype, twice: Second) -> None:
    assert counted(case, second_faults(case, dtype, twice)) == []


@each(TWICE)
def test_each_matrix_of_a_batch_has_its_own_scale(case: Case) -> None:
    """Two derivatives of a batch are those of its matrices alone."""
    f, X = ours(case), torch.stack([X for k, X in scaled(case, torch.float64) if abs(k) <= 300])
    G, C = direction(f(X[0]).shape, X.dtype, 2), direction(X[0].shape, X.dtype, 6)
    batch = (len(X), *(1,) * G.ndim)
    first = [backward(f, x, G) for x in X]
    for got, want in zip(backward(f, X, G.tile(batch)), first, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12 * float(want.abs().max()))
    for got, x, slope in zip(second(f, X, G.tile(batch), C.expand_as(X)), X, first, strict=True):
        want = second(f, x, G, C)
        size = max(float(want.abs().max()), float(slope.abs().max() / x.abs().max()))  # it may be the rounding of a zero
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12 * size)


@each(TWICE)
def test_derivatives_are_linear_in_the_cotangent(case: Case) -> None:
    """Right, not only finite, for those of "finite only" too: nothing on the way is out of range here."""
    f, x = ours(case), times(extremes.matrix(case, torch.float64), 9)
    G, C = direction(f(x).shape, x.dtype, 2), direction(x.shape, x.dtype, 6)
    first, twice = backward(f, x, G), second(f, x, G, C)
    for k in (-300, 300):
        torch.testing.assert_close(times(backward(f, x, times(G, k)), -k), first, rtol=1e-12, atol=1e-15)
        torch.testing.assert_close(times(second(f, x, times(G, k), C), -k), twice, rtol=1e-12, atol=1e-18)


# Without checks a singular matrix is clamped, and compiled code sees no values: their own faults, at ordinary cotangents.

SAMPLES = {torch.float32: (-140, -100, 0, 100, 125), torch.float64: (-1060, -700, 0, 700, 1021)}
PLAIN = {name: case for name, case in HOMOGENEOUS.items() if "products" not in case.tags}


def sampled_faults(case: Case, dtype: torch.dtype, pull: Pull) -> list[str]:
    x, _, G = unit(case, dtype)
    want = backward(reference(case), x, G)
    faults = []
    for k in SAMPLES[dtype]:
        got = pull(ours(case), times(x.to(dtype), k), G.to(dtype))
        found = disagreement(got, want, (degree(case) - 1) * k, resolution(dtype, k))
        faults += [f"gradient at 2^{k}: {found}"] if found else []
    return faults


@pytest.mark.parametrize("dtype", SAMPLES, ids=cases.ident)
@each(PLAIN)
def test_gradients_without_checks(case: Case, dtype: torch.dtype) -> None:
    with sg.checks(False):
        assert counted(case, sampled_faults(case, dtype, backward)) == []


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("case", slow_but(["eigh"], PLAIN))
def test_gradients_compiled(case: Case) -> None:
    f = torch.compile(ours(case), fullgraph=True, backend="aot_eager")
    assert counted(case, sampled_faults(case, torch.float32, lambda _, x, G: backward(f, x, G))) == []


def test_the_measure_can_fail() -> None:
    """What a plain torch.linalg gives at these scales is found to be wrong."""
    for name in ("eigh", "svd", "logm"):
        plain = replace(BY_NAME[name], call=BY_NAME[name].reference)
        assert gradient_faults(plain, torch.float32, backward) != []
    doubled = replace(BY_NAME["sqrtm"], call=lambda M: 1.001 * sg.sqrtm(M))
    assert len(gradient_faults(doubled, torch.float32, backward)) >= len(SCALES[torch.float32])
    assert len(value_faults(doubled, torch.float32, lambda f, X: f(X))) >= len(SCALES[torch.float32]) - 3  # denormals
    assert tangent_faults(doubled, torch.float32) != []
    assert second_faults(doubled, torch.float32, second) != []
