"""Fold eval-mode whitening into the convolution before it."""

import copy
import inspect
import warnings
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from torch import Tensor, fx, nn
from torch.nn import Module

from spectralgrad.errors import OptionError

from .base import BatchStatistics
from .folding import FoldedLinear, PointwiseConv1d, contains_whitening, folded, has_hooks, is_whitening, run_from

__all__ = ["fuse"]

_WHO = "`fuse`"


def fuse(model: Module) -> Module:
    """A copy of an eval-mode model in which every whitening layer has become part of the convolution before it.

    In eval mode the layer is y = A z + b with fixed A and b, and z = K * x + c a convolution: y = (A K) * x + (A c + b).

    `DecorrelatedBatchNorm`, `PCADenoise` and batch norms beside them fold into Conv, ConvTranspose and Linear; where
    nothing can take a layer up, it becomes a 1 x 1 grouped convolution of its own. Products are taken in float64 and
    rounded once. A Sequential gives a Sequential; other models are traced by torch.fx and give a GraphModule, or, with a
    warning, keep their class and get 1 x 1 convolutions only. A subclass of a whitening layer with a ``forward`` of its own
    stays as it is. See docs/layers/convert.md.

    Args:
        model: in eval mode; it is not changed, and shares nothing with the result.

    Raises:
        OptionError: a module in training mode, a whitening layer without running statistics, or a weight that a hook
            computes, as those of torch.nn.utils.weight_norm, spectral_norm and prune after a step.

    >>> import torch, spectralgrad as sg
    >>> whitening = sg.nn.DecorrelatedBatchNorm2d(8, group_size=4)
    >>> net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, bias=False), whitening, torch.nn.ReLU())
    >>> sg.nn.fuse(net.eval())
    Sequential(
      (0): Conv2d(3, 8, kernel_size=(3, 3), stride=(1, 1))
      (2): ReLU()
    )
    """
    if not isinstance(model, Module):
        raise OptionError(f"{_WHO}: model must be a torch.nn.Module, got {type(model).__name__}.")
    for name, module in model.named_modules():
        place = f"{name!r}, a {type(module).__name__}," if name else f"the {type(module).__name__}"
        if module.training and type(module) is not Module:  # a graph's own folders, which run nothing, always are
            raise OptionError(f"{_WHO}: {place} is in training mode, where statistics change. Call model.eval() first.")
        if is_whitening(module) and module.running_mean is None:
            raise OptionError(
                f"{_WHO}: {place} has no running statistics and whitens each batch by its own, which no fixed convolution "
                "does. Train it with track_running_stats=True, or take it out of the model."
            )
        _require_leaves(place, module)
    return _Fuser().fused(copy.deepcopy(model))


def _require_leaves(place: str, module: Module) -> None:
    """Raise where a hook leaves a computed tensor, which torch cannot copy: old weight_norm, spectral_norm and pruning."""
    for name, value in vars(module).items():
        if isinstance(value, Tensor) and not value.is_leaf:
            raise OptionError(
                f"{_WHO}: {place} must hold tensors that can be copied, but its {name!r} is computed by a hook, as torch.nn."
                "utils.weight_norm, spectral_norm and prune do. Make it permanent with remove_weight_norm, "
                "remove_spectral_norm or prune.remove, or use torch.nn.utils.parametrizations."
            )


class _Fuser:
    """One pass over one copy. The memos keep shared what was shared; ``_alive`` keeps an id from coming again."""

    def __init__(self) -> None:
        self._modules: dict[int, Module] = {}
        self._folds: dict[tuple[int, ...], Module] = {}
        self._alive: list[Any] = []

    def fused(self, module: Module) -> Module:
        if not contains_whitening(module):
            return module
        if id(module) not in self._modules:
            self._alive.append(module)
            self._modules[id(module)] = self._fused(module)
        return self._modules[id(module)]

    def fold(self, run: Sequence[Module]) -> Module:
        key = tuple(map(id, run))
        if key not in self._folds:
            self._alive.append(run)
            self._folds[key] = folded(run)
        return self._folds[key]

    def _fused(self, module: Module) -> Module:
        if is_whitening(module):
            return self.fold([module])
        if type(module) is nn.Sequential and not has_hooks(module):
            return self._sequential(module)
        graph = _traced(module)
        if graph is not None:
            return self._graph_module(module, graph)
        warnings.warn(
            f"{_WHO}: torch.fx cannot trace {type(module).__name__}, so its whitening layers become 1 x 1 convolutions of "
            "their own and fold into no other. Call fuse on parts that can be traced.",
            stacklevel=4,
        )
        for parent in list(module.modules()):
            for name, child in list(parent._modules.items()):
                if is_whitening(child):
                    parent.add_module(name, self.fused(child))
        return module

    def _sequential(self, module: nn.Sequential) -> nn.Sequential:
        names, children = list(module._modules), list(module)
        result, i = nn.Sequential(), 0
        while i < len(children):
            run = run_from(children[i:])
            whole = any(is_whitening(part) for part in run)
            result.add_module(names[i], self.fold(run) if whole else self.fused(children[i]))
            i += len(run) if whole else 1
        return result.eval()

    def _graph_module(self, module: Module, graph: fx.Graph) -> fx.GraphModule:
        calls = [node for node in graph.nodes if node.op == "call_module"]
        called = Counter(id(module.get_submodule(str(node.target))) for node in calls)
        runs: list[tuple[list[fx.Node], list[Module]]] = []
        done: set[fx.Node] = set()
        for node in calls:
            if node not in done:
                nodes = _chain(node)
                run = run_from([module.get_submodule(str(n.target)) for n in nodes])
                if any(is_whitening(part) for part in run):
                    runs.append((nodes[: len(run)], run))
                    done.update(nodes[: len(run)])
        folds = Counter(id(self.fold(run)) for _, run in runs)
        read = [str(node.target) for node in graph.nodes if node.op == "get_attr"]
        names: dict[int, str] = {}
        for (first, *others), run in runs:
            new, name = self.fold(run), str(first.target)
            if id(new) not in names:
                # The old module stays under its name if it is also called outside this run, or its tensors are read.
                if folds[id(new)] < called[id(run[0])] or any(attribute.startswith(f"{name}.") for attribute in read):
                    name = _free_name(module, name)
                module.set_submodule(name, new)
                names[id(new)] = name
            first.target = names[id(new)]
            if others:
                others[-1].replace_all_uses_with(first)
                for node in reversed(others):
                    graph.erase_node(node)
        graph.lint()
        return fx.GraphModule(module, graph, type(module).__name__).eval()  # takes over only what the graph uses


def _chain(node: fx.Node) -> list[fx.Node]:
    """Module calls from ``node`` on, each the only user of the one before."""
    nodes = [node]
    while len(node.users) == 1:
        node = next(iter(node.users))
        if node.op != "call_module":
            break
        nodes.append(node)
    return nodes


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: Module, module_qualified_name: str) -> bool:
        return isinstance(m, (BatchStatistics, FoldedLinear, PointwiseConv1d)) or super().is_leaf_module(
            m, module_qualified_name
        )


class _CoarseTracer(_Tracer):
    """Does not look into modules without whitening, and so at less code that tracing cannot follow."""

    def is_leaf_module(self, m: Module, module_qualified_name: str) -> bool:
        return not contains_whitening(m) or super().is_leaf_module(m, module_qualified_name)


def _traced(module: Module) -> fx.Graph | None:
    # Symbolic values would take the wrong branch of `if mask is None`: optional arguments are fixed to their defaults.
    arguments = inspect.signature(module.forward).parameters
    fixed = {
        name: argument.default
        for name, argument in arguments.items()
        if (argument.default is None or isinstance(argument.default, (bool, int, float, str)))
        and f"{name}_1" not in arguments
    }
    for tracer in (_Tracer(), _CoarseTracer()):
        try:
            graph = tracer.trace(module, fixed or None)
        except Exception:  # tracing runs the model's own code, which may raise anything
            continue
        _without_arguments(graph, fixed)
        return graph
    return None


def _without_arguments(graph: fx.Graph, fixed: Collection[str]) -> None:
    """Erase the arguments that were fixed, and torch.fx's assertions on them, which torch.export cannot read back.

    A call that passes one is then a TypeError.
    """
    unwanted: set[fx.Node] = set()
    targets = {f"{name}_1" for name in fixed}  # so torch.fx names them
    for node in graph.nodes:
        if (node.op == "placeholder" and node.target in targets) or unwanted.intersection(node.all_input_nodes):
            unwanted.add(node)
    for node in reversed(list(graph.nodes)):
        if node in unwanted:
            graph.erase_node(node)


def _free_name(module: Module, name: str) -> str:
    taken = {known for known, _ in module.named_modules()}
    return next(new for new in (f"{name}_fused{i}" for i in range(len(taken) + 1)) if new not in taken)
