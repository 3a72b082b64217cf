"""torch's tracers on layers, whose state is traced too (functions: tests/every), and what is no tracer."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

import spectralgrad as sg
from spectralgrad.context import recording, tracing
from spectralgrad.orthogonal import OrthogonalConv2d
from support.cases import random
from support.catalogue import definite
from support.host_reads import HostReads
from support.marks import slow_but
from support.tracing import IGNORED, assert_linear


def matrices(seed: int = 0) -> Tensor:
    return definite(3, seed=seed)


def maps(seed: int = 0) -> Tensor:
    return random(8, 4, 3, 3, seed=seed)


Given = Callable[[int], Tensor]

LAYERS: dict[str, tuple[Callable[..., nn.Module], Given]] = {
    "zca": (partial(sg.nn.DecorrelatedBatchNorm2d, 4), maps),
    "running whitening": (partial(sg.nn.DecorrelatedBatchNorm2d, 4, running="whitening", momentum=None), maps),
    "newton": (partial(sg.nn.DecorrelatedBatchNorm2d, 4, solver=sg.NewtonSchulz()), maps),
    "pca": (partial(sg.nn.DecorrelatedBatchNorm2d, 4, whitening="pca", group_size=2), maps),
    "power iteration": (partial(sg.nn.DecorrelatedBatchNorm2d, 4, gradient=sg.PowerIteration(5)), maps),
    "rank": (partial(sg.nn.PCADenoise2d, 4, rank=2), maps),
    "energy": (partial(sg.nn.PCADenoise2d, 4, energy=0.9), maps),
    "pool": (partial(sg.nn.CovariancePool2d, 4, reduced=3), maps),
    "ReEig": (lambda **_: sg.nn.ReEig(), matrices),
    "LogEig": (lambda **_: sg.nn.LogEig(), matrices),
    "BiMap": (partial(sg.nn.BiMap, 4, 3), matrices),
    "SPDBatchNorm": (partial(sg.nn.SPDBatchNorm, 4), matrices),
    "orthogonal weight": (lambda **k: sg.orthogonal.orthogonal_weight(nn.Conv2d(4, 3, 3, **k)), maps),
    "spectral norm": (lambda **k: sg.orthogonal.spectral_norm(nn.Conv2d(4, 3, 3, **k)), maps),
}
LAYERS_TRACED = ("zca", "energy", "pool", "SPDBatchNorm")
each_mode = pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])


# Layers: their state is traced too.


def state_of(layer: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    return (
        {name: parameter.detach().clone() for name, parameter in layer.named_parameters()},
        {name: buffer.clone() for name, buffer in layer.named_buffers()},
    )


@each_mode
@pytest.mark.parametrize(("make", "given"), LAYERS.values(), ids=LAYERS)
def test_layers_made_and_run_without_values(make: Callable[..., nn.Module], given: Given, training: bool) -> None:
    expected = make(dtype=torch.float64).train(training)(given(0))
    with FakeTensorMode() as mode:
        layer = make(dtype=torch.float64).train(training)
        x = mode.from_tensor(given(0)).requires_grad_()
        for _ in range(2):  # nothing fake may be kept from the first time
            y = layer(x)
        y.pow(3).sum().backward()
    assert (y.shape, y.dtype) == (expected.shape, expected.dtype)
    assert all(parameter.grad is not None for parameter in (x, *layer.parameters()))


@each_mode
@pytest.mark.parametrize("case", slow_but(LAYERS_TRACED, LAYERS))
def test_make_fx_of_a_step(case: tuple[Callable[..., nn.Module], Given], training: bool) -> None:
    """Output, gradients and what becomes of the buffers."""
    make, given = case
    torch.manual_seed(0)
    layer = make(dtype=torch.float64).train(training)

    def step(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Any:
        with torch.enable_grad():
            x, *leaves = (t.detach().requires_grad_() for t in (x, *parameters.values()))
            named = {**dict(zip(parameters, leaves, strict=True)), **buffers}
            y = functional_call(layer, named, (x,))
            return y.detach(), torch.autograd.grad(y.pow(3).sum(), (x, *leaves)), list(buffers.values())

    parameters, buffers = state_of(layer)
    first, again, expected = (({n: b.clone() for n, b in buffers.items()}, given(seed)) for seed in (0, 1, 1))
    recorded = make_fx(step, tracing_mode="symbolic")(parameters, *first)
    torch.testing.assert_close(recorded(parameters, *again), step(parameters, *expected), rtol=1e-6, atol=1e-8)


@pytest.mark.filterwarnings(IGNORED)
@each_mode
@pytest.mark.parametrize("case", slow_but((*LAYERS_TRACED, "orthogonal weight"), LAYERS))
def test_linearize_layers(case: tuple[Callable[..., nn.Module], Given], training: bool) -> None:
    make, given = case
    torch.manual_seed(0)
    layer = make(dtype=torch.float64).train(training).requires_grad_(False)

    def forward(x: Tensor) -> Tensor:  # each time from the same state
        return functional_call(layer, {n: t.clone() for part in state_of(layer) for n, t in part.items()}, (x,))

    assert_linear(forward, given(0), given(1))


# What is no tracer.


def test_checks_stay_under_other_modes() -> None:
    with HostReads(), pytest.raises(sg.errors.NonFiniteError):
        sg.sqrtm(torch.full((2, 2), torch.nan))


def test_nothing_is_counted_while_tracing() -> None:
    sg.reset_counts()
    with FakeTensorMode():
        assert tracing()
        sg.inv_sqrtm(torch.zeros(2, 2))
    assert not tracing()
    assert sg.counts() == {}


class Own(sg.Solver):
    def solve(self, H: Tensor) -> tuple[Tensor, Tensor]:
        w, V = torch.linalg.eigh(H)
        return w, V


def test_a_solver_of_ones_own_is_refused_in_words() -> None:
    M = torch.eye(2)
    with pytest.raises(sg.errors.OptionError, match=r"`sqrtm`: where torch traces .* Auto, Jacobi, Lapack, SVD, got Own"):
        make_fx(lambda M: sg.sqrtm(M, solver=Own()))(M)
    broken = torch.compile(lambda M: sg.sqrtm(M, solver=Own()), backend="eager")  # a graph break, and then it runs
    assert torch.equal(broken(M), M)


class Whole(nn.Module):
    """A decomposition by each solver that is an operator, of an input that may come in any number."""

    def forward(self, M: Tensor) -> tuple[Tensor, ...]:
        functions = (
            sg.inv_sqrtm,
            sg.polar,
            partial(sg.sqrtm, solver=sg.NewtonSchulz()),
            partial(sg.spd.mean, metric="bures"),
        )
        return *(f(M) for f in functions), sg.eigvalsh(M, solver=sg.Jacobi()), sg.svdvals(M)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch's own
def test_aot_inductor_runs_the_operators(tmp_path: Path) -> None:
    """It hands an empty list of options over as None."""
    sizes = {"M": {0: torch.export.Dim("b", min=2, max=64)}}
    exported = torch.export.export(Whole(), (matrices(),), dynamic_shapes=sizes)
    package = torch._inductor.aoti_compile_and_package(exported, package_path=str(tmp_path / "whole.pt2"))
    again = torch._inductor.aoti_load_package(package)
    torch.testing.assert_close(tuple(again(matrices(1)[:2])), Whole()(matrices(1)[:2]), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(
    ("make", "given"),
    [*LAYERS.values(), (partial(OrthogonalConv2d, 4, 4, 3), maps)],
)
def test_symbolic_trace_keeps_a_layer_whole(make: Callable[..., nn.Module], given: Given) -> None:
    """As those of torch.nn: torchvision's feature extraction and torch's quantisation walk through such graphs."""
    model = nn.Sequential(nn.Identity(), make()).double()
    graph = torch.fx.symbolic_trace(model)
    assert [node.target for node in graph.graph.nodes if node.op == "call_module"] == ["0", "1"]
    for part in (model, graph):
        part.train()(given(1))  # they share the layer and its state
    torch.testing.assert_close(graph.eval()(given(0)), model.eval()(given(0)))


class Recolored(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.color = sg.nn.WhitenColor2d()

    def forward(self, content: Tensor, style: Tensor) -> Tensor:
        return self.color(content, style=style)  # type: ignore[no-any-return]


def test_symbolic_trace_keeps_a_layer_of_two_inputs_whole() -> None:
    graph, given = torch.fx.symbolic_trace(Recolored()), (maps(0), maps(1))
    torch.testing.assert_close(graph(*given), Recolored()(*given), rtol=0, atol=0)


class Doubled(sg.nn.DecorrelatedBatchNorm2d):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


@pytest.mark.parametrize("model", [sg.nn.DecorrelatedBatchNorm2d(4), nn.Sequential(Doubled(4))])
def test_symbolic_trace_cannot_look_into_a_layer(model: nn.Module) -> None:
    """A forward that goes on after ours would be recorded twice."""
    with pytest.raises(sg.errors.OptionError, match=r"(DecorrelatedBatchNorm2d|Doubled).*Sequential.*is_leaf_module"):
        torch.fx.symbolic_trace(model)


def test_symbolic_trace_is_told_to_wrap_a_function() -> None:
    with pytest.raises(sg.errors.DtypeError, match=r"got Proxy\. .*torch\.fx\.wrap"):
        torch.fx.symbolic_trace(lambda M: sg.sqrtm(M))


@pytest.mark.parametrize("function", [tracing, recording])
def test_the_question_can_be_compiled_alone(function: Callable[[], bool]) -> None:
    """As Dynamo does with a frame that runs inside a compiled call."""
    torch.compile(function, fullgraph=True, backend="eager")()
