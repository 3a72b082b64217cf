"""PCA denoising: standardise, project on the leading eigenvectors and back (NIPS19 3.2)."""

from typing import Any, Literal

import torch
from torch import Tensor

from spectralgrad.context import compiling
from spectralgrad.errors import OptionError
from spectralgrad.linalg.choices import AUTO, EigenSolver, Gradient, for_denoising
from spectralgrad.linalg.eigh import eigh
from spectralgrad.linalg.precision import matmul
from spectralgrad.linalg.projector import projector
from spectralgrad.validation import checks, is_number, is_whole, require_one_of

from .base import BatchMap, BatchStatistics
from .covariances import covariance_of, leading_projector

__all__ = ["PCADenoise1d", "PCADenoise2d"]

_DEFAULT_ENERGY = 0.99  # the best of NIPS19's Table 4a
_HALF = 0.5  # of the batches: the projector nearest to a mean of projectors has the eigenvectors above it


class _PCADenoise(BatchStatistics):
    running_var: Tensor | None
    running_covariance: Tensor | None
    running_subspace: Tensor | None
    through: Literal["projector", "vectors"]
    running: Literal["covariance", "subspace"]

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
        through: Literal["projector", "vectors"] = "projector",
        running: Literal["covariance", "subspace"] = "covariance",
        gradient: Gradient | None = None,
        solver: EigenSolver = AUTO,
        process_group: Any = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        who = self.who
        require_one_of(who, "through", through, ("projector", "vectors"))
        require_one_of(who, "running", running, ("covariance", "subspace"))
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
            buffers=lambda d: {"running_var": (d,), f"running_{running}": (d, d)},
        )
        if energy is not None and rank is not None:
            raise OptionError(f"`{who}`: pass energy= or rank=, not both, got energy={energy!r} and rank={rank!r}.")
        if energy is not None and not (is_number(energy) and 0 < energy <= 1):
            raise OptionError(f"`{who}`: energy must lie in (0, 1], got {energy!r}.")
        if rank is not None and not (is_whole(rank) and rank <= num_features):
            raise OptionError(f"`{who}`: rank must be a whole number from 1 to num_features={num_features}, got {rank!r}.")
        self.energy = _DEFAULT_ENERGY if energy is None and rank is None else energy
        self.rank = rank
        self.through = through
        self.running = running
        self.gradient = for_denoising(who, gradient, solver)
        self.solver: EigenSolver = solver

    @property
    def keeps_all(self) -> bool:
        """Whether the projector is the identity, and the layer batch normalisation."""
        return self.energy == 1 or self.rank == self.num_features

    def projector(self, covariance: Tensor) -> Tensor:
        """P (*B, C, C) for a covariance (*B, C, C) of standardised features."""
        if compiling():
            self.require_no_onnx()
        return leading_projector(covariance, self.rank, self.energy, self.through, self.gradient, self.solver)

    def from_batch(self, scatter: Tensor, samples: int | Tensor, looked: bool = False) -> BatchMap:
        if compiling():
            self.require_no_onnx()
        keeps_all = self.keeps_all
        covariance = covariance_of(scatter, samples)  # (1, C, C)
        unbiased = covariance_of(scatter.diagonal(dim1=-2, dim2=-1), samples, 1.0)  # as torch.nn.BatchNorm's
        inverse = (covariance.diagonal(dim1=-2, dim2=-1) + self.eps).sqrt().reciprocal()  # 1/sigma, (1, C)
        standardised = covariance * (inverse.unsqueeze(-1) * inverse.unsqueeze(-2))
        options = self.rank, self.energy, self.through, self.gradient, self.solver
        P = None if keeps_all else leading_projector(standardised, *options, looked)
        A = inverse if P is None else P * inverse.unsqueeze(-2)
        averaged = standardised
        if self.running == "subspace":
            averaged = torch.eye(self.num_features, dtype=A.dtype, device=A.device) if P is None else P
        return BatchMap(A, standardised, {"running_var": unbiased, f"running_{self.running}": averaged})

    def from_running(self, dtype: torch.dtype) -> Tensor:
        assert self.running_var is not None
        inverse = (self.running_var.to(dtype) + self.eps).rsqrt().unsqueeze(0)  # (1, C)
        return inverse if self.keeps_all else self.running_projector(dtype) * inverse.unsqueeze(-2)

    def from_variance(self, variance: Tensor) -> dict[str, Tensor]:
        # Standardised channels have variance 1, and nothing is known of their correlations. All eigenvalues of I tie, an
        # energy cut keeps them all, and the layer computes what the batch norm did. So it does by the subspace I.
        identity = torch.eye(self.num_features, dtype=variance.dtype, device=variance.device)
        return {"running_var": variance, f"running_{self.running}": identity}

    def running_projector(self, dtype: torch.dtype) -> Tensor:
        """P (1, C, C) of the running covariance, or nearest to the running subspace, kept until that changes."""
        source = self.running_covariance if self.running == "covariance" else self.running_subspace
        assert source is not None
        options = (dtype, self.energy, self.rank, self.through, self.gradient, self.solver)
        if self.running == "subspace":
            return self.keep(source, options, lambda S: self._nearest_projector(S.to(dtype).unsqueeze(0)))
        if source.dtype.itemsize >= dtype.itemsize:
            return self.keep(source, options, lambda C: self.projector(C.to(dtype).unsqueeze(0)))
        # Rounding a covariance to half precision may leave negative eigenvalues that are no rounding in ``dtype``.
        with checks(False):
            return self.keep(source, options, lambda C: self.projector(C.to(dtype).unsqueeze(0)))

    def _nearest_projector(self, S: Tensor) -> Tensor:
        """The projector nearest to a mean of projectors S (*B, C, C): of rank ``rank``, or of what half of them keep."""
        if self.rank is not None:
            return projector(S, rank=self.rank)
        w, V = eigh(S)
        keep = (w > _HALF) | (w == w[..., -1:])  # one at least
        return matmul(V * keep.unsqueeze(-2), V.mT)

    def extra_repr(self) -> str:
        part = f"energy={self.energy}" if self.rank is None else f"rank={self.rank}"
        ways = f"{', through=vectors' * (self.through == 'vectors')}{', running=subspace' * (self.running == 'subspace')}"
        return f"{super().extra_repr()}, {part}, gradient={self.gradient}, solver={self.solver}{ways}"


class PCADenoise2d(_PCADenoise):
    """Batch normalisation that keeps only the leading principal components of its standardised input.

        y = weight * P s + bias,   s = (x - mean) / sqrt(variance + eps),   P = U_k U_k^T of the covariance of s

    with k = ``rank``, or as few as carry ``energy`` of the sum of the eigenvalues. Energy 1 is batch normalisation. In
    eval mode mean and variance come from running averages, and P is the projector of the running covariance of s, or the
    one nearest to the running mean of P: a true one. See docs/layers/denoise.md.

    Args:
        num_features: channels C of the input (N, C, H, W).
        eps: added to the variances.
        momentum, affine, track_running_stats: as in torch.nn.BatchNorm2d.
        energy: part of the sum of eigenvalues to keep, in (0, 1]; 0.99 if neither it nor rank is given.
        rank: how many components to keep.
        through: "projector", with the gradient of P itself; or "vectors", U_k U_k^T by autograd through the eigenvectors,
            as the papers have it: the rule meets every gap, and with `Analytic` a tie of kept components is NaN.
        running: average the "covariance" of s, or the "subspace", P itself (NIPS19 Alg. 1). A mean of projectors is none:
            in eval mode the nearest one is taken, of the directions that more than half of the batches kept, by weight.
        gradient: the rule for the gap at the cut; None is `Lorentzian()`, or the solver's own where it brings one.
        solver: an eigensolver or `PowerDeflation`.
        process_group: merge the statistics of training over its ranks, exactly; None is this process alone.
        device, dtype: of parameters and buffers.

    Shape: (N, C, H, W) -> the same, real. Half precision is computed in float32 and rounded back.

    Raises:
        OptionError, ShapeError, DtypeError, NonFiniteError: as `DecorrelatedBatchNorm2d`.

    >>> import torch, spectralgrad as sg
    >>> x = torch.randn(16, 4, 5, 5, generator=torch.Generator().manual_seed(0))
    >>> y = sg.nn.PCADenoise2d(4, rank=2, affine=False)(x)
    >>> torch.linalg.matrix_rank(y.transpose(0, 1).flatten(1))
    tensor(2)
    >>> torch.allclose(sg.nn.PCADenoise2d(4, energy=1)(x), torch.nn.BatchNorm2d(4)(x), atol=1e-6)
    True
    """

    ndims = (4,)


class PCADenoise1d(_PCADenoise):
    """`PCADenoise2d` for inputs (N, C) or (N, C, L).

    >>> import torch, spectralgrad as sg
    >>> sg.nn.PCADenoise1d(3, rank=1)(torch.eye(3)).shape
    torch.Size([3, 3])
    """

    ndims = (2, 3)
