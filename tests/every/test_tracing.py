"""FakeTensorMode, make_fx, linearize and torch.compile on every public function: no value is looked at, none is kept."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from support.cases import random
from support.catalogue import Case, Map, definite, each, each_quick, having
from support.tracing import IGNORED, assert_linear, assert_recorded, assert_shapes_alone, with_gradient

pytestmark = pytest.mark.usefixtures("fresh_compiler")
ALL = having(but=("of scale",))


@each(ALL)
def test_shapes_without_values(case: Case) -> None:
    assert_shapes_alone(case, case.input())


@each_quick("traced", ALL)
@pytest.mark.parametrize("mode", ["symbolic", pytest.param("real", marks=pytest.mark.slow)])
def test_make_fx_records_no_value(case: Case, mode: str) -> None:
    assert_recorded(with_gradient(case), case.input(2), other=(case.input(2, seed=1),), mode=mode)


@each_quick("traced", ALL)
@pytest.mark.filterwarnings(IGNORED)
def test_make_fx_of_transforms(case: Case) -> None:
    slope = torch.func.grad(lambda x: case(x).pow(3).sum())

    def second(x: Tensor) -> Tensor:
        return torch.func.jvp(slope, (x,), (x.sin(),))[1]

    assert_recorded(torch.func.vmap(case), case.input(2), other=(case.input(2, seed=1),), mode="fake")
    for function in (slope, second):
        if function is slope or (torch.__version__ >= "2.10" and "once" not in case.tags):  # 2.9 loses tensors on the way
            assert_recorded(function, case.input(), other=(case.input(seed=1),), mode="fake")


@each_quick("traced", ALL)
@pytest.mark.filterwarnings(IGNORED)
def test_linearize(case: Case) -> None:
    assert_linear(case, case.input(), case.tangent())


def assert_compiled(compiled: Callable[[Tensor], Tensor], f: Map, x: Tensor) -> None:
    """The same values and gradients."""
    X, Y = x.clone().requires_grad_(), x.clone().requires_grad_()
    got, want = compiled(X), f(Y)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-10)
    G = random(*want.shape, seed=7).to(want.dtype)
    found, expected = (torch.autograd.grad(y, z, G)[0] for y, z in ((got, X), (want, Y)))
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-9 * max(1.0, float(expected.abs().max())))


@each_quick("compiled", ALL)
def test_compiles_in_one_graph_for_sizes_to_come(case: Case) -> None:
    """dynamic=True: numbers of modules, options and shapes are variables of the compiled code too."""
    compiled = torch.compile(case, fullgraph=True, backend="aot_eager", dynamic=True)
    for x in (case.input(2), case.input(3, n=5)) if "whole" not in case.tags else (case.input(),):
        assert_compiled(compiled, case, x)


@pytest.mark.slow
@each(ALL)
def test_compiles_in_one_graph_for_one_size(case: Case) -> None:
    assert_compiled(torch.compile(case, fullgraph=True, backend="aot_eager", dynamic=False), case, case.input())


@each_quick("compiled", {name: case for name, case in ALL.items() if "real" not in case.tags})
def test_compiled_complex_is_complex(case: Case) -> None:
    """Operators of a compiled graph run where torch does not resolve lazy conjugates: x.mH would be x.mT."""
    compiled = torch.compile(case, fullgraph=True, backend="aot_eager")
    assert_compiled(compiled, case, case.input(2, dtype=torch.complex128))


@pytest.mark.slow
@each(ALL)
def test_compiles_with_inductor(case: Case) -> None:
    assert_compiled(torch.compile(case, fullgraph=True), case, case.input(2) if "whole" not in case.tags else case.input())


@pytest.mark.parametrize(
    "transform", [torch.func.grad, lambda f: lambda M: torch.func.jvp(f, (M,), (M,))[1]], ids=["grad", "jvp"]
)
def test_compiled_transforms_are_refused_or_right(transform: Callable[..., Any]) -> None:
    """torch.compile ignores a Function's backward inside torch.func: an error in one graph, else eager code."""
    M = definite()
    derivative = transform(lambda M: sg.sqrtm(M).pow(3).sum())
    with pytest.raises(Exception, match=r"torch\.compile ignores"):
        torch.compile(derivative, backend="aot_eager", fullgraph=True)(M)
    torch.compiler.reset()
    torch.testing.assert_close(torch.compile(derivative, backend="aot_eager")(M), derivative(M))
