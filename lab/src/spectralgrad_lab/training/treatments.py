"""What a trial does to the layer before the decomposition (ECCV22), and to every norm where several ranks train."""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn import BatchNorm2d, Conv2d, Module
from torch.nn.utils.parametrize import is_parametrized
from torch.optim import Optimizer

import spectralgrad as sg
from spectralgrad.errors import OptionError
from spectralgrad.nn.base import BatchStatistics
from spectralgrad_lab.models.build import pre_svd, replace_pre_svd
from spectralgrad_lab.models.layers import LAYERS, METHODS, norm_of
from spectralgrad_lab.records.trial import Trial

__all__ = ["LAYERS", "METHODS", "TREATMENTS", "norm_of", "penalty", "synchronise", "treat_step", "treat_weight"]

TREATMENTS = ("SN", "OL", "OW", "NOG", "OLR")
OL_WEIGHT = 1.0  # of the orthogonal loss beside the cross entropy: ECCV22 gives none


def require_treatments(trial: Trial) -> None:
    """Raise for treatments that do not exist or have nothing to act on.

    >>> require_treatments(Trial(treatments=("NOG",)))
    Traceback (most recent call last):
    spectralgrad.errors.OptionError: `Trial`: treatments act on the convolution before a decomposition, and batch norm ...
    """
    for name in trial.treatments:
        if name not in TREATMENTS:
            raise OptionError(f"`Trial`: treatments must be of {', '.join(TREATMENTS)}, got {name!r}.")
    if len(set(trial.treatments)) < len(trial.treatments):
        raise OptionError(f"`Trial`: each treatment can be named once, got {', '.join(trial.treatments)}.")
    if trial.treatments and trial.layer == "bn":
        raise OptionError(
            "`Trial`: treatments act on the convolution before a decomposition, and batch norm has none. Take another "
            "layer, or no treatments."
        )
    if trial.treatments and trial.where != "first":
        raise OptionError(f"`Trial`: treatments act on the first convolution; with where {trial.where} leave them out.")
    if trial.skew not in ("matrix", "convolution"):
        raise OptionError(f"`Trial`: skew must be matrix or convolution, got {trial.skew!r}.")
    if trial.skew == "convolution" and ("OW" not in trial.treatments or "OL" in trial.treatments):
        raise OptionError("`Trial`: skew convolution is a form of OW, and OL has no matrix there. Take OW, and no OL.")
    if {"SN", "OW"} <= set(trial.treatments):
        raise OptionError("`Trial`: SN and OW both set the weight; take one of them.")


def treat_weight(model: Module, trial: Trial) -> None:
    """Attach SN or OW to the pre-SVD convolution. Before the optimizer is made, which must hold the parameter they leave.

    OW starts at a random skew matrix, as ECCV22's does: from zero, OLR would be 0/0.
    """
    require_treatments(trial)
    if "SN" in trial.treatments:
        sg.orthogonal.spectral_norm(pre_svd(model))
    if "OW" in trial.treatments and trial.skew == "matrix":
        sg.orthogonal.orthogonal_weight(pre_svd(model), keep=False)
    elif "OW" in trial.treatments:
        replace_pre_svd(model, _skew_convolution(pre_svd(model)))


def treat_step(optimizer: Optimizer, model: Module, trial: Trial) -> None:
    """Attach NOG and OLR to the optimizer, for the pre-SVD convolution; under OW they act on its skew matrix."""
    conv = pre_svd(model) if trial.treatments else None
    if "NOG" in trial.treatments and conv is not None:
        sg.orthogonal.NearestOrthogonalGradient(optimizer, [_held(conv)])
    if "OLR" in trial.treatments and conv is not None:
        sg.orthogonal.OptimalLearningRate(optimizer, [_held(conv)])


def penalty(model: Module, trial: Trial) -> Callable[[], Tensor] | None:
    """The term that OL adds to the loss; None without it."""
    if "OL" not in trial.treatments:
        return None
    conv = pre_svd(model)
    return lambda: OL_WEIGHT * sg.orthogonal.orthogonal_loss(conv)


def _skew_convolution(conv: Any) -> sg.orthogonal.OrthogonalConv2d:
    """The orthogonal convolution for the channels and the kernel of another, on its device, from the same random state."""
    side = conv.kernel_size[0]
    if conv.stride != (1, 1) or conv.padding != (side // 2, side // 2):
        raise OptionError(
            "`Trial`: skew convolution needs a pre-SVD convolution that keeps the size of the map, got stride "
            f"{conv.stride} and padding {conv.padding}. Take skew matrix."
        )
    place = {"device": conv.weight.device, "dtype": conv.weight.dtype}
    return sg.orthogonal.OrthogonalConv2d(conv.in_channels, conv.out_channels, side, **place)


def _held(conv: Conv2d | sg.orthogonal.OrthogonalConv2d) -> Tensor:
    """The parameter of the convolution that an optimizer holds."""
    if is_parametrized(conv, "weight"):
        original: Tensor = conv.parametrizations["weight"].original  # type: ignore[index,union-attr]
        return original
    return conv.weight


def synchronise(model: Module, group: Any) -> None:
    """Merge the statistics of every norm over the ranks of ``group``.

    torch's SyncBatchNorm needs CUDA; ours with groups of one channel is batch norm everywhere. Its running variance divides
    by n and not by n - 1.
    """
    for module in model.modules():
        if isinstance(module, BatchStatistics):
            module.process_group = group
    if any(isinstance(module, BatchNorm2d) for module in model.modules()):
        sg.nn.convert_batchnorm(model, group_size=1, process_group=group)
