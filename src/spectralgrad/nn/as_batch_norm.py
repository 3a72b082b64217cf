"""A layer in the place of a torch batch norm: how tools find it there, and how it reads such a norm's checkpoint.

`update_bn`, `convert_sync_batchnorm`, `replace_all_batch_norm_modules_` look for one class, `_BatchNorm`. Our layers are no
subclass of it: `convert_sync_batchnorm` puts a SyncBatchNorm in the place of every instance and asks nobody, and whoever
folds or copies a batch norm by its class would read a variance where there is a covariance. So each layer has a child of
that class instead, without tensors and never called, which hands on to the layer what such a tool does to it.
"""

from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module
from torch.nn.modules.batchnorm import _BatchNorm

from spectralgrad.errors import OptionError

if TYPE_CHECKING:
    from .base import BatchStatistics

_OF_LAYER = ("num_features", "eps", "momentum", "track_running_stats", "training")  # read and written there
_COUNTED_FROM = 2  # the version of torch's batch norms that first has num_batches_tracked
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def _of_layer(name: str) -> Any:
    def read(handle: "BatchNormHandle") -> Any:
        return getattr(handle.layer, name)

    def write(handle: "BatchNormHandle", value: Any) -> None:
        setattr(handle.layer, name, value)

    return property(read, write)


def _statistic(name: str) -> Any:
    def read(handle: "BatchNormHandle") -> "Tensor | None":
        return getattr(handle.layer, name, None)

    def write(handle: "BatchNormHandle", value: "Tensor | None") -> None:
        if value is not None:
            raise OptionError(
                f"`{type(handle.layer).__name__}`: {name} of a batch norm cannot be set here. Load its state_dict into the "
                "layer, or use convert_batchnorm."
            )
        handle.layer.drop_running_stats()

    return property(read, write)


class BatchNormHandle(_BatchNorm):
    """A layer's child that stands for it where torch looks for batch norms; it has no tensors of its own."""

    # TorchScript compiles the properties of the modules that it traces, also of those that are never called.
    __jit_unused_properties__: ClassVar = [*_OF_LAYER, *_STATISTICS, "layer"]

    num_features, eps, momentum, track_running_stats, training = map(_of_layer, _OF_LAYER)
    running_mean, running_var, num_batches_tracked = map(_statistic, _STATISTICS)
    affine = False  # so that nobody takes weight and bias away
    weight = bias = None  # type: ignore[assignment]

    def __init__(self, layer: "BatchStatistics") -> None:
        self.__dict__["owner"] = (layer,)  # in a tuple: the layer is not a child of its child
        Module.__init__(self)

    @property
    def layer(self) -> "BatchStatistics":
        return self.__dict__["owner"][0]  # type: ignore[no-any-return]

    def reset_running_stats(self) -> None:
        self.layer.reset_running_stats()

    def reset_parameters(self) -> None:
        self.layer.reset_parameters()

    def _load_from_state_dict(self, *args: Any) -> None:
        Module._load_from_state_dict(self, *args)  # a batch norm's would ask for num_batches_tracked

    def forward(self, input: Tensor) -> NoReturn:
        raise OptionError(f"`{type(self.layer).__name__}`: its {type(self).__name__} only stands for it. Call the layer.")


def group_from_sync(who: str, process_group: Any) -> Any:
    """The process group that a SyncBatchNorm with ``process_group`` would use: None is all ranks."""
    if process_group is not None:
        return process_group
    if not (dist.is_available() and dist.is_initialized()):
        raise OptionError(
            f"`{who}`: `convert_sync_batchnorm` without a process group means all ranks, but torch.distributed is not "
            "initialised. Call torch.distributed.init_process_group first, or pass process_group= to the layer."
        )
    return dist.group.WORLD


def translated(layer: "BatchStatistics", state: dict[str, Any], prefix: str, version: int | None) -> list[str]:
    """Put the layer's own buffers in the place of a batch norm's ``running_var`` in ``state``; what is wrong with it, if so.

    ``state`` is `load_state_dict`'s own copy. Nothing changes unless the variance is there and a buffer of ours is not.
    """
    variance = state.get(f"{prefix}running_var")
    names = [name for name in layer._buffers if name.startswith("running_") and f"{prefix}{name}" not in state]
    if variance is None or not names or names == ["running_mean"]:
        return []
    wrong = _fault(layer.num_features, variance)
    if wrong is not None:
        return [f"`{layer.who}`: {prefix}running_var of a batch norm must {wrong}."]
    del state[f"{prefix}running_var"]
    for name, value in layer.from_variance(variance).items():
        state.setdefault(f"{prefix}{name}", value)
    if version is None or version < _COUNTED_FROM:
        state.setdefault(f"{prefix}num_batches_tracked", torch.zeros((), dtype=torch.long, device=variance.device))
    return []


def _fault(num_features: int, variance: Any) -> str | None:
    """What a running variance must be, if this one is not."""
    if not isinstance(variance, Tensor) or variance.shape != (num_features,):
        came = tuple(variance.shape) if isinstance(variance, Tensor) else type(variance).__name__
        return f"have shape ({num_features},), one number for each channel, got {came}"
    if variance.is_meta or bool((torch.isfinite(variance) & (variance >= 0)).all()):
        return None
    return f"be finite and not negative, got a least value of {float(variance.min()):.3g}"
