"""Batch norms become whitening layers: what is carried over, what is chosen, and that an error changes nothing."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parametrize

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
from spectralgrad.nn.convert import convert_batchnorm

Layer = Any

KINDS: dict[str, tuple[Callable[..., Layer], type[BatchStatistics], tuple[int, ...]]] = {
    "1d (N, C)": (nn.BatchNorm1d, DecorrelatedBatchNorm1d, (9, 6)),
    "1d (N, C, L)": (nn.BatchNorm1d, DecorrelatedBatchNorm1d, (4, 6, 5)),
    "2d": (nn.BatchNorm2d, DecorrelatedBatchNorm2d, (4, 6, 5, 3)),
    "3d": (nn.BatchNorm3d, DecorrelatedBatchNorm3d, (4, 6, 2, 3, 2)),
    "sync": (nn.SyncBatchNorm, DecorrelatedBatchNorm2d, (4, 6, 5, 3)),
}
each_kind = pytest.mark.parametrize(("kind", "becomes", "shape"), KINDS.values(), ids=KINDS)


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def trained(norm: Layer, seed: int = 1) -> Layer:
    """A batch norm whose state is nowhere at its initial value."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in norm.state_dict().items():
            if name == "num_batches_tracked":
                value.fill_(17)
            else:
                value.copy_(torch.rand(value.shape, generator=generator) * 3 + 0.1)
    return norm


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        trained(nn.BatchNorm2d(8)),
        nn.Sequential(nn.Conv2d(8, 6, 3), trained(nn.BatchNorm2d(6), 2)),
        nn.Flatten(),
        nn.Linear(96, 4),
        trained(nn.BatchNorm1d(4), 3),
    )


# What is carried over.


@each_kind
def test_eval_output_is_the_batch_norms(kind: Any, becomes: Any, shape: tuple[int, ...]) -> None:
    norm = trained(kind(6, eps=1e-3, momentum=0.3)).eval()
    expected = norm.eval()
    x = random(*shape) * 3
    reference = nn.functional.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=1e-3)
    for options in ({}, {"group_size": 3}, {"running": "whitening"}, {"solver": sg.Jacobi()}):
        layer = convert_batchnorm(copy.deepcopy(expected), **options)
        assert type(layer) is becomes
        assert (layer(x) - reference).abs().max() < 1e-5
    other = convert_batchnorm(copy.deepcopy(expected), eps=0.5)  # control: another eps is seen
    assert (other(x) - reference).abs().max() > 1e-2


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("tracked", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_state_and_options_are_carried(affine: bool, tracked: bool, dtype: torch.dtype) -> None:
    norm = trained(
        nn.BatchNorm2d(6, eps=1e-3, momentum=None, affine=affine, track_running_stats=tracked, dtype=dtype)
    ).eval()
    layer: Layer = convert_batchnorm(norm, group_size=2)
    assert (layer.num_features, layer.eps, layer.momentum, layer.training) == (6, 1e-3, None, False)
    assert (layer.affine, layer.track_running_stats) == (affine, tracked)
    assert layer.weight is norm.weight
    assert layer.bias is norm.bias
    if not tracked:
        assert [*layer.buffers()] == []
        return
    assert layer.running_covariance.dtype == layer.running_mean.dtype == dtype
    assert torch.equal(layer.running_mean, norm.running_mean)
    assert torch.equal(layer.running_covariance, torch.diag_embed(norm.running_var.view(3, 2)))
    assert layer.num_batches_tracked == 17
    assert layer.running_mean is not norm.running_mean  # training the layer leaves the old module alone


def test_training_flag_frozen_parameters_and_meta_device() -> None:
    norm = nn.BatchNorm2d(4)
    norm.weight.requires_grad_(False)
    layer: Layer = convert_batchnorm(norm)
    assert layer.training
    assert [p.requires_grad for p in layer.parameters()] == [False, True]
    meta: Layer = convert_batchnorm(nn.BatchNorm2d(4, device="meta"))
    assert {t.device.type for t in meta.state_dict().values()} == {"meta"}


def test_statistics_that_are_kept_but_no_longer_updated() -> None:
    norm = trained(nn.BatchNorm2d(4))
    norm.track_running_stats = False
    layer: Layer = convert_batchnorm(norm)
    before = layer.running_mean.clone()
    layer(random(5, 4, 3, 3))
    assert torch.equal(layer.running_mean, before)
    x = random(5, 4, 3, 3)
    assert (layer.eval()(x) - norm.eval()(x)).abs().max() < 1e-5


def test_an_optimizer_made_before_trains_the_new_layers() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert convert_batchnorm(model) is model
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    model(random(16, 3, 8, 8)).square().sum().backward()
    optimizer.step()
    assert {id(p) for p in model.parameters()} == {id(p) for p in optimizer.param_groups[0]["params"]}
    for name in ("1.weight", "2.1.weight", "5.weight", "5.bias"):
        assert not torch.equal(model.get_parameter(name), before[name])


def test_a_whole_model_computes_the_same_and_then_trains() -> None:
    model, x = network().eval(), random(16, 3, 8, 8)
    expected = model(x)
    convert_batchnorm(model, group_size=2)
    assert not any(isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)) for m in model.modules())
    assert (model(x) - expected).abs().max() < 1e-5
    model.train()(x)
    assert (model.eval()(x) - expected).abs().max() > 1e-2


def test_shared_modules_stay_shared() -> None:
    norm = nn.BatchNorm2d(4)
    model = nn.ModuleDict({"a": norm, "b": nn.Sequential(norm, nn.ReLU()), "c": nn.BatchNorm2d(4)})
    convert_batchnorm(model, "b.0")
    b: Any = model["b"]
    assert model["a"] is b[0]
    assert isinstance(model["a"], DecorrelatedBatchNorm2d)
    assert isinstance(model["c"], nn.BatchNorm2d)


def test_hooks_are_not_carried() -> None:
    norm = nn.BatchNorm2d(4)
    norm.register_forward_hook(lambda *_: pytest.fail("carried"))
    convert_batchnorm(norm)(random(3, 4, 2, 2))


def test_a_sync_batch_norm_takes_the_layer_and_its_process_group(tmp_path: Any) -> None:
    norm = nn.SyncBatchNorm(4)
    layer: Layer = convert_batchnorm(norm, layer=DecorrelatedBatchNorm1d)
    assert type(layer) is DecorrelatedBatchNorm1d
    assert layer.process_group is None
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        layer = convert_batchnorm(norm)
        assert layer.process_group is dist.group.WORLD
    finally:
        dist.destroy_process_group()


# Which, and into what.


@pytest.mark.parametrize(
    ("where", "converted"),
    [
        (None, {"1", "2.1", "5"}),
        ("2.1", {"2.1"}),
        (["1", "5"], {"1", "5"}),
        (lambda _, module: module.num_features > 5, {"1", "2.1"}),
        (lambda name, _: name.startswith("2"), {"2.1"}),
    ],
)
def test_where(where: Any, converted: set[str]) -> None:
    model = convert_batchnorm(network(), where)
    assert {name for name, m in model.named_modules() if isinstance(m, BatchStatistics)} == converted


@pytest.mark.parametrize("options", [{}, {"energy": 0.9}])
def test_denoising_by_energy_starts_as_the_batch_norm(options: Any) -> None:
    model, x = network().eval(), random(16, 3, 8, 8)
    expected = model(x)
    convert_batchnorm(model, layer=PCADenoise2d, **options)
    assert [type(m) for m in model.modules() if isinstance(m, BatchStatistics)] == [PCADenoise2d, PCADenoise2d, PCADenoise1d]
    assert (model(x) - expected).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("options", "attribute"),
    [
        ({"group_size": 2}, "group_size"),
        ({"eps": 0.3}, "eps"),
        ({"momentum": 0.7}, "momentum"),
        ({"whitening": "pca"}, "whitening"),
        ({"running": "whitening"}, "running"),
        ({"gradient": sg.Taylor(9)}, "gradient"),
        ({"solver": sg.SVD()}, "solver"),
        ({"layer": PCADenoise2d, "rank": 2}, "rank"),
    ],
)
def test_options_reach_every_layer(options: Any, attribute: str) -> None:
    for layer in convert_batchnorm(network(), **options).modules():
        if isinstance(layer, BatchStatistics):
            assert getattr(layer, attribute) == options[attribute]


# Bad input.


def lazy() -> nn.Module:
    return nn.Sequential(nn.BatchNorm2d(4), nn.LazyBatchNorm2d())


def parametrized() -> nn.Module:
    norm = nn.BatchNorm2d(4)
    parametrize.register_parametrization(norm, "weight", nn.Softplus())
    return nn.Sequential(nn.BatchNorm2d(4), norm)


BAD: dict[str, tuple[Callable[[], nn.Module], dict[str, Any], str]] = {
    "near name": (network, {"where": "2.2"}, r"'2\.2', which is no batch norm of the model. Near it: '2\.1'"),
    "container": (network, {"where": ["1", "2"]}, r"'2', which is no batch norm .* Near it: '2\.1'"),
    "unknown name": (network, {"where": "backbone"}, r"There are: '1', '2\.1', '5'\.$"),
    "one of many": (
        lambda: nn.Sequential(*(nn.BatchNorm2d(4) for _ in range(12))),
        {"where": "backbone"},
        r"'8', '9' and 2 more\.$",
    ),
    "none selected": (network, {"where": lambda *_: False}, r"selects none of the 3 batch norms"),
    "no names": (network, {"where": []}, r"selects none of the 3 batch norms"),
    "where": (network, {"where": 5}, "where must be a callable, a name, several names or None, got 5"),
    "no batch norm": (lambda: nn.Sequential(nn.ReLU()), {}, "Sequential holds no batch norm"),
    "group size": (network, {"group_size": 4}, r"'2\.1', a BatchNorm2d, .*divides num_features=6, got 4"),
    "unknown option": (network, {"groups": 4}, "has no option 'groups'. It has group_size"),
    "carried option": (network, {"affine": False}, "affine comes from each batch norm"),
    "layer": (network, {"layer": nn.BatchNorm2d}, "layer must be one of DecorrelatedBatchNorm1d"),
    "no 3d": (
        lambda: nn.Sequential(nn.BatchNorm2d(3), nn.BatchNorm3d(3)),
        {"layer": PCADenoise2d},
        "no 3d layer of this kind",
    ),
    "lazy": (lazy, {}, "'1', a LazyBatchNorm2d, is lazy"),
    "parametrized": (parametrized, {}, "remove_parametrizations"),
    "eps": (network, {"eps": -1.0}, "eps must be a finite number > 0"),
}


@pytest.mark.parametrize(("make", "options", "message"), BAD.values(), ids=BAD)
def test_bad_input_changes_nothing(make: Any, options: Any, message: str) -> None:
    model = make()
    modules, state = [*model.modules()], {name: id(p) for name, p in model.named_parameters()}
    with pytest.raises(OptionError, match=message):
        convert_batchnorm(model, **options)
    assert all(a is b for a, b in zip(modules, model.modules(), strict=True))
    assert state == {name: id(p) for name, p in model.named_parameters()}


def test_no_module() -> None:
    with pytest.raises(OptionError, match=r"must be a torch.nn.Module, got list"):
        convert_batchnorm([nn.BatchNorm2d(3)])  # type: ignore[arg-type]


def test_a_batch_norm_with_a_forward_of_its_own_is_refused() -> None:
    class Shifted(nn.BatchNorm2d):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input) + 1

    with pytest.raises(OptionError, match=r"'1', a Shifted, has a forward of its own"):
        convert_batchnorm(nn.Sequential(nn.Conv2d(4, 4, 1), Shifted(4)))

    class Named(nn.BatchNorm2d):
        pass

    assert isinstance(convert_batchnorm(Named(4)), DecorrelatedBatchNorm2d)
