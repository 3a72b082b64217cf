"""What all layers with batch statistics share: they behave as torch.nn.BatchNorm does, and keep what eval mode needs."""

import copy
import io
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad, gradcheck, gradgradcheck

import spectralgrad as sg
from spectralgrad.errors import DtypeError, NonFiniteError, ShapeError
from spectralgrad.nn import (
    DecorrelatedBatchNorm1d,
    DecorrelatedBatchNorm2d,
    DecorrelatedBatchNorm3d,
    PCADenoise1d,
    base,
)
from support import cases
from support.features import Counting, Layer, Make, correlated, gradient, images
from support.layers import EVERY, WHITENING, each_layer, each_mode, trained
from support.routes import Choose, one_node, plain, take

DIMENSIONS: dict[str, tuple[Make, tuple[int, ...]]] = {
    "1d (N, C)": (partial(DecorrelatedBatchNorm1d, 6, group_size=3), (40, 6)),
    "1d (N, C, L)": (partial(DecorrelatedBatchNorm1d, 6, group_size=3), (8, 6, 5)),
    "2d": (partial(DecorrelatedBatchNorm2d, 6, group_size=3), (8, 6, 5, 1)),
    "3d": (partial(DecorrelatedBatchNorm3d, 6, group_size=3), (2, 6, 2, 5, 2)),
    "denoise 1d (N, C)": (partial(PCADenoise1d, 6, rank=2), (40, 6)),
    "denoise 1d (N, C, L)": (partial(PCADenoise1d, 6, rank=2), (8, 6, 5)),
}


@pytest.mark.parametrize(("make", "shape"), DIMENSIONS.values(), ids=DIMENSIONS)
def test_dimensions(make: Make, shape: tuple[int, ...]) -> None:
    """All layouts of the same samples give the same numbers, in training and after it."""
    n = 40
    samples = correlated(n)
    layer, flat = make(dtype=torch.float64), make(dtype=torch.float64)
    if not hasattr(layer, "rank"):
        flat = DecorrelatedBatchNorm1d(6, group_size=3, dtype=torch.float64)
    x = samples.view(shape[0], *shape[2:], 6).movedim(-1, 1)
    assert x.shape == shape
    for _ in range(2):
        want = flat(samples).view(shape[0], *shape[2:], 6).movedim(-1, 1)
        torch.testing.assert_close(layer(x), want)
        layer.eval(), flat.eval()


# Gradients and dtypes


@pytest.mark.covering(2)
@each_mode
@pytest.mark.parametrize("affine", [True, False], ids=["affine", "plain"])
@each_layer
def test_gradcheck(make: Make, affine: bool, training: bool) -> None:
    layer = trained(make, affine=affine).train(training)
    layer.track_running_stats = False  # or every evaluation would move the statistics
    names = [name for name, _ in layer.named_parameters()]

    def f(x: Tensor, *parameters: Tensor) -> Tensor:
        return torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (x,))

    inputs = (images(2).requires_grad_(), *(p.detach().clone().requires_grad_() for p in layer.parameters()))
    assert gradcheck(f, inputs)


@pytest.mark.parametrize("name", ["zca", "pca", "rank"])
def test_gradgradcheck(name: str) -> None:
    layer, weight = EVERY[name](dtype=torch.float64, track_running_stats=False), images(2, seed=9)
    assert gradgradcheck(lambda x: (weight * layer(x)).sum(), images(2).requires_grad_())


@each_mode
@pytest.mark.parametrize("name", ["zca", "pca", "rank", "all energy"])
def test_half_precision(name: str, training: bool) -> None:
    """Half precision comes in, float32 works, half precision goes out."""
    x = images(16, dtype=torch.float32)
    for dtype in (torch.bfloat16, torch.float16):
        layer = EVERY[name]()
        layer(x)
        layer.train(training)
        want = copy.deepcopy(layer)(x.to(dtype).float())
        got = layer(x.to(dtype))
        assert got.dtype == dtype
        torch.testing.assert_close(got, want.to(dtype), rtol=0, atol=0)
        assert layer.running_covariance.dtype == torch.float32
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert layer(x).dtype == torch.float32
            assert layer(x.to(dtype)).dtype == dtype
    layer = EVERY[name]().bfloat16()
    assert layer(x.bfloat16()).dtype == torch.bfloat16
    assert layer.running_covariance.dtype == torch.bfloat16
    assert layer.train(training)(x.bfloat16()).isfinite().all()


@each_layer
def test_the_wider_dtype_computes(make: Make) -> None:
    x = images(16)
    wide, narrow = make(dtype=torch.float64), make()
    assert cases.relative_error(narrow(x).detach(), wide(x).detach()) < 1e-12  # float64 input, float32 state
    assert narrow(x).dtype == torch.float64
    assert wide(x.float()).dtype == torch.float32


@each_layer
def test_batch_statistics_in_eval_mode(make: Make) -> None:
    layer, tracking = make(track_running_stats=False, dtype=torch.float64), make(dtype=torch.float64)
    x = images()
    y = tracking(x)
    for training in (True, False):
        torch.testing.assert_close(layer.train(training)(x), y)
    assert all(buffer is None for buffer in layer._buffers.values())
    tracking(2 * x)
    assert not torch.allclose(tracking.eval()(x), y)
    tracking.train().track_running_stats = False  # as torch.nn.BatchNorm: no update from now on
    before = copy.deepcopy(tracking.state_dict())
    tracking(x)
    assert unchanged(tracking, before)


def unchanged(layer: Layer, before: dict[str, Tensor]) -> bool:
    after = layer.state_dict()
    return list(after) == list(before) and all(torch.equal(after[name], before[name]) for name in before)


# What eval mode keeps


def ramp(layer: Layer) -> Tensor:
    """Other channels, other scales: a factor alone would leave a projector as it is."""
    r = torch.linspace(1, 2, layer.group_size, dtype=torch.float64)
    return r[:, None] * r


def in_place(layer: Layer) -> None:
    layer.running_covariance.mul_(ramp(layer))


def indexed(layer: Layer) -> None:
    layer.running_covariance[..., 0, 0] = 3


def through_a_view(layer: Layer) -> None:
    layer.running_covariance.view(-1)[0] += 1


def through_detach(layer: Layer) -> None:
    layer.running_covariance.detach().mul_(ramp(layer))


def new_buffer(layer: Layer) -> None:
    layer.running_covariance = layer.running_covariance * ramp(layer)


def new_memory(layer: Layer) -> None:
    layer.running_covariance.data = layer.running_covariance.data * ramp(layer)


def load(layer: Layer) -> None:
    layer.load_state_dict({name: 2 * value for name, value in layer.state_dict().items()})


def load_by_assignment(layer: Layer) -> None:
    layer.load_state_dict({name: 2 * value for name, value in layer.state_dict().items()}, assign=True)


def reset(layer: Layer) -> None:
    layer.reset_running_stats()


def train(layer: Layer) -> None:
    layer.train()(3 * images(seed=5))
    layer.eval()


def without_a_version(layer: Layer) -> None:
    """As torch.distributed's broadcast and all_reduce write."""
    version = layer.running_covariance._version
    layer.running_covariance.data.mul_(ramp(layer))
    assert layer.running_covariance._version == version
    layer.eval()


def other_dtype(layer: Layer) -> None:
    layer.float()


CHANGES = [
    *(in_place, indexed, through_a_view, through_detach, new_buffer, new_memory),
    *(load, load_by_assignment, reset, train, without_a_version, other_dtype),
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("name", ["zca", "pca", "rank"])
@pytest.mark.usefixtures("without_native")  # the solver that counts is LAPACK
def test_eval_mode_decomposes_once_until_the_statistics_change(name: str, change: Callable[[Layer], None]) -> None:
    layer = trained(EVERY[name])
    layer.solver = solver = Counting()
    x = images(4)
    first = layer(x)
    for _ in range(3):
        assert torch.equal(layer(x), first)
    assert len(solver.shapes) == 1
    change(layer)
    solver.shapes.clear()
    got = layer(x)
    assert not torch.equal(got, first)
    assert torch.equal(got, layer(x))
    assert len(solver.shapes) == 1
    fresh = EVERY[name](dtype=layer.weight.dtype).eval()
    fresh.load_state_dict(layer.state_dict())
    assert torch.equal(got, fresh(x))


def test_eval_mode_sees_updates_that_leave_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch 2.11 does them on CUDA: trained, evaluated, trained again, evaluated again."""
    updates: list[float] = []

    def without_versions(buffers: list[Tensor], values: list[Tensor], weight: float) -> None:
        updates.append(weight)
        for buffer, value in zip(buffers, values, strict=True):
            buffer.data.lerp_(value, weight)

    monkeypatch.setattr(base, "foreach_lerp_", without_versions)
    take(monkeypatch, one_node)  # the path of CUDA
    layer = trained(EVERY["zca"])
    first = layer(images(4))
    layer.training = True  # and not train(), after which all is computed anew
    layer(3 * images(4))
    layer.training = False
    got = layer(images(4))
    fresh = EVERY["zca"]().eval()
    fresh.load_state_dict(layer.state_dict())
    assert updates
    assert not torch.equal(got, first)
    torch.testing.assert_close(got, fresh.to(got.dtype)(images(4)))


def test_other_options_are_another_matrix() -> None:
    layer = trained(WHITENING["zca"])
    x = images(4)
    before = layer(x)
    layer.eps = 0.5
    assert not torch.allclose(layer(x), before)
    layer.eps = 1e-4
    assert torch.equal(layer(x), before)


@pytest.mark.parametrize("name", ["zca", "pca", "rank"])
def test_backward_after_inference_mode(name: str) -> None:
    layer, x = trained(EVERY[name]), images(4)
    with torch.inference_mode():
        want = layer(x)
    leaf = x.clone().requires_grad_()
    y = layer(leaf)
    assert torch.equal(y, want)
    y.sum().backward()
    assert layer.weight.grad.isfinite().all()
    with torch.inference_mode():  # buffers without versions
        copied = EVERY[name](dtype=torch.float64).eval()
        copied.load_state_dict(layer.state_dict())
        assert torch.equal(copied(x), want)
        in_place(copied)
        assert not torch.equal(copied(x), want)


# As torch.nn.BatchNorm


@each_layer
def test_state_dict_copy_pickle_save(make: Make) -> None:
    layer, x = trained(make), images(4)
    want = layer(x)
    other = make(dtype=torch.float64).eval()
    assert not torch.allclose(other(x), want)
    other.load_state_dict(layer.state_dict())
    saved = io.BytesIO()
    torch.save(layer, saved)
    saved.seek(0)
    copies = [other, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), torch.load(saved, weights_only=False)]
    for twin in copies:
        assert torch.equal(twin(x), want)
        assert repr(twin) == repr(layer)
        assert {name: v.shape for name, v in twin.state_dict().items()} == {
            n: v.shape for n, v in layer.state_dict().items()
        }
        twin.train()(x)  # and nothing is shared
    assert torch.equal(layer(x), want)
    assert layer.state_dict()._metadata[""]["version"] == 1


def test_state_of_another_kind_is_refused() -> None:
    with pytest.raises(RuntimeError, match="running_whitening"):
        WHITENING["zca"]().load_state_dict(WHITENING["running whitening"]().state_dict())


@each_layer
def test_meta_device_and_reset(make: Make) -> None:
    layer = make(device="meta")
    assert {value.device.type for value in layer.state_dict().values()} == {"meta"}
    assert layer(torch.empty(4, 6, 3, 2, device="meta")).shape == (4, 6, 3, 2)
    layer = layer.to_empty(device="cpu")
    for value in layer.state_dict().values():
        value.fill_(7)
    layer.reset_parameters()
    assert unchanged(layer, make().state_dict())
    assert torch.equal(layer.eval()(images(dtype=torch.float32)), make().eval()(images(dtype=torch.float32)))


@each_mode
@each_layer
def test_channels_last(make: Make, training: bool) -> None:
    x = images()
    want = trained(make).train(training)(x)
    got = trained(make).train(training)(x.contiguous(memory_format=torch.channels_last))
    torch.testing.assert_close(got, want)
    assert got.is_contiguous(memory_format=torch.channels_last)
    assert want.is_contiguous()
    strided = x.movedim(0, -1).contiguous().movedim(-1, 0)
    torch.testing.assert_close(trained(make).train(training)(strided), want)


def test_channels_last_3d() -> None:
    x = images().unsqueeze(2).expand(-1, -1, 2, -1, -1).contiguous(memory_format=torch.channels_last_3d)
    assert DecorrelatedBatchNorm3d(6, dtype=torch.float64)(x).is_contiguous(memory_format=torch.channels_last_3d)


@each_layer
def test_empty_batches(make: Make) -> None:
    """As torch.nn.BatchNorm2d: they pass, are counted, and change no average."""
    torch_layer, layer = nn.BatchNorm2d(6), make()
    before = {name: value.clone() for name, value in layer.named_buffers()}
    for shape in ((0, 6, 3, 2), (3, 6, 0, 2)):
        x = torch.empty(shape, requires_grad=True)
        assert layer(x).shape == torch_layer(torch.empty(shape)).shape == shape
        layer(x).sum().backward()
    torch_layer(torch.empty(0, 6, 3, 2)), torch_layer(torch.empty(0, 6, 3, 2))
    for name, value in layer.named_buffers():
        if name == "num_batches_tracked":
            assert torch.equal(value, torch_layer.num_batches_tracked)  # type: ignore[arg-type]
        else:
            assert torch.equal(value, before[name])
    assert layer.eval()(torch.empty(0, 6, 3, 2)).shape == (0, 6, 3, 2)


@each_layer
def test_one_value_per_channel(make: Make) -> None:
    layer, x = make(), torch.ones(1, 6, 1, 1)
    before = copy.deepcopy(layer.state_dict())
    with pytest.raises(
        ShapeError, match=r"expected more than 1 value per channel when training, got input of shape \(1, 6, 1, 1\)"
    ):
        layer(x)
    assert unchanged(layer, before)
    assert layer.eval()(x).isfinite().all()
    with pytest.raises(ShapeError, match="more than 1 value"):
        make(track_running_stats=False).eval()(x)


BAD_INPUT: dict[str, tuple[Any, type[Exception], str]] = {
    "ndim": (torch.ones(4, 6), ShapeError, r"`input` must be 4D, \(N, C, \*\), got shape \(4, 6\)"),
    "channels": (torch.ones(4, 5, 2, 2), ShapeError, r"must have 6 channels in dimension 1.*\(4, 5, 2, 2\)"),
    "integers": (torch.ones(4, 6, 2, 2, dtype=torch.int64), DtypeError, "floating-point tensor, got torch.int64"),
    "complex": (torch.ones(4, 6, 2, 2, dtype=torch.complex64), DtypeError, "real floating-point"),
    "list": ([1.0], DtypeError, "got list"),
    "nan": (torch.ones(4, 6, 2, 2).index_fill(1, torch.tensor(2), torch.nan), NonFiniteError, "16 NaN and 0 Inf among 96"),
    "inf": (torch.ones(4, 6, 2, 2).index_fill(0, torch.tensor(3), torch.inf), NonFiniteError, r"24 Inf.*\(3, 0, 0, 0\)"),
    "overflow": (images(dtype=torch.float32) * 1e30, NonFiniteError, "covariance of `input` overflows torch.float32"),
}


@pytest.mark.parametrize(("x", "error", "message"), BAD_INPUT.values(), ids=BAD_INPUT)
@each_layer
def test_bad_input_leaves_no_trace(make: Make, x: Any, error: type[Exception], message: str) -> None:
    layer = make()
    layer(images(dtype=torch.float32))
    before = copy.deepcopy(layer.state_dict())
    with pytest.raises(error, match=message) as caught:
        layer(x)
    assert str(caught.value).startswith(f"`{type(layer).__name__}`: ")
    assert unchanged(layer, before)


def test_affine() -> None:
    layer, plain = trained(WHITENING["zca"]), trained(WHITENING["zca"], affine=False)
    x = images()
    assert plain.weight is None
    for training in (True, False):
        y = plain.train(training)(x)
        want = layer.weight[:, None, None] * y + layer.bias[:, None, None]
        torch.testing.assert_close(layer.train(training)(x), want)


# Transforms


COMPILED = ("zca", "energy")  # the others follow the same paths


each_compiled = pytest.mark.parametrize(
    "make", [pytest.param(make, id=name, marks=() if name in COMPILED else pytest.mark.slow) for name, make in EVERY.items()]
)


@pytest.mark.covering(1)
@each_mode
@each_compiled
def test_compile(make: Make, training: bool) -> None:
    torch.compiler.reset()
    eager, x = trained(make).train(training), images()
    layer = copy.deepcopy(eager)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(gradient(compiled, x), gradient(eager, x))
    torch.testing.assert_close(compiled(x), eager(x))
    for got, want in zip(layer.state_dict().values(), eager.state_dict().values(), strict=True):
        torch.testing.assert_close(got, want)
    if not training:  # compiled code does not keep a matrix that has become wrong
        for twin in (eager, layer):
            for buffer in twin.buffers():
                buffer.mul_(2)
        torch.testing.assert_close(compiled(x), eager(x))


@each_mode
@each_compiled
def test_export(make: Make, training: bool) -> None:
    layer, x = trained(make).train(training), images()
    exported = torch.export.export(copy.deepcopy(layer), (x,))
    torch.testing.assert_close(exported.module()(x), layer(x))


@pytest.mark.parametrize("name", ["zca", "pca", "rank", "all energy"])
def test_torch_func(name: str) -> None:
    layer = EVERY[name](dtype=torch.float64, track_running_stats=False)
    x = torch.stack([images(seed=i) for i in range(3)])
    torch.testing.assert_close(torch.func.vmap(layer)(x), torch.stack([layer(part) for part in x]))
    direction = images(seed=7)
    _, forward = torch.func.jvp(layer, (x[0],), (direction,))
    backward = torch.func.vjp(layer, x[0])[1](direction)[0]
    torch.testing.assert_close((forward * direction).sum(), (backward * direction).sum())
    models = [trained(EVERY[name], steps=i) for i in range(3)]  # an ensemble: buffers are vmapped too
    state = torch.func.stack_module_state(models)
    base = copy.deepcopy(models[0])
    together = torch.func.vmap(lambda p, b: torch.func.functional_call(base, (p, b), (x[0],)))(*state)
    torch.testing.assert_close(together, torch.stack([model(x[0]) for model in models]))


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("choose", [plain, one_node])
@each_layer
def test_a_training_pass_before_the_backward_pass_of_another(
    make: Make, choose: Choose, affine: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradient is that of the statistics that the pass used."""
    take(monkeypatch, choose)
    for training in (True, False):
        layer, x = trained(make, affine=affine).train(training), images().requires_grad_()
        of = [x, *layer.parameters()]
        expected = torch.autograd.grad(copy.deepcopy(layer)(x).sin().sum(), x)
        y = layer(x)
        layer.train()(images(seed=5) * 3)
        found = torch.autograd.grad(y.sin().sum(), of)
        torch.testing.assert_close(found[:1], expected)


@each_mode
@each_layer
def test_a_backward_pass_of_one_node_that_torch_looks_into(
    make: Make, training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch of cotangents in one, and a cotangent with a tangent: of a linear map, so its value in that direction."""
    take(monkeypatch, one_node)
    layer, x = trained(make).train(training), images().requires_grad_()
    y = layer(x)
    of, G = [x, layer.weight, layer.bias], torch.stack([cases.random(*y.shape, seed=seed) for seed in (1, 2)])
    first, second = (torch.autograd.grad(y, of, g, retain_graph=True) for g in G)
    for both, *each in zip(
        torch.autograd.grad(y, of, G, is_grads_batched=True, retain_graph=True), first, second, strict=True
    ):
        torch.testing.assert_close(both, torch.stack(each))
    with forward_ad.dual_level():
        found = torch.autograd.grad(y, of, forward_ad.make_dual(*G))
        for part, *each in zip(found, first, second, strict=True):
            torch.testing.assert_close(forward_ad.unpack_dual(part), tuple(each))


@each_layer
@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.jacrev, torch.func.vmap])
def test_an_eval_pass_after_one_inside_torch_func(make: Make, transform: Any) -> None:
    """What is kept from pass to pass must not be a wrapper that died with the transform in which it was computed."""
    layer, x = trained(make), images()
    expected = copy.deepcopy(layer)(x)
    transform(lambda each: layer(each.reshape(-1, *x.shape[1:])).sin().mean())(x)
    torch.testing.assert_close(layer(x), expected)
    assert torch.equal(pickle.loads(pickle.dumps(layer))(x), layer(x))


LARGE = {
    "PCADenoise2d(energy=1)": lambda: sg.nn.PCADenoise2d(3, energy=1),
    "PCADenoise2d(rank=2)": lambda: sg.nn.PCADenoise2d(3, rank=2),
    "zca": lambda: sg.nn.DecorrelatedBatchNorm2d(3),
    "pca": lambda: sg.nn.DecorrelatedBatchNorm2d(3, whitening="pca"),
    "Taylor": lambda: sg.nn.DecorrelatedBatchNorm2d(3, gradient=sg.Taylor()),
    "PowerIteration": lambda: sg.nn.DecorrelatedBatchNorm2d(3, gradient=sg.PowerIteration(9)),
    "NewtonSchulz(steps=5)": lambda: sg.nn.DecorrelatedBatchNorm2d(3, solver=sg.NewtonSchulz(steps=5)),
}


@pytest.mark.parametrize("scale", [1e14, 1e16, 1e18])
@pytest.mark.parametrize("make", LARGE.values(), ids=LARGE)
def test_gradients_of_large_features(make: Callable[[], nn.Module], scale: float) -> None:
    """The cube of 1 / sigma, which autograd takes of rsqrt, underflows in float32: gradients were 2 to 46 % off."""
    shape = (8, 3, 4, 4)
    x, G = (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    found = []
    for dtype in (torch.float32, torch.float64):
        X = (scale * x).to(dtype).requires_grad_()
        (g,) = torch.autograd.grad((make().to(dtype)(X) * G).sum(), X)
        found.append(g.double())
    assert float((found[0] - found[1]).norm() / found[1].norm()) < 2e-5
