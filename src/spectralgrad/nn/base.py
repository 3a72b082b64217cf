"""Layers with batch statistics: what normalises by them, and as a module what torch.nn.BatchNorm has, state and checks."""

import copy
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, ClassVar, NamedTuple, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch.fx import Proxy
from torch.nn import Module, Parameter, SyncBatchNorm, init

from spectralgrad.context import (
    compiling,
    exporting,
    exporting_to_onnx,
    foreach_lerp_,
    is_transformed,
    kept_whole,
    tracing,
)
from spectralgrad.errors import NonFiniteError, OptionError, ShapeError
from spectralgrad.kernels.whitening import Kept, StepOptions
from spectralgrad.linalg.choices import RootSolver, is_plain_products
from spectralgrad.linalg.precision import in_widest
from spectralgrad.validation import REAL, is_number, is_whole, overflow_advice, require_finite, require_flag, require_real

from .as_batch_norm import BatchNormHandle, group_from_sync, translated
from .ranks import Share, require_agreement
from .route import route_of, working_dtype

_HANDLE = "as_batch_norm"  # the child's name


class BatchMap(NamedTuple):
    """What a layer makes of a batch's scatter.

    Args:
        A: the map, (groups, d, d), or its diagonal (groups, d).
        covariance: (groups, d, d), to be monitored.
        running: new values for the running buffers, by name.
        pullback: dA -> dS + dS^T, where that is known without a graph; None leaves it to autograd.
    """

    A: Tensor
    covariance: Tensor
    running: dict[str, Tensor]
    pullback: Callable[[Tensor], Tensor] | None = None


class Normalizer:
    """y = weight * A (x - mean) + bias, with A and mean from statistics.

    A subclass says how: `from_batch`, and `from_running` if it has running statistics. No attribute has a default here: it
    would hide a module's buffer or parameter of that name.
    """

    num_features: int
    group_size: int
    eps: float
    momentum: float | None
    training: bool
    process_group: Any
    running_mean: Tensor | None
    weight: Tensor | None
    bias: Tensor | None
    solver: RootSolver

    who: ClassVar[str]  # its name in the errors: that of the class, unless the class says otherwise
    argument = "input"  # and its argument's
    few_samples = "when training, got input", ", or call eval()"  # in the error for a single sample

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "who" not in vars(cls):
            cls.who = cls.__name__

    @property
    def groups(self) -> int:
        return self.num_features // self.group_size

    # What a subclass gives.

    @abstractmethod
    def from_batch(self, scatter: Tensor, samples: int | Tensor, looked: bool = False) -> BatchMap:
        """The map from the scatter (groups, d, d) of ``samples`` samples, by operations that autograd can follow.

        From the scatter alone: the routes give a gradient to nothing else. ``looked``: it may be looked at, and is finite.
        """

    def from_batch_in_node(self, scatter: Tensor, samples: int) -> BatchMap:
        """`from_batch` inside an autograd node: with a pullback, where the layer knows one."""
        return self.from_batch(scatter, samples)

    def from_running(self, dtype: torch.dtype) -> Tensor:
        """A from the running buffers, at least in ``dtype``."""
        raise NotImplementedError

    # What a subclass gives whose training step kernels/whitening.py can do as a whole.

    def is_kernel_step(self, input: Tensor) -> bool:
        """Whether that is all that the options and the state of this layer ask for."""
        return False

    def step_options(self, input: Tensor) -> StepOptions:
        """What it asks of such a step."""
        raise NotImplementedError

    def remember_step(self, kept: Kept) -> None:
        """`remember` after such a step, which has moved the running values already."""
        raise NotImplementedError

    # What the routes ask for.

    @property
    def updates_running(self) -> bool:
        """Whether a pass by the batch's statistics moves the running ones."""
        return False

    def require_no_onnx(self) -> None:
        """Raise while torch.onnx exports: it has no eigendecomposition. A fixed number of products it takes."""
        if not exporting() or not exporting_to_onnx() or is_plain_products(self.solver):
            return
        raise OptionError(
            f"`{self.who}`: ONNX has no eigendecomposition. In eval mode the layer is a fixed affine map: export "
            "`sg.nn.fuse(model.eval())`, which holds it as a convolution."
        )

    def require_samples(self, input: Tensor, samples: int) -> None:
        """Raise for a batch with only one value per channel."""
        if samples == 1:
            got, otherwise = self.few_samples
            raise ShapeError(
                f"`{self.who}`: expected more than 1 value per channel {got} of shape {tuple(input.shape)}. Pass a larger "
                f"batch{otherwise}."
            )

    def refuse(self, input: Tensor, samples: int, scatter: Tensor, broken: Tensor | None = None) -> NoReturn:
        """Raise for one value per channel, or for statistics that are not finite.

        ``broken``: which ranks (world,) brought NaN or Inf; None without ranks.
        """
        self.require_samples(input, samples)
        who = self.who
        require_finite(who, input, self.argument)
        if broken is not None and bool(broken.any()):
            raise NonFiniteError(
                f"`{who}`: `{self.argument}` must be finite on every rank, but rank {broken.nonzero()[:, 0].tolist()} of "
                "process_group came with NaN or Inf. Look for the overflow there; nothing was repaired."
            )
        largest = float(input.detach().abs().max())
        raise NonFiniteError(
            f"`{who}`: the covariance of `{self.argument}` overflows {scatter.dtype}: entries reach {largest:.2e}. "
            f"{overflow_advice('Scale the input down', scatter.dtype)}"
        )

    def remember(self, samples: int | Tensor, mean: Tensor, covariance: Tensor, running: dict[str, Tensor]) -> None:
        """Keep what a batch left; here, nothing."""


class BatchStatistics(Normalizer, Module):
    """y = weight * A (x - mean) + bias, with A and mean from statistics.

    In training mode, or without running statistics, they come from the batch; else from the buffers. Which code passes
    over the input is the route's business (route.py). The state changes last, so that an error leaves it as it was.

    Args:
        buffers: from the size of a group to the shapes of the running buffers, by name, beside running_mean.
        Others as the layers explain them.
    """

    _version = 1
    ndims: tuple[int, ...] = ()  # how many dimensions an input may have

    num_batches_tracked: Tensor | None
    weight: Parameter | None
    bias: Parameter | None

    def __init__(
        self,
        num_features: int,
        group_size: int | None,
        *,
        eps: float,
        momentum: float | None,
        affine: bool,
        track_running_stats: bool,
        process_group: Any,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
        buffers: Callable[[int], Mapping[str, tuple[int, ...]]],
    ) -> None:
        _require_options(self.who, num_features, group_size, eps, momentum, process_group)
        super().__init__()
        self.num_features = num_features
        self.group_size = num_features if group_size is None else group_size
        self.eps = eps
        self.momentum = momentum
        self.affine = affine
        require_flag(type(self).__name__, "track_running_stats", track_running_stats)
        self.track_running_stats = track_running_stats
        self.process_group = process_group
        self.monitored = False  # keep `last_covariance` in training, for the diagnostics
        self.last_covariance: Tensor | None = None  # (groups, d, d), before eps
        self._kept: tuple[Any, ...] | None = None
        self._agreed: tuple[Any, Share] | None = None  # the process group, and what all its ranks bring
        for name in ("weight", "bias"):
            value = Parameter(torch.empty(num_features, device=device, dtype=dtype)) if affine else None
            self.register_parameter(name, value)
        for name, shape in {"running_mean": (num_features,), **buffers(self.group_size)}.items():
            self.register_buffer(name, torch.empty(shape, device=device, dtype=dtype) if track_running_stats else None)
        count = torch.zeros((), dtype=torch.long, device=device) if track_running_stats else None
        self.register_buffer("num_batches_tracked", count)
        self.add_module(_HANDLE, BatchNormHandle(self))
        self.reset_parameters()

    @abstractmethod
    def from_variance(self, variance: Tensor) -> dict[str, Tensor]:
        """The running buffers that stand for a batch norm's running variance (C,), by name, beside running_mean."""

    # What torch.nn.BatchNorm has.

    def reset_running_stats(self) -> None:
        """Mean 0, variances 1, matrices I, no batch counted. As in torch, nothing if they are not tracked."""
        if not self.track_running_stats:
            return
        for name, buffer in self.named_buffers(recurse=False):
            if buffer.ndim >= 2:
                buffer.copy_(torch.eye(buffer.shape[-1], dtype=buffer.dtype, device=buffer.device).expand_as(buffer))
            else:
                buffer.fill_(1 if name == "running_var" else 0)

    def reset_parameters(self) -> None:
        self.reset_running_stats()
        if self.affine:
            init.ones_(self.weight)  # type: ignore[arg-type]
            init.zeros_(self.bias)  # type: ignore[arg-type]

    def drop_running_stats(self) -> None:
        """Go without: from now on the batch's own statistics in eval mode too."""
        self.track_running_stats = False
        for name in self._buffers:
            setattr(self, name, None)

    def train(self, mode: bool = True) -> "BatchStatistics":
        self._kept = None  # a collective of torch.distributed, or a write through .data, gives the buffer no new version
        return super().train(mode)

    def forward(self, input: Tensor) -> Tensor:
        if isinstance(input, Proxy):
            return kept_whole(self, input)
        require_features(self.who, input, "input", self.ndims, self.num_features)
        if self.process_group is not None and (self.training or self.running_mean is None):
            self._agree(input)
        return route_of(self, input).normalize(self, input)

    def _agree(self, input: Tensor) -> None:
        """Before the first statistics are exchanged: do all ranks bring the same? Asked again where this rank's changes.

        The host must wait for the answer: not asked in compiled code, nor while a CUDA graph is captured.
        """
        if tracing() or (input.is_cuda and torch.cuda.is_current_stream_capturing()):
            return
        share = Share.of(self.who, self.num_features, self.group_size, working_dtype(self, input), input.device)
        if self._agreed != (self.process_group, share):
            require_agreement(share, self.process_group, input.device)
            self._agreed = self.process_group, share

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        local_metadata, _, _, _, errors = args
        if self.running_mean is not None:
            errors += translated(self, state_dict, prefix, local_metadata.get("version"))
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        group = "" if self.group_size == self.num_features else f", group_size={self.group_size}"
        return (
            f"{self.num_features}{group}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"track_running_stats={self.track_running_stats}"
        )

    def __repr__(self) -> str:
        return f"{self._get_name()}({self.extra_repr()})"  # without the handle

    def add_module(self, name: str, module: Module | None) -> None:
        """As every module's; but what `convert_sync_batchnorm` makes of the handle becomes the layer's process group."""
        if name == _HANDLE and isinstance(module, SyncBatchNorm):
            group = group_from_sync(self.who, module.process_group)
            _require_group(self.who, group)
            self.process_group = group
        else:
            super().add_module(name, module)

    # What the routes ask for.

    @property
    def updates_running(self) -> bool:
        return self.training and self.track_running_stats and self.running_mean is not None

    def remember(self, samples: int | Tensor, mean: Tensor, covariance: Tensor, running: dict[str, Tensor]) -> None:
        """Keep what a batch left: the covariance for the diagnostics, and the running values."""
        if self.training and self.monitored:
            self.last_covariance = covariance.detach()
        if self.updates_running:
            self._update(samples, {**running, "running_mean": mean})

    def _update(self, samples: int | Tensor, running: dict[str, Tensor]) -> None:
        """running <- (1 - momentum) running + momentum value; a batch without samples is counted and changes nothing."""
        # torch.export makes the block a graph of its own, and cannot load one again that changes a buffer.
        with nullcontext() if compiling() and exporting() else torch.no_grad():
            self._move(samples, running)

    def _move(self, samples: int | Tensor, running: dict[str, Tensor]) -> None:
        count = self.num_batches_tracked
        assert count is not None
        count.add_(1)
        buffers = [getattr(self, name) for name in running]
        values = [_as_buffer(value, buffer) for buffer, value in zip(buffers, running.values(), strict=True)]
        if not isinstance(samples, Tensor) and self.momentum is not None:
            foreach_lerp_(buffers, values, self.momentum)
            # By hand: on CUDA the fused operation of torch 2.11 leaves the versions as they were, and `keep` goes by them.
            if not compiling():
                torch.autograd.graph.increment_version(buffers)
            return
        is_any = (samples > 0).to(samples.dtype) if isinstance(samples, Tensor) else 1.0
        factor = is_any * (1 / in_widest(count) if self.momentum is None else self.momentum)
        for buffer, value in zip(buffers, values, strict=True):
            # Not lerp_, which has no rule for vmap and says so in a warning.
            buffer.copy_(torch.lerp(buffer, value, factor.to(buffer.dtype)))  # type: ignore[union-attr]

    def keep(self, source: Tensor, options: tuple[Any, ...], compute: Callable[[Tensor], Tensor]) -> Tensor:
        """``compute(source)``, kept until ``source``, a buffer, or the options change.

        A change is a new tensor, new memory or a new version, which every in-place edit gives. The references in the key
        hold the memory, so that an address cannot come again. Code that was compiled or traced cannot see versions and
        computes each time.
        """
        traced = tracing() or torch.jit.is_tracing()  # type: ignore[attr-defined]
        if traced or is_transformed(source) or source.requires_grad or source.is_inference():
            return compute(source)
        kept = self._kept
        if (
            kept is not None
            and kept[0] is source
            and kept[1].data_ptr() == source.data_ptr()
            and kept[2:4] == (source._version, options)
        ):
            return kept[4]  # type: ignore[no-any-return]
        with torch.inference_mode(False), torch.no_grad():  # or a later backward could not use it
            value = compute(source)
        if not is_transformed(value):  # what torch.func's grad computes dies with it
            self._kept = (source, source.detach(), source._version, options, value)  # one assignment: safe between threads
        return value

    # The kept matrix is not worth a copy, and a process group cannot be copied. A copy asks the ranks for itself.

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": None, "_agreed": None}

    def __copy__(self) -> "BatchStatistics":
        """As copies of torch's modules are: with the same tensors and children, but a handle of its own."""
        new = type(self).__new__(type(self))
        state = dict(BatchStatistics.__getstate__(self))
        state["_modules"] = {name: child for name, child in self._modules.items() if name != _HANDLE}
        new.__setstate__(state)
        new.add_module(_HANDLE, BatchNormHandle(new))
        new.train(self.training)  # a module begins in training mode, and the handle's is the layer's
        return new

    def __deepcopy__(self, memo: dict[int, Any]) -> "BatchStatistics":
        new = type(self).__new__(type(self))
        memo[id(self)] = new
        memo[id(self.process_group)] = self.process_group
        new.__setstate__(copy.deepcopy(BatchStatistics.__getstate__(self), memo))  # a parametrized class forbids its own
        return new


def require_groups(who: str, num_features: int, group_size: int | None, eps: float) -> None:
    """Raise unless channels come in groups of this size, whose covariances can be shifted by ``eps``."""
    if not (is_number(eps) and eps > 0):
        raise OptionError(f"`{who}`: eps must be a finite number > 0, got {eps!r}. For next to none take 1e-12.")
    if group_size is not None and (not is_whole(group_size) or num_features % group_size):
        raise OptionError(
            f"`{who}`: group_size must be a whole number that divides num_features={num_features}, got {group_size!r}. "
            "None makes one group of all channels."
        )


def require_features(who: str, x: Tensor, name: str, ndims: tuple[int, ...], num_features: int | None = None) -> None:
    """Raise unless ``x`` is a dense real tensor (N, C, *) with so many dimensions and channels; None is any number."""
    if type(x) is not Tensor or x.dtype not in REAL or x.layout != torch.strided or x.is_nested:  # else nothing is wrong
        require_real(who, x, name)
    if x.ndim not in ndims:
        wanted = " or ".join(f"{ndim}D" for ndim in ndims)
        raise ShapeError(f"`{who}`: `{name}` must be {wanted}, (N, C, *), got shape {tuple(x.shape)}.")
    if x.shape[1] == 0:
        raise ShapeError(f"`{who}`: `{name}` must have at least one channel in dimension 1, got shape {tuple(x.shape)}.")
    if num_features is not None and x.shape[1] != num_features:
        raise ShapeError(
            f"`{who}`: `{name}` must have {num_features} channels in dimension 1, as num_features says, got shape "
            f"{tuple(x.shape)}."
        )


def _as_buffer(value: Tensor, buffer: Tensor) -> Tensor:
    """``value`` in the shape and dtype of ``buffer``; as it is where it has both."""
    if value.shape == buffer.shape and value.dtype == buffer.dtype:
        return value.detach()
    return value.detach().reshape(buffer.shape).to(buffer.dtype)


def _require_options(
    who: str, num_features: int, group_size: int | None, eps: float, momentum: float | None, process_group: Any
) -> None:
    """What all layers here ask of their options."""
    _require_group(who, process_group)
    if not is_whole(num_features):
        raise OptionError(f"`{who}`: num_features must be a whole number >= 1, got {num_features!r}.")
    if momentum is not None and not (is_number(momentum) and 0 <= momentum <= 1):
        raise OptionError(f"`{who}`: momentum must lie in [0, 1], or be None for a cumulative mean, got {momentum!r}.")
    require_groups(who, num_features, group_size, eps)


def _require_group(who: str, process_group: Any) -> None:
    if process_group is not None and not (dist.is_available() and isinstance(process_group, dist.ProcessGroup)):
        raise OptionError(
            f"`{who}`: process_group must be a torch.distributed.ProcessGroup that this rank belongs to, or None for this "
            f"process alone, got {process_group!r}. All ranks are torch.distributed.group.WORLD."
        )
