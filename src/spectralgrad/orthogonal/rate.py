"""The learning rate of ECCV22 eq. 20 (OLR)."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim import Optimizer

from spectralgrad.errors import OptionError

from .stand_in import Group, Rates
from .treatment import Treatment, grad_scale

__all__ = ["OptimalLearningRate"]


class OptimalLearningRate(Treatment):
    """Give parameters the learning rate of ECCV22 for one step where it is smaller than the optimizer's (OLR).

    With w the parameter and l its gradient (after NOG, if attached) as vectors, at every step

        eta = (w.w)(l.w) / ((w.w)(l.l) + 2 (l.w)^2),     used only where 0 < eta < lr (eq. 20 and 21).

    The name is the paper's. The paper derives eta as the rate after which w - eta l is nearest to orthogonal; it drops the
    identity and higher powers of eta on the way, and what is left does not minimise that distance.

    Args:
        optimizer: any of torch's but LBFGS, with an "lr" in its groups. It keeps the treatment until `detach`; a copy of
            it starts without. Its groups and learning rates are never changed, not even inside the step.
        params: parameters that it holds.

    Attributes:
        rates: the learning rate of each parameter in the last step; None before it, or where there was no gradient.

    Raises:
        OptionError: a parameter that the optimizer does not hold, or that has this treatment, or a group without "lr";
            nothing has changed then. In the step, for a sparse gradient.

    >>> layer = torch.nn.Linear(2, 2, bias=False)
    >>> layer.weight.data = layer.weight.grad = torch.eye(2)
    >>> optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
    >>> olr = OptimalLearningRate(optimizer, [layer.weight])
    >>> optimizer.step()
    >>> olr.rates  # 2 * 2 / (2 * 2 + 2 * 2^2) = 1/3
    [0.3333333333333333]
    >>> optimizer.param_groups[0]["lr"]
    0.5
    """

    order = 1

    def __init__(self, optimizer: Optimizer, params: Tensor | Iterable[Tensor]) -> None:
        if isinstance(optimizer, Optimizer) and any("lr" not in group for group in optimizer.param_groups):
            raise OptionError(
                "`OptimalLearningRate`: the groups of the optimizer must have an 'lr', but those of "
                f"{type(optimizer).__name__} have {', '.join(optimizer.param_groups[0])}. Use another optimizer."
            )
        super().__init__(optimizer, params)
        self.rates: list[float | None] = [None] * len(self.params)

    def act(self, optimizer: Optimizer, held: list[tuple[Tensor, Group]], rates: Rates) -> None:
        scale = grad_scale(optimizer)
        unit = 1.0 if scale is None else float(scale)
        products = [_products(p, p.grad) for p, _ in held if p.grad is not None]
        used: Rates = {}
        for (p, group), product in zip(held, [x.tolist() for x in products], strict=True):
            eta = unit * _eta(*product)  # of l/unit, which is what the step will use
            lr = float(group["lr"])
            if group.get("maximize", False):  # w + lr l: the step goes along -l
                eta = -eta
            if 0 < eta < lr:
                rates[id(p)] = eta
            used[id(p)] = rates.get(id(p), lr)
        self.rates = [used.get(id(p)) for p in self.params]


def _products(w: Tensor, grad: Tensor) -> Tensor:
    """(w.w, l.w, l.l) in float64, where the square of a scaled gradient does not overflow."""
    x, y = (torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in (w.detach(), grad))
    x, y = x.double().flatten(), y.double().flatten()
    return torch.stack([x.dot(x), y.dot(x), y.dot(y)])


def _eta(ww: float, lw: float, ll: float) -> float:
    """Eq. 20; NaN, which is never used, where it is 0/0 or the gradient is not finite."""
    bottom = ww * ll + 2 * lw * lw
    return ww * lw / bottom if bottom > 0 else math.nan
