"""The learning rate of ECCV22 eq. 20 (OLR).

On a GPU the rate stays there, as a tensor that the optimizer reads, wherever the optimizer can read one: the host does not
wait, and the step can be captured in a CUDA graph. Elsewhere it becomes a number.
"""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim import SGD, Adam, Optimizer

from spectralgrad.errors import OptionError
from spectralgrad.linalg.precision import in_widest

from .stand_in import Entries, Group, Rates
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
        rates: the learning rate of each parameter in the last step; None before it, or where there was no gradient. Reading
            them waits for a GPU, the step itself does not where the optimizer takes the rate as a tensor.

    Raises:
        OptionError: a parameter that the optimizer does not hold, or that has this treatment, or a group without "lr";
            nothing has changed then. In the step, for a sparse gradient.

    >>> import torch, spectralgrad as sg
    >>> layer = torch.nn.Linear(2, 2, bias=False)
    >>> layer.weight.data = layer.weight.grad = torch.eye(2)
    >>> optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
    >>> olr = sg.orthogonal.OptimalLearningRate(optimizer, [layer.weight])
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
        self._rates: list[float | Tensor | None] = [None] * len(self.params)

    @property
    def rates(self) -> list[float | None]:
        return [None if rate is None else float(rate) for rate in self._rates]

    def act(self, optimizer: Optimizer, held: list[tuple[Tensor, Group]], rates: Rates) -> None:
        scale = grad_scale(optimizer)
        found = [(p, group, _eta(p, group, scale), _on_device(optimizer, p, group)) for p, group in held]
        used: dict[int, float | Tensor] = {}
        for p, group, eta, entries in found:  # all launched before the first is read
            lr = group["lr"]
            if entries is not None:
                rate = torch.where((eta > 0) & (eta < lr), eta, lr).to(lr.dtype if isinstance(lr, Tensor) else torch.float32)
                rates[id(p)], used[id(p)] = {"lr": rate, **entries}, rate
                continue
            number, used[id(p)] = float(eta), float(lr)
            if 0 < number < used[id(p)]:
                rates[id(p)] = {"lr": torch.full_like(lr, number) if isinstance(lr, Tensor) else number}
                used[id(p)] = number
        self._rates = [used.get(id(p)) for p in self.params]


def _eta(p: Tensor, group: Group, scale: Tensor | None) -> Tensor:
    """Eq. 20 for the gradient that the step will use, a scalar in float64 on the device of ``p``.

    NaN, which is never used, where it is 0/0 or the gradient is not finite.
    """
    assert p.grad is not None
    w, l = (torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in (p.detach(), p.grad))  # noqa: E741
    w, l = in_widest(w).flatten(), in_widest(l).flatten()  # where the square of a scaled gradient does not overflow  # noqa: E741
    ww, lw, ll = w.dot(w), l.dot(w), l.dot(l)
    eta = ww * lw / (ww * ll + 2 * lw * lw)
    if scale is not None:  # of l/scale, which is what the step will use
        eta = eta * scale.to(eta.device, non_blocking=True)
    return -eta if group.get("maximize", False) else eta  # w + lr l: the step goes along -l


def _on_device(optimizer: Optimizer, p: Tensor, group: Group) -> Entries | None:
    """What a group must say besides for its optimizer to read a rate from the device of ``p``; None: it needs a number.

    A tensor is read there by all fused steps and by Adam's capturable one. Whoever has given one as "lr" gets one. Of SGD's
    other steps, which would read it on the host, the fused one is the twin: the same formula with the same state.
    """
    lr = group["lr"]
    if isinstance(lr, Tensor) and lr.device == p.device:
        return {}
    if not p.is_cuda:
        return None
    if group.get("fused") or (group.get("capturable") and isinstance(optimizer, Adam)):
        return {}
    return {"fused": True, "foreach": False} if type(optimizer) is SGD and p.is_floating_point() else None
