"""The network of a trial."""

from typing import Any

from torch.nn import BatchNorm2d, Conv2d, Module

from spectralgrad.errors import OptionError
from spectralgrad.nn import CovariancePool2d
from spectralgrad.orthogonal import OrthogonalConv2d

from .alexnet import AlexNet
from .gcp import PooledResNet, pooling_head
from .layers import LayerOptions, norm_of, pool_of
from .resnet import DEPTHS, Norm, ResNet, resnet18, resnet50, resnet_digits

__all__ = ["MODELS", "build", "inputs_of", "pre_svd", "replace_pre_svd", "watched_layers"]

PLACES = ("first", "block", "stage", "all")  # of the norms that a trial replaces
IMAGENET = 128  # pixels, from which the ImageNet stem applies
_RESNETS = {"resnet18": resnet18, "resnet50": resnet50, "digits": resnet_digits}
MODELS = tuple(f"{name}{head}" for name in (*_RESNETS, "alexnet") for head in ("", "-gcp"))


def build(trial: LayerOptions, classes: int, channels: int, size: int) -> Module:
    """The network that a trial trains, for images (channels, size, size).

    CIFAR's stem (3 x 3, stride 1) below 128 pixels, ImageNet's from there on. Every first stage has stride 1, Tiny
    ImageNet's too (PAMI Table 2), unless the trial says otherwise; the digits' has 2. «name-gcp» and layer gcp both mean
    covariance pooling in the place of the mean: with |S|_F = 1 on AlexNet (PAMI eq. 29), bare on residual networks
    (ECCV22 eq. 44).

    Args:
        trial: model, width, layer, method and the layer's options are read.
        classes: outputs.
        channels, size: of the images.

    Raises:
        OptionError: an unknown model, or options that do not go together.

    >>> import torch
    >>> from types import SimpleNamespace
    >>> plain = dict(where="first", layer="bn", method="exact", d=None, iterations=None, energy=None, rank=None)
    >>> plain |= dict(running="covariance", deflation="two-sided", through="projector", first_stride=None)
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
    if trial.where not in PLACES:
        raise OptionError(f"`build`: where must be one of {', '.join(PLACES)}, got {trial.where!r}.")
    if trial.where != "first" and (trial.layer in ("bn", "gcp") or name == "alexnet"):
        raise OptionError(f"`build`: {trial.model} with layer {trial.layer} has no block to replace. Take where first.")
    norm = norm_of(trial)
    if name == "alexnet":
        return _alexnet(trial, classes, channels, size, norm)
    trunk = _resnet(name, trial, classes, channels, size, norm)
    if trial.layer != "gcp":
        return trunk
    pool = pool_of(trial, trunk.classifier.in_features, None)
    return PooledResNet(trunk, pooling_head(pool, classes))


def _resnet(name: str, trial: LayerOptions, classes: int, channels: int, size: int, norm: Norm) -> ResNet:
    depths = DEPTHS[name]
    blocks = {"first": 0, "block": 1, "stage": depths[0], "all": sum(depths)}[trial.where]
    own = {} if trial.first_stride is None else {"first_stride": trial.first_stride}
    return _RESNETS[name](
        num_classes=classes,
        in_channels=channels,
        width=trial.width,
        stem="imagenet" if size >= IMAGENET else "cifar",
        norm=norm if trial.where in ("first", "all") else BatchNorm2d,
        block_norm=norm,
        blocks=blocks,
        **own,
    )


def _alexnet(trial: LayerOptions, classes: int, channels: int, size: int, norm: Norm) -> AlexNet:
    if trial.first_stride is not None:
        raise OptionError(
            f"`build`: first_stride is a residual network's, got {trial.first_stride} for alexnet. Leave it out."
        )
    head = None
    if trial.layer == "gcp":
        head = pooling_head(pool_of(trial, 4 * trial.width, "frobenius"), classes)
    return AlexNet(classes, in_channels=channels, width=trial.width, size=size, norm=norm, head=head)


def watched_layers(model: Module) -> list[str]:
    """The names of the layers under test: those whose covariance can be watched."""
    return [name for name, module in model.named_modules() if hasattr(module, "monitored")]


def pre_svd(model: Module) -> Conv2d | OrthogonalConv2d:
    """The convolution before the layer under test (ECCV22): that of the reduction before a pooling, else the first one.

    >>> from spectralgrad_lab.models.resnet import resnet18
    >>> pre_svd(resnet18()).kernel_size
    (3, 3)
    """
    holder, name = _place_of_pre_svd(model)
    return getattr(holder, name)  # type: ignore[no-any-return]


def replace_pre_svd(model: Module, made: Module) -> None:
    """Put another layer in the place of the convolution before the layer under test."""
    holder, name = _place_of_pre_svd(model)
    setattr(holder, name, made)


def _place_of_pre_svd(model: Any) -> tuple[Module, str]:
    for module in model.modules():
        if isinstance(module, CovariancePool2d) and module.reduce is not None:
            return module.reduce, "0"
    return model, "conv1"


def inputs_of(model: Any) -> dict[str, int]:
    """Of how many numbers the convolution before the layer under test makes an output, by the name of that layer.

    An `OrthogonalConv2d` sees the whole image: nothing is known then. Norms inside a stage have more inputs than channels.

    >>> from spectralgrad_lab.models.resnet import resnet18
    >>> from spectralgrad_lab.models.layers import watched
    >>> inputs_of(resnet18(norm=lambda channels: watched(BatchNorm2d(channels), None)))
    {'norm1': 27}
    """
    conv, modules = pre_svd(model), dict(model.named_modules())
    names = [name for name in watched_layers(model) if name == "norm1" or isinstance(modules[name], CovariancePool2d)]
    if isinstance(conv, OrthogonalConv2d):
        return {}
    return dict.fromkeys(names, conv.weight[0].numel())
