"""Folded whitening: exact, no layer left, the input unchanged, and a result that survives what deployment does to it."""

import copy
import io
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn.utils import parametrizations, prune

import spectralgrad as sg
from spectralgrad.errors import OptionError
from spectralgrad.nn import (
    DecorrelatedBatchNorm1d,
    DecorrelatedBatchNorm2d,
    DecorrelatedBatchNorm3d,
    PCADenoise1d,
    PCADenoise2d,
)
from spectralgrad.nn.base import BatchStatistics
from spectralgrad.nn.fuse import fuse
from support.marks import slow_but

Make = Callable[[], nn.Module]
D1, D2, D3 = DecorrelatedBatchNorm1d, DecorrelatedBatchNorm2d, DecorrelatedBatchNorm3d

# Channels 12; the convolution's groups and the whitening's cross in every way: 3 x 4 against 2 x 6, and so on.
FOLDS: dict[str, tuple[Make, tuple[int, ...]]] = {
    "1d": (lambda: nn.Sequential(nn.Conv1d(4, 12, 3, padding=1), D1(12, group_size=3)), (8, 4, 9)),
    "2d": (lambda: nn.Sequential(nn.Conv2d(4, 12, 3, padding=2, bias=False), D2(12)), (4, 4, 6, 5)),
    "3d": (lambda: nn.Sequential(nn.Conv3d(4, 12, 2, padding=1), D3(12, group_size=4)), (4, 4, 3, 4, 3)),
    "linear": (lambda: nn.Sequential(nn.Linear(5, 12), D1(12, group_size=6)), (30, 5)),
    "stride, dilation": (
        lambda: nn.Sequential(nn.Conv2d(4, 12, 3, stride=2, dilation=2, padding="valid"), D2(12, group_size=2)),
        (4, 4, 9, 9),
    ),
    **{
        f"padding {mode}": (
            lambda mode=mode: nn.Sequential(nn.Conv2d(4, 12, 3, padding=1, padding_mode=mode), D2(12)),
            (4, 4, 6, 6),
        )
        for mode in ("reflect", "replicate", "circular")
    },
    **{
        f"{groups} groups, size {size}": (
            lambda groups=groups, size=size: nn.Sequential(
                nn.Conv2d(12, 12, 3, padding=1, groups=groups), D2(12, group_size=size)
            ),
            (8, 12, 5, 5),
        )
        for groups in (1, 2, 3, 6, 12)
        for size in (1, 4, 6, 12)
    },
    **{
        f"transposed, {groups} groups": (
            lambda groups=groups: nn.Sequential(
                nn.ConvTranspose2d(6, 12, 3, stride=2, padding=1, output_padding=1, groups=groups), D2(12, group_size=4)
            ),
            (6, 6, 4, 4),
        )
        for groups in (1, 2, 6)
    },
    "pca": (lambda: nn.Sequential(nn.Conv2d(4, 12, 3), D2(12, whitening="pca")), (8, 4, 6, 6)),
    "running whitening": (
        lambda: nn.Sequential(nn.Conv2d(4, 12, 3), D2(12, group_size=4, running="whitening")),
        (8, 4, 6, 6),
    ),
    "not affine": (lambda: nn.Sequential(nn.Conv2d(4, 12, 3), D2(12, affine=False)), (8, 4, 6, 6)),
    "denoise": (lambda: nn.Sequential(nn.Conv2d(4, 12, 3, groups=2), PCADenoise2d(12, rank=5)), (8, 4, 6, 6)),
    "denoise, all energy": (
        lambda: nn.Sequential(nn.Conv2d(4, 12, 3, groups=2), PCADenoise2d(12, energy=1)),
        (8, 4, 6, 6),
    ),
    "denoise, linear": (lambda: nn.Sequential(nn.Linear(5, 12), PCADenoise1d(12, energy=0.8)), (40, 5)),
    "batch norm after": (
        lambda: nn.Sequential(nn.Conv2d(4, 12, 3, groups=4), D2(12, group_size=2), nn.BatchNorm2d(12)),
        (8, 4, 6, 6),
    ),
    "batch norm before": (
        lambda: nn.Sequential(nn.Conv2d(4, 12, 3), nn.BatchNorm2d(12, affine=False), D2(12, group_size=3)),
        (8, 4, 6, 6),
    ),
    "two whitenings": (
        lambda: nn.Sequential(nn.Conv2d(12, 12, 3, groups=12), D2(12, group_size=3), D2(12, group_size=2)),
        (8, 12, 6, 6),
    ),
    "parametrized": (lambda: nn.Sequential(parametrizations.weight_norm(nn.Conv2d(4, 12, 3)), D2(12)), (8, 4, 6, 6)),
    # Nothing to fold into: one 1 x 1 convolution.
    "alone 1d (N, C)": (lambda: nn.Sequential(D1(12, group_size=4)), (30, 12)),
    "alone 1d (N, C, L)": (lambda: nn.Sequential(D1(12, group_size=4)), (8, 12, 5)),
    "alone 2d": (lambda: nn.Sequential(nn.BatchNorm2d(12), D2(12, group_size=4), nn.BatchNorm2d(12)), (8, 12, 4, 5)),
    "alone 3d": (lambda: nn.Sequential(D3(12)), (4, 12, 3, 3, 3)),
}
each_fold = pytest.mark.parametrize(("make", "shape"), FOLDS.values(), ids=FOLDS)


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def trained(make: Make, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> nn.Module:
    """A model with statistics from two batches and no parameter at its initial value, in eval mode."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        model = make().to(dtype)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.3 * torch.randn_like(parameter)
            for seed in (1, 2):
                model(random(*shape, seed=seed, dtype=dtype) + 0.5)
    return model.eval()


def distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).detach().abs().max() / b.detach().abs().max().clamp(min=1))


def whitenings(model: nn.Module) -> int:
    return sum(isinstance(m, BatchStatistics) for m in model.modules())


@each_fold
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-5), (torch.float64, 1e-13)], ids=["float32", "float64"])
def test_fused_is_exact(make: Make, shape: tuple[int, ...], dtype: torch.dtype, limit: float) -> None:
    model, x = trained(make, shape, dtype), random(*shape, seed=3, dtype=dtype)
    fused = fuse(model)
    assert [*fused(x).shape] == [*model(x).shape]
    assert distance(fused(x), model(x)) < limit
    first: Any = model
    assert distance(first[0](x), model(x)) > 0.1 or len(first) == 1  # control: whitening does something


@each_fold
def test_one_module_is_left(make: Make, shape: tuple[int, ...]) -> None:
    model = trained(make, shape)
    fused: Any = fuse(model)
    assert type(fused) is nn.Sequential
    assert len([*fused.modules()]) == 2  # the Sequential and the convolution
    assert isinstance(fused[0], nn.modules.conv._ConvNd | nn.Linear)
    assert fused[0].bias is not None
    assert not any(m.training for m in fused.modules())


def test_groups_of_the_fused_convolution_are_the_common_ones() -> None:
    for groups, size, expected in [
        (12, 1, 12),
        (12, 4, 3),
        (6, 4, 3),
        (6, 6, 2),
        (3, 6, 1),
        (2, 4, 1),
        (2, 6, 2),
        (1, 2, 1),
    ]:
        fused: Any = fuse(nn.Sequential(nn.Conv2d(12, 12, 1, groups=groups), D2(12, group_size=size)).eval())
        assert fused[0].groups == expected


def test_a_fused_model_has_the_modules_of_a_plain_one() -> None:
    def net(*norm: nn.Module) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(3, 8, 3), *norm, nn.ReLU(), nn.Sequential(nn.Conv2d(8, 4, 1), nn.Sigmoid()))

    fused, plain = fuse(net(D2(8, group_size=4)).eval()), net()
    assert [type(m) for m in fused.modules()] == [type(m) for m in plain.modules()]
    assert [p.shape for p in fused.parameters()] == [p.shape for p in plain.parameters()]


def test_the_model_is_unchanged_and_nothing_is_shared() -> None:
    model = trained(residual, (8, 3, 8, 8))
    before, names = copy.deepcopy(model.state_dict()), [name for name, _ in model.named_modules()]
    random_state = torch.random.get_rng_state()
    fused = fuse(model)
    assert torch.equal(random_state, torch.random.get_rng_state())
    with torch.no_grad():
        for tensor in fused.state_dict().values():
            tensor.fill_(0)
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert [name for name, _ in model.named_modules()] == names
    assert not {id(m) for m in model.modules()} & {id(m) for m in fused.modules()}


def test_only_what_stands_beside_whitening_is_folded() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.ReLU(), D2(4))
    fused: Any = fuse(model.eval())
    assert [type(m) for m in fused] == [nn.Conv2d, nn.BatchNorm2d, nn.ReLU, nn.Conv2d, nn.ReLU, nn.Conv2d]
    plain = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)).eval()
    assert repr(fuse(plain)) == repr(plain)
    assert fuse(plain)[0] is not plain[0]  # type: ignore[index]


def test_ties_keep_the_layers_own_matrix() -> None:
    # Eigenvalues equal to rounding in float32 have other eigenvectors in float64.
    layer = D2(6, whitening="pca")
    layer.running_covariance.copy_(torch.eye(6) + 1e-7 * random(6, 6))  # type: ignore[union-attr]
    layer.running_covariance.copy_(layer.running_covariance + layer.running_covariance.mT)  # type: ignore[union-attr]
    x = random(3, 6, 4, 4)
    assert distance(fuse(layer.eval())(x), layer(x)) < 1e-5
    assert distance(layer.from_running(torch.float64), layer.from_running(torch.float32)) > 1e-2  # control


def test_frozen_stays_frozen_and_memory_formats_are_kept() -> None:
    model = trained(lambda: nn.Sequential(nn.Conv2d(4, 8, 3), D2(8)), (8, 4, 6, 6)).to(memory_format=torch.channels_last)
    fused: Any = fuse(model)
    assert fused[0].weight.is_contiguous(memory_format=torch.channels_last)
    x = random(2, 4, 6, 6).to(memory_format=torch.channels_last)
    assert fused(x).is_contiguous(memory_format=torch.channels_last)
    assert distance(fused(x), model(x)) < 1e-5
    assert all(p.requires_grad for p in fused.parameters())
    assert not any(p.requires_grad for p in fuse(model.requires_grad_(False)).parameters())


def test_half_precision_is_rounded_once() -> None:
    model = trained(lambda: nn.Sequential(nn.Conv2d(4, 8, 3), D2(8, group_size=4)), (8, 4, 6, 6))
    full: Any = fuse(model)
    model[0].to(torch.bfloat16)  # type: ignore[operator, index]
    low: Any = fuse(model)
    assert low[0].weight.dtype == torch.bfloat16
    assert distance(low[0].weight.float(), full[0].weight) < 2**-7


# Graphs.


class Block(nn.Module):
    def __init__(self, width: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(width, width, 3, padding=1, bias=False), norm(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, padding=1, groups=2, bias=False), norm(width)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(x + self.norm2(self.conv2(y)))


class Residual(nn.Module):
    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), norm(8), nn.ReLU())
        self.blocks = nn.ModuleList(Block(8, norm) for _ in range(2))
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor, features: bool = False, mask: Tensor | None = None) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        if mask is not None:
            x = x * mask
        x = x.mean((2, 3))
        return x if features else self.head(x)


residual = partial(Residual, partial(D2, group_size=4))


def test_a_residual_network_keeps_only_convolutions() -> None:
    model, x = trained(residual, (8, 3, 8, 8)), random(4, 3, 8, 8)
    fused: Any = fuse(model)
    assert isinstance(fused, fx.GraphModule)
    assert distance(fused(x), model(x)) < 1e-5
    plain = Residual(lambda _: nn.Identity())
    kinds = [type(m) for m in fused.modules() if not [*m.children()]]
    expected = [type(m) for m in plain.modules() if not [*m.children()] and not isinstance(m, nn.Identity)]
    assert kinds == expected
    assert {*fused.state_dict()} == {*plain.state_dict()} | {f"blocks.{i}.conv{j}.bias" for i in range(2) for j in (1, 2)}
    with pytest.raises((TypeError, AssertionError)):  # optional arguments are fixed: never ignored in silence
        fused(x, True)


def test_a_graph_of_a_model() -> None:
    """The folders of its modules, as torch.fx makes them, say that they train."""
    model = nn.Sequential(nn.Sequential(nn.Conv2d(4, 8, 3), DecorrelatedBatchNorm2d(8)), nn.ReLU())
    model(random(8, 4, 6, 6))
    fused = fuse(fx.symbolic_trace(model.eval()))
    assert not any(isinstance(m, DecorrelatedBatchNorm2d) for m in fused.modules())
    assert distance(fused(random(4, 4, 6, 6)), model(random(4, 4, 6, 6))) < 1e-5


class Branches(nn.Module):
    """A convolution whose output goes elsewhere too, one used twice with different norms, and one whose weight is read."""

    def __init__(self) -> None:
        super().__init__()
        self.tapped, self.shared, self.read = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(3))
        self.norms = nn.ModuleList(D2(4, group_size=2) for _ in range(4))
        self.twice, self.after = nn.Conv2d(4, 4, 1), D2(4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.tapped(x)
        y = y + self.norms[0](y)
        z = self.norms[1](self.shared(y)) - self.norms[2](input=self.shared(x))
        z = self.norms[3](self.read(z)) + self.read.weight.sum() + self.shared(z)
        return self.after(self.twice(z)) + self.after(self.twice(x)) + self.after(z)


def test_convolutions_with_other_uses() -> None:
    model, x = trained(Branches, (8, 4, 6, 6)), random(4, 4, 6, 6)
    fused: Any = fuse(model)
    assert whitenings(fused) == 0
    assert distance(fused(x), model(x)) < 1e-5
    own: Any = model
    for name in ("tapped", "shared", "read"):
        assert torch.equal(getattr(fused, name).weight, getattr(own, name).weight)
    assert not torch.equal(fused.twice.weight, own.twice.weight)
    # tapped, its norm, shared and two copies, the copy of read, twice, and after as a convolution of its own
    assert sum(isinstance(m, nn.Conv2d) for m in fused.modules()) == 8


def test_shared_modules_of_a_sequential() -> None:
    conv, norm, block = nn.Conv2d(4, 4, 3, padding=1), D2(4), Block(4, D2)
    make = lambda: nn.Sequential(conv, norm, nn.ReLU(), conv, norm, block, conv, D2(4, group_size=2), block)  # noqa: E731
    model, x = trained(make, (8, 4, 6, 6)), random(4, 4, 6, 6)
    fused: Any = fuse(model)
    assert distance(fused(x), model(x)) < 1e-5
    assert fused[0] is fused[2]
    assert fused[3] is fused[5]
    assert fused[4] is not fused[0]


class Untraceable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 3), D2(4, group_size=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x if x.sum() > 0 else -x))


def test_models_that_cannot_be_traced_get_pointwise_convolutions_and_a_warning() -> None:
    model, x = trained(Untraceable, (8, 4, 6, 6)), random(4, 4, 6, 6)
    with pytest.warns(UserWarning, match="cannot trace Untraceable") as caught:
        fused: Any = fuse(model)
    assert caught[0].filename == __file__
    assert type(fused) is Untraceable
    assert whitenings(fused) == 0
    assert (fused.norm.kernel_size, fused.norm.groups) == ((1, 1), 2)
    assert max(distance(fused(s * x), model(s * x)) for s in (1, -1)) < 1e-5


class Opaque(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


def test_untraceable_parts_without_whitening_are_left_alone() -> None:
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.opaque, self.conv, self.norm = Opaque(), nn.Conv2d(4, 4, 3), D2(4)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.conv(self.opaque(x)))

    model, x = trained(Whole, (8, 4, 6, 6)), random(4, 4, 6, 6)
    fused = fuse(model)
    assert [type(m) for m in fused.children()] == [Opaque, nn.Conv2d]
    assert max(distance(fused(s * x), model(s * x)) for s in (1, -1)) < 1e-5


def test_hooks_keep_a_convolution_from_folding() -> None:
    model: Any = trained(lambda: nn.Sequential(nn.Conv2d(4, 4, 3), D2(4)), (8, 4, 6, 6))
    model[0].register_forward_hook(lambda _module, _args, output: 2 * output)
    fused, x = fuse(model), random(4, 4, 6, 6)
    assert len([*fused.children()]) == 2
    assert distance(fused(x), model(x)) < 1e-5


def test_a_linear_folds_only_where_its_features_are_the_channels() -> None:
    model: Any = trained(lambda: nn.Sequential(nn.Linear(5, 7), D1(6)), (8, 6, 5))
    x = random(4, 6, 5)
    assert distance(fuse(model)(x), model(x)) < 1e-5
    square: Any = fuse(trained(lambda: nn.Sequential(nn.Linear(5, 6), D1(6)), (40, 5)))
    with pytest.raises(
        AssertionError, match="in_features"
    ):  # channels are not the features here, and nobody can tell before
        square(x)
    model = trained(lambda: nn.Sequential(nn.Linear(5, 6), D2(6)), (8, 6, 6, 5))
    x = random(4, 6, 6, 5)
    assert distance(fuse(model)(x), model(x)) < 1e-5


# What deployment does.

SURVIVORS: dict[str, tuple[Make, tuple[int, ...]]] = {
    "sequential": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), D2(8, group_size=4), nn.ReLU()), (8, 3, 8, 8)),
    "residual": (residual, (8, 3, 8, 8)),
    "linear": (lambda: nn.Sequential(nn.Linear(6, 8), D1(8), nn.ReLU(), PCADenoise1d(8, rank=3)), (30, 6)),
}
each_survivor = pytest.mark.parametrize(("make", "shape"), SURVIVORS.values(), ids=SURVIVORS)


@each_survivor
def test_survives_copies_state_dict_and_pickle(make: Make, shape: tuple[int, ...]) -> None:
    model, x = trained(make, shape), random(*shape)
    fused = fuse(model)
    expected = fused(x)
    buffer = io.BytesIO()
    torch.save(fused, buffer)
    buffer.seek(0)
    other = fuse(make().eval())
    assert distance(other(x), expected) > 1e-2
    other.load_state_dict(fused.state_dict())
    for again in (copy.deepcopy(fused), pickle.loads(pickle.dumps(fused)), torch.load(buffer, weights_only=False), other):
        assert torch.equal(again(x), expected)
    assert torch.equal(fuse(fused)(x), expected)


@each_survivor
def test_survives_export(make: Make, shape: tuple[int, ...]) -> None:
    model, x = trained(make, shape), random(*shape)
    program = torch.export.export(fuse(model), (x,), strict=False)
    assert distance(program.module()(x), model(x)) < 1e-5


@pytest.mark.slow
@each_survivor
def test_survives_compile(make: Make, shape: tuple[int, ...]) -> None:
    model, x = trained(make, shape), random(*shape)
    assert distance(torch.compile(fuse(model), fullgraph=True)(x), model(x)) < 1e-5


@each_survivor
def test_survives_compile_without_a_backend(make: Make, shape: tuple[int, ...]) -> None:
    model, x = trained(make, shape), random(*shape)
    assert distance(torch.compile(fuse(model), fullgraph=True, backend="eager")(x), model(x)) < 1e-5


@pytest.mark.parametrize("survivor", slow_but(["residual"], SURVIVORS))
@pytest.mark.filterwarnings("ignore")  # the exporter's own
def test_survives_onnx(survivor: tuple[Make, tuple[int, ...]], tmp_path: Any) -> None:
    make, shape = survivor
    pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    model, x = trained(make, shape), random(*shape)
    path = str(tmp_path / "fused.onnx")
    torch.onnx.export(fuse(model), (x,), path, dynamo=True, verbose=False)
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    assert distance(torch.from_numpy(found), model(x)) < 1e-5


# Bad input.


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(nn.Conv2d(3, 4, 1), D2(4)), r"the Sequential is in training mode, .* Call model.eval\(\) first"),
        (
            nn.Sequential(D2(4).eval(), D2(4).train()).train(False).append(D2(4)),
            r"'2', a DecorrelatedBatchNorm2d, is in train",
        ),
        (
            nn.Sequential(D2(4, track_running_stats=False)).eval(),
            r"'0', a DecorrelatedBatchNorm2d, has no running statistics",
        ),
        (PCADenoise2d(4, track_running_stats=False).eval(), r"the PCADenoise2d has no running statistics"),
        ("model", r"must be a torch.nn.Module, got str"),
    ],
)
def test_bad_input(model: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        fuse(model)


def test_solvers_change_nothing() -> None:
    for solver in (sg.Jacobi(), sg.SVD(), sg.NewtonSchulz()):
        model = trained(lambda solver=solver: nn.Sequential(nn.Conv2d(4, 8, 3), D2(8, solver=solver)), (8, 4, 6, 6))
        assert distance(fuse(model)(random(4, 4, 6, 6)), model(random(4, 4, 6, 6))) < 1e-5


class Gated(DecorrelatedBatchNorm2d):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).relu()


def test_a_subclass_with_a_forward_of_its_own_stays() -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 1), Gated(4), nn.Conv2d(4, 4, 1), DecorrelatedBatchNorm2d(4))
    model(torch.randn(8, 4, 5, 5))
    x, fused = torch.randn(2, 4, 5, 5), fuse(model.eval())
    assert [type(part) for part in fused] == [nn.Conv2d, Gated, nn.Conv2d]
    torch.testing.assert_close(fused(x), model(x), rtol=1e-4, atol=1e-5)


HOOKED: dict[str, tuple[Callable[[nn.Module], Any], Callable[[nn.Module], Any]]] = {
    "weight_norm": (nn.utils.weight_norm, nn.utils.remove_weight_norm),
    "spectral_norm": (nn.utils.spectral_norm, nn.utils.remove_spectral_norm),
    "prune": (lambda m: prune.l1_unstructured(m, "weight", 0.5), lambda m: prune.remove(m, "weight")),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated")
@pytest.mark.parametrize(("attach", "remove"), HOOKED.values(), ids=HOOKED)
def test_weights_that_a_hook_computes(attach: Callable[[nn.Module], Any], remove: Callable[[nn.Module], Any]) -> None:
    """After a step they cannot be copied; once they are permanent they fold."""
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), D2(4)), torch.randn(8, 3, 6, 6)
    attach(model[0])
    model(x).square().sum().backward()
    model.eval()
    with pytest.raises(OptionError, match="`fuse`: '0', a Conv2d, must hold tensors that can be copied"):
        fuse(model)
    remove(model[0])
    assert len(fuse(model)) == 1
    torch.testing.assert_close(fuse(model)(x), model(x), rtol=1e-4, atol=1e-4)
