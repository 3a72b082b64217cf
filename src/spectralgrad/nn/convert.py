"""Put whitening in the place of a trained model's batch normalisation, as SyncBatchNorm's converter does."""

import difflib
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    LazyBatchNorm1d,
    LazyBatchNorm2d,
    LazyBatchNorm3d,
    Module,
    SyncBatchNorm,
)
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.parametrize import is_parametrized

from spectralgrad.errors import OptionError, SpectralError

from .base import BatchStatistics
from .decorrelation import DecorrelatedBatchNorm1d, DecorrelatedBatchNorm2d, DecorrelatedBatchNorm3d
from .denoise import PCADenoise1d, PCADenoise2d

__all__ = ["convert_batchnorm"]

_Where = Callable[[str, Module], bool] | str | Iterable[str] | None
_WHO = "`convert_batchnorm`"
_BATCH_NORMS: dict[type[Module], int] = {BatchNorm1d: 1, BatchNorm2d: 2, BatchNorm3d: 3}
_LAZY = (LazyBatchNorm1d, LazyBatchNorm2d, LazyBatchNorm3d)  # they turn into the above with their first input
_FAMILIES: tuple[dict[int, type[BatchStatistics]], ...] = (
    {1: DecorrelatedBatchNorm1d, 2: DecorrelatedBatchNorm2d, 3: DecorrelatedBatchNorm3d},
    {1: PCADenoise1d, 2: PCADenoise2d},
)
_CARRIED = ("self", "num_features", "affine", "track_running_stats", "device", "dtype")  # come from the batch norm


def convert_batchnorm(
    model: Module, where: _Where = None, *, layer: type[BatchStatistics] = DecorrelatedBatchNorm2d, **options: Any
) -> Module:
    """Replace the batch norms of a model by whitening layers that start where the batch norms stand.

    The running variances become the diagonal of the running covariance, so in eval mode the model computes what it did
    before. Weight and bias are the same Parameter objects: an optimizer made before still trains them. Everything is
    checked and built first; an error leaves the model as it was. See docs/layers/convert.md.

    Args:
        model: changed in place. A module that several places share stays shared.
        where: which batch norms: None is all, a callable ``(name, module) -> bool``, a dotted name, or several. One
            that stands in several places is replaced in all of them if one is named.
        layer: `DecorrelatedBatchNorm2d` or `PCADenoise2d`; each batch norm gets the 1d, 2d or 3d member of that family.
            A SyncBatchNorm does not know its dimension and gets ``layer`` itself, over its own process group.
        options: for the new layers: group_size, solver, energy, ...; eps, momentum and process_group are the batch norm's
            if not given.

    Returns:
        ``model``, or the new layer where ``model`` is itself a batch norm.

    Raises:
        OptionError: nothing to convert, a name that is no batch norm, an option that a layer refuses, a lazy batch norm
            that has not seen an input, a batch norm whose class has a forward of its own.

    >>> import torch, spectralgrad as sg
    >>> net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU())
    >>> sg.nn.convert_batchnorm(net, group_size=4)[1].running_covariance.shape
    torch.Size([2, 4, 4])
    """
    if not isinstance(model, Module):
        raise OptionError(f"{_WHO}: model must be a torch.nn.Module, got {type(model).__name__}.")
    family, dimension = _family(layer)
    _require_options(layer, options)
    new = {
        id(old): _built(name, old, family, dimension, options) for name, old in _selected(model, where).items()
    }  # by identity: what is shared stays shared
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if id(child) in new:
                parent.add_module(name, new[id(child)])
    return new.get(id(model), model)


def _family(layer: type[BatchStatistics]) -> tuple[dict[int, type[BatchStatistics]], int]:
    for family in _FAMILIES:
        for dimension, member in family.items():
            if layer is member:
                return family, dimension
    known = ", ".join(member.__name__ for family in _FAMILIES for member in family.values())
    raise OptionError(f"{_WHO}: layer must be one of {known}, got {layer!r}.")


def _require_options(layer: type[BatchStatistics], options: dict[str, Any]) -> None:
    known = [name for name in inspect.signature(layer).parameters if name not in _CARRIED]
    for name in options:
        if name in _CARRIED:
            raise OptionError(f"{_WHO}: {name} comes from each batch norm and cannot be given.")
        if name not in known:
            raise OptionError(f"{_WHO}: {layer.__name__} has no option {name!r}. It has {', '.join(known)}.")


def _selected(model: Module, where: _Where) -> dict[str, Module]:
    """The chosen batch norms, each once, by their first name that was chosen."""
    kinds = (*_BATCH_NORMS, *_LAZY, SyncBatchNorm)
    found: dict[str, Any] = {name: m for name, m in model.named_modules(remove_duplicate=False) if isinstance(m, kinds)}
    if not found:
        raise OptionError(f"{_WHO}: {type(model).__name__} holds no batch norm.")
    if where is None:
        names = list(found)
    elif callable(where):
        names = [name for name, module in found.items() if where(name, module)]
    elif not isinstance(where, Iterable):
        raise OptionError(f"{_WHO}: where must be a callable, a name, several names or None, got {where!r}.")
    else:
        names = [where] if isinstance(where, str) else list(where)
        for name in names:
            if name not in found:
                raise OptionError(f"{_WHO}: where names {name!r}, which is no batch norm of the model. {_near(name, found)}")
    if not names:
        raise OptionError(f"{_WHO}: where selects none of the {len(found)} batch norms: {_listed(list(found))}.")
    chosen: dict[int, str] = {}
    for name in names:
        chosen.setdefault(id(found[name]), name)
    return {name: found[name] for name in chosen.values()}


def _near(name: object, found: dict[str, Module]) -> str:
    inside = [other for other in found if other.startswith(f"{name}.")]
    near = inside or difflib.get_close_matches(str(name), found, n=5, cutoff=0.5)
    return f"Near it: {_listed(near)}." if near else f"There are: {_listed(list(found))}."


def _listed(names: list[str], most: int = 10) -> str:
    return ", ".join(map(repr, names[:most])) + (f" and {len(names) - most} more" if len(names) > most else "")


def _built(
    name: str, old: Any, family: dict[int, type[BatchStatistics]], dimension: int, options: dict[str, Any]
) -> BatchStatistics:
    who = f"{_WHO}: {name!r}, a {type(old).__name__}," if name else f"{_WHO}: the {type(old).__name__}"
    if isinstance(old, _LAZY):
        raise OptionError(f"{who} is lazy and does not know its channels yet. Pass an input through the model first.")
    if is_parametrized(old):
        raise OptionError(f"{who} has parametrized tensors. Call torch.nn.utils.parametrize.remove_parametrizations first.")
    if type(old).forward not in (_BatchNorm.forward, SyncBatchNorm.forward):
        raise OptionError(
            f"{who} has a forward of its own, which the new layer would not compute. Leave it out with where=."
        )
    dimension = next((d for kind, d in _BATCH_NORMS.items() if isinstance(old, kind)), dimension)
    if dimension not in family:
        raise OptionError(
            f"{who} has no counterpart: there is no {dimension}d layer of this kind. Leave it out with where=."
        )
    carried = {"eps": old.eps, "momentum": old.momentum}
    if isinstance(old, SyncBatchNorm) and dist.is_available() and dist.is_initialized():
        carried["process_group"] = old.process_group or dist.group.WORLD  # its None means all ranks
    own = old.weight if old.running_mean is None else old.running_mean
    kind: Callable[..., BatchStatistics] = family[dimension]
    try:
        new = kind(
            old.num_features,
            **{**carried, **options},
            affine=old.affine,
            track_running_stats=old.running_mean is not None,
            device=None if own is None else own.device,
            dtype=None if own is None else own.dtype,
        )
    except SpectralError as error:
        raise OptionError(f"{who} cannot be converted. {error}") from error
    if old.affine:
        new.weight, new.bias = old.weight, old.bias
    new.track_running_stats = old.track_running_stats  # torch allows False beside buffers: used in eval, not updated
    _carry_statistics(old, new)
    return new.train(old.training)


@torch.no_grad()
def _carry_statistics(old: Any, new: BatchStatistics) -> None:
    if old.running_mean is None:
        return
    new.get_buffer("running_mean").copy_(old.running_mean)
    if old.num_batches_tracked is not None:
        new.get_buffer("num_batches_tracked").copy_(old.num_batches_tracked)
    for name, value in new.from_variance(old.running_var).items():
        new.get_buffer(name).copy_(value)
