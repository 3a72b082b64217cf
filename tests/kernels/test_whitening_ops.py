"""A whitening step under torch.compile: the launches of the eager step as operators, here by interpreter and emulator."""

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

import spectralgrad as sg
from spectralgrad.counters import counts
from spectralgrad.kernels import whitening, whitening_ops
from spectralgrad.nn import DecorrelatedBatchNorm2d, functional, route
from support import cases, routes
from support.fake_gpu import hopper  # noqa: F401
from support.on_cpu import on_cpu  # noqa: F401
from support.routes import take
from support.triton_kernels import in_interpreter

SHAPE = (6, 8, 3, 3)
LAYERS = {
    "d=4": {"group_size": 4},
    "d=8, no weight": {"group_size": 8, "affine": False},
    "d=2, untracked": {"group_size": 2, "track_running_stats": False},
    "d=1, other options": {"group_size": 1, "eps": 1e-2, "momentum": 0.7},
}
LAYOUTS = {
    "contiguous": lambda x: x,
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "bfloat16, channels last": lambda x: x.bfloat16().contiguous(memory_format=torch.channels_last),
    "strided": lambda x: x.movedim(0, -1).contiguous().movedim(-1, 0),
}


STEPS = [  # few: the interpreter and the compiler are slow
    ("d=4", "bfloat16, channels last", "inductor"),
    ("d=4", "strided", "aot_eager"),
    ("d=8, no weight", "contiguous", "aot_eager"),
    ("d=2, untracked", "channels last", "aot_eager"),
    ("d=1, other options", "contiguous", "aot_eager"),
]


@pytest.fixture
def kernels(on_cpu: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:  # noqa: F811
    """The kernels' route, eager and compiled; the calls of their forward and backward, as they happen."""
    take(monkeypatch, routes.kernels)
    seen: list[str] = []
    for name in ("forward", "backward"):
        function = getattr(whitening, name)
        monkeypatch.setattr(whitening, name, lambda *args, f=function, n=name: (seen.append(n), f(*args))[1])
    torch.compiler.reset()
    with sg.checks(False):
        yield seen
    torch.compiler.reset()


def features(seed: int, shape: tuple[int, ...] = SHAPE) -> Tensor:
    x = cases.random(*shape, seed=seed).float()
    return x + 0.5 * x.roll(1, 1) + 1


def steps(call: nn.Module, layer: nn.Module, laid: str, count: int = 2) -> dict[str, Tensor]:
    """What some training steps of a layer, in front of a convolution, give and leave behind."""
    found: dict[str, Tensor] = {}
    for k in range(count):
        leaf = LAYOUTS[laid](features(k)).requires_grad_()
        y = call(leaf)
        y.backward(cases.random(*y.shape, seed=99 + k).to(y.dtype))
        assert leaf.grad is not None
        found |= {f"y {k}": y.detach(), f"dx {k}": leaf.grad}
    found |= {f"d{name}": p.grad for name, p in layer.named_parameters() if p.grad is not None}
    return found | {name: buffer.clone() for name, buffer in layer.named_buffers()}


def make(options: str) -> DecorrelatedBatchNorm2d:
    layer = DecorrelatedBatchNorm2d(SHAPE[1], **LAYERS[options])
    if layer.weight is not None:
        nn.init.normal_(layer.weight, generator=torch.Generator().manual_seed(1))
        nn.init.normal_(layer.bias, generator=torch.Generator().manual_seed(2))
    return layer


@pytest.mark.slow
@in_interpreter
@pytest.mark.parametrize(("options", "laid", "backend"), STEPS)
def test_interpreted_compiled_steps_are_the_eager_ones(kernels: list[str], options: str, laid: str, backend: str) -> None:
    layer = make(options)
    other = copy.deepcopy(layer)
    want = steps(layer, layer, laid)
    eager = list(kernels)
    kernels.clear()
    counter = CompileCounterWithBackend(backend)
    got = steps(torch.compile(other, fullgraph=True, backend=counter), other, laid)
    assert kernels == eager == ["forward", "backward"] * 2  # the same kernels, as often
    assert counter.frame_count == 1  # compiled once for all steps
    assert got.keys() == want.keys()
    for key, value in want.items():
        torch.testing.assert_close(got[key], value, rtol=1e-6, atol=1e-6, msg=lambda text, key=key: f"{key}: {text}")
        assert got[key].stride() == value.stride(), key


@pytest.mark.slow
@in_interpreter
def test_interpreted_inside_a_network(kernels: list[str]) -> None:
    """Between convolutions, where the compiler chooses strides; every parameter gets its gradient."""

    def network() -> nn.Sequential:
        torch.manual_seed(0)
        convolutions = nn.Conv2d(3, 8, 3, bias=False), nn.Conv2d(8, 4, 3)
        norms = DecorrelatedBatchNorm2d(8, 4), DecorrelatedBatchNorm2d(4)
        return nn.Sequential(convolutions[0], norms[0], nn.ReLU(), convolutions[1], norms[1])

    x = features(0, (5, 3, 7, 7)).contiguous(memory_format=torch.channels_last)
    found = []
    for compiled in (False, True):
        net = network().to(memory_format=torch.channels_last)
        (torch.compile(net, fullgraph=True) if compiled else net)(x).pow(3).mean().backward()
        found.append({n: p.grad for n, p in net.named_parameters()} | dict(net.named_buffers()))
    for key, value in found[0].items():
        torch.testing.assert_close(found[1][key], value, rtol=1e-4, atol=1e-5, msg=lambda t, key=key: f"{key}: {t}")
    assert kernels.count("forward") == kernels.count("backward") == 4


@pytest.mark.slow
@in_interpreter
def test_interpreted_only_what_is_needed(kernels: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A frozen input needs no gradient of its own size, a frozen weight none at all."""
    needed: list[bool] = []
    backward = whitening.backward
    monkeypatch.setattr(whitening, "backward", lambda *args: (needed.append(args[-1]), backward(*args))[1])
    layer = make("d=4")
    torch.compile(layer, fullgraph=True, backend="aot_eager")(features(0)).sum().backward()
    assert layer.weight.grad is not None
    layer.weight.requires_grad_(False)
    layer.bias.requires_grad_(False)
    x = features(0).requires_grad_()
    torch.compile(layer, fullgraph=True, backend="aot_eager")(x).pow(3).sum().backward()
    assert needed == [False, True]
    assert x.grad is not None


@pytest.mark.slow
@in_interpreter
@pytest.mark.usefixtures("kernels")
def test_interpreted_operators_pass_torch_s_own_check() -> None:
    """Schema, fake results, gradient registration and tracing, by torch.library.opcheck."""
    w, b = (cases.random(8, seed=seed).float().requires_grad_() for seed in (1, 2))
    for laid, weight, bias in (("channels last", w, b), ("contiguous", None, None)):
        x = LAYOUTS[laid](features(0)).requires_grad_()
        torch.library.opcheck(torch.ops.spectralgrad.whiten.default, (x, weight, bias, 2, 1e-3))
        y, kept = whitening_ops.whiten(x.detach(), weight, bias, 2, 1e-3)
        args = (y.detach(), x.detach(), None if weight is None else weight.detach(), kept, 2, 1e-3, weight is not None)
        torch.library.opcheck(torch.ops.spectralgrad.whiten_gradients.default, args)


@pytest.mark.slow
@in_interpreter
@pytest.mark.usefixtures("kernels")
def test_interpreted_gradient_of_the_operator() -> None:
    """Against autograd through the plain composition in float64."""
    x, w, b = features(0), cases.random(8, seed=1).float(), cases.random(8, seed=2).float()
    G = cases.random(*SHAPE, seed=3).float()
    given = [t.clone().requires_grad_() for t in (x, w, b)]
    got = torch.autograd.grad(whitening_ops.whiten(*given, 2, 1e-3)[0], given, G)
    exact = [t.double().requires_grad_() for t in (x, w, b)]
    y = functional.whiten(*exact, group_size=4, eps=1e-3)
    want = torch.autograd.grad(y, exact, G.double())
    for a, e in zip(got, want, strict=True):
        assert cases.relative_error(a, e) < 3e-4
    assert cases.relative_error(got[0], G) > 0.1  # control


@pytest.mark.slow
@in_interpreter
def test_interpreted_what_else_a_step_leaves(kernels: list[str]) -> None:
    """The covariance that a monitor reads, and the count of groups with NaN."""
    layer = make("d=4")
    layer.monitored = True
    twin = copy.deepcopy(layer)
    x = features(0)
    layer(x)
    compiled = torch.compile(twin, fullgraph=True, backend="aot_eager")
    compiled(x)
    torch.testing.assert_close(twin.last_covariance, layer.last_covariance)
    before = counts().get("nonfinite_input", 0)
    x[0, 0, 0, 0] = float("nan")
    assert compiled(x)[:, :4].isnan().all()
    assert counts()["nonfinite_input"] == before + 1
    assert kernels == ["forward"] * 3


@pytest.mark.slow
@in_interpreter
def test_interpreted_statistics_of_another_batch_size(kernels: list[str]) -> None:
    layer = make("d=4")
    other = copy.deepcopy(layer)
    compiled = torch.compile(other, fullgraph=True, backend="aot_eager", dynamic=True)
    for images in (6, 3):
        x = features(images, (images, *SHAPE[1:]))
        torch.testing.assert_close(compiled(x), layer(x))
    torch.testing.assert_close(other.running_covariance, layer.running_covariance)
    assert kernels == ["forward"] * 4


# Which way, without a kernel.


WAYS: list[tuple[str, dict[str, object], type[route.Route]]] = [
    ("as it is", {}, route.Compiled),
    ("another rule", {"gradient": sg.Taylor(9)}, route.Plain),
    ("another solver", {"solver": sg.NewtonSchulz(steps=5)}, route.Plain),
    ("PCA", {"whitening": "pca"}, route.Plain),
    ("a cumulative mean", {"momentum": None}, route.Plain),
    ("float64", {"dtype": torch.float64}, route.Plain),
]


@pytest.mark.parametrize(("options", "kind"), [way[1:] for way in WAYS], ids=[way[0] for way in WAYS])
def test_which_layers_compile_to_kernels(
    options: dict[str, object], kind: type[route.Route], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route, "compiling", lambda: True)
    monkeypatch.setattr(whitening_ops, "runs_on", routes.always)
    layer = DecorrelatedBatchNorm2d(8, 4, **options)
    x = torch.ones(SHAPE, dtype=options.get("dtype", torch.float32))
    assert type(route.route_of(layer, x)) is kind


def test_not_while_exporting_nor_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route, "compiling", lambda: True)
    layer, x = DecorrelatedBatchNorm2d(8, 4), torch.ones(SHAPE)
    assert route.route_of(layer, x) is route.PLAIN  # on the CPU
    monkeypatch.setattr(whitening_ops, "runs_on", routes.always)
    assert route.route_of(layer, x) is route.COMPILED
    monkeypatch.setattr(route, "exporting", lambda: True)
    assert route.route_of(layer, x) is route.PLAIN


@pytest.mark.usefixtures("hopper")
def test_operators_run_where_the_kernels_do(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    monkeypatch.setattr(whitening_ops, "device_counter", lambda *args: made.append(args))
    assert whitening_ops.runs_on("cuda", 0, 16)
    assert whitening_ops.runs_on("cuda", 0, 64)
    assert not whitening_ops.runs_on("cuda", 0, 256)
    assert not whitening_ops.runs_on("cpu", None, 16)
    assert made == [("nonfinite_input", torch.device("cuda", 0))] * 2  # before anything is captured
