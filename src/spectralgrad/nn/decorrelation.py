"""Decorrelated batch normalisation: whitening by groups of channels (PAMI Alg. 2, NIPS19 Alg. 1), with and without state."""

from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import Parameter

from spectralgrad.context import compiling, in_backward
from spectralgrad.counters import device_counter
from spectralgrad.kernels import jacobi
from spectralgrad.kernels.whitening import Kept, Running, StepOptions
from spectralgrad.linalg.choices import (
    AUTO,
    Gradient,
    RootSolver,
    for_whitening,
    solver_of_exact,
    takes_jacobi_kernel,
)
from spectralgrad.validation import require_one_of

from .base import BatchMap, BatchStatistics, Normalizer, require_groups
from .covariances import covariance_of, inverse_root_with_pullback, shifted, whitening

__all__ = ["DecorrelatedBatchNorm1d", "DecorrelatedBatchNorm2d", "DecorrelatedBatchNorm3d"]


Kind = Literal["zca", "pca"]


class Whitening(Normalizer):
    """y = weight * W (x - mean) + bias, with W (C + eps I) W^T = I."""

    whitening: Kind
    running: Literal["covariance", "whitening"]
    gradient: Gradient | None
    warm_start: bool
    last_basis: Tensor | None  # eigenvectors (groups, d, d) of the last training step

    def whitening_matrix(self, covariance: Tensor) -> Tensor:
        """W (*B, d, d) for a covariance (*B, d, d) without eps.

        ZCA: (covariance + eps I)^(-1/2). PCA: L^(-1/2) V^T, largest eigenvalue first, each eigenvector with its largest
        entry positive. Eigenvalues that rounding left below eps count as eps.
        """
        if compiling():
            self.require_no_onnx()
        return whitening(self.who, covariance, self.whitening, self.eps, self.gradient, self.solver)

    def from_batch(self, scatter: Tensor, samples: int | Tensor, looked: bool = False) -> BatchMap:
        if compiling():
            self.require_no_onnx()
        covariance = covariance_of(scatter, samples)
        W = whitening(self.who, covariance, self.whitening, self.eps, self.gradient, self.solver, looked)
        running = covariance if self.running == "covariance" else W
        return BatchMap(W, covariance, {f"running_{self.running}": running})

    def from_batch_in_node(self, scatter: Tensor, samples: int) -> BatchMap:
        solver = solver_of_exact(self.gradient, self.solver) if self.whitening == "zca" else None
        if solver is None:
            return self.from_batch(scatter, samples)
        covariance = covariance_of(scatter.detach(), samples)
        C = shifted(covariance, self.eps)
        start = self._start(C.shape, C.device, C.dtype)
        W, pullback, basis = inverse_root_with_pullback(self.who, C, self.eps, solver, start)
        self._remember_basis(basis if jacobi.runs_on(C) else None)
        twice = 2 / max(samples, 1)  # a spectral function's derivative is symmetric
        running = covariance if self.running == "covariance" else W
        return BatchMap(W, covariance, {f"running_{self.running}": running}, lambda dW: pullback(dW).mul_(twice))

    # A training step as a whole in kernels.

    def is_kernel_step(self, input: Tensor) -> bool:
        return (
            self.whitening == "zca"
            and self.running == "covariance"
            and self.process_group is None
            and self.momentum is not None
            and takes_jacobi_kernel(self.gradient, self.solver)
            and all(x is None or is_plain(x, input.device) for x in (self.weight, self.bias))
        )

    def step_options(self, input: Tensor) -> StepOptions:
        nonfinite = device_counter("nonfinite_input", input.device)
        start = self._start((self.groups, self.group_size, self.group_size), input.device, torch.float32)
        return StepOptions(self.groups, self.eps, nonfinite, start=start)

    def remember_step(self, kept: Kept) -> None:
        self._remember_basis(kept.of_groups("V") if self.warm_start else None)

    def _remember_basis(self, V: Tensor | None) -> None:
        """Keep these eigenvectors, in the memory of the last ones: a CUDA graph of the step reads there what it wrote."""
        if not self.warm_start or V is None:
            self.last_basis = None
            return
        kept = self._start(V.shape, V.device, V.dtype)
        self.last_basis = V.clone() if kept is None or kept.is_inference() else kept.copy_(V)

    def _start(self, shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor | None:
        """The eigenvectors of the last step, if they fit."""
        V = self.last_basis
        fits = self.warm_start and V is not None and (V.shape, V.device, V.dtype) == (shape, device, dtype)
        return V if fits else None


class _DecorrelatedBatchNorm(Whitening, BatchStatistics):
    running_covariance: Tensor | None
    running_whitening: Tensor | None

    def __init__(
        self,
        num_features: int,
        group_size: int | None = None,
        *,
        eps: float = 1e-4,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        whitening: Kind = "zca",
        running: Literal["covariance", "whitening"] = "covariance",
        gradient: Gradient | None = None,
        solver: RootSolver = AUTO,
        warm_start: bool = False,
        process_group: Any = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        who = self.who
        require_one_of(who, "whitening", whitening, ("zca", "pca"))
        require_one_of(who, "running", running, ("covariance", "whitening"))
        super().__init__(
            num_features,
            group_size,
            eps=eps,
            momentum=momentum,
            affine=affine,
            track_running_stats=track_running_stats,
            process_group=process_group,
            device=device,
            dtype=dtype,
            buffers=lambda d: {f"running_{running}": (num_features // d, d, d)},
        )
        self.whitening = whitening
        self.running = running
        self.gradient = for_whitening(who, whitening, gradient, solver)
        self.solver = solver
        self.warm_start = warm_start
        self.last_basis = None  # not in state_dict

    def from_running(self, dtype: torch.dtype) -> Tensor:
        if self.running == "whitening":
            assert self.running_whitening is not None
            return self.running_whitening.to(dtype)
        assert self.running_covariance is not None
        options = (dtype, self.eps, self.whitening, self.gradient, self.solver)
        return self.keep(self.running_covariance, options, lambda C: self.whitening_matrix(C.to(dtype)))

    def from_variance(self, variance: Tensor) -> dict[str, Tensor]:
        if self.running == "whitening":
            wide = variance.to(torch.promote_types(variance.dtype, torch.float32))
            variance = (wide + self.eps).rsqrt().to(variance.dtype)
        return {f"running_{self.running}": torch.diag_embed(variance.view(self.groups, self.group_size))}

    def is_kernel_step(self, input: Tensor) -> bool:
        return super().is_kernel_step(input) and all(
            x is None or is_plain(x, input.device) for x in (self.running_mean, self.running_covariance)
        )

    def step_options(self, input: Tensor) -> StepOptions:
        options = super().step_options(input)
        mean, covariance, batches = self.running_mean, self.running_covariance, self.num_batches_tracked
        if not self.updates_running or in_backward() or mean is None or covariance is None or batches is None:
            return options
        assert self.momentum is not None
        return options._replace(running=Running(mean, covariance, batches, self.momentum))

    def remember_step(self, kept: Kept) -> None:
        super().remember_step(kept)
        if self.training and self.monitored:
            self.last_covariance = kept.of_groups("covariance")

    def extra_repr(self) -> str:
        return (
            f"{super().extra_repr()}, whitening={self.whitening!r}, running={self.running!r}, gradient={self.gradient}, "
            f"solver={self.solver}{', warm_start=True' if self.warm_start else ''}"
        )


class DecorrelatedBatchNorm2d(_DecorrelatedBatchNorm):
    """Batch normalisation that also decorrelates: the covariance of its output is the identity, in groups of channels.

        y = weight * W (x - mean) + bias,   W = (C + eps I)^(-1/2) (ZCA)  or  L^(-1/2) V^T with C + eps I = V L V^T (PCA),

    with mean and covariance C over batch and positions, divided by their number. In eval mode they come from running
    averages, and W is computed once and kept until those change. See docs/layers/decorrelation.md.

    Args:
        num_features: channels C of the input (N, C, H, W).
        group_size: whiten groups of this many neighbouring channels; None is all channels. Must divide num_features.
        eps: the shift of the covariance's diagonal; eigenvalues of C + eps I below it count as it.
        momentum: the weight of the new batch in running averages; None for a cumulative mean.
        affine: learn a weight and a bias for each channel.
        track_running_stats: False uses the batch's own statistics in eval mode too.
        whitening: "zca" or "pca".
        running: average the "covariance" (PAMI) or the "whitening" matrix (NIPS19).
        gradient: a rule; None is `Exact()` for ZCA, `Lorentzian()` for PCA, and the solver's own where it brings one.
        solver: an eigensolver, `PowerDeflation`, or for ZCA `NewtonSchulz`.
        warm_start: on CUDA start each decomposition of a training step from the last one's eigenvectors, kept in
            ``last_basis``. Saves sweeps for ZCA with the exact gradient; changes results by rounding only.
        process_group: merge the statistics of training over its ranks, exactly; None is this process alone.
        device, dtype: of parameters and buffers.

    Shape: (N, C, H, W) -> the same, real. Half precision is computed in float32 and rounded back.

    Raises:
        OptionError: an option out of range.
        ShapeError, DtypeError: an input of the wrong shape or kind, or of one value per channel in training.
        NonFiniteError: NaN or Inf in a training batch, on any rank.
        DefinitenessError: from `NewtonSchulz` alone, where it does not converge.

    >>> import torch, spectralgrad as sg
    >>> layer = sg.nn.DecorrelatedBatchNorm2d(8, group_size=4)
    >>> y = layer(torch.randn(16, 8, 5, 5, generator=torch.Generator().manual_seed(0)))
    >>> Y = y[:, :4].transpose(0, 1).flatten(1)  # the first group
    >>> bool(((Y @ Y.mT / 400 - torch.eye(4)).abs() < 1e-3).all())
    True
    """

    ndims = (4,)


class DecorrelatedBatchNorm1d(_DecorrelatedBatchNorm):
    """`DecorrelatedBatchNorm2d` for inputs (N, C) or (N, C, L).

    >>> import torch, spectralgrad as sg
    >>> sg.nn.DecorrelatedBatchNorm1d(6, group_size=3)(torch.ones(4, 6)).abs().max()
    tensor(0., grad_fn=<MaxBackward1>)
    """

    ndims = (2, 3)


class DecorrelatedBatchNorm3d(_DecorrelatedBatchNorm):
    """`DecorrelatedBatchNorm2d` for inputs (N, C, D, H, W).

    >>> import torch, spectralgrad as sg
    >>> sg.nn.DecorrelatedBatchNorm3d(2)(torch.zeros(1, 2, 3, 3, 3)).shape
    torch.Size([1, 2, 3, 3, 3])
    """

    ndims = (5,)


class Stateless(Whitening):
    """Whitening by the statistics of each batch alone."""

    who = "whiten"
    argument = "x"
    few_samples = "in a batch, got `x`", ""
    training, process_group, running_mean = True, None, None
    running: Literal["covariance"] = "covariance"
    momentum, warm_start, last_basis = 0.0, False, None

    def __init__(
        self,
        num_features: int,
        group_size: int | None,
        eps: float,
        whitening: Kind,
        gradient: Gradient | None,
        solver: RootSolver,
        weight: Tensor | None,
        bias: Tensor | None,
    ) -> None:
        require_groups(self.who, num_features, group_size, eps)
        require_one_of(self.who, "whitening", whitening, ("zca", "pca"))
        self.num_features = num_features
        self.group_size = num_features if group_size is None else group_size
        self.eps = eps
        self.whitening = whitening
        self.gradient = for_whitening(self.who, whitening, gradient, solver)
        self.solver = solver
        self.weight, self.bias = weight, bias


def is_plain(x: Tensor, device: torch.device) -> bool:
    """Whether a kernel can read ``x`` as float32 numbers."""
    return x.dtype == torch.float32 and x.device == device and type(x) in (Tensor, Parameter) and x.is_contiguous()
