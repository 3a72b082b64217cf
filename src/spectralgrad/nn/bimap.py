"""SPDNet's linear layer, with an orthonormal weight."""

import torch
from torch import Tensor
from torch.fx import Proxy
from torch.nn import Module, Parameter, init

from spectralgrad.context import kept_whole
from spectralgrad.errors import DtypeError, OptionError
from spectralgrad.linalg.precision import hermitian_part, sandwich
from spectralgrad.orthogonal.weight import OrthogonalWeight
from spectralgrad.validation import as_given, is_whole

from .inputs import as_matrices

__all__ = ["BiMap"]


class BiMap(Module):
    """W X W^T with a learnable W whose rows are orthonormal: a linear map that keeps matrices positive definite.

    W (out_features, in_features) is Q_0 exp(A - A^T) in the sense of `orthogonal.orthogonal_weight`: the parameter A, called
    ``skew``, is free, and W stays orthonormal to rounding. With more outputs than inputs the columns are orthonormal
    instead, and the output has rank in_features: put `ReEig` behind it. No eigenvalue leaves the range of those of X.

    Args:
        in_features, out_features: n of the input and of the output.
        device, dtype: of the parameter.

    Shape: (*B, in_features, in_features) -> (*B, out_features, out_features), real or complex.

    Raises:
        OptionError: a size that is not a whole number >= 1.
        ShapeError, DtypeError, SymmetryError, NonFiniteError: an input that is no Hermitian matrix of that size.

    >>> import torch, spectralgrad as sg
    >>> layer = sg.nn.BiMap(5, 3)
    >>> layer(torch.eye(5)).round(decimals=4).abs()  # W W^T
    tensor([[1., 0., 0.],
            [0., 1., 0.],
            [0., 0., 1.]], grad_fn=<AbsBackward0>)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        for name, value in (("in_features", in_features), ("out_features", out_features)):
            if not is_whole(value):
                raise OptionError(f"`BiMap`: {name} must be a whole number >= 1, got {value!r}.")
        if dtype is not None and not dtype.is_floating_point:
            raise DtypeError(f"`BiMap`: dtype must be real and floating point, got {dtype}. Its matrices may be complex.")
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.skew = Parameter(torch.zeros(out_features, in_features, device=device, dtype=dtype))
        self.orthonormal = OrthogonalWeight(self.skew.detach(), 0, True)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """A random W, uniformly distributed."""
        start = torch.empty(self.skew.shape, device=self.skew.device, dtype=torch.float32)
        with torch.no_grad():
            self.skew.copy_(self.orthonormal.right_inverse(init.orthogonal_(start).to(self.skew.dtype)))

    @property
    def weight(self) -> Tensor:
        """W (out_features, in_features)."""
        W: Tensor = self.orthonormal(self.skew)
        return W

    def forward(self, input: Tensor) -> Tensor:
        if isinstance(input, Proxy):
            return kept_whole(self, input)
        X = as_matrices("BiMap", input, self.in_features, f"in_features={self.in_features}", self.skew.dtype)
        return as_given(hermitian_part(sandwich(self.weight.to(X.dtype), X)), input)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"
