"""Decorrelated batch normalisation: whitening by groups of channels (PAMI Alg. 2, NIPS19 Alg. 1)."""

from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import Parameter

from spectralgrad.errors import OptionError
from spectralgrad.kernels import jacobi
from spectralgrad.kernels.whitening import Running
from spectralgrad.linalg.choices import (
    AUTO,
    Gradient,
    RootSolver,
    for_whitening,
    solver_of_exact,
    takes_jacobi_kernel,
)
from spectralgrad.linalg.eigh import eigh
from spectralgrad.linalg.functions import inv_sqrtm, with_pullback
from spectralgrad.linalg.scalars import InverseSqrt
from spectralgrad.validation import asymmetry_tolerance

from .base import BatchMap, BatchStatistics
from .nodes import WhitenedStep
from .statistics import covariance_of, shifted

__all__ = ["DecorrelatedBatchNorm1d", "DecorrelatedBatchNorm2d", "DecorrelatedBatchNorm3d"]


class _DecorrelatedBatchNorm(BatchStatistics):
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
        whitening: Literal["zca", "pca"] = "zca",
        running: Literal["covariance", "whitening"] = "covariance",
        gradient: Gradient | None = None,
        solver: RootSolver = AUTO,
        warm_start: bool = False,
        process_group: Any = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        who = type(self).__name__
        if whitening not in ("zca", "pca"):
            raise OptionError(f'`{who}`: whitening must be "zca" or "pca", got {whitening!r}.')
        if running not in ("covariance", "whitening"):
            raise OptionError(f'`{who}`: running must be "covariance" or "whitening", got {running!r}.')
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
        self.last_basis: Tensor | None = None  # eigenvectors (groups, d, d) of the last training step, not in state_dict

    def whitening_matrix(self, covariance: Tensor) -> Tensor:
        """W (*B, d, d) for a covariance (*B, d, d) without eps.

        ZCA: (covariance + eps I)^(-1/2). PCA: L^(-1/2) V^T, largest eigenvalue first, each eigenvector with its largest
        entry positive. Eigenvalues that rounding left below eps count as eps.
        """
        return self._whitening(shifted(covariance, self.eps))

    def _whitening(self, C: Tensor) -> Tensor:
        """W for a covariance that was shifted."""
        if self.whitening == "zca":
            floor = self.eps if self.solver.has_eigenvalues else None
            return inv_sqrtm(C, gradient=self.gradient, solver=self.solver, floor=floor)
        w, V = eigh(C, gradient=self.gradient, solver=self.solver)  # type: ignore[arg-type]
        sign = V.detach().gather(-2, V.detach().abs().argmax(-2, keepdim=True)).sign()
        w = torch.where(w < self.eps, self.eps, w)
        return (V * sign * w.rsqrt().unsqueeze(-2)).mT.flip(-2)

    def from_batch(self, scatter: Tensor, samples: int | Tensor) -> BatchMap:
        covariance = covariance_of(scatter, samples)
        W = self._whitening(shifted(covariance, self.eps))
        running = covariance if self.running == "covariance" else W
        return BatchMap(W, covariance, {f"running_{self.running}": running})

    def from_batch_in_node(self, scatter: Tensor, samples: int) -> BatchMap:
        solver = solver_of_exact(self.gradient, self.solver) if self.whitening == "zca" else None
        if solver is None:
            return self.from_batch(scatter, samples)
        covariance = covariance_of(scatter.detach(), samples)
        C = shifted(covariance, self.eps)
        W, pullback, basis = with_pullback(
            "inv_sqrtm", C, InverseSqrt(self.eps), solver, asymmetry_tolerance(C), self._start(C.shape, C.device, C.dtype)
        )
        self.last_basis = basis if self.warm_start and jacobi.runs_on(C) else None
        twice = 2 / max(samples, 1)  # a spectral function's derivative is symmetric
        running = covariance if self.running == "covariance" else W
        return BatchMap(W, covariance, {f"running_{self.running}": running}, lambda dW: pullback(dW).mul_(twice))

    def from_running(self, dtype: torch.dtype) -> Tensor:
        if self.running == "whitening":
            assert self.running_whitening is not None
            return self.running_whitening
        assert self.running_covariance is not None
        options = (dtype, self.eps, self.whitening, self.gradient, self.solver)
        return self.keep(self.running_covariance, options, lambda C: self.whitening_matrix(C.to(dtype)))

    # A training step as a whole in kernels.

    def is_kernel_step(self, input: Tensor) -> bool:
        return (
            self.whitening == "zca"
            and self.running == "covariance"
            and self.process_group is None
            and self.momentum is not None
            and takes_jacobi_kernel(self.gradient, self.solver)
            and all(
                x is None or _is_plain(x, input.device)
                for x in (self.weight, self.bias, self.running_mean, self.running_covariance)
            )
        )

    def averages(self) -> Running | None:
        mean, covariance, batches = self.running_mean, self.running_covariance, self.num_batches_tracked
        if not self.updates_running or mean is None or covariance is None or batches is None:
            return None
        assert self.momentum is not None
        return Running(mean, covariance, batches, self.momentum)

    def starting_basis(self, input: Tensor) -> Tensor | None:
        if not self.warm_start:
            return None
        return self._start((self.groups, self.group_size, self.group_size), input.device, torch.float32)

    def remember_step(self, step: WhitenedStep) -> None:
        self.last_basis = step.of_groups(step.kept.V) if self.warm_start else None
        if self.training and self.monitored:
            self.last_covariance = step.of_groups(step.kept.covariance)

    def _start(self, shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor | None:
        """The eigenvectors of the last step, if they fit."""
        V = self.last_basis
        fits = self.warm_start and V is not None and (V.shape, V.device, V.dtype) == (shape, device, dtype)
        return V if fits else None

    def extra_repr(self) -> str:
        return (
            f"{super().extra_repr()}, whitening={self.whitening!r}, running={self.running!r}, gradient={self.gradient}, "
            f"solver={self.solver}{', warm_start=True' if self.warm_start else ''}"
        )


def _is_plain(x: Tensor, device: torch.device) -> bool:
    """Whether a kernel can read ``x`` as float32 numbers."""
    return x.dtype == torch.float32 and x.device == device and type(x) in (Tensor, Parameter) and x.is_contiguous()


class DecorrelatedBatchNorm2d(_DecorrelatedBatchNorm):
    """Batch normalisation that also decorrelates: the covariance of its output is the identity, in groups of channels.

    y = weight * W (x - mean) + bias,   W = (C + eps I)^(-1/2) (ZCA)   or   L^(-1/2) V^T with C + eps I = V L V^T (PCA),

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

    Raises:
        OptionError: an option out of range.
        ShapeError, DtypeError: an input of the wrong shape or kind, or of one value per channel in training.
        NonFiniteError: NaN or Inf in a training batch, on any rank.

    >>> layer = DecorrelatedBatchNorm2d(8, group_size=4)
    >>> y = layer(torch.randn(16, 8, 5, 5, generator=torch.Generator().manual_seed(0)))
    >>> Y = y[:, :4].transpose(0, 1).flatten(1)  # the first group
    >>> bool(((Y @ Y.mT / 400 - torch.eye(4)).abs() < 1e-3).all())
    True
    """

    ndims = (4,)


class DecorrelatedBatchNorm1d(_DecorrelatedBatchNorm):
    """`DecorrelatedBatchNorm2d` for inputs (N, C) or (N, C, L).

    >>> DecorrelatedBatchNorm1d(6, group_size=3)(torch.ones(4, 6)).abs().max()
    tensor(0., grad_fn=<MaxBackward1>)
    """

    ndims = (2, 3)


class DecorrelatedBatchNorm3d(_DecorrelatedBatchNorm):
    """`DecorrelatedBatchNorm2d` for inputs (N, C, D, H, W).

    >>> DecorrelatedBatchNorm3d(2)(torch.zeros(1, 2, 3, 3, 3)).shape
    torch.Size([1, 2, 3, 3, 3])
    """

    ndims = (5,)
