"""Batch normalisation of positive definite matrices."""

import torch
from torch import Tensor
from torch.fx import Proxy
from torch.nn import Module, Parameter, init

from spectralgrad.context import in_backward, kept_whole
from spectralgrad.errors import DtypeError, OptionError, ShapeError
from spectralgrad.linalg.functions import expm, inv_sqrtm
from spectralgrad.linalg.precision import hermitian_part, in_widest, matmul, sandwich
from spectralgrad.spd.geodesic import geodesic
from spectralgrad.spd.inputs import as_definite, returned
from spectralgrad.spd.mean import mean_of
from spectralgrad.validation import as_given, is_number, is_whole

from .inputs import as_matrices

__all__ = ["SPDBatchNorm"]


class SPDBatchNorm(Module):
    """Batch normalisation of positive definite matrices by their affine-invariant mean.

    With M the mean of the batch (`spd.mean`) and a learnable positive definite bias G,

        Y = G^(1/2) M^(-1/2) X M^(-1/2) G^(1/2),

    which is the parallel transport of X from M to the identity and on to G: the mean of the output is G. G is exp(S), S the
    symmetric part of the parameter ``log_bias``, 0 at the start. The gradient through M is that of the implicit function
    theorem. In eval mode M is the running mean, which moves along geodesics:
    running <- geodesic(running, M, momentum).

    Args:
        num_features: n.
        momentum: of the running mean; None for the cumulative one, as in torch.nn.BatchNorm.
        device, dtype: of parameter and buffers.

    Shape: (*B, n, n) -> the same, real; all leading dimensions are samples.

    Raises:
        OptionError: an option out of its range.
        ShapeError: another n, or a single matrix when training: all would become the bias.
        DefinitenessError: a matrix that is singular to rounding, or indefinite; in eval mode too.
        DtypeError, SymmetryError, NonFiniteError: an input that is no real symmetric matrix.
        ConvergenceError: as in `spd.mean`.

    >>> import torch, spectralgrad as sg
    >>> layer = sg.nn.SPDBatchNorm(2)
    >>> X = torch.diag_embed(torch.tensor([[1.0, 2.0], [4.0, 8.0]]))
    >>> layer(X).detach().diagonal(dim1=-2, dim2=-1)
    tensor([[0.5000, 0.5000],
            [2.0000, 2.0000]])
    """

    running_mean: Tensor
    num_batches_tracked: Tensor

    def __init__(
        self,
        num_features: int,
        momentum: float | None = 0.1,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if not is_whole(num_features):
            raise OptionError(f"`SPDBatchNorm`: num_features must be a whole number >= 1, got {num_features!r}.")
        if momentum is not None and not (is_number(momentum) and 0 <= momentum <= 1):
            raise OptionError(
                f"`SPDBatchNorm`: momentum must lie in [0, 1], or be None for a cumulative mean, got {momentum!r}."
            )
        super().__init__()
        self.num_features, self.momentum = num_features, momentum
        self.log_bias = Parameter(torch.empty(num_features, num_features, device=device, dtype=dtype))
        self.register_buffer("running_mean", torch.empty(num_features, num_features, device=device, dtype=dtype))
        self.register_buffer("num_batches_tracked", torch.zeros((), dtype=torch.long, device=device))
        self.reset_parameters()

    def reset_running_stats(self) -> None:
        """The identity, and no batch counted."""
        self.running_mean.copy_(torch.eye(self.num_features, dtype=self.running_mean.dtype, device=self.running_mean.device))
        self.num_batches_tracked.zero_()

    def reset_parameters(self) -> None:
        self.reset_running_stats()
        init.zeros_(self.log_bias)

    @property
    def bias(self) -> Tensor:
        """G (n, n), positive definite."""
        return expm(hermitian_part(self.log_bias))

    def forward(self, input: Tensor) -> Tensor:
        if isinstance(input, Proxy):
            return kept_whole(self, input)
        n = self.num_features
        X = as_matrices("SPDBatchNorm", input, n, f"num_features={n}", self.log_bias.dtype)
        if X.is_complex():
            raise DtypeError(
                f"`SPDBatchNorm`: `input` must be real, as the running mean and the bias are, got {input.dtype}. Write "
                "a + ib as the real matrix [[a, -b], [b, a]] of twice the size."
            )
        flat = as_definite("SPDBatchNorm", hermitian_part(X), "input").reshape(-1, n, n)
        if self.training and flat.shape[0] == 1:
            raise ShapeError(
                "`SPDBatchNorm`: training needs more than 1 matrix in a batch, which would all become the bias, got input "
                f"of shape {tuple(input.shape)}. Pass a larger batch, or call eval()."
            )
        if flat.shape[0] == 0:
            M = torch.eye(n, dtype=X.dtype, device=X.device)
        elif self.training:
            M = returned(mean_of("SPDBatchNorm", flat, None, "affine"), flat)
        else:
            M = self.running_mean.to(X.dtype)
        half = expm(hermitian_part(self.log_bias).to(X.dtype) / 2)
        output = hermitian_part(sandwich(matmul(half, inv_sqrtm(M)), X))
        if self.training and not in_backward():  # last, so that an error leaves the state as it was
            self._update(M.detach(), flat.shape[0])
        return as_given(output, input)

    @torch.no_grad()
    def _update(self, M: Tensor, samples: int) -> None:
        """A batch without matrices is counted and changes nothing."""
        self.num_batches_tracked.add_(1)
        if samples == 0:
            return
        t = 1 / in_widest(self.num_batches_tracked) if self.momentum is None else self.momentum
        running = self.running_mean.to(M.real.dtype)
        self.running_mean.copy_(geodesic(running, M, t))

    def extra_repr(self) -> str:
        return f"{self.num_features}, momentum={self.momentum}"
