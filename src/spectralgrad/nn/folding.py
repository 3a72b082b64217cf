"""The module that a convolution and the norms after it become: which modules may be folded, and the arithmetic."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import Module, Parameter
from torch.nn.utils.parametrize import type_before_parametrizations

from spectralgrad.context import assert_traced
from spectralgrad.linalg.precision import in_widest

from .base import BatchStatistics
from .inputs import format_of

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


def is_whitening(module: Module | None) -> TypeGuard[BatchStatistics]:
    """Whether it is a whitening layer; not one with a forward of its own, which may compute something else."""
    if not isinstance(module, BatchStatistics):
        return False
    kind: type[BatchStatistics] = type_before_parametrizations(module)
    return kind.forward is BatchStatistics.forward


def contains_whitening(module: Module) -> bool:
    return any(is_whitening(part) for part in module.modules())


def has_hooks(module: Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _ndims(module: Module) -> frozenset[int]:
    """How many dimensions the output can have, if the module can begin or continue a run; else nothing."""
    if is_whitening(module):
        return frozenset(module.ndims)
    if has_hooks(module):  # it may compute the weight, or look at the output
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


def run_from(modules: Sequence[Module]) -> list[Module]:
    """The first of ``modules``, and the norms right after it that fold into it."""
    run, ndims = [modules[0]], _ndims(modules[0])
    for module in modules[1:]:
        ndims &= _ndims(module)
        if type_before_parametrizations(module) in _HEADS or not ndims or _channels(module) != _channels(run[0]):
            break
        run.append(module)
    return run


# Everything in the widest dtype of the device, rounded once at the end.


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
def folded(run: Sequence[Module]) -> Any:
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
    W = W.reshape(*W.shape[:2], *kernel).to(weight.dtype).contiguous(memory_format=format_of(weight))
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
        assert_traced(input.ndim == 2, "a Linear with a norm folded into it takes (N, in_features) only")
        return super().forward(input)


class PointwiseConv1d(nn.Conv1d):
    """A 1 x 1 Conv1d that takes (N, C) as well as (N, C, L)."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.unsqueeze(-1)).squeeze(-1) if input.ndim == 2 else super().forward(input)
