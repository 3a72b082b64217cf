"""From a trial to a network: which layer with which gradient, where, on which stem; what does not exist is named."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import spectralgrad as sg
from spectralgrad.nn import CovariancePool2d, DecorrelatedBatchNorm2d, PCADenoise2d
from spectralgrad_lab.artifacts.protocols.denoising import by_rank
from spectralgrad_lab.models.alexnet import AlexNet
from spectralgrad_lab.models.build import MODELS, build, inputs_of, pre_svd, replace_pre_svd, watched_layers
from spectralgrad_lab.models.gcp import PooledResNet
from spectralgrad_lab.models.layers import METHODS, norm_of, pool_of, watched
from spectralgrad_lab.records.trial import Trial
from support.cases import random

SMALL = Trial(model="resnet18", width=4)
ZCA = replace(SMALL, layer="zca", d=2, method="exact")


def images(channels: int, size: int, n: int = 2) -> torch.Tensor:
    return random(n, channels, size, size, dtype=torch.float32)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("channels", "size"), [(1, 8), (3, 32), (3, 64)])
def test_every_model_takes_every_image(model: str, channels: int, size: int) -> None:
    layer = "gcp" if model.endswith("-gcp") else "bn"
    net = build(replace(SMALL, model=model, layer=layer, d=4), 7, channels, size)
    y = net(images(channels, size))
    assert y.shape == (2, 7)
    nn.functional.cross_entropy(y, torch.tensor([0, 1])).backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in net.parameters())


@pytest.mark.parametrize(
    ("model", "size", "kernel", "map_size"),
    [
        ("resnet18", 32, 3, 4),
        ("resnet50", 32, 3, 4),
        ("resnet18", 64, 3, 8),  # Tiny ImageNet: stride 1, as PAMI Table 2 has it
        ("resnet18", 224, 7, 7),
        ("digits", 8, 3, 2),
        ("alexnet", 224, 11, 13),
        ("alexnet", 32, 3, 8),
    ],
)
def test_stem_follows_the_size_of_the_images(model: str, size: int, kernel: int, map_size: int) -> None:
    net: Any = build(replace(SMALL, model=model), 10, 3, size)
    assert net.conv1.kernel_size == (kernel, kernel)
    assert net.features(images(3, size)).shape[-1] == map_size


@pytest.mark.parametrize(("model", "size", "stride", "map_size"), [("resnet18", 64, 2, 4), ("digits", 8, 1, 4)])
def test_first_stride_is_the_trials(model: str, size: int, stride: int, map_size: int) -> None:
    net: Any = build(replace(SMALL, model=model, first_stride=stride), 10, 3, size)
    assert net.features(images(3, size)).shape[-1] == map_size


def test_networks_have_the_known_size() -> None:
    with torch.device("meta"):
        counts = {
            name: sum(p.numel() for p in build(Trial(model=name), 10, 3, 32).parameters())
            for name in ("resnet18", "resnet50")
        }
        convolutions = [p.numel() for name, p in AlexNet(1000).named_parameters() if p.ndim == 4]
    assert counts == {"resnet18": 11_173_962, "resnet50": 23_520_842}
    # 64 x 3 x 11 x 11, 192 x 64 x 5 x 5, 384 x 192 x 9, 256 x 384 x 9, 256 x 256 x 9: the one-column network.
    assert convolutions == [23_232, 307_200, 663_552, 884_736, 589_824]


EXPECTED: dict[str, dict[str, Any]] = {
    "svd": {"gradient": sg.Analytic()},
    "clip": {"gradient": sg.Clip(100.0)},
    "taylor": {"gradient": sg.Taylor(9)},
    "svd-pi": {"gradient": sg.PowerIteration(19, min_eigenvalue=1e-3)},
    "exact": {"gradient": sg.Exact()},
    "lorentzian": {"gradient": sg.Lorentzian()},
    "pi": {"gradient": None, "solver": sg.PowerDeflation(19)},
    "newton": {"gradient": None, "solver": sg.NewtonSchulz(steps=5)},
}


def test_every_method_is_listed_here() -> None:
    assert set(EXPECTED) == set(METHODS)


@pytest.mark.parametrize("layer", ["zca", "pca"])
@pytest.mark.parametrize("method", METHODS)
def test_method_of_whitening_is_the_papers(layer: str, method: str) -> None:
    trial = replace(ZCA, layer=layer, method=method, eps=1e-3)
    if (layer, method) == ("pca", "newton"):
        return
    made: Any = norm_of(trial)(8)
    assert isinstance(made, DecorrelatedBatchNorm2d)
    assert (made.whitening, made.group_size, made.eps) == (layer, 2, 1e-3)
    for name, value in EXPECTED[method].items():
        assert getattr(made, name) == value


@pytest.mark.parametrize(
    ("method", "name", "value"),
    [
        ("taylor", "gradient", sg.Taylor(3)),
        ("svd-pi", "gradient", sg.PowerIteration(3, min_eigenvalue=1e-4)),
        ("pi", "solver", sg.PowerDeflation(3)),
        ("newton", "solver", sg.NewtonSchulz(steps=3)),
    ],
)
def test_iterations_are_the_trials(method: str, name: str, value: Any) -> None:
    assert getattr(norm_of(replace(ZCA, method=method, iterations=3))(8), name) == value
    assert norm_of(replace(ZCA, method="taylor", iterations=0))(8).gradient == sg.Taylor(0)  # 0 is not «none»


@pytest.mark.parametrize("layer", ["zca", "pca", "gcp", "denoise"])
def test_deflation_of_svd_pi_is_the_trials(layer: str) -> None:
    """Printed, M - M v v^T with the break at lambda <= eps, where eps is added; two-sided pooling keeps everything."""
    for deflation in ("two-sided", "printed"):
        trial = replace(SMALL, layer=layer, method="svd-pi", deflation=deflation, eps=1e-3, iterations=3, d=None)
        made: Any = pool_of(trial, 8, None) if layer == "gcp" else norm_of(trial)(8)
        least = 0.0 if layer == "denoise" or (layer, deflation) == ("gcp", "two-sided") else 1e-3
        assert made.gradient == sg.PowerIteration(3, min_eigenvalue=least, deflation=deflation)  # type: ignore[arg-type]


@pytest.mark.parametrize(("side", "most"), [(13, 168), (7, 48)])
def test_printed_svd_pi_keeps_what_a_map_has(side: int, most: int) -> None:
    """PAMI Table 7: of 256 channels a 13 x 13 map has 168 eigenvalues above eps, a 7 x 7 map 48; the rest is dropped."""
    trial = replace(SMALL, layer="gcp", method="svd-pi", iterations=2, d=256, eps=1e-2, deflation="printed")
    x = random(1, 256, side, side, dtype=torch.float32)
    ranks = {}
    for change in ("printed", "two-sided"):
        pool: Any = pool_of(replace(trial, deflation=change), 256, "frobenius")
        pool.reduce, pool.reduced, pool.output = None, None, "matrix"
        values = torch.linalg.eigvalsh(pool(x)[0].double())
        ranks[change] = int((values > 1e-5 * values[-1]).sum())
    assert ranks["printed"] == most
    assert ranks["two-sided"] >= 250  # the break by energy takes the last two


def test_deflation_changes_the_gradient() -> None:
    def gradient(**change: Any) -> torch.Tensor:
        layer = norm_of(replace(ZCA, method="svd-pi", iterations=2, d=4, **change))(4)
        x = (images(4, 8) * torch.arange(1.0, 5)[:, None, None]).requires_grad_()
        return torch.autograd.grad((layer(x) * images(4, 8).roll(1, 0)).sum(), x)[0]

    assert not torch.allclose(gradient(), gradient(deflation="printed"), rtol=1e-3, atol=1e-5)


def test_denoising_goes_through_what_the_trial_says_and_averages_it() -> None:
    trial = replace(SMALL, layer="denoise", method="svd", rank=2)
    made: Any = norm_of(trial)(8)
    assert (made.through, made.running) == ("projector", "covariance")
    made = norm_of(replace(trial, through="vectors", running="subspace"))(8)
    assert (made.through, made.running) == ("vectors", "subspace")


def test_denoising_takes_energy_or_rank_and_pooling_its_channels() -> None:
    trial = replace(SMALL, layer="denoise", method="taylor", eps=1e-3)
    for change in ({"energy": 0.9}, {"rank": 3}):
        made: Any = norm_of(replace(trial, **change))(8)
        assert isinstance(made, PCADenoise2d)
        assert (made.energy, made.rank, made.eps) == (change.get("energy"), change.get("rank"), 1e-3)
        assert made.gradient == sg.Taylor(9)
    net: Any = build(replace(SMALL, layer="gcp", method="taylor", d=6, eps=1e-3), 10, 3, 32)
    pool = net.head[0]
    assert isinstance(net, PooledResNet)
    assert (pool.in_channels, pool.channels, pool.eps, pool.normalize) == (32, 6, 1e-3, None)
    assert pool.gradient == sg.Taylor(9)
    net = build(replace(SMALL, model="alexnet", layer="gcp", method="newton"), 10, 3, 32)
    assert (net.head[0].channels, net.head[0].normalize, net.head[0].solver) == (256, "frobenius", sg.NewtonSchulz(steps=5))


@pytest.mark.parametrize("running", ["covariance", "whitening"])
def test_running_average_is_the_trials(running: str) -> None:
    made = norm_of(replace(ZCA, running=running))(8)
    assert f"running_{running}" in dict(made.named_buffers())


def test_the_layer_stands_where_the_trial_says() -> None:
    def found(trial: Trial) -> list[str]:
        net = build(trial, 10, 3, 32)
        assert watched_layers(net) == [n for n, m in net.named_modules() if isinstance(m, DecorrelatedBatchNorm2d)]
        return watched_layers(net)

    assert found(ZCA) == ["norm1"]
    block = ["stages.0.0.body.1", "stages.0.0.body.4"]
    assert found(replace(ZCA, where="block")) == block
    assert found(replace(ZCA, where="stage")) == [*block, "stages.0.1.body.1", "stages.0.1.body.4"]
    norms = [
        name
        for name, module in build(replace(ZCA, layer="bn"), 10, 3, 32).named_modules()
        if isinstance(module, nn.BatchNorm2d)
    ]
    assert found(replace(ZCA, where="all")) == norms
    assert watched_layers(build(SMALL, 10, 3, 32)) == ["norm1"]  # batch norm can be watched too
    assert watched_layers(build(replace(SMALL, layer="gcp"), 10, 3, 32)) == ["head.0"]


def test_pre_svd_layer_is_the_one_before() -> None:
    net: Any = build(ZCA, 10, 3, 32)
    assert pre_svd(net) is net.conv1
    net = build(replace(SMALL, layer="gcp", d=8), 10, 3, 32)
    assert pre_svd(net) is net.head[0].reduce[0]


def test_inputs_of_the_convolution_before() -> None:
    assert inputs_of(build(ZCA, 10, 3, 32)) == inputs_of(build(SMALL, 10, 3, 32)) == {"norm1": 27}
    assert inputs_of(build(replace(ZCA, where="stage"), 10, 3, 32)) == {}  # more inputs than channels
    assert inputs_of(build(replace(SMALL, layer="gcp", d=8), 10, 3, 32)) == {"head.0": 32}
    net = build(ZCA, 10, 3, 32)
    replace_pre_svd(net, sg.orthogonal.OrthogonalConv2d(3, 4, 3))
    assert inputs_of(net) == {}


def test_watched_batch_norm_is_batch_norm_with_a_covariance() -> None:
    x = random(16, 6, 3, 3, dtype=torch.float32) + 3
    layer, twin = watched(nn.BatchNorm2d(6), 3), nn.BatchNorm2d(6)
    layer.monitored = True  # type: ignore[assignment]
    assert torch.equal(layer(x), twin(x))
    X = x.double().transpose(0, 1).flatten(1)
    X = X - X.mean(1, keepdim=True)
    want = torch.stack([X[:3] @ X[:3].T, X[3:] @ X[3:].T]) / X.shape[1]
    torch.testing.assert_close(layer.last_covariance, want, check_dtype=False)
    assert set(layer.state_dict()) == set(twin.state_dict())
    layer.last_covariance = None  # type: ignore[assignment]
    layer.eval()(x)
    assert layer.last_covariance is None
    sg.diagnostics.ConditionMonitor(nn.Sequential(watched(nn.BatchNorm2d(6), None))).detach()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "vgg"}, "model must be one of"),
        ({"layer": "ln"}, "layer must be one of"),
        ({"layer": "zca", "method": "sgd"}, "method must be one of"),
        ({"layer": "bn", "method": "taylor"}, "nothing to differentiate"),
        ({"layer": "bn", "iterations": 3}, "nothing to differentiate"),
        ({"layer": "zca", "method": "exact", "iterations": 3}, "exact has none"),
        ({"layer": "zca", "energy": 0.9}, "belong to layer denoise"),
        ({"layer": "bn", "rank": 3}, "belong to layer denoise"),
        ({"layer": "denoise", "energy": 0.9, "rank": 3}, "not both"),
        ({"layer": "denoise", "d": 4}, "Leave d out"),
        ({"layer": "denoise", "method": "newton"}, "no eigenvectors"),
        ({"layer": "pca", "method": "newton"}, "no eigenvectors"),
        ({"layer": "zca", "d": 3}, "group_size"),
        ({"layer": "bn", "d": 3}, "d must divide"),
        ({"layer": "zca", "running": "mean"}, "running must be"),
        ({"layer": "zca", "where": "last"}, "where must be one of first, block, stage, all"),
        ({"layer": "bn", "where": "block"}, "no block to replace"),
        ({"layer": "bn", "where": "stage"}, "no block to replace"),
        ({"layer": "zca", "model": "alexnet", "where": "block"}, "no block to replace"),
        ({"layer": "zca", "model": "resnet18-gcp"}, "layer must be gcp"),
        ({"layer": "zca", "method": "taylor", "deflation": "printed"}, "deflation is that of svd-pi"),
        ({"layer": "zca", "method": "pi", "deflation": "printed"}, "pi always deflates as printed"),
        ({"deflation": "printed"}, "deflation is that of svd-pi"),
        ({"layer": "zca", "method": "svd-pi", "deflation": "left"}, '"two-sided" or "printed"'),
        ({"layer": "zca", "through": "vectors"}, "through belongs to layer denoise"),
        ({"layer": "bn", "running": "whitening"}, "running belongs to zca, pca and denoise"),
        ({"layer": "gcp", "running": "whitening"}, "running belongs to zca, pca and denoise"),
        ({"layer": "denoise", "through": "pairs"}, "through must be"),
        ({"layer": "denoise", "running": "whitening"}, "running must be"),
        ({"first_stride": 0}, "first_stride must be"),
        ({"model": "alexnet", "first_stride": 1}, "first_stride is a residual network's"),
        ({"width": 0}, "width must be"),
        ({"width": 0, "model": "alexnet"}, "width must be"),
    ],
)
def test_what_does_not_exist_is_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(sg.errors.OptionError, match=words):
        build(replace(SMALL, **change), 10, 3, 32)


def test_pooling_sees_the_last_map() -> None:
    """The head is in the path: a trunk without it gives the maps that the pooling takes."""
    net: Any = build(replace(SMALL, layer="gcp", d=8), 10, 3, 32).eval()
    x = images(3, 32)
    assert torch.equal(net(x), net.head(net.trunk.features(x)))
    assert isinstance(net.head[0], CovariancePool2d)
    assert not any(name.startswith("trunk.classifier") for name, _ in net.named_parameters())


def test_32_eigenvectors_of_27_inputs_are_batch_norm_but_for_the_break_at_the_energy() -> None:
    """What nips19-table4b says of its row 32: the covariance has rank 27, and without the break nothing would be dropped."""
    (trial,) = (entry.trials[0] for entry in by_rank("short") if entry.row == "32")
    layer = norm_of(trial)(64)
    assert isinstance(layer, PCADenoise2d)
    assert isinstance(layer.gradient, sg.PowerIteration)
    smooth = nn.functional.avg_pool2d(images(3, 40, 8), 9, stride=1)  # as pictures are: its eigenvalues fall quickly
    x = nn.functional.conv2d(smooth, random(64, 3, 3, 3, dtype=torch.float32))
    with torch.no_grad():
        plain, cut = nn.BatchNorm2d(64, eps=trial.eps)(x), layer(x)
        layer.gradient = replace(layer.gradient, max_energy=None)
        whole = layer(x)
    assert 16 < rank_of(cut) < rank_of(whole) == 27
    assert (cut - plain).norm() > 1e-3 * plain.norm()
    assert (whole - plain).norm() < 1e-4 * plain.norm()


def rank_of(y: torch.Tensor) -> int:
    """Of the channels of (N, C, H, W)."""
    return int(torch.linalg.matrix_rank(y.double().transpose(0, 1).flatten(1), rtol=1e-4))
