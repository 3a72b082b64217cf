"""Which layers of a model are watched."""

from collections.abc import Iterable

from torch.nn import DataParallel, Module
from torch.nn.parallel import DistributedDataParallel

from spectralgrad.errors import OptionError

from .tap import Tap

_WRAPPERS = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}  # parts of a name that wrapping adds


def chosen_layers(model: Module, layers: Iterable[str | Module] | None, inputs: Iterable[str] = ()) -> dict[str, Module]:
    """The layers to watch by name, or the error that says why not. ``inputs``: names of those of which something is told."""
    if not isinstance(model, Module):
        raise OptionError(f"`ConditionMonitor`: `model` must be a torch.nn.Module, got {type(model).__name__}.")
    found = _watchable(model)
    if unknown := [name for name in inputs if name not in found]:
        raise OptionError(
            f"`ConditionMonitor`: inputs must be for layers among {', '.join(found)}, got {', '.join(map(repr, unknown))}."
        )
    chosen = found if layers is None else _among(found, [layers] if isinstance(layers, (str, Module)) else list(layers))
    for name, module in chosen.items():
        taps = [getattr(hook, "__self__", None) for hook in module._forward_hooks.values()]
        if any(isinstance(tap, Tap) and tap.layer is module for tap in taps):  # those of a copy watch another, or nothing
            raise OptionError(f"`ConditionMonitor`: another monitor watches layer {name} already; detach() that one first.")
    return chosen


def _watchable(model: Module) -> dict[str, Module]:
    """All layers with a covariance, by their names in the model without its wrappers."""
    while isinstance(model, (DistributedDataParallel, DataParallel)) or "_orig_mod" in model._modules:
        model = getattr(model, "module" if "module" in model._modules else "_orig_mod")
    found: dict[str, Module] = {}
    for full, module in model.named_modules():
        # A compiled layer stands in the model twice: as a wrapper, which passes attributes through, and itself.
        if hasattr(module, "monitored") and hasattr(module, "last_covariance") and "_orig_mod" not in module._modules:
            parts = [part for part in full.split(".") if part not in _WRAPPERS]
            found[".".join(parts) or type(module).__name__] = module
    if not found:
        raise OptionError(
            f"`ConditionMonitor`: `model` must hold a layer with a covariance, such as DecorrelatedBatchNorm2d or "
            f"CovariancePool2d; {type(model).__name__} has none. Put one in, or see `convert_batchnorm`."
        )
    return found


def _among(found: dict[str, Module], wanted: list[str | Module]) -> dict[str, Module]:
    """Those of ``found`` that are wanted, given by name or as modules; each wanted one must be there."""
    chosen = {name: module for name, module in found.items() if name in wanted or any(module is x for x in wanted)}
    known = [*found, *found.values()]
    unknown = [x if isinstance(x, str) else type(x).__name__ for x in wanted if not any(x is y or x == y for y in known)]
    if unknown or not chosen:
        raise OptionError(
            f"`ConditionMonitor`: layers must be among {', '.join(found)}, got {', '.join(unknown) or 'none'}."
        )
    return chosen
