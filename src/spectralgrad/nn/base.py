"""What the layers with batch statistics share with torch.nn.BatchNorm: the module, its state, its checks."""

import copy
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module, Parameter, init

from spectralgrad.errors import DtypeError, NonFiniteError, OptionError, ShapeError
from spectralgrad.kernels.whitening import Running
from spectralgrad.linalg.choices import RootSolver
from spectralgrad.validation import checking, is_number, is_transformed, is_whole, require_finite

from .nodes import WhitenedStep
from .route import route_of


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


class BatchStatistics(Module):
    """y = weight * A (x - mean) + bias, with A and mean from statistics.

    In training mode, or without running statistics, they come from the batch; else from the buffers. A subclass says how:
    `from_batch` and `from_running`. Which code passes over the input is the route's business (route.py). The state changes
    last, so that an error leaves it as it was.

    Args:
        buffers: from the size of a group to the shapes of the running buffers, by name, beside running_mean.
        Others as the layers explain them.
    """

    _version = 1
    ndims: tuple[int, ...] = ()  # how many dimensions an input may have

    running_mean: Tensor | None
    num_batches_tracked: Tensor | None
    weight: Parameter | None
    bias: Parameter | None
    solver: RootSolver

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
        _require_options(type(self).__name__, num_features, group_size, eps, momentum, process_group)
        super().__init__()
        self.num_features = num_features
        self.group_size = num_features if group_size is None else group_size
        self.eps = eps
        self.momentum = momentum
        self.affine = affine
        self.track_running_stats = track_running_stats
        self.process_group = process_group
        self.monitored = False  # keep `last_covariance` in training, for the diagnostics
        self.last_covariance: Tensor | None = None  # (groups, d, d), before eps
        self._kept: tuple[Any, ...] | None = None
        for name in ("weight", "bias"):
            value = Parameter(torch.empty(num_features, device=device, dtype=dtype)) if affine else None
            self.register_parameter(name, value)
        for name, shape in {"running_mean": (num_features,), **buffers(self.group_size)}.items():
            self.register_buffer(name, torch.empty(shape, device=device, dtype=dtype) if track_running_stats else None)
        count = torch.zeros((), dtype=torch.long, device=device) if track_running_stats else None
        self.register_buffer("num_batches_tracked", count)
        self.reset_parameters()

    @property
    def groups(self) -> int:
        return self.num_features // self.group_size

    # What a subclass gives.

    @abstractmethod
    def from_batch(self, scatter: Tensor, samples: int | Tensor) -> BatchMap:
        """The map from the scatter (groups, d, d) of ``samples`` samples, by operations that autograd can follow.

        From the scatter alone: the routes give a gradient to nothing else.
        """

    def from_batch_in_node(self, scatter: Tensor, samples: int) -> BatchMap:
        """`from_batch` inside an autograd node: with a pullback, where the layer knows one."""
        return self.from_batch(scatter, samples)

    @abstractmethod
    def from_running(self, dtype: torch.dtype) -> Tensor:
        """A from the running buffers, at least in ``dtype``."""

    # What a subclass gives whose training step kernels/whitening.py can do as a whole.

    def is_kernel_step(self, input: Tensor) -> bool:
        """Whether that is all that the options and the state of this layer ask for."""
        return False

    def averages(self) -> Running | None:
        """The running values, where a step updates them."""
        raise NotImplementedError

    def starting_basis(self, input: Tensor) -> Tensor | None:
        """A guess of the eigenvectors (groups, d, d)."""
        raise NotImplementedError

    def remember_step(self, step: WhitenedStep) -> None:
        """`remember` after such a step, which has moved the running values already."""
        raise NotImplementedError

    # What torch.nn.BatchNorm has.

    def reset_running_stats(self) -> None:
        """Mean 0, variances 1, matrices I, no batch counted."""
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

    def forward(self, input: Tensor) -> Tensor:
        self._require_input(input)
        return route_of(self, input).normalize(self, input)

    def extra_repr(self) -> str:
        group = "" if self.group_size == self.num_features else f", group_size={self.group_size}"
        return (
            f"{self.num_features}{group}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"track_running_stats={self.track_running_stats}"
        )

    # What the routes ask for.

    @property
    def updates_running(self) -> bool:
        """Whether a pass by the batch's statistics moves the running ones."""
        return self.training and self.track_running_stats and self.running_mean is not None

    def require_samples(self, input: Tensor, samples: int) -> None:
        """Raise for a batch with only one value per channel."""
        if samples == 1:
            raise ShapeError(
                f"`{type(self).__name__}`: expected more than 1 value per channel when training, got input of shape "
                f"{tuple(input.shape)}. Pass a larger batch, or call eval()."
            )

    def require_batch(self, input: Tensor, samples: int | Tensor, scatter: Tensor, broken: Tensor | None = None) -> None:
        """`require_samples`, and raise for statistics that are not finite, both where looking is allowed.

        ``broken``: which ranks (world,) brought NaN or Inf; None without ranks.
        """
        if not isinstance(samples, Tensor):
            self.require_samples(input, samples)
        looks = checking(scatter) and not is_transformed(scatter)
        if looks and isinstance(samples, Tensor):
            self.require_samples(input, int(samples))
        if not looks or bool(torch.isfinite(scatter).all()):
            return
        who = type(self).__name__
        require_finite(who, input, "input")
        if broken is not None and bool(broken.any()):
            raise NonFiniteError(
                f"`{who}`: `input` must be finite on every rank, but rank {broken.nonzero()[:, 0].tolist()} of "
                "process_group came with NaN or Inf. Look for the overflow there; nothing was repaired."
            )
        largest = float(input.detach().abs().max())
        raise NonFiniteError(
            f"`{who}`: the covariance of `input` overflows {scatter.dtype}: entries reach {largest:.2e}. "
            "Scale the input down, or use float64."
        )

    def remember(self, samples: int | Tensor, mean: Tensor, found: BatchMap) -> None:
        """Keep what a batch left: the covariance for the diagnostics, and the running values."""
        if self.training and self.monitored:
            self.last_covariance = found.covariance.detach()
        if self.updates_running:
            self._update(samples, {**found.running, "running_mean": mean})

    @torch.no_grad()
    def _update(self, samples: int | Tensor, running: dict[str, Tensor]) -> None:
        """running <- (1 - momentum) running + momentum value; a batch without samples is counted and changes nothing."""
        count = self.num_batches_tracked
        assert count is not None
        count.add_(1)
        buffers = [getattr(self, name) for name in running]
        values = [_as_buffer(value, buffer) for buffer, value in zip(buffers, running.values(), strict=True)]
        if not isinstance(samples, Tensor) and self.momentum is not None:
            torch._foreach_lerp_(buffers, values, self.momentum)
            # By hand: on CUDA the fused operation of torch 2.11 leaves the versions as they were, and `keep` goes by them.
            if not torch.compiler.is_compiling():
                torch.autograd.graph.increment_version(buffers)
            return
        is_any = (samples > 0).double() if isinstance(samples, Tensor) else 1.0
        factor = is_any * (1 / count.double() if self.momentum is None else self.momentum)
        for buffer, value in zip(buffers, values, strict=True):
            buffer.lerp_(value, factor.to(buffer.dtype))  # type: ignore[union-attr]

    def keep(self, source: Tensor, options: tuple[Any, ...], compute: Callable[[Tensor], Tensor]) -> Tensor:
        """``compute(source)``, kept until ``source``, a buffer, or the options change.

        A change is a new tensor, new memory or a new version, which every in-place edit gives. The references in the key
        hold the memory, so that an address cannot come again. Compiled code cannot see versions and computes each time.
        """
        if torch.compiler.is_compiling() or is_transformed(source) or source.requires_grad or source.is_inference():
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
        self._kept = (source, source.detach(), source._version, options, value)  # one assignment: safe between threads
        return value

    def _require_input(self, input: Tensor) -> None:
        who = f"`{type(self).__name__}`"
        if not isinstance(input, Tensor) or not input.dtype.is_floating_point:
            came = input.dtype if isinstance(input, Tensor) else type(input).__name__
            raise DtypeError(f"{who}: `input` must be a real floating-point tensor, got {came}. Convert it with .float().")
        if input.ndim not in self.ndims:
            wanted = " or ".join(f"{ndim}D" for ndim in self.ndims)
            raise ShapeError(f"{who}: `input` must be {wanted}, (N, C, *), got shape {tuple(input.shape)}.")
        if input.shape[1] != self.num_features:
            raise ShapeError(
                f"{who}: `input` must have {self.num_features} channels in dimension 1, as num_features says, got shape "
                f"{tuple(input.shape)}."
            )

    # The kept matrix is not worth a copy, and a process group cannot be copied.

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": None}

    def __deepcopy__(self, memo: dict[int, Any]) -> "BatchStatistics":
        new = type(self).__new__(type(self))
        memo[id(self)] = new
        memo[id(self.process_group)] = self.process_group
        new.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        return new


def _as_buffer(value: Tensor, buffer: Tensor) -> Tensor:
    """``value`` in the shape and dtype of ``buffer``; as it is where it has both."""
    if value.shape == buffer.shape and value.dtype == buffer.dtype:
        return value.detach()
    return value.detach().reshape(buffer.shape).to(buffer.dtype)


def _require_options(
    who: str, num_features: int, group_size: int | None, eps: float, momentum: float | None, process_group: Any
) -> None:
    """What all layers here ask of their options."""
    if not is_whole(num_features):
        raise OptionError(f"`{who}`: num_features must be a whole number >= 1, got {num_features!r}.")
    if not (is_number(eps) and eps > 0):
        raise OptionError(f"`{who}`: eps must be a finite number > 0, got {eps!r}. For next to none take 1e-12.")
    if momentum is not None and not (is_number(momentum) and 0 <= momentum <= 1):
        raise OptionError(f"`{who}`: momentum must lie in [0, 1], or be None for a cumulative mean, got {momentum!r}.")
    if process_group is not None and not (dist.is_available() and isinstance(process_group, dist.ProcessGroup)):
        raise OptionError(
            f"`{who}`: process_group must be a torch.distributed.ProcessGroup that this rank belongs to, or None for this "
            f"process alone, got {process_group!r}. All ranks are torch.distributed.group.WORLD."
        )
    if group_size is not None and (not is_whole(group_size) or num_features % group_size):
        raise OptionError(
            f"`{who}`: group_size must be a whole number that divides num_features={num_features}, got {group_size!r}. "
            "None makes one group of all channels."
        )
