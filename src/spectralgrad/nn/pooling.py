"""Second-order pooling: the power of a map's covariance in place of its mean (PAMI Alg. 3, ECCV22 eq. 44)."""

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.fx import Proxy
from torch.nn import BatchNorm2d, Conv2d, Module, ReLU, Sequential

from spectralgrad.context import kept_whole
from spectralgrad.errors import DtypeError, OptionError, ShapeError
from spectralgrad.linalg.choices import AUTO, Gradient, RootSolver, for_covariance_power, require_root_options
from spectralgrad.linalg.moves import held
from spectralgrad.validation import as_given, is_whole, require_exponent, require_flag, require_number, require_one_of

from .inputs import format_of, require_finite_map, require_pooled
from .powers import as_columns, centred, covariance, covariance_power

__all__ = ["CovariancePool2d"]

Normalize = Literal["frobenius"]
Output = Literal["triangle", "matrix", "features"]


class CovariancePool2d(Module):
    """Global covariance pooling, in the place of global average pooling: a map becomes a power of its covariance.

    With X the centred map, C channels by n = H W positions, after the reduction if there is one,

        S = (X X^T / n + eps I)^power,          and with normalize="frobenius" S / |S|_F (PAMI eq. 29).

    With fewer positions than channels S is singular: that is the normal case, and its gradient is exact. See
    docs/layers/pooling.md and `functional.covariance_pool`.

    Args:
        in_channels: channels of the input: maps (N, in_channels, H, W), or with three dimensions tokens
            (N, T, in_channels). A single map is (1, in_channels, H, W).
        reduced: a 1 x 1 convolution, batch normalisation and ReLU first bring the channels to this number; None for none.
        eps: a shift of the covariance's diagonal.
        power: the exponent, above 0.
        normalize: "frobenius", or None.
        output: "triangle", the upper one row by row; "matrix"; or "features", S X (Alg. 3).
        isometric: off-diagonal entries of the triangle times 2^(1/2), so that its norm is |S|_F.
        gradient: a rule; None or `Exact()` for the exact gradient.
        solver: an eigensolver; with power 1/2 also `NewtonSchulz`, matrix products only, which `Auto()` is on GPUs with
            fast float64.
        device, dtype: of the reduction's parameters.

    Attributes:
        channels: of the pooled map, C: ``reduced``, or ``in_channels`` without a reduction.
        out_features: numbers per image, C (C + 1) / 2 or C^2; for output="features" its channels, C.

    Shape: (N, in_channels, H, W) or (N, T, in_channels) -> (N, out_features) for the triangle, (N, C, C) for the matrix,
        (N, C, H, W) or (N, T, C) for features. Real; half precision is computed in float32 and rounded back.

    Raises:
        OptionError: an option out of its range.
        ShapeError, DtypeError, NonFiniteError: an input of the wrong shape or kind, or not finite.

    >>> import torch, spectralgrad as sg
    >>> pool = sg.nn.CovariancePool2d(512, reduced=8)
    >>> head = torch.nn.Linear(pool.out_features, 10)
    >>> head(pool(torch.randn(2, 512, 7, 7))).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        in_channels: int,
        *,
        reduced: int | None = 256,
        eps: float = 0.0,
        power: float = 0.5,
        normalize: Normalize | None = None,
        output: Output = "triangle",
        isometric: bool = False,
        gradient: Gradient | None = None,
        solver: RootSolver = AUTO,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        who = type(self).__name__
        if not is_whole(in_channels):
            raise OptionError(f"`{who}`: in_channels must be a whole number >= 1, got {in_channels!r}.")
        if reduced is not None and not is_whole(reduced):
            raise OptionError(f"`{who}`: reduced must be a whole number >= 1, or None for no reduction, got {reduced!r}.")
        Pooling(eps, power, normalize, output, isometric, gradient, solver).require(who)
        super().__init__()
        self.in_channels = in_channels
        self.reduced = reduced
        self.power = power
        self.normalize = normalize
        self.output = output
        self.gradient = gradient
        self.solver = solver
        self.eps = eps
        self.isometric = isometric
        self.monitored = False  # keep `last_covariance` in training, for the diagnostics
        self.last_covariance: Tensor | None = None  # (N, C, C), before eps
        self.reduce: Sequential | None = None
        if reduced is not None:
            self.reduce = Sequential(
                Conv2d(in_channels, reduced, 1, bias=False, device=device, dtype=dtype),  # batch norm has the bias
                BatchNorm2d(reduced, device=device, dtype=dtype),
                ReLU(inplace=True),
            )

    @property
    def channels(self) -> int:
        return self.in_channels if self.reduced is None else self.reduced

    @property
    def out_features(self) -> int:
        C = self.channels
        return {"triangle": C * (C + 1) // 2, "matrix": C * C, "features": C}[self.output]

    def forward(self, input: Tensor) -> Tensor:
        if isinstance(input, Proxy):
            return kept_whole(self, input)
        looked = self._require_input(input)
        x = (
            input.mT.unsqueeze(-1) if input.ndim == 3 else input
        )  # tokens as maps (N, C, T, 1), with the channels last in memory
        if self.reduce is not None:
            x = self.reduce(x)
            require_finite_map(type(self).__name__, x, "the reduced input")
        if self.training and self.monitored:
            self.last_covariance = covariance(centred(as_columns(x.detach()))[0])
        options = (self.eps, self.power, self.normalize, self.output, self.isometric, self.gradient, self.solver)
        return Pooling(*options).of(x, input.ndim == 3, looked)

    def _require_input(self, input: Tensor) -> bool:
        """All that can be wrong, before batch normalisation counts the batch; whether it may be looked at."""
        who = type(self).__name__
        looked = require_pooled(who, input, "input")
        channels = 2 if input.ndim == 3 else 1
        if input.shape[channels] != self.in_channels:
            kind = "tokens (N, T, C)" if input.ndim == 3 else "maps (N, C, H, W)"
            raise ShapeError(
                f"`{who}`: `input` must have {self.in_channels} channels in dimension {channels} of {kind}, as in_channels "
                f"says, got shape {tuple(input.shape)}. A single map is (1, C, H, W)."
            )
        weight = None if self.reduce is None else next(self.reduce.parameters())
        if weight is not None and weight.dtype != input.dtype and not torch.is_autocast_enabled(input.device.type):
            raise DtypeError(
                f"`{who}`: `input` must have the dtype of the reduction's weights, {weight.dtype}, got {input.dtype}. "
                "Convert one of them: module.to(input.dtype)."
            )
        if self.training and self.reduce is not None and input.numel() == self.in_channels:
            raise ShapeError(
                f"`{who}`: the batch normalisation of the reduction needs more than 1 value per channel when training, got "
                f"input of shape {tuple(input.shape)}. Pass a larger batch, call eval(), or take reduced=None."
            )
        return looked

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, reduced={self.reduced}, power={self.power}, normalize={self.normalize!r}, "
            f"output={self.output!r}, gradient={self.gradient}, solver={self.solver}, eps={self.eps}, "
            f"isometric={self.isometric}"
        )


class Pooling(NamedTuple):
    """The options of covariance pooling, which `functional.covariance_pool` explains."""

    eps: float
    power: float
    normalize: Normalize | None
    output: Output
    isometric: bool
    gradient: Gradient | None
    solver: RootSolver

    def require(self, who: str) -> None:
        """Raise unless they are in their ranges and go together."""
        require_number(who, "eps", self.eps, least=0)
        require_number(who, "power", self.power, above=0, hint=" The papers take 0.5.")
        require_exponent(who, "power", self.power)
        require_one_of(who, "normalize", self.normalize, ("frobenius", None))
        require_one_of(who, "output", self.output, ("triangle", "matrix", "features"))
        require_flag(who, "isometric", self.isometric)
        if self.isometric and self.output != "triangle":
            raise OptionError(f'`{who}`: isometric=True scales the triangle; leave it out with output="{self.output}".')
        require_root_options(who, self.gradient, self.solver, self.power)

    def of(self, x: Tensor, are_tokens: bool, looked: bool) -> Tensor:
        """The pooled maps ``x``, which may be those of tokens; nothing is checked. ``looked``: as in `covariance_power`."""
        way = for_covariance_power(x, self.power, self.gradient, self.solver)
        X, _ = centred(as_columns(x))
        X = X if self.normalize is None else held(X)  # slopes grow as 1 / X, beyond the largest number for denormal maps
        S = covariance_power(X, self.power, self.eps, way, looked)
        S = S if self.normalize is None else S.normalised()
        if self.output == "features":
            y = S.times_map()
            y = y.mT.contiguous() if are_tokens else y.unflatten(-1, x.shape[-2:])
            y = y.contiguous(memory_format=format_of(x)) if y.ndim == 4 else y
        else:
            y = _triangle(S.value(), self.isometric) if self.output == "triangle" else S.value()
        return y if y.dtype == x.dtype else as_given(y, x)


def _triangle(S: Tensor, isometric: bool) -> Tensor:
    """The upper triangle (*B, n (n + 1) / 2) of S (*B, n, n), row by row."""
    n = S.shape[-1]
    rows, columns = torch.triu_indices(n, n, device=S.device)
    triangle = S.flatten(-2).index_select(-1, rows * n + columns)
    return torch.where(rows == columns, triangle, math.sqrt(2) * triangle) if isometric else triangle
