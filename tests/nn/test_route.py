"""The layers' routes: one node, on the CPU block by block, agrees with the plain composition."""

import copy
import gc
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.autograd.gradcheck import GradcheckError
from torch.utils.checkpoint import checkpoint

import spectralgrad as sg
from spectralgrad.errors import NonFiniteError, ShapeError
from spectralgrad.kernels import tiles
from spectralgrad.nn import DecorrelatedBatchNorm1d, DecorrelatedBatchNorm2d, PCADenoise2d, route
from spectralgrad.nn import passes as passes_over
from spectralgrad.nn.base import BatchStatistics
from support import cases
from support.features import Make, images
from support.layers import EVERY, each_layer, each_mode, trained
from support.marks import slow_but
from support.routes import node_of, one_node, plain, take
from support.triton_kernels import in_interpreter

RULES: dict[str, Make] = {
    **{f"zca {cases.ident(rule)}": partial(DecorrelatedBatchNorm2d, 6, gradient=rule) for rule in cases.GRADIENTS},
    **{
        f"pca {cases.ident(rule)}": partial(DecorrelatedBatchNorm2d, 6, 3, whitening="pca", gradient=rule)
        for rule in cases.RULES
    },
    **{f"zca {cases.ident(solver)}": partial(DecorrelatedBatchNorm2d, 6, solver=solver) for solver in cases.SOLVERS},
    "denoise Taylor": partial(PCADenoise2d, 6, rank=3, gradient=sg.Taylor(9)),
}


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> None:
    take(monkeypatch, one_node)


@pytest.fixture
def passes(forced: None, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the passes over the input, as they happen."""
    seen: list[str] = []

    def spy(module: Any, name: str) -> None:
        function = getattr(module, name)

        def record(*args: Any, **kwargs: Any) -> Any:
            seen.append(name)
            return function(*args, **kwargs)

        monkeypatch.setattr(module, name, record)

    for name in ("grouped_moments", "transform", "transform_sums", "combine"):
        spy(passes_over, name)
    return seen


def results(layer: BatchStatistics, x: Tensor, is_fused: bool, monkeypatch: pytest.MonkeyPatch) -> dict[str, Tensor]:
    """Output, gradients and state after one step."""
    layer, x = copy.deepcopy(layer), x.clone().requires_grad_()
    layer.monitored = True
    with monkeypatch.context() as patch:
        take(patch, one_node if is_fused else plain)
        y = layer(x)
        (y * cases.random(*y.shape, seed=9).to(y)).sum().backward()
    assert (node_of(y) in ("Normalized", "Transformed")) == is_fused
    found = {"y": y.detach(), "x": x.grad, **{f"gradient of {n}": p.grad for n, p in layer.named_parameters()}}
    if layer.last_covariance is not None:
        found["covariance"] = layer.last_covariance
    return {**found, **{name: buffer.clone() for name, buffer in layer.named_buffers()}}  # type: ignore[dict-item]


def agree(layer: BatchStatistics, x: Tensor, monkeypatch: pytest.MonkeyPatch, **tolerance: float) -> None:
    want, got = (results(layer, x, is_fused, monkeypatch) for is_fused in (False, True))
    assert want.keys() == got.keys()
    for name in want:
        torch.testing.assert_close(got[name], want[name], msg=lambda text, name=name: f"{name}: {text}", **tolerance)


# Against the plain composition


@each_mode
@pytest.mark.parametrize("affine", [True, False], ids=["affine", "plain"])
@each_layer
def test_every_layer(make: Make, affine: bool, training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    agree(trained(make, affine=affine).train(training), images() * 3, monkeypatch)


@pytest.mark.parametrize("make", RULES.values(), ids=RULES)
def test_every_rule_and_solver(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    agree(make(dtype=torch.float64), images(), monkeypatch)


@pytest.mark.parametrize("layout", ["channels last", "strided", "expanded gradient"])
def test_memory_formats(layout: str, forced: None, monkeypatch: pytest.MonkeyPatch) -> None:
    x = images()
    if layout == "channels last":
        x = x.contiguous(memory_format=torch.channels_last)
    if layout == "strided":
        x = x.movedim(0, -1).contiguous().movedim(-1, 0)
    agree(trained(EVERY["zca"]).train(), x, monkeypatch)
    y = trained(EVERY["zca"]).train()(x.requires_grad_())
    assert y.is_contiguous() == (layout != "channels last")
    assert y.is_contiguous(memory_format=torch.channels_last) == (layout == "channels last")
    y.sum().backward()  # comes back as one number with strides of 0
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.zeros_like(x), atol=1e-10, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=cases.ident)
@pytest.mark.parametrize("of_layer", ["float32", "half"])
def test_half_precision(dtype: torch.dtype, of_layer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Statistics in float32, results in the dtype of the input, gradients in that of the parameters."""
    layer = EVERY["zca"](dtype=dtype if of_layer == "half" else None)
    x = images(16).to(dtype)
    agree(layer, x, monkeypatch, rtol=8 * cases.eps(dtype), atol=8 * cases.eps(dtype))
    got = results(layer, x, True, monkeypatch)
    assert got["y"].dtype == got["x"].dtype == dtype
    assert got["gradient of weight"].dtype == layer.weight.dtype


def test_under_autocast(forced: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The statistics of a bfloat16 input do not feel autocast: under it they are computed in double."""
    layer, x = EVERY["zca"](), images(16, dtype=torch.float32).bfloat16()
    other = copy.deepcopy(layer)
    want = other(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = layer(x)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(layer.running_covariance, other.running_covariance, rtol=0, atol=2 * cases.eps(torch.float32))
    assert cases.relative_error(got.detach(), want.detach()) <= cases.eps(torch.bfloat16) / 2


@pytest.mark.parametrize("mean", [1e2, 1e4])
def test_far_mean(mean: float, forced: None) -> None:
    """What rounding leaves in the mean is carried along: output and gradient feel a mean only by the input's rounding."""
    x = (cases.random(500, 6) + mean).float()
    found = []
    for dtype in (torch.float32, torch.float64):
        given = x.to(dtype).requires_grad_()
        y = DecorrelatedBatchNorm1d(6, dtype=dtype)(given)
        (g,) = torch.autograd.grad((y**3).sum(), given)
        found.append((y.detach(), g))
    for got, want in zip(*found, strict=True):
        assert cases.relative_error(got, want) < 1e-5


# Gradients


@pytest.mark.covering(1)
@each_mode
@each_layer
def test_gradcheck(make: Make, training: bool, forced: None) -> None:
    layer = trained(make).train(training)
    layer.track_running_stats = False
    x, weight, bias = images(2).requires_grad_(), layer.weight, layer.bias

    def f(*_: Tensor) -> Tensor:
        return layer(x)

    assert gradcheck(f, (x, weight, bias))


FAULTS = {  # negative controls: each term of the gradient is needed
    "scatter": ("combine", lambda f: lambda g, x, A, S, *rest: f(g, x, A, 0 * S, *rest)),
    "its transpose": ("combine", lambda f: lambda g, x, A, S, *rest: f(g, x, A, S / 2, *rest)),
    "mean": ("combine", lambda f: lambda g, x, A, S, mean, rest, shift: f(g, x, A, S, mean, rest, 0 * shift)),
    "transposed sums": ("transform_sums", lambda f: lambda *args: (f(*args)[0].mT.contiguous(), f(*args)[1])),
}


@pytest.mark.parametrize(("name", "fault"), FAULTS.values(), ids=FAULTS)
def test_a_wrong_gradient_is_seen(name: str, fault: Any, forced: None, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = trained(EVERY["zca"]).train()
    layer.track_running_stats = False
    assert gradcheck(lambda x: layer(x).pow(3), images(2).requires_grad_())
    monkeypatch.setattr(passes_over, name, fault(getattr(passes_over, name)))
    with pytest.raises(GradcheckError):
        gradcheck(lambda x: layer(x).pow(3), images(2).requires_grad_())


@pytest.mark.parametrize("name", slow_but(["zca"], ["zca", "pca", "rank"]))
def test_gradgradcheck(name: str, forced: None) -> None:
    layer = EVERY[name](dtype=torch.float64, track_running_stats=False)
    x = images(2).requires_grad_()
    assert gradgradcheck(lambda *_: layer(x), (x, layer.weight, layer.bias))


def test_second_derivative_of_shared_inputs(forced: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A weight that the input also depends on: no path is counted twice."""
    found = []
    for is_fused in (True, False):
        take(monkeypatch, one_node if is_fused else plain)
        layer = EVERY["zca"](dtype=torch.float64)
        x = images(2) * layer.weight[:, None, None].square()
        (first,) = torch.autograd.grad(layer(x).pow(3).sum(), layer.weight, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), layer.weight)
        found.append((first.detach(), second))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("frozen", [("x",), ("weight",), ("bias",), ("x", "weight"), ("x", "bias"), ("weight", "bias")])
def test_frozen(frozen: tuple[str, ...], forced: None) -> None:
    """What needs no gradient gets none, and the others get theirs."""
    layer, x = trained(EVERY["zca"]).train(), images().requires_grad_()
    tensors = {"x": x, "weight": layer.weight, "bias": layer.bias}
    layer(x).pow(3).sum().backward()
    want = {name: tensor.grad for name, tensor in tensors.items()}
    for name, tensor in tensors.items():
        tensor.grad = None
        tensor.requires_grad_(name not in frozen)
    layer(x).pow(3).sum().backward()
    for name, tensor in tensors.items():
        assert (tensor.grad is None) == (name in frozen)
        if name not in frozen:
            torch.testing.assert_close(tensor.grad, want[name])


def test_nothing_to_differentiate(passes: list[str]) -> None:
    layer = EVERY["zca"](dtype=torch.float64)
    with torch.no_grad():
        assert not layer(images().requires_grad_()).requires_grad
    layer.requires_grad_(False)
    assert not layer(images()).requires_grad
    with torch.inference_mode():
        layer(images())
        layer.eval()(images())
    assert passes == ["grouped_moments", "transform"] * 3 + ["transform"]


def test_two_backward_passes(forced: None) -> None:
    layer, x = EVERY["zca"](dtype=torch.float64), images().requires_grad_()
    y = layer(x).pow(3).sum()
    first = torch.autograd.grad(y, [x, layer.weight], retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(y, [x, layer.weight]), first, rtol=0, atol=0)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(y, x)


def test_four_passes_in_a_step(passes: list[str]) -> None:
    layer, x = EVERY["zca"](dtype=torch.float64), images().requires_grad_()
    layer(x).sum().backward()
    assert passes == ["grouped_moments", "transform", "transform_sums", "combine"]
    passes.clear()
    layer.eval().requires_grad_(False)
    layer(x).sum().backward()
    assert passes == ["transform", "transform"]


def test_memory_goes_with_the_output(forced: None) -> None:
    """No cycle: without the collector, what the node holds is gone with the output."""
    layer, x = EVERY["zca"](dtype=torch.float64), images().requires_grad_()
    gc.collect()
    gc.disable()
    try:
        y = layer(x)
        node = y.grad_fn
        assert node is not None
        small = weakref.ref(node.step)  # type: ignore[attr-defined]
        del node
        assert small() is not None
        y.sum().backward()
        del y
        assert small() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(reentrant: bool, passes: list[str]) -> None:
    layer, x = EVERY["zca"](dtype=torch.float64), images().requires_grad_()
    want = torch.autograd.grad(layer(x).pow(3).sum(), [x, layer.weight])
    passes.clear()
    checkpoint(layer, x, use_reentrant=reentrant).pow(3).sum().backward()
    torch.testing.assert_close((x.grad, layer.weight.grad), want)
    assert passes.count("grouped_moments") == 2  # once forward, once again for backward, and no third time


def test_saved_tensors_on_the_cpu(forced: None) -> None:
    layer, x = EVERY["pca"](dtype=torch.float64), images().requires_grad_()
    want = torch.autograd.grad(layer(x).pow(3).sum(), x)
    with torch.autograd.graph.save_on_cpu():
        y = layer(x).pow(3).sum()
    torch.testing.assert_close(torch.autograd.grad(y, x), want)


# State and errors


def test_errors_leave_no_trace(forced: None) -> None:
    layer = EVERY["zca"]()
    layer(images(dtype=torch.float32))
    before = copy.deepcopy(layer.state_dict())
    for x, error, message in (
        (torch.ones(1, 6, 1, 1), ShapeError, "more than 1 value per channel"),
        (torch.full((4, 6, 2, 2), torch.nan), NonFiniteError, "96 NaN"),
        (images(dtype=torch.float32) * 1e30, NonFiniteError, "overflows torch.float32"),
    ):
        with pytest.raises(error, match=message):
            layer(x)
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())


def test_eval_sees_what_training_did(forced: None) -> None:
    """The kept matrix is thrown away when the fused update moves the buffer."""
    layer, x = EVERY["zca"](dtype=torch.float64), images()
    layer.eval()(x)
    layer.train()(x * 3)
    got = layer.eval()(x)
    layer._kept = None
    torch.testing.assert_close(got, layer(x), rtol=0, atol=0)


# What takes the plain path


@pytest.mark.parametrize("how", ["vmap", "jvp", "forward mode", "empty"])
def test_the_plain_path(how: str, passes: list[str]) -> None:
    layer, x = EVERY["zca"](dtype=torch.float64, track_running_stats=False), images()
    if how == "vmap":
        torch.func.vmap(layer)(torch.stack([x, x]))
    elif how == "jvp":
        torch.func.jvp(layer, (x,), (x,))
    elif how == "forward mode":
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, x)
            assert torch.autograd.forward_ad.unpack_dual(layer(dual)).tangent is not None
    else:
        layer(x[:0].requires_grad_()).sum().backward()
    assert passes == []


def test_compile_takes_the_plain_path(passes: list[str]) -> None:
    torch.compiler.reset()
    layer, x = EVERY["zca"](dtype=torch.float64), images().requires_grad_()
    torch.compile(layer, fullgraph=True, backend="aot_eager")(x).sum().backward()
    assert passes == []


@pytest.mark.parametrize("case", ["large", "small", "a layer in float64"])
def test_the_cpu_takes_one_node_for_large_inputs(case: str, passes: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    take(monkeypatch, route.route_of)
    x = images(dtype=torch.float32).requires_grad_()
    monkeypatch.setattr(passes_over, "LEAST", x.numel() + (case == "small"))
    layer = EVERY["zca"](dtype=torch.float64 if "float64" in case else None)
    layer(x).sum().backward()
    fused = ["grouped_moments", "transform", "transform_sums", "combine"]
    assert passes == (fused if case == "large" else [])


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_a_layer_on_another_device_is_torchs_to_refuse(
    affine: bool, training: bool, passes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No pass gets an address that its device has not."""
    take(monkeypatch, route.route_of)
    x = images(dtype=torch.float32)
    monkeypatch.setattr(passes_over, "LEAST", x.numel())
    layer = DecorrelatedBatchNorm2d(x.shape[1], affine=affine, device="meta").train(training)
    with pytest.raises((RuntimeError, NotImplementedError)):
        layer(x)
    assert passes == []


# Iterations that draw their starts, and process groups: two nodes, with what autograd follows between them


@pytest.mark.parametrize("whitening", ["zca", "pca"])
def test_iterations_that_draw_their_starts(whitening: str, passes: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """From the same starts, against the plain way; each starts once, for the second derivative too."""
    found = []
    for way in (one_node, plain):
        take(monkeypatch, way)
        solver = sg.PowerDeflation(20, generator=torch.Generator().manual_seed(0))
        layer = DecorrelatedBatchNorm2d(6, 3, solver=solver, dtype=torch.float64, whitening=whitening)
        x = images(2).requires_grad_()
        (first,) = torch.autograd.grad(layer(x).pow(3).sum(), x, create_graph=True)
        found.append((first.detach(), *torch.autograd.grad(first.square().sum(), x), layer.running_covariance))
        seen, passes[:] = [*passes], []
        assert seen[:2] == (["grouped_moments", "transform"] if way is one_node else [])
    torch.testing.assert_close(*found)


def test_process_group(forced: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In a group of one rank, against none; the second derivative too."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        group = torch.distributed.group.WORLD
        alone, grouped = (DecorrelatedBatchNorm2d(6, 3, dtype=torch.float64, process_group=g) for g in (None, group))
        agree(grouped, images(), monkeypatch)
        found = []
        for layer in (alone, grouped):
            x = images(2).requires_grad_()
            (first,) = torch.autograd.grad(layer(x).pow(3).sum(), x, create_graph=True)
            found.append((first.detach(), *torch.autograd.grad(first.square().sum(), x)))
        torch.testing.assert_close(*found)
    finally:
        torch.distributed.destroy_process_group()


# The kernels themselves, in Triton's interpreter


@in_interpreter
@pytest.mark.parametrize("name", ["zca", "pca", "rank"])
def test_interpreted_layer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tiles.fits(torch.ones(1, 1), 1)
    for training in (True, False):
        layer = trained(EVERY[name]).float().train(training)
        agree(layer, images(dtype=torch.float32), monkeypatch, rtol=1e-3, atol=1e-4)
