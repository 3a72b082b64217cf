"""PCA denoising: standardise, project on the leading eigenvectors and back (NIPS19 3.2)."""

from typing import Any

import torch
from torch import Tensor

from spectralgrad.errors import OptionError
from spectralgrad.linalg.choices import AUTO, EigenSolver, Gradient, for_denoising
from spectralgrad.linalg.projector import projector
from spectralgrad.validation import checks, is_number, is_whole

from .base import BatchStatistics
from .export import require_no_onnx
from .normalizer import BatchMap
from .statistics import covariance_of

__all__ = ["PCADenoise1d", "PCADenoise2d"]

_DEFAULT_ENERGY = 0.99  # the best of NIPS19's Table 4a


class _PCADenoise(BatchStatistics):
    running_var: Tensor | None
    running_covariance: Tensor | None

    def __init__(
        self,
        num_features: int,
        *,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        energy: float | None = None,
        rank: int | None = None,
        gradient: Gradient | None = None,
        solver: EigenSolver = AUTO,
        process_group: Any = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        who = self.who
        super().__init__(
            num_features,
            None,
            eps=eps,
            momentum=momentum,
            affine=affine,
            track_running_stats=track_running_stats,
            process_group=process_group,
            device=device,
            dtype=dtype,
            buffers=lambda d: {"running_var": (d,), "running_covariance": (d, d)},
        )
        if energy is not None and rank is not None:
            raise OptionError(f"`{who}`: pass energy= or rank=, not both, got energy={energy!r} and rank={rank!r}.")
        if energy is not None and not (is_number(energy) and 0 < energy <= 1):
            raise OptionError(f"`{who}`: energy must lie in (0, 1], got {energy!r}.")
        if rank is not None and not (is_whole(rank) and rank <= num_features):
            raise OptionError(f"`{who}`: rank must be a whole number from 1 to num_features={num_features}, got {rank!r}.")
        self.energy = _DEFAULT_ENERGY if energy is None and rank is None else energy
        self.rank = rank
        self.gradient = for_denoising(who, gradient, solver)
        self.solver: EigenSolver = solver

    @property
    def keeps_all(self) -> bool:
        """Whether the projector is the identity, and the layer batch normalisation."""
        return self.energy == 1 or self.rank == self.num_features

    def projector(self, covariance: Tensor) -> Tensor:
        """P (*B, C, C) for a covariance (*B, C, C) of standardised features."""
        require_no_onnx(self.who, self.solver)
        return projector(covariance, rank=self.rank, energy=self.energy, gradient=self.gradient, solver=self.solver)

    def from_batch(self, scatter: Tensor, samples: int | Tensor) -> BatchMap:
        covariance = covariance_of(scatter, samples)  # (1, C, C)
        unbiased = covariance_of(scatter.diagonal(dim1=-2, dim2=-1), samples, 1.0)  # as torch.nn.BatchNorm's
        inverse = (covariance.diagonal(dim1=-2, dim2=-1) + self.eps).rsqrt()  # 1/sigma, (1, C)
        standardised = covariance * (inverse.unsqueeze(-1) * inverse.unsqueeze(-2))
        A = inverse if self.keeps_all else self.projector(standardised) * inverse.unsqueeze(-2)
        return BatchMap(A, standardised, {"running_var": unbiased, "running_covariance": standardised})

    def from_running(self, dtype: torch.dtype) -> Tensor:
        assert self.running_var is not None
        inverse = (self.running_var.to(dtype) + self.eps).rsqrt().unsqueeze(0)  # (1, C)
        return inverse if self.keeps_all else self.running_projector(dtype) * inverse.unsqueeze(-2)

    def from_variance(self, variance: Tensor) -> dict[str, Tensor]:
        # Standardised channels have variance 1, and nothing is known of their correlations. All eigenvalues of I tie, an
        # energy cut keeps them all, and the layer computes what the batch norm did.
        correlations = torch.eye(self.num_features, dtype=variance.dtype, device=variance.device)
        return {"running_var": variance, "running_covariance": correlations}

    def running_projector(self, dtype: torch.dtype) -> Tensor:
        """P (1, C, C) of the running covariance, kept until that changes."""
        source = self.running_covariance
        assert source is not None
        options = (dtype, self.energy, self.rank, self.gradient, self.solver)
        if source.dtype.itemsize >= dtype.itemsize:
            return self.keep(source, options, lambda C: self.projector(C.to(dtype).unsqueeze(0)))
        # Rounding a covariance to half precision may leave negative eigenvalues that are no rounding in ``dtype``.
        with checks(False):
            return self.keep(source, options, lambda C: self.projector(C.to(dtype).unsqueeze(0)))

    def extra_repr(self) -> str:
        part = f"energy={self.energy}" if self.rank is None else f"rank={self.rank}"
        return f"{super().extra_repr()}, {part}, gradient={self.gradient}, solver={self.solver}"


class PCADenoise2d(_PCADenoise):
    """Batch normalisation that keeps only the leading principal components of its standardised input.

    y = weight * P s + bias,   s = (x - mean) / sqrt(variance + eps),   P = U_k U_k^T of the covariance of s

    with k = ``rank``, or as few as carry ``energy`` of the sum of the eigenvalues. Energy 1 is batch normalisation. In
    eval mode mean and variance come from running averages, and P is the projector of the running covariance of s: a
    true one, not an average of projectors. See docs/layers/denoise.md.

    Args:
        num_features: channels C of the input (N, C, H, W).
        eps: added to the variances.
        momentum, affine, track_running_stats: as in torch.nn.BatchNorm2d.
        energy: part of the sum of eigenvalues to keep, in (0, 1]; 0.99 if neither it nor rank is given.
        rank: how many components to keep.
        gradient: the rule for the gap at the cut; None is `Lorentzian()`, or the solver's own where it brings one.
        solver: an eigensolver or `PowerDeflation`.
        process_group: merge the statistics of training over its ranks, exactly; None is this process alone.

    Raises:
        OptionError, ShapeError, DtypeError, NonFiniteError: as `DecorrelatedBatchNorm2d`.

    >>> x = torch.randn(16, 4, 5, 5, generator=torch.Generator().manual_seed(0))
    >>> y = PCADenoise2d(4, rank=2, affine=False)(x)
    >>> torch.linalg.matrix_rank(y.transpose(0, 1).flatten(1))
    tensor(2)
    >>> torch.allclose(PCADenoise2d(4, energy=1)(x), torch.nn.BatchNorm2d(4)(x), atol=1e-6)
    True
    """

    ndims = (4,)


class PCADenoise1d(_PCADenoise):
    """`PCADenoise2d` for inputs (N, C) or (N, C, L).

    >>> PCADenoise1d(3, rank=1)(torch.eye(3)).shape
    torch.Size([3, 3])
    """

    ndims = (2, 3)
