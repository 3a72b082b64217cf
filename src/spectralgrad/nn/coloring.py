"""Whitening and colouring of features: style transfer without a learnt transformation (PAMI 5.3.1)."""

from torch import Tensor
from torch.nn import Module

from spectralgrad.linalg.choices import AUTO, Gradient, RootSolver

from .functional import Per, require_color_options, whiten_color

__all__ = ["WhitenColor2d"]


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

    Raises:
        OptionError: an option out of its range.
        ShapeError, DtypeError, NonFiniteError: inputs of the wrong shape or kind, not finite, or that do not match.
        DefinitenessError: eps = 0 and the content's covariance is singular.

    >>> import torch
    >>> generator = torch.Generator().manual_seed(0)
    >>> content, style = (torch.randn(2, 8, size, size, generator=generator) for size in (16, 12))
    >>> y = WhitenColor2d(group_size=4)(content, 3 * style + 1)
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
        require_color_options(type(self).__name__, group_size, eps, alpha, per, gradient, solver)
        super().__init__()
        self.group_size = group_size
        self.eps = eps
        self.alpha = alpha
        self.per = per
        self.gradient = gradient
        self.solver = solver

    def forward(self, content: Tensor, style: Tensor) -> Tensor:
        return whiten_color(
            content,
            style,
            group_size=self.group_size,
            eps=self.eps,
            alpha=self.alpha,
            per=self.per,
            gradient=self.gradient,
            solver=self.solver,
        )

    def extra_repr(self) -> str:
        return (
            f"group_size={self.group_size}, eps={self.eps}, alpha={self.alpha}, per={self.per!r}, gradient={self.gradient}, "
            f"solver={self.solver}"
        )
