"""Decorrelated batch normalisation: whitening by groups of channels (PAMI Alg. 2, NIPS19 Alg. 1)."""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import Parameter

from spectralgrad.counters import device_counter
from spectralgrad.errors import OptionError
from spectralgrad.kernels import jacobi
from spectralgrad.kernels.whitening import Running, runs_on
from spectralgrad.linalg.eigh import AUTO, Gradient, eigh, require_rule, require_solver
from spectralgrad.linalg.functions import AnySolver, inv_sqrtm, with_pullback
from spectralgrad.linalg.newton import NewtonSchulz
from spectralgrad.linalg.rules import Exact, Lorentzian, PowerIteration
from spectralgrad.linalg.scalars import InverseSqrt
from spectralgrad.linalg.solvers import Auto, Jacobi, PowerDeflation, Solver
from spectralgrad.validation import asymmetry_tolerance, checking, is_whole

from .fused import Step, whitened
from .statistics import BatchStatistics, covariance_of, identity_like, require_options

__all__ = ["DecorrelatedBatchNorm1d", "DecorrelatedBatchNorm2d", "DecorrelatedBatchNorm3d"]


class _DecorrelatedBatchNorm(BatchStatistics):
    running_covariance: Tensor | None
    running_whitening: Tensor | None

    def __init__(
        self,
        num_features: int,
        group_size: int | None = None,
        eps: float = 1e-4,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        whitening: Literal["zca", "pca"] = "zca",
        running: Literal["covariance", "whitening"] = "covariance",
        gradient: Gradient | None = None,
        solver: AnySolver | NewtonSchulz = AUTO,
        process_group: Any = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        warm_start: bool = False,
    ) -> None:
        who = type(self).__name__
        require_options(who, num_features, eps, momentum, process_group)
        size = num_features if group_size is None else group_size
        if not is_whole(size) or num_features % size:
            raise OptionError(
                f"`{who}`: group_size must be a whole number that divides num_features={num_features}, got {group_size!r}. "
                "None makes one group of all channels."
            )
        if whitening not in ("zca", "pca"):
            raise OptionError(f'`{who}`: whitening must be "zca" or "pca", got {whitening!r}.')
        if running not in ("covariance", "whitening"):
            raise OptionError(f'`{who}`: running must be "covariance" or "whitening", got {running!r}.')
        super().__init__(
            num_features,
            size,
            eps,
            momentum,
            affine,
            track_running_stats,
            process_group,
            device,
            dtype,
            {f"running_{running}": (num_features // size, size, size)},
        )
        self.whitening = whitening
        self.running = running
        self.gradient = _gradient(who, whitening, gradient, solver)
        self.solver = solver
        self.warm_start = warm_start
        self.last_basis: Tensor | None = None  # eigenvectors (groups, d, d) of the last training step, not in state_dict

    def whitening_matrix(self, covariance: Tensor) -> Tensor:
        """W (*B, d, d) for a covariance (*B, d, d) without eps.

        ZCA: (covariance + eps I)^(-1/2). PCA: L^(-1/2) V^T, largest eigenvalue first, each eigenvector with its largest
        entry positive. Eigenvalues that rounding left below eps count as eps.
        """
        shifted = self._shifted(covariance)
        if isinstance(self.solver, NewtonSchulz):  # has no eigenvalues to clamp
            return inv_sqrtm(shifted, solver=self.solver)
        if self.whitening == "zca":
            return inv_sqrtm(shifted, gradient=self.gradient, solver=self.solver, floor=self.eps)
        w, V = eigh(shifted, gradient=self.gradient, solver=self.solver)
        sign = V.detach().gather(-2, V.detach().abs().argmax(-2, keepdim=True)).sign()
        w = torch.where(w < self.eps, self.eps, w)
        return (V * sign * w.rsqrt().unsqueeze(-2)).mT.flip(-2)

    def _shifted(self, covariance: Tensor) -> Tensor:
        return torch.add(covariance, identity_like(covariance), alpha=self.eps)

    def from_batch(self, scatter: Tensor, samples: int | Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        covariance = covariance_of(scatter, samples)
        W = self.whitening_matrix(covariance)
        return W, covariance, self._running_values(covariance, W)

    def from_batch_with_pullback(
        self, scatter: Tensor, samples: int
    ) -> tuple[Tensor, Tensor, dict[str, Tensor], Callable[[Tensor], Tensor]] | None:
        if self.whitening != "zca" or not isinstance(self.gradient, Exact) or not isinstance(self.solver, Solver):
            return None
        covariance = covariance_of(scatter, samples)
        tolerance = asymmetry_tolerance(covariance)
        shifted = self._shifted(covariance)
        W, pullback, basis = with_pullback(
            "inv_sqrtm",
            shifted,
            InverseSqrt(self.eps),
            self.solver,
            tolerance,
            self._start(shifted.shape, shifted.device, shifted.dtype),
        )
        self.last_basis = basis if self.warm_start and jacobi.runs_on(shifted) else None
        twice = 2 / max(samples, 1)  # a spectral function's derivative is symmetric
        return W, covariance, self._running_values(covariance, W), lambda dW: pullback(dW).mul_(twice)

    def _in_one_node(self, input: Tensor) -> tuple[Tensor, int, Tensor | None, dict[str, Tensor] | None]:
        if not self._is_one_step(input):
            return super()._in_one_node(input)
        samples = input.numel() // input.shape[1]
        self._require_samples(input, samples)
        start = self._start((self.groups, self.group_size, self.group_size), input.device, torch.float32)
        step = Step(self.groups, self.eps, self._averages(), device_counter("nonfinite_input", input.device), start)
        y = whitened(input, self.weight, self.bias, step, self._composed)  # type: ignore[arg-type]
        assert step.kept is not None
        self.last_basis = step.of_groups(step.kept.V) if self.warm_start else None
        return y, samples, step.of_groups(step.kept.covariance) if self.monitored else None, None

    def _is_one_step(self, input: Tensor) -> bool:
        """Whether kernels/whitening.py does all that this layer asks for."""
        return (
            self.whitening == "zca"
            and self.running == "covariance"
            and isinstance(self.gradient, Exact)
            and isinstance(self.solver, Auto | Jacobi)
            and self.momentum is not None
            and not checking(input)
            and runs_on(input, self.group_size)
            and all(
                x is None or _is_plain(x, input.device)  # type: ignore[arg-type]
                for x in (self.weight, self.bias, self.running_mean, self.running_covariance)
            )
        )

    def _averages(self) -> Running | None:
        """The running values, where this pass updates them."""
        mean, covariance, batches = self.running_mean, self.running_covariance, self.num_batches_tracked
        if not (self.training and self.track_running_stats) or mean is None or covariance is None or batches is None:
            return None
        assert self.momentum is not None
        return Running(mean, covariance, batches, self.momentum)

    def _start(self, shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor | None:
        """The eigenvectors of the last step, if they fit."""
        V = self.last_basis
        fits = self.warm_start and V is not None and (V.shape, V.device, V.dtype) == (shape, device, dtype)
        return V if fits else None

    def _running_values(self, covariance: Tensor, W: Tensor) -> dict[str, Tensor]:
        return {"running_covariance": covariance} if self.running == "covariance" else {"running_whitening": W}

    def from_running(self, dtype: torch.dtype) -> Tensor:
        if self.running == "whitening":
            assert self.running_whitening is not None
            return self.running_whitening
        assert self.running_covariance is not None
        options = (dtype, self.eps, self.whitening, self.gradient, self.solver)
        return self.keep(self.running_covariance, options, lambda C: self.whitening_matrix(C.to(dtype)))

    def extra_repr(self) -> str:
        return (
            f"{super().extra_repr()}, whitening={self.whitening!r}, running={self.running!r}, gradient={self.gradient}, "
            f"solver={self.solver}{', warm_start=True' if self.warm_start else ''}"
        )


def _is_plain(x: Tensor, device: torch.device) -> bool:
    """Whether a kernel can read ``x`` as float32 numbers."""
    return x.dtype == torch.float32 and x.device == device and type(x) in (Tensor, Parameter) and x.is_contiguous()


def _gradient(who: str, whitening: str, gradient: Gradient | None, solver: AnySolver | NewtonSchulz) -> Gradient | None:
    """The rule to use, or the error for one that does not go with the solver; None where the solver brings its own."""
    if isinstance(solver, NewtonSchulz) and whitening == "pca":
        raise OptionError(f'`{who}`: NewtonSchulz has no eigenvectors; with whitening="pca" take another solver.')
    if isinstance(solver, NewtonSchulz | PowerDeflation):
        if gradient is not None:
            raise OptionError(f"`{who}`: {type(solver).__name__} brings its own gradient; leave out gradient={gradient}.")
        return None
    require_solver(who, solver)
    if gradient is None:
        return Exact() if whitening == "zca" else Lorentzian()
    return gradient if isinstance(gradient, PowerIteration) else require_rule(who, gradient)


class DecorrelatedBatchNorm2d(_DecorrelatedBatchNorm):
    """Batch normalisation that also decorrelates: the covariance of its output is the identity, in groups of channels.

    y = weight * W (x - mean) + bias,   W = (C + eps I)^(-1/2) (ZCA)   or   L^(-1/2) V^T (PCA),   C = V L V^T + ...

    with mean and covariance C over batch and positions, divided by their number. In eval mode they come from running
    averages, and W is computed once and kept until those change. See docs/layers/decorrelation.md.

    Args:
        num_features: channels C of the input (N, C, H, W).
        group_size: whiten groups of so many neighbouring channels; None is all channels. Must divide num_features.
        eps: the shift of the covariance's diagonal; eigenvalues of C + eps I below it count as it.
        momentum: the weight of the new batch in running averages; None for a cumulative mean.
        affine: learn a weight and a bias for each channel.
        track_running_stats: False uses the batch's own statistics in eval mode too.
        whitening: "zca" or "pca".
        running: average the "covariance" (PAMI) or the "whitening" matrix (NIPS19).
        gradient: a rule; None is `Exact()` for ZCA, `Lorentzian()` for PCA, and the solver's own where it brings one.
        solver: an eigensolver, `PowerDeflation`, or for ZCA `NewtonSchulz`.
        process_group: merge the statistics of training over its ranks, exactly; None is this process alone.
        warm_start: on CUDA start each decomposition of a training step from the last one's eigenvectors, kept in
            ``last_basis``. Saves sweeps for ZCA with the exact gradient; changes results by rounding only.

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
