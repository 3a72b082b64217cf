"""The residual networks: shapes, sizes, where the norms go, how they start, and that they learn."""

import math
from typing import Any

import pytest
import torch
from torch import nn

import spectralgrad as sg
from spectralgrad_lab.models.resnet import BasicBlock, Bottleneck, ResNet, resnet18, resnet50, resnet_digits
from support.cases import random


class Marked(nn.BatchNorm2d):
    """A batch norm that can be told from the others."""


def parameters(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


def marked(net: nn.Module) -> list[str]:
    return [name for name, module in net.named_modules() if isinstance(module, Marked)]


def tiny(**options: Any) -> ResNet:
    return ResNet(BasicBlock, (2, 1), width=8, **options)


# Counts by hand. ResNet-18 on CIFAR: stem 27 * 64 + 128; stages 2 * 2 blocks each; shortcuts; 512 * 10 + 10. The ImageNet
# stem has 7 * 7 * 3 * 64 weights instead of 27 * 64; with 1000 classes both networks are torchvision's.
@pytest.mark.parametrize(
    ("make", "options", "count"),
    [
        (resnet18, {}, 11_173_962),
        (resnet18, {"num_classes": 100}, 11_220_132),
        (resnet50, {}, 23_520_842),
        (resnet18, {"num_classes": 1000, "stem": "imagenet"}, 11_689_512),
        (resnet50, {"num_classes": 1000, "stem": "imagenet"}, 25_557_032),
    ],
)
def test_size_is_the_known_one(make: Any, options: dict[str, Any], count: int) -> None:
    with torch.device("meta"):
        assert parameters(make(**options)) == count


@pytest.mark.parametrize(
    ("make", "stem", "pixels", "last"),
    [(resnet18, "cifar", 32, (64, 4, 4)), (resnet50, "cifar", 32, (256, 4, 4)), (resnet18, "imagenet", 64, (64, 2, 2))],
)
def test_maps_and_outputs_have_the_expected_shape(make: Any, stem: str, pixels: int, last: tuple[int, ...]) -> None:
    net = make(num_classes=7, width=8, stem=stem)
    x = random(2, 3, pixels, pixels, dtype=torch.float32)
    assert net.features(x).shape == (2, *last)
    assert net(x).shape == (2, 7)
    inside = net.conv1(x)
    assert inside.shape == (2, 8, *([pixels] * 2 if stem == "cifar" else [pixels // 2] * 2))


def test_digits_net_has_64_channels_of_rank_9_to_whiten() -> None:
    net = resnet_digits()
    maps = net.conv1(random(50, 1, 8, 8, dtype=torch.float32)).transpose(0, 1).flatten(1)
    assert maps.shape[0] == 64
    assert torch.linalg.matrix_rank(maps.detach().double() @ maps.detach().double().mT, rtol=1e-10) == 9
    assert parameters(net) < 40_000


def test_norm_is_used_after_conv1_and_nowhere_else() -> None:
    seen: list[int] = []

    def norm(channels: int) -> nn.Module:
        seen.append(channels)
        return Marked(channels)

    assert marked(tiny(norm=norm)) == ["norm1"]
    assert seen == [8]
    assert marked(resnet_digits(norm=Marked)) == ["norm1"]
    assert marked(tiny()) == []


@pytest.mark.parametrize("make", [resnet18, resnet50])
def test_block_norm_fills_the_first_block_alone(make: Any) -> None:
    net = make(width=4, block_norm=Marked)
    inside = {name: module for name, module in net.stages[0][0].named_modules() if isinstance(module, nn.BatchNorm2d)}
    assert marked(net) == [f"stages.0.0.{name}" for name in inside]
    assert len(inside) == (2 if make is resnet18 else 4)  # Bottleneck: three and the shortcut's
    assert all(isinstance(module, Marked) for module in inside.values())


def test_norm_of_conv1_acts_on_its_output() -> None:
    """The callable's layer is in the path: a norm that returns zeros makes all images alike."""

    class Zero(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 0 * x

    x = random(4, 3, 8, 8, dtype=torch.float32)
    assert torch.unique(tiny(norm=lambda _: Zero()).eval()(x), dim=0).shape[0] == 1
    assert torch.unique(tiny().eval()(x), dim=0).shape[0] == 4


def test_start_is_kaiming_by_fan_out_with_norms_of_one_and_zero() -> None:
    torch.manual_seed(0)
    net = resnet18()
    for module in net.modules():
        if isinstance(module, nn.Conv2d) and module.weight.numel() > 10_000:
            fan_out = module.out_channels * math.prod(module.kernel_size)
            assert float(module.weight.detach().std()) == pytest.approx(math.sqrt(2 / fan_out), rel=0.05)
        if isinstance(module, nn.BatchNorm2d):
            assert bool((module.weight == 1).all())
            assert bool((module.bias == 0).all())


@pytest.mark.parametrize("block", [BasicBlock, Bottleneck])
def test_gradient_reaches_every_parameter(block: Any) -> None:
    torch.manual_seed(0)
    net = ResNet(
        block,
        (1, 1),
        width=8,
        norm=lambda c: sg.nn.DecorrelatedBatchNorm2d(c, 4),
        block_norm=lambda c: sg.nn.DecorrelatedBatchNorm2d(c, 4),
    )
    loss = nn.functional.cross_entropy(net(random(8, 3, 8, 8, dtype=torch.float32)), torch.arange(8))
    loss.backward()
    for name, p in net.named_parameters():
        assert p.grad is not None, name
        assert bool(p.grad.isfinite().all()), name
        assert bool((p.grad != 0).any()), name


def test_digits_net_learns() -> None:
    torch.manual_seed(0)
    net = resnet_digits(norm=lambda c: sg.nn.DecorrelatedBatchNorm2d(c, 16, eps=1e-3))
    x, y = random(32, 1, 8, 8, dtype=torch.float32), torch.arange(32) % 10
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(15):
        loss = nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"width": 0}, "width must be a whole number >= 1, got 0"),
        ({"num_classes": 2.5}, "num_classes .* got 2.5"),
        ({"depths": ()}, "one for each stage"),
        ({"depths": (1, 0)}, "depths"),
        ({"stem": "mnist"}, 'stem must be "cifar" or "imagenet", got \'mnist\''),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(sg.errors.OptionError, match=words):
        ResNet(BasicBlock, **{"depths": (1,), **options})
