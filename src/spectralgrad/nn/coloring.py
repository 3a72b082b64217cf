"""Whitening and colouring of features: style transfer without a learnt transformation (PAMI 5.3.1)."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.fx import Proxy
from torch.nn import Module

from spectralgrad.context import kept_whole, may_look
from spectralgrad.errors import NonFiniteError, OptionError, ShapeError
from spectralgrad.linalg.choices import AUTO, Gradient, RootSolver, covariance_dtype, require_root_options
from spectralgrad.linalg.precision import matmul
from spectralgrad.validation import is_whole, require_number, require_one_device, require_one_of, require_part

from .covariances import inverse_root
from .inputs import require_maps
from .powers import as_columns, centred, covariance, power_of, within_squares

__all__ = ["WhitenColor2d"]

Per = Literal["sample", "batch"]


class WhitenColor2d(Module):
    """Gives content features the mean and covariance of style features, in groups of channels.

        y = C_s^(1/2) (C_c + eps I)^(-1/2) (x - m_c) + m_s,     and the output is (1 - alpha) x + alpha y.

    It has no parameters and no state: training and evaluation are the same. Differentiable in content and style. See
    docs/layers/coloring.md and `functional.whiten_color`.

    Args:
        group_size: whiten and colour groups of this many neighbouring channels; None is all channels. Must divide them.
        eps: the shift of the content's covariance; with 0 a singular one is an error.
        alpha: how much of the style, from 0, the content unchanged, to 1.
        per: statistics of each "sample", or of the whole "batch".
        gradient: a rule; None or `Exact()` for the exact gradient.
        solver: an eigensolver, or `NewtonSchulz`, matrix products only.

    Shape: (N, C, H, W) and (N or 1, C, H', W') -> (N, C, H, W), real. Half precision is computed in float32.

    Raises:
        OptionError: an option out of its range.
        ShapeError, DtypeError, NonFiniteError: inputs of the wrong shape or kind, not finite, or that do not match.
        DeviceError: inputs on two devices.
        DefinitenessError: eps = 0 and the content's covariance is singular.

    >>> import torch, spectralgrad as sg
    >>> generator = torch.Generator().manual_seed(0)
    >>> content, style = (torch.randn(2, 8, size, size, generator=generator) for size in (16, 12))
    >>> y = sg.nn.WhitenColor2d(group_size=4)(content, 3 * style + 1)
    >>> torch.allclose(y.mean((2, 3)), (3 * style + 1).mean((2, 3)), atol=1e-5)
    True
    """

    def __init__(
        self,
        group_size: int | None = None,
        *,
        eps: float = 1e-5,
        alpha: float = 1.0,
        per: Per = "sample",
        gradient: Gradient | None = None,
        solver: RootSolver = AUTO,
    ) -> None:
        Coloring(group_size, eps, alpha, per, gradient, solver).require(type(self).__name__)
        super().__init__()
        self.group_size = group_size
        self.eps = eps
        self.alpha = alpha
        self.per = per
        self.gradient = gradient
        self.solver = solver

    def forward(self, content: Tensor, style: Tensor) -> Tensor:
        if isinstance(content, Proxy):
            return kept_whole(self, content, style)
        options = Coloring(self.group_size, self.eps, self.alpha, self.per, self.gradient, self.solver)
        return recolored(content, style, options)

    def extra_repr(self) -> str:
        return (
            f"group_size={self.group_size}, eps={self.eps}, alpha={self.alpha}, per={self.per!r}, gradient={self.gradient}, "
            f"solver={self.solver}"
        )


class Coloring(NamedTuple):
    """The options of whitening and colouring, which `functional.whiten_color` explains."""

    group_size: int | None
    eps: float
    alpha: float
    per: Per
    gradient: Gradient | None
    solver: RootSolver

    def require(self, who: str) -> None:
        """Raise unless they are in their ranges and go together."""
        if self.group_size is not None and not is_whole(self.group_size):
            raise OptionError(
                f"`{who}`: group_size must be a whole number >= 1, or None for all channels, got {self.group_size!r}."
            )
        require_number(who, "eps", self.eps, least=0)
        require_part(who, "alpha", self.alpha)
        require_one_of(who, "per", self.per, ("sample", "batch"))
        require_root_options(who, self.gradient, self.solver)

    def of(self, who: str, X: Tensor, Y: Tensor, names: tuple[str, str]) -> Tensor:
        """Samples X (N, C, n) with the statistics of Y (N', C, n'); their names are for errors."""
        self._require_match(who, X, Y, names)
        dtype = covariance_dtype(X, torch.promote_types(X.dtype, Y.dtype), self.solver)
        X, Y = X.to(dtype), Y.to(dtype)
        content, _, _ = self._grouped(X)  # (N, groups, size, n), or (groups, size, N n); its scale cancels
        style, mean, scale = self._grouped(Y, also_small=True)
        C, name = covariance(content, self.eps), f"covariance of {names[0]}"
        white = inverse_root(who, C, self.eps, self.gradient, self.solver, name)
        color = power_of(covariance(style), 0.5, 0.0, self.gradient, self.solver)
        y = ((matmul(matmul(color, white), content) + mean) * scale).flatten(-3, -2)  # (N, C, n), or (C, N n)
        if self.per == "batch":
            y = y.unflatten(-1, (X.shape[0], X.shape[-1])).transpose(0, 1)
        return (1 - self.alpha) * X + self.alpha * y

    def _grouped(self, X: Tensor, *, also_small: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Samples in groups of channels, small enough to square, centred; their mean, and what they were divided by."""
        size = X.shape[1] if self.group_size is None else self.group_size
        X = X.transpose(0, 1).flatten(1) if self.per == "batch" else X
        X, scale = within_squares(X.unflatten(-2, (X.shape[-2] // size, size)), also_small=also_small)
        return *centred(X), scale

    def _require_match(self, who: str, X: Tensor, Y: Tensor, names: tuple[str, str]) -> None:
        """Raise unless samples X (N, C, n) can take the statistics of Y (N', C, n')."""
        content, style = names
        require_one_device(who, (X, Y), names)
        if X.shape[1] != Y.shape[1]:
            raise ShapeError(f"`{who}`: `{content}` and `{style}` must have the same number of channels, {_came(X, Y)}")
        if self.group_size is not None and X.shape[1] % self.group_size:
            raise OptionError(f"`{who}`: group_size must divide the {X.shape[1]} channels, got {self.group_size}.")
        if self.per == "sample" and Y.shape[0] not in (1, X.shape[0]):
            raise ShapeError(f"`{who}`: `{style}` must have one sample, or one for each of `{content}`, {_came(X, Y)}")
        if self.per == "batch" and Y.shape[0] == 0 and X.shape[0] > 0:
            raise ShapeError(f"`{who}`: `{style}` must have at least one sample, {_came(X, Y)}")


def recolored(content: Tensor, style: Tensor, options: Coloring) -> Tensor:
    """`functional.whiten_color`."""
    who = "whiten_color"
    options.require(who)
    for maps, name in ((content, "content"), (style, "style")):
        require_maps(who, maps, name)
    X, Y = as_columns(content), as_columns(style)
    return rounded(who, options.of(who, X, Y, ("content", "style")).reshape_as(content), content.dtype)


def rounded(who: str, y: Tensor, dtype: torch.dtype) -> Tensor:
    """A result in the dtype of the content, or the error that says that it overflows there."""
    y = y.to(dtype)
    if may_look(y) and not bool(torch.isfinite(y).all()):
        raise NonFiniteError(
            f"`{who}`: the result overflows {dtype}, which the style almost fills. Scale it down, or use a wider dtype."
        )
    return y


def _came(X: Tensor, Y: Tensor) -> str:
    """The end of an error. Only there: torch.compile fixes a size that is written into a text."""
    return f"got {X.shape[0]} x {X.shape[1]} channels and {Y.shape[0]} x {Y.shape[1]} channels."
