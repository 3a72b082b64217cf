"""A batch norm's checkpoint loads into the layer that has taken its place, and an exported layer loads again."""

import copy
import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spectralgrad as sg
from spectralgrad.errors import OptionError
from spectralgrad.nn import DecorrelatedBatchNorm2d, PCADenoise2d, convert_batchnorm, fuse
from support import cases
from support.features import Make, images
from support.layers import EVERY, each_layer, each_mode, trained
from support.marks import slow_but

OPTIONS: dict[str, dict[str, Any]] = {
    "covariance": {"group_size": 3},
    "whitening": {"group_size": 2, "running": "whitening", "eps": 1e-3},
    "one group": {},
    "denoise": {"layer": PCADenoise2d, "energy": 0.9},
}
each_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


def network(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(6, 6, 1), nn.Sequential(nn.BatchNorm2d(6)), nn.ReLU()).to(dtype)


def old_model(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """A trained model with batch norms, in eval mode."""
    model = network(dtype)
    for step in range(3):
        model(images(seed=step, dtype=dtype) * (1 + step))
    for i, parameter in enumerate(model.parameters()):
        nn.init.uniform_(parameter, 0.5, 1.5, generator=cases.generator(i))
    return model.eval()


# Batch norms' checkpoints


@each_option
@pytest.mark.parametrize("assign", [False, True], ids=["copy", "assign"])
def test_a_batch_norm_checkpoint_loads(options: dict[str, Any], assign: bool) -> None:
    old, x = old_model(), images(seed=9)
    state = old.state_dict()
    keys = list(state)
    model = convert_batchnorm(network(), **options).eval()
    assert (model(x) - old(x)).abs().max() > 0.1
    assert str(model.load_state_dict(state, assign=assign)) == "<All keys matched successfully>"
    assert list(state) == keys  # the caller's is not touched
    want = convert_batchnorm(copy.deepcopy(old), **options)
    for name, value in want.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value)
    if "eps" not in options:
        torch.testing.assert_close(model(x), old(x))


def test_running_var_is_the_diagonal_of_each_group() -> None:
    variance = torch.tensor([1.0, 2.0, 3.0, 4.0])
    state = nn.BatchNorm2d(4).state_dict() | {"running_var": variance}
    layer = DecorrelatedBatchNorm2d(4, group_size=2)
    layer.load_state_dict(state)
    assert torch.equal(layer.running_covariance, torch.stack([torch.diag(variance[:2]), torch.diag(variance[2:])]))
    layer = DecorrelatedBatchNorm2d(4, group_size=2, running="whitening", eps=0.5)
    layer.load_state_dict(state)
    roots = (variance + 0.5).rsqrt()
    torch.testing.assert_close(layer.running_whitening, torch.stack([torch.diag(roots[:2]), torch.diag(roots[2:])]))


def test_the_kept_matrix_follows() -> None:
    layer, x = DecorrelatedBatchNorm2d(6).double().eval(), images()
    before = layer(x)
    batch_norm = old_model()[1][0]
    layer.load_state_dict(batch_norm.state_dict())
    layer.eps = batch_norm.eps
    assert (layer(x) - before).abs().max() > 0.1
    torch.testing.assert_close(layer(x), batch_norm(x))


def test_a_checkpoint_from_before_batches_were_counted() -> None:
    """torch's own batch norm takes one without num_batches_tracked if it has no version, and no other."""
    state = dict(nn.BatchNorm2d(6).state_dict())
    del state["num_batches_tracked"]
    layer = DecorrelatedBatchNorm2d(6)
    layer.load_state_dict(state)
    assert int(layer.num_batches_tracked) == 0
    versioned = nn.BatchNorm2d(6).state_dict()
    del versioned["num_batches_tracked"]
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "num_batches_tracked"'):
        DecorrelatedBatchNorm2d(6).load_state_dict(versioned)


def nonsense() -> dict[str, tuple[dict[str, Tensor], str]]:
    good = dict(nn.BatchNorm2d(6).state_dict())
    own = dict(DecorrelatedBatchNorm2d(6).state_dict())
    wrong_size, negative, nan = torch.ones(5), torch.tensor([1.0, 1, -2, 1, 1, 1]), torch.full((6,), torch.nan)
    return {
        "no variance": ({k: v for k, v in good.items() if k != "running_var"}, 'Missing key.* "running_covariance"'),
        "no mean": ({k: v for k, v in good.items() if k != "running_mean"}, 'Missing key.* "running_mean"'),
        "no weight": ({k: v for k, v in good.items() if k != "weight"}, 'Missing key.* "weight"'),
        "both": (own | {"running_var": torch.ones(6)}, 'Unexpected key.* "running_var"'),
        "another": (good | {"scale": torch.ones(6)}, 'Unexpected key.* "scale"'),
        "channels": (good | {"running_var": wrong_size}, r"running_var of a batch norm must have shape \(6,\).* got \(5,\)"),
        "negative": (good | {"running_var": negative}, "must be finite and not negative, got a least value of -2"),
        "nan": (good | {"running_var": nan}, "must be finite and not negative"),
        "handle": (own | {"as_batch_norm.weight": torch.ones(6)}, 'Unexpected key.* "as_batch_norm.weight"'),
    }


@pytest.mark.parametrize("name", nonsense())
def test_nonsense_is_still_an_error(name: str) -> None:
    state, message = nonsense()[name]
    with pytest.raises(RuntimeError, match=message):
        DecorrelatedBatchNorm2d(6).load_state_dict(state)


def test_what_the_layer_does_not_have_is_unexpected() -> None:
    with pytest.raises(RuntimeError, match="Unexpected key"):
        DecorrelatedBatchNorm2d(6, track_running_stats=False).load_state_dict(nn.BatchNorm2d(6).state_dict())


# Exported layers


@pytest.mark.covering(1)
@each_mode
@each_layer
def test_an_exported_layer_is_saved_and_loaded(make: Make, training: bool) -> None:
    layer, x = trained(make).train(training), images(seed=4)
    file = io.BytesIO()
    torch.export.save(torch.export.export(copy.deepcopy(layer), (x,)), file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    want = layer(x)
    torch.testing.assert_close(loaded(x), want)
    for name, value in layer.state_dict().items():
        torch.testing.assert_close(loaded.state_dict()[name], value)  # in training mode it has moved


ONNX: dict[str, Make] = {  # what needs no decomposition
    "running whitening": EVERY["running whitening"],
    "all energy": EVERY["all energy"],
    "unrolled": lambda **options: DecorrelatedBatchNorm2d(6, group_size=3, solver=sg.NewtonSchulz(steps=7), **options),
}


def to_onnx(model: nn.Module, x: Tensor, path: str | None = None) -> None:
    torch.onnx.export(model, (x,), path, dynamo=True, verbose=False)


@pytest.mark.filterwarnings("ignore")  # the exporter's own
@pytest.mark.parametrize("make", slow_but(["unrolled"], ONNX))
def test_onnx_without_a_decomposition(make: Make, tmp_path: Any) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    layer, x = trained(make).float(), images(dtype=torch.float32)
    path = str(tmp_path / "layer.onnx")
    to_onnx(layer, x, path)
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), layer(x), rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", ["zca", *(pytest.param(name, marks=pytest.mark.slow) for name in ("pca", "rank", "newton"))]
)
def test_onnx_of_a_decomposition_names_fuse(name: str, tmp_path: Any) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model, x = nn.Sequential(nn.Conv2d(6, 6, 1), trained(EVERY[name]).float()).eval(), images(dtype=torch.float32)
    with pytest.raises(Exception, match=r"ONNX has no eigendecomposition.*sg\.nn\.fuse\(model\.eval\(\)\)") as caught:
        to_onnx(model, x)
    assert isinstance(caught.value.__cause__, OptionError)
    path = str(tmp_path / "fused.onnx")
    to_onnx(fuse(model), x, path)
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), model(x), rtol=1e-4, atol=1e-4)
