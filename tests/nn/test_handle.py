"""Tools that look for torch's batch norms find our layers, and do to them what they mean."""

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import update_bn

from spectralgrad.errors import OptionError
from spectralgrad.nn import DecorrelatedBatchNorm1d, DecorrelatedBatchNorm2d, PCADenoise2d, convert_batchnorm
from spectralgrad.nn.as_batch_norm import BatchNormHandle
from support.features import Make, images
from support.layers import EVERY, WHITENING, each_layer, trained

STRONGER = (1.0, 3.0, 0.5)  # three batches with three covariances


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Any]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def batches() -> list[Tensor]:
    return [scale * images(seed=seed) for seed, scale in enumerate(STRONGER)]


def cumulative(make: Make) -> dict[str, Tensor]:
    """The mean of what each batch alone leaves in the buffers."""
    states = []
    for x in batches():
        layer = make(dtype=torch.float64)
        layer.momentum = 1.0
        layer(x)
        states.append({name: buffer for name, buffer in layer.named_buffers() if name != "num_batches_tracked"})
    return {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}


@each_layer
def test_update_bn(make: Make) -> None:
    layer = make(dtype=torch.float64)
    momentum = layer.momentum
    for x in batches():
        layer(100 * x)  # to be forgotten
    model = nn.Sequential(layer).eval()
    update_bn(batches(), model)
    for name, want in cumulative(make).items():
        torch.testing.assert_close(layer.get_buffer(name), want)
    assert int(layer.num_batches_tracked) == len(STRONGER)
    assert layer.momentum == momentum
    assert not layer.training


def test_update_bn_needs_the_handle() -> None:
    layer = EVERY["zca"]()
    del layer._modules["as_batch_norm"]
    before = copy.deepcopy(layer.state_dict())
    update_bn([images(dtype=torch.float32)], nn.Sequential(layer))
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())


def test_update_bn_leaves_statistics_that_are_not_tracked() -> None:
    """As torch does: buffers beside track_running_stats=False are used in eval mode and never updated."""
    frozen = nn.BatchNorm2d(6).double()
    frozen(images())
    frozen.track_running_stats = False
    model = nn.Sequential(convert_batchnorm(copy.deepcopy(frozen), group_size=3), frozen)
    before = copy.deepcopy(model.state_dict())
    update_bn(batches(), model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@each_layer
def test_the_state_is_the_layers_alone(make: Make) -> None:
    layer = make()
    assert not any("as_batch_norm" in name for name in layer.state_dict())
    assert not list(layer.as_batch_norm.parameters()) + list(layer.as_batch_norm.buffers())
    assert "BatchNormHandle" not in repr(nn.Sequential(layer))
    assert not isinstance(layer, _BatchNorm)
    plain = dict(layer.state_dict())  # without versions
    assert make().load_state_dict(plain) == ([], [])
    assert make().load_state_dict(layer.state_dict(), assign=True) == ([], [])


@each_layer
def test_the_handle_stands_for_its_own_layer(make: Make) -> None:
    layer = make()
    for twin in (layer, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        handle = twin.as_batch_norm
        assert isinstance(handle, BatchNormHandle)
        assert handle.layer is twin
        handle.eval()
        assert not twin.training
        twin.train()
        assert handle.training
        handle.momentum = 0.25
        assert twin.momentum == 0.25
        with pytest.raises(OptionError, match=r"only stands for it. Call the layer"):
            handle(images())


@pytest.mark.parametrize("training", [True, False])
def test_a_shallow_copy_keeps_its_mode(training: bool) -> None:
    layer = EVERY["zca"]().train(training)
    new = copy.copy(layer)
    assert new.training == layer.training == new.as_batch_norm.training == training
    assert new.as_batch_norm.layer is new
    assert layer.as_batch_norm.layer is layer


@each_layer
def test_convert_sync_batchnorm_gives_the_process_group(make: Make, world: Any) -> None:
    model = nn.Sequential(nn.BatchNorm2d(6), make()).double()
    model(images())
    state, layer = copy.deepcopy(model.state_dict()), model[1]
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    assert type(model[0]) is nn.SyncBatchNorm
    assert model[1] is layer
    assert layer.process_group is world
    assert layer.as_batch_norm.layer is layer
    assert {name: value.tolist() for name, value in model.state_dict().items()} == {
        name: value.tolist() for name, value in state.items()
    }
    alone = copy.deepcopy(layer)
    alone.process_group = None
    torch.testing.assert_close(layer(images(seed=3)), alone(images(seed=3)))
    group = dist.new_group([0])
    assert nn.SyncBatchNorm.convert_sync_batchnorm(layer, group) is layer
    assert layer.process_group is group


def test_convert_sync_batchnorm_without_ranks_is_an_error() -> None:
    layer = EVERY["zca"]()
    with pytest.raises(OptionError, match=r"is not initialised. Call torch.distributed.init_process_group"):
        nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(layer))
    with pytest.raises(OptionError, match=r"process_group must be a torch.distributed.ProcessGroup"):
        nn.SyncBatchNorm.convert_sync_batchnorm(layer, "all")
    assert layer.process_group is None
    assert isinstance(layer.as_batch_norm, BatchNormHandle)


@each_layer
def test_replace_all_batch_norm_modules(make: Make) -> None:
    layer = make(dtype=torch.float64)
    for x in batches():
        layer(x)
    x = images(seed=5)
    model = torch.func.replace_all_batch_norm_modules_(nn.Sequential(layer)).eval()
    assert not list(model.buffers())
    assert not layer.track_running_stats
    want = make(dtype=torch.float64, track_running_stats=False)(x)
    torch.testing.assert_close(model(x), want)
    many = torch.stack([x, 2 * x])
    torch.testing.assert_close(torch.func.vmap(model)(many), torch.stack([model(part) for part in many]))


def test_a_batch_norms_statistics_are_not_taken_for_ours() -> None:
    """What folds a batch norm into a convolution by its attributes fails, and does not fold something else."""
    conv, layer = nn.Conv2d(3, 6, 1).eval(), WHITENING["zca"]().eval()
    with pytest.raises(AttributeError):
        nn.utils.fusion.fuse_conv_bn_eval(conv, layer)
    with pytest.raises(OptionError, match="Load its state_dict into the layer, or use convert_batchnorm"):
        layer.as_batch_norm.running_mean = torch.zeros(6)


def test_conversion_finds_batch_norms_and_not_handles() -> None:
    model = nn.Sequential(DecorrelatedBatchNorm2d(6), nn.BatchNorm2d(6), PCADenoise2d(6))
    first, last = model[0], model[2]
    convert_batchnorm(model)
    assert [type(m) for m in model] == [DecorrelatedBatchNorm2d, DecorrelatedBatchNorm2d, PCADenoise2d]
    assert model[0] is first
    assert model[2] is last
    with pytest.raises(OptionError, match="holds no batch norm"):
        convert_batchnorm(nn.Sequential(DecorrelatedBatchNorm1d(4)))


@pytest.mark.filterwarnings("ignore")  # the tracer's own
@pytest.mark.parametrize("name", ["zca", "pca", "running whitening"])
@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.usefixtures("without_native")  # a traced call goes without, and rounds in another way
def test_trace(name: str, warm: bool) -> None:
    """Traced twice, as torch.jit does by itself, it is the same graph; and what an eval pass keeps is no constant in it."""
    layer, x = trained(WHITENING[name]).float(), images(dtype=torch.float32)
    if warm:
        layer(x)
    traced = torch.jit.trace(layer, x)
    torch.testing.assert_close(traced(x), layer(x))
    with torch.no_grad():
        layer.running_mean += 1
        for buffer in layer.buffers():
            if buffer.ndim == 3:
                buffer *= 2
    torch.testing.assert_close(traced(2 * x), layer(2 * x))


def test_a_shallow_copy_has_a_handle_of_its_own() -> None:
    layer = DecorrelatedBatchNorm2d(4)
    other = copy.copy(layer)
    assert other.weight is layer.weight
    assert other.running_mean is layer.running_mean
    assert other.as_batch_norm.layer is other
    other.eval()
    assert layer.training
    assert layer.as_batch_norm.layer is layer


def test_a_parametrized_layer_can_be_copied() -> None:
    layer = DecorrelatedBatchNorm2d(4)
    nn.utils.parametrize.register_parametrization(layer, "weight", nn.Softplus())
    torch.testing.assert_close(copy.deepcopy(layer).weight, layer.weight)
