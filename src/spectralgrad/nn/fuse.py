"""Fold eval-mode whitening into the convolution before it."""

import copy
import inspect
import math
import warnings
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import Tensor, fx, nn
from torch.nn import Module, Parameter
from torch.nn.utils.parametrize import type_before_parametrizations

from spectralgrad.errors import OptionError
from spectralgrad.linalg.precision import in_widest

from .base import BatchStatistics

__all__ = ["fuse"]

_WHO = "`fuse`"
_ANY = (2, 3, 4, 5)
# Dimensions of the output. Exact types only: a subclass may compute something else.
_HEADS: dict[type[Module], int] = {
    nn.Linear: 2,
    nn.Conv1d: 3,
    nn.Conv2d: 4,
    nn.Conv3d: 5,
    nn.ConvTranspose1d: 3,
    nn.ConvTranspose2d: 4,
    nn.ConvTranspose3d: 5,
}
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_BATCH_NORMS: dict[type[Module], tuple[int, ...]] = {
    nn.BatchNorm1d: (2, 3),
    nn.BatchNorm2d: (4,),
    nn.BatchNorm3d: (5,),
    nn.SyncBatchNorm: _ANY,
}
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


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
        OptionError: a module in training mode, or a whitening layer without running statistics.

    >>> from spectralgrad.nn import DecorrelatedBatchNorm2d
    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), DecorrelatedBatchNorm2d(8, group_size=4), nn.ReLU())
    >>> fuse(net.eval())
    Sequential(
      (0): Conv2d(3, 8, kernel_size=(3, 3), stride=(1, 1))
      (2): ReLU()
    )
    """
    if not isinstance(model, Module):
        raise OptionError(f"{_WHO}: model must be a torch.nn.Module, got {type(model).__name__}.")
    for name, module in model.named_modules():
        place = f"{name!r}, a {type(module).__name__}," if name else f"the {type(module).__name__}"
        if module.training:
            raise OptionError(f"{_WHO}: {place} is in training mode, where statistics change. Call model.eval() first.")
        if _is_whitening(module) and module.running_mean is None:
            raise OptionError(
                f"{_WHO}: {place} has no running statistics and whitens each batch by its own, which no fixed convolution "
                "does. Train it with track_running_stats=True, or take it out of the model."
            )
    return _Fuser().fused(copy.deepcopy(model))


class _Fuser:
    """One pass over one copy. The memos keep shared what was shared; ``_alive`` keeps an id from coming again."""

    def __init__(self) -> None:
        self._modules: dict[int, Module] = {}
        self._folds: dict[tuple[int, ...], Module] = {}
        self._alive: list[Any] = []

    def fused(self, module: Module) -> Module:
        if not _contains_whitening(module):
            return module
        if id(module) not in self._modules:
            self._alive.append(module)
            self._modules[id(module)] = self._fused(module)
        return self._modules[id(module)]

    def fold(self, run: Sequence[Module]) -> Module:
        key = tuple(map(id, run))
        if key not in self._folds:
            self._alive.append(run)
            self._folds[key] = _folded(run)
        return self._folds[key]

    def _fused(self, module: Module) -> Module:
        if _is_whitening(module):
            return self.fold([module])
        if type(module) is nn.Sequential and not _has_hooks(module):
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
                if _is_whitening(child):
                    parent.add_module(name, self.fused(child))
        return module

    def _sequential(self, module: nn.Sequential) -> nn.Sequential:
        names, children = list(module._modules), list(module)
        result, i = nn.Sequential(), 0
        while i < len(children):
            run = _run(children[i:])
            whole = any(_is_whitening(part) for part in run)
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
                run = _run([module.get_submodule(str(n.target)) for n in nodes])
                if any(_is_whitening(part) for part in run):
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


# What may be folded.


def _is_whitening(module: Module | None) -> TypeGuard[BatchStatistics]:
    """Whether it is a whitening layer; not one with a forward of its own, which may compute something else."""
    if not isinstance(module, BatchStatistics):
        return False
    kind: type[BatchStatistics] = type_before_parametrizations(module)
    return kind.forward is BatchStatistics.forward


def _contains_whitening(module: Module) -> bool:
    return any(_is_whitening(part) for part in module.modules())


def _has_hooks(module: Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _ndims(module: Module) -> frozenset[int]:
    """How many dimensions the output can have, if the module can begin or continue a run; else nothing."""
    if _is_whitening(module):
        return frozenset(module.ndims)
    if _has_hooks(module):  # it may compute the weight, or look at the output
        return frozenset()
    kind = type_before_parametrizations(module)
    if kind in _BATCH_NORMS and module.running_mean is not None:
        return frozenset(_BATCH_NORMS[kind])
    return frozenset((_HEADS[kind],)) if kind in _HEADS else frozenset()


def _channels(module: Any) -> int:
    for name in ("num_features", "out_channels", "out_features"):
        if hasattr(module, name):
            return int(getattr(module, name))
    return 0


def _run(modules: Sequence[Module]) -> list[Module]:
    """The first of ``modules``, and the norms right after it that fold into it."""
    run, ndims = [modules[0]], _ndims(modules[0])
    for module in modules[1:]:
        ndims &= _ndims(module)
        if type_before_parametrizations(module) in _HEADS or not ndims or _channels(module) != _channels(run[0]):
            break
        run.append(module)
    return run


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
        return not _contains_whitening(m) or super().is_leaf_module(m, module_qualified_name)


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


# The arithmetic: everything in the widest dtype of the device, rounded once at the end.


class _Affine(NamedTuple):
    """A grouped convolution: weight (out, in / groups, positions of the kernel), bias (out,)."""

    weight: Tensor
    bias: Tensor
    groups: int

    def then(self, A: Tensor, b: Tensor) -> "_Affine":
        """Followed by x -> A x + b, with A (m, d, d) the diagonal blocks.

        A group of the result must hold whole groups of both: lcm(out / groups, d) channels, so gcd(groups, m) groups.
        """
        (out, inner, positions), groups = self.weight.shape, math.gcd(self.groups, len(A))
        joined = self.groups // groups
        weight = self.weight.new_zeros(groups, joined, out // self.groups, joined, inner, positions)
        each = torch.arange(joined, device=self.weight.device)
        weight[:, each, :, each] = self.weight.view(groups, joined, -1, inner, positions).transpose(0, 1)
        weight = (A @ weight.view(len(A), A.shape[-1], -1)).view(out, joined * inner, positions)
        return _Affine(weight, (A @ self.bias.view(len(A), -1, 1)).view(out) + b, groups)


def _eval_affine(layer: Any, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A (m, d, d) and b (C,) of a norm in eval mode, for inputs of ``dtype``.

    Whitening matrices come from the layer as it computes them: another precision may resolve a tie of eigenvalues into
    other eigenvectors.
    """
    if isinstance(layer, BatchStatistics):
        dtype = torch.promote_types(torch.promote_types(dtype, torch.float32), layer.running_mean.dtype)  # type: ignore[union-attr]
        A = in_widest(layer.from_running(dtype).to(dtype))
    else:
        A = (in_widest(layer.running_var) + layer.eps).rsqrt().unsqueeze(0)
    A = A.reshape(-1, 1, 1) if A.ndim == 2 else A
    if layer.weight is not None:
        A = in_widest(layer.weight).view(len(A), -1, 1) * A
    b = -(A @ in_widest(layer.running_mean).view(len(A), -1, 1)).flatten()
    return A, b if layer.bias is None else b + in_widest(layer.bias)


@torch.no_grad()
def _folded(run: Sequence[Module]) -> Any:
    """One module that does what a head and its norms do, or norms alone."""
    head: Any = run[0] if type_before_parametrizations(run[0]) in _HEADS else _identity(run)
    layers = [module for module in run if module is not head]
    weight = head.weight
    transposed, groups, kernel = isinstance(head, _TRANSPOSED), getattr(head, "groups", 1), weight.shape[2:]
    W = in_widest(weight).flatten(2) if weight.ndim > 2 else in_widest(weight).unsqueeze(-1)
    if transposed:  # (in, out / groups, *): exchange input and output within each group
        W = W.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1)
    bias = W.new_zeros(len(W)) if head.bias is None else in_widest(head.bias)
    fused = _Affine(W.contiguous(), bias, groups)
    for layer in layers:
        fused = fused.then(*_eval_affine(layer, weight.dtype))
    W = fused.weight
    if transposed:
        W = W.unflatten(0, (fused.groups, -1)).transpose(1, 2).flatten(0, 1)
    new = _bare(head, fused.groups)
    W = W.reshape(*W.shape[:2], *kernel).to(weight.dtype)
    if not weight.is_contiguous() and weight.is_contiguous(
        memory_format=_CHANNELS_LAST.get(W.ndim, torch.contiguous_format)
    ):
        W = W.contiguous(memory_format=_CHANNELS_LAST[W.ndim])
    trained = any(parameter.requires_grad for module in run for parameter in module.parameters())
    new.weight, new.bias = Parameter(W, trained), Parameter(fused.bias.to(weight.dtype), trained)
    return new.eval()


def _identity(layers: Sequence[Module]) -> Any:
    """The 1 x 1 convolution that changes nothing, one channel a group, for the inputs that all ``layers`` take."""
    kind = {2: PointwiseConv1d, 3: PointwiseConv1d, 4: nn.Conv2d, 5: nn.Conv3d}[
        min(frozenset.intersection(*map(_ndims, layers)))
    ]
    layer: Any = next(layer for layer in layers if isinstance(layer, BatchStatistics))
    identity: Any = kind(layer.num_features, layer.num_features, 1, groups=layer.num_features, device="meta")
    identity.weight = Parameter(layer.running_mean.new_ones(identity.weight.shape), False)
    identity.bias = None
    return identity


def _bare(head: Any, groups: int) -> Any:
    """A module as ``head``, with so many groups and parameters still to come; on meta, so that no random number is drawn."""
    if isinstance(head, nn.Linear):
        return FoldedLinear(head.in_features, head.out_features, device="meta")
    kind = type_before_parametrizations(head)
    names = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "padding_mode")
    options = {name: getattr(head, name) for name in names}
    if isinstance(head, _TRANSPOSED):
        options["output_padding"] = head.output_padding
    return kind(**options, groups=groups, device="meta")


class FoldedLinear(nn.Linear):
    """A Linear that a 1d norm was folded into.

    The norm acted on dimension 1, which is the features only in an input (N, in).
    """

    def forward(self, input: Tensor) -> Tensor:
        torch._assert(input.ndim == 2, "a Linear with a norm folded into it takes (N, in_features) only")
        return super().forward(input)


class PointwiseConv1d(nn.Conv1d):
    """A 1 x 1 Conv1d that takes (N, C) as well as (N, C, L)."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.unsqueeze(-1)).squeeze(-1) if input.ndim == 2 else super().forward(input)
