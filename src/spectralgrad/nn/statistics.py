"""Statistics of (N, C, *) inputs: of one batch, merged exactly over the ranks of a process group, and running."""

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function
from torch.nn import Module, Parameter, init

from spectralgrad.errors import DtypeError, NonFiniteError, OptionError, ShapeError
from spectralgrad.kernels.moments import grouped_moments
from spectralgrad.linalg.covariance import Moments, merge_moments, moments
from spectralgrad.linalg.precision import matmul
from spectralgrad.linalg.solvers import PowerDeflation
from spectralgrad.validation import checking, is_number, is_transformed, is_whole, require_finite

from .composed import affine, as_input, as_samples
from .fused import Small, is_fusible, mean_and_scatter, normalized, scaled, small_graph, transformed


def covariance_of(scatter: Tensor, samples: int | Tensor, correction: float = 0.0) -> Tensor:
    """scatter / (samples - correction), and 0 where there are no samples."""
    if isinstance(samples, Tensor):
        return scatter / (samples - correction).clamp(min=1).to(scatter.dtype)
    return scatter / max(samples - correction, 1)  # one operation where the number is known


_identities: dict[tuple[int, torch.dtype, torch.device], Tensor] = {}


def identity_like(M: Tensor) -> Tensor:
    """I (d, d) of the size, dtype and device of M (*B, d, d); on CUDA, where making it takes three kernels, a kept one."""
    d, dtype, device = M.shape[-1], M.dtype, M.device
    if torch.compiler.is_compiling() or device.type != "cuda":
        return torch.eye(d, dtype=dtype, device=device)
    found = _identities.get((d, dtype, device))
    if found is None:
        with torch.inference_mode(False):
            found = torch.eye(d, dtype=dtype, device=device)
        # What is made while a CUDA graph is captured lives in the graph's memory, and a fake tensor in no memory at all.
        if type(found) is Tensor and not torch.cuda.is_current_stream_capturing():
            _identities[d, dtype, device] = found
    return found


def merged_moments(who: str, local: Moments, group: Any) -> tuple[Moments, Tensor]:
    """The moments of all ranks' samples together, and which ranks (world,) came with NaN or Inf.

    Exact in value and gradient: as if one process held every sample. Ranks may hold different numbers of samples, or
    none. One collective forward, one backward; the gradient is that of the sum of all ranks' losses, as in
    SyncBatchNorm. Nothing is checked before the collective: a rank that raised alone would leave the others waiting.
    """
    total, mean, scatter, broken = _Merge.apply(*local, group, who)
    return Moments(total, mean, scatter), broken


@contextmanager
def _collective(who: str) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise RuntimeError(
            f"`{who}`: the statistics could not be exchanged over process_group. Another rank died, raised an error before "
            f"its forward or backward pass, or did not come within the group's timeout: look there first. ({error})"
        ) from error


class _AllReduce(Function):
    """The sum over all ranks: its own adjoint."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any, who: str) -> Tensor:
        ctx.group, ctx.who = group, who
        x = x.clone(memory_format=torch.contiguous_format)
        with _collective(who):
            dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        return _AllReduce.apply(g, ctx.group, ctx.who), None, None


class _Merge(Function):
    """Local moments (n_i, m_i, S_i) -> those of the union, and which ranks brought NaN or Inf.

    m = sum n_i m_i / n and S = sum S_i + n_i (m_i - m)(m_i - m)^T. Since sum n_i (m_i - m) = 0, S does not change with
    m to first order, and for the gradients G_m, G_S of the sum of all losses

        dS_i = G_S,   dm_i = (n_i / n) G_m + n_i (G_S + G_S^T)(m_i - m).
    """

    @staticmethod
    def forward(ctx: Any, samples: Tensor, mean: Tensor, scatter: Tensor, group: Any, who: str) -> tuple[Tensor, ...]:
        # In float64, so that the count is exact and rounding happens once.
        packed = torch.cat([x.to(torch.float64).flatten() for x in (samples, mean, scatter)])
        parts = [torch.empty_like(packed) for _ in range(dist.get_world_size(group))]
        with _collective(who):
            dist.all_gather(parts, packed, group=group)
        unpacked = [part.split([1, mean.numel(), scatter.numel()]) for part in parts]
        merged = merge_moments([Moments(n[0], m.view_as(mean), S.view_as(scatter)) for n, m, S in unpacked])
        total, m, S = merged.samples, merged.mean.to(mean.dtype), merged.scatter.to(mean.dtype)
        broken = ~torch.isfinite(torch.stack(parts)).all(-1)
        ctx.mark_non_differentiable(total, broken)
        ctx.save_for_backward(samples, mean, total, m)
        ctx.group, ctx.who = group, who
        return total, m, S, broken

    @staticmethod
    def backward(ctx: Any, _: Any, g_mean: Tensor, g_scatter: Tensor, __: Any) -> tuple[Tensor | None, ...]:
        samples, mean, total, merged_mean = ctx.saved_tensors
        packed = _AllReduce.apply(torch.cat([g_mean.flatten(), g_scatter.flatten()]), ctx.group, ctx.who)
        g_mean, g_scatter = packed[: mean.numel()].view_as(g_mean), packed[mean.numel() :].view_as(g_scatter)
        n, weight = (x.to(mean.dtype) for x in (samples, samples / total.clamp(min=1)))
        shift = (mean - merged_mean).unsqueeze(-1)  # (groups, d, 1)
        through_scatter = matmul(g_scatter + g_scatter.mT, shift).squeeze(-1)
        return None, weight * g_mean + n * through_scatter, g_scatter, None, None


class BatchStatistics(Module):
    """What the layers here share with torch.nn.BatchNorm: y = weight * A (x - mean) + bias, A from statistics.

    In training mode, or without running statistics, A comes from the batch; else from the buffers. A subclass says how:
    `from_batch` and `from_running`. The state changes last, so that an error leaves it as it was.
    """

    _version = 1
    ndims: tuple[int, ...] = ()  # how many dimensions an input may have

    running_mean: Tensor | None
    num_batches_tracked: Tensor | None
    solver: Any

    def __init__(
        self,
        num_features: int,
        group_size: int,
        eps: float,
        momentum: float | None,
        affine: bool,
        track_running_stats: bool,
        process_group: Any,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
        running: dict[str, tuple[int, ...]],
    ) -> None:
        super().__init__()
        self.num_features = num_features
        self.group_size = group_size
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
        for name, shape in {"running_mean": (num_features,), **running}.items():
            self.register_buffer(name, torch.empty(shape, device=device, dtype=dtype) if track_running_stats else None)
        count = torch.zeros((), dtype=torch.long, device=device) if track_running_stats else None
        self.register_buffer("num_batches_tracked", count)
        self.reset_parameters()

    @property
    def groups(self) -> int:
        return self.num_features // self.group_size

    # What a subclass gives.

    def from_batch(self, scatter: Tensor, samples: int | Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """A (groups, d, d), or its diagonal (groups, d); the covariance to monitor; new values for the running buffers.

        From the scatter (groups, d, d) alone: `_in_one_node` gives a gradient to nothing else.
        """
        raise NotImplementedError

    def from_batch_with_pullback(
        self, scatter: Tensor, samples: int
    ) -> tuple[Tensor, Tensor, dict[str, Tensor], Callable[[Tensor], Tensor]] | None:
        """`from_batch` without an autograd graph, and the map dA -> dS + dS^T; None where only autograd knows that."""
        return None

    def from_running(self, dtype: torch.dtype) -> Tensor:
        """A from the running buffers, at least in ``dtype``."""
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
        dtype = self._dtype(input)
        is_fused = is_fusible(input, self.group_size, dtype) and not isinstance(self.solver, PowerDeflation)
        if not (self.training or self.running_mean is None):
            X = input if is_fused else as_samples(input, self.groups, dtype)
            return self._mapped(input, X, self.from_running(dtype).to(dtype), self.running_mean.to(dtype), is_fused)
        samples: int | Tensor
        running: dict[str, Tensor] | None
        if is_fused and self.process_group is None:
            y, samples, covariance, running = self._in_one_node(input)
        else:
            # One tensor for both uses: its two gradients join before they meet those of other users of the input.
            X = input.view_as(input) if is_fused else as_samples(input, self.groups, dtype)
            batch = self._batch_moments(input, X, is_fused)
            samples = batch.samples
            A, covariance, running = self.from_batch(batch.scatter, samples)
            y = self._mapped(input, X, A, batch.mean.flatten(), is_fused)
            running["running_mean"] = batch.mean
        if self.training:
            if self.monitored and covariance is not None:
                self.last_covariance = covariance.detach()
            if self.track_running_stats and self.running_mean is not None and running is not None:
                self._update(samples, running)
        return y

    def _in_one_node(self, input: Tensor) -> tuple[Tensor, int, Tensor | None, dict[str, Tensor] | None]:
        """y, the number of samples, the covariance to monitor, and new values for the running buffers, or None where these
        have been updated."""
        x, samples = input.detach(), input.numel() // input.shape[1]
        self._require_samples(input, samples)
        mean, rest, scatter = grouped_moments(x, self.groups)
        self._require_finite(input, scatter, None)
        known = self.from_batch_with_pullback(scatter, samples)
        if known is not None:
            A, covariance, running, pullback = known
        else:
            pullback = None
            scatter.requires_grad_(torch.is_grad_enabled() and input.requires_grad)
            with small_graph():
                A, covariance, running = self.from_batch(scatter, samples)
                A = torch.diag_embed(A) if A.ndim == 2 else A
        small = Small(samples, mean, rest, scatter, A, pullback)
        y = normalized(input, self.weight, self.bias, small, self._composed)  # type: ignore[arg-type]
        return y, samples, covariance, {**running, "running_mean": mean}

    def _composed(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        """What `_in_one_node` computes, in plain torch."""
        X = as_samples(x, self.groups, self._dtype(x))  # (groups, d, n)
        batch = moments(X)
        A, _, _ = self.from_batch(batch.scatter, batch.samples)
        return as_input(affine(X, A, batch.mean, weight, bias), x)

    def _mapped(self, input: Tensor, X: Tensor, A: Tensor, mean: Tensor, is_fused: bool) -> Tensor:
        """weight * A (X - mean) + bias, mean (C,), for X as `as_samples` has it or, where fused, as the input."""
        weight, bias = self.weight, self.bias
        if not is_fused:
            return as_input(affine(X, A, mean.view(X.shape[:-1]), weight, bias), input)  # type: ignore[arg-type]
        A = torch.diag_embed(A) if A.ndim == 2 else A
        return transformed(X, scaled(weight, A), mean, bias)  # type: ignore[arg-type]

    def _dtype(self, input: Tensor) -> torch.dtype:
        """What to compute in: at least float32, at least what the input and the state have."""
        own = self.weight if self.running_mean is None else self.running_mean
        dtype = torch.promote_types(input.dtype, torch.float32)
        return dtype if own is None else torch.promote_types(dtype, own.dtype)  # type: ignore[arg-type]

    def _batch_moments(self, input: Tensor, X: Tensor, is_fused: bool) -> Moments:
        if is_fused:
            mean, scatter = mean_and_scatter(X, self.groups)
            count = torch.full((), input.numel() // input.shape[1], dtype=torch.float64, device=input.device)
            batch = Moments(count, mean.view(scatter.shape[:-1]), scatter)
        else:
            batch = moments(X)
        broken: Tensor | None = None
        samples: float = input.shape[0] * math.prod(input.shape[2:])
        if self.process_group is not None:
            batch, broken = merged_moments(type(self).__name__, batch, self.process_group)
            samples = float(batch.samples) if checking(batch.mean) else math.inf
        self._require_samples(input, samples)
        self._require_finite(input, batch.scatter, broken)
        return batch

    def _require_samples(self, input: Tensor, samples: float) -> None:
        if samples == 1:
            raise ShapeError(
                f"`{type(self).__name__}`: expected more than 1 value per channel when training, got input of shape "
                f"{tuple(input.shape)}. Pass a larger batch, or call eval()."
            )

    def _require_finite(self, input: Tensor, scatter: Tensor, broken: Tensor | None) -> None:
        """Raise for statistics with NaN or Inf, where looking is allowed; ``broken``: which ranks (world,) brought them."""
        if not checking(scatter) or is_transformed(scatter) or bool(torch.isfinite(scatter).all()):
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

    def extra_repr(self) -> str:
        group = "" if self.group_size == self.num_features else f", group_size={self.group_size}"
        return (
            f"{self.num_features}{group}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"track_running_stats={self.track_running_stats}"
        )

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


def require_options(who: str, num_features: int, eps: float, momentum: float | None, process_group: Any) -> None:
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
