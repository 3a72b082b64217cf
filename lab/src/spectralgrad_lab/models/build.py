"""The network of a trial."""

from torch.nn import BatchNorm2d, Conv2d, Module

from spectralgrad.errors import OptionError
from spectralgrad.nn import CovariancePool2d

from .alexnet import AlexNet
from .gcp import PooledResNet, pooling_head
from .layers import LayerOptions, norm_of, pool_of
from .resnet import BasicBlock, Bottleneck, Norm, ResNet

__all__ = ["MODELS", "build", "pre_svd", "watched_layers"]

IMAGENET = 128  # pixels, from which the ImageNet stem applies
TINY = 64  # pixels, at which the first stage halves the map: Tiny ImageNet then costs what CIFAR does
_DEPTHS = {"resnet18": (2, 2, 2, 2), "resnet50": (3, 4, 6, 3), "digits": (1, 1)}
MODELS = tuple(f"{name}{head}" for name in (*_DEPTHS, "alexnet") for head in ("", "-gcp"))


def build(trial: LayerOptions, classes: int, channels: int, size: int) -> Module:
    """The network that a trial trains, for images (channels, size, size).

    CIFAR's stem (3 x 3, stride 1) below 128 pixels, ImageNet's from there on; at 64 pixels the first stage has stride 2,
    our choice for Tiny ImageNet, whose stem the texts do not give. «name-gcp» and layer gcp both mean covariance pooling
    in the place of the mean: with |S|_F = 1 on AlexNet (PAMI eq. 29), bare on residual networks (ECCV22 eq. 44).

    Args:
        trial: model, width, layer, method and the layer's options are read.
        classes: outputs.
        channels, size: of the images.

    Raises:
        OptionError: an unknown model, or options that do not go together.

    >>> import torch
    >>> from types import SimpleNamespace
    >>> plain = dict(where="first", layer="bn", method="exact", d=None, iterations=None, energy=None, rank=None)
    >>> build(SimpleNamespace(model="digits", width=16, **plain), 10, 1, 8)(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """
    name, _, head = trial.model.partition("-")
    if trial.model not in MODELS:
        raise OptionError(f"`build`: model must be one of {', '.join(MODELS)}, got {trial.model!r}.")
    if head and trial.layer != "gcp":
        raise OptionError(
            f"`build`: {trial.model} ends in covariance pooling, so layer must be gcp, got {trial.layer!r}. With that "
            f"layer take model {name}."
        )
    if trial.where not in ("first", "block"):
        raise OptionError(f"`build`: where must be first or block, got {trial.where!r}.")
    if trial.where == "block" and (trial.layer in ("bn", "gcp") or name == "alexnet"):
        raise OptionError(f"`build`: {trial.model} with layer {trial.layer} has no block to replace. Take where first.")
    norm = norm_of(trial)
    if name == "alexnet":
        return _alexnet(trial, classes, channels, size, norm)
    first, block = (BatchNorm2d, norm) if trial.where == "block" else (norm, BatchNorm2d)
    trunk = _resnet(name, trial.width, classes, channels, size, first, block)
    if trial.layer != "gcp":
        return trunk
    pool = pool_of(trial, trunk.classifier.in_features, None)
    return PooledResNet(trunk, pooling_head(pool, classes))


def _resnet(name: str, width: int, classes: int, channels: int, size: int, norm: Norm, block_norm: Norm) -> ResNet:
    is_digits = name == "digits"
    return ResNet(
        Bottleneck if name == "resnet50" else BasicBlock,
        _DEPTHS[name],
        num_classes=classes,
        in_channels=channels,
        width=width,
        stem_channels=64 if is_digits else None,
        stem="imagenet" if size >= IMAGENET else "cifar",
        first_stride=2 if is_digits or TINY <= size < IMAGENET else 1,
        norm=norm,
        block_norm=block_norm,
    )


def _alexnet(trial: LayerOptions, classes: int, channels: int, size: int, norm: Norm) -> AlexNet:
    head = None
    if trial.layer == "gcp":
        head = pooling_head(pool_of(trial, 4 * trial.width, "frobenius"), classes)
    return AlexNet(classes, in_channels=channels, width=trial.width, size=size, norm=norm, head=head)


def watched_layers(model: Module) -> list[str]:
    """The names of the layers under test: those whose covariance can be watched."""
    return [name for name, module in model.named_modules() if hasattr(module, "monitored")]


def pre_svd(model: Module) -> Conv2d:
    """The convolution before the layer under test (ECCV22): that of the reduction before a pooling, else the first one.

    >>> from spectralgrad_lab.models.resnet import resnet18
    >>> pre_svd(resnet18()).kernel_size
    (3, 3)
    """
    for module in model.modules():
        if isinstance(module, CovariancePool2d) and module.reduce is not None:
            return module.reduce[0]  # type: ignore[return-value]
    return model.conv1  # type: ignore[return-value]
