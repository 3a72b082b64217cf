"""The nearest orthogonal gradient (NOG)."""

import torch
from torch import Tensor
from torch.optim import Optimizer

from spectralgrad.context import checking
from spectralgrad.errors import DtypeError, ShapeError
from spectralgrad.linalg.choices import for_one_polar
from spectralgrad.linalg.polar import polar
from spectralgrad.validation import require_finite

from .stand_in import Group, Rates
from .treatment import Treatment, found_inf, grad_scale

__all__ = ["NearestOrthogonalGradient"]


class NearestOrthogonalGradient(Treatment):
    """Replace gradients by the nearest orthogonal matrix when the optimizer steps (NOG): U V^T (ECCV22 eq. 17).

    The gradient, seen as (out, in*kh*kw), keeps its singular vectors, and its singular values become 1. It is that of the
    step: accumulated, averaged over ranks, unscaled. A zero gradient stays zero. Where singular values are zero but not
    all of them, U V^T is one of many nearest matrices.

    Args:
        optimizer: any of torch's but LBFGS. It keeps the treatment until `detach`; a copy of it starts without.
        params: parameters that it holds, of two or more dimensions.

    Raises:
        OptionError: a parameter that the optimizer does not hold, or that has this treatment; nothing has changed then.
        ShapeError: a parameter of fewer than two dimensions.
        NonFiniteError: in the step, on the CPU, for a gradient with NaN or Inf that no GradScaler has seen; OptionError for
            a sparse one, DtypeError for a float16 one that a fused optimizer is to unscale. No parameter, gradient or
            state has changed then.

    >>> import torch, spectralgrad as sg
    >>> layer = torch.nn.Linear(3, 2)
    >>> optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    >>> nog = sg.orthogonal.NearestOrthogonalGradient(optimizer, [layer.weight])
    >>> layer(torch.eye(3)[:2]).square().sum().backward()
    >>> optimizer.step()
    >>> G = layer.weight.grad
    >>> torch.allclose(G @ G.T, torch.eye(2), atol=1e-6)
    True
    >>> nog.detach()
    """

    order = 0

    def require_param(self, p: Tensor) -> None:
        if p.ndim < 2 or p.numel() == 0:
            raise ShapeError(
                "`NearestOrthogonalGradient`: a parameter must have at least two dimensions, (out, in, ...), none of "
                f"them 0, got shape {tuple(p.shape)}. Leave out biases and the weights of normalisation layers."
            )

    def check(self, optimizer: Optimizer, held: list[tuple[Tensor, Group]]) -> None:
        super().check(optimizer, held)
        for grad in _grads(held):
            if grad_scale(optimizer) is not None and grad.dtype == torch.float16:
                raise DtypeError(
                    "`NearestOrthogonalGradient`: with a GradScaler and a fused optimizer a gradient must not be float16: "
                    "times the scale it would overflow. Keep the parameters in float32, as autocast does."
                )
            if found_inf(optimizer) is None and checking(grad):
                require_finite("NearestOrthogonalGradient", grad, "gradient")

    def act(self, optimizer: Optimizer, held: list[tuple[Tensor, Group]], rates: Rates) -> None:
        scale, skipped = grad_scale(optimizer), found_inf(optimizer)
        grads = _grads(held)
        factors = [_nearest_orthogonal(grad, scale, skipped) for grad in grads]
        for grad, factor in zip(grads, factors, strict=True):
            grad.copy_(factor)  # in place: it may be a view into a bucket of DDP's


def _grads(held: list[tuple[Tensor, Group]]) -> list[Tensor]:
    return [p.grad for p, _ in held if p.grad is not None]


def _nearest_orthogonal(grad: Tensor, scale: Tensor | None, skipped: Tensor | None) -> Tensor:
    """U V^H of a gradient of any shape, times ``scale``, by which the optimizer will divide."""
    G = grad.flatten(1)
    if skipped is not None:  # leave a step that will be skipped alone, without making the host wait
        skip = skipped.to(G.device, non_blocking=True) != 0
        G = torch.where(skip, 0, G)
    Q = torch.where(G.any(), polar(G, solver=for_one_polar(G)), 0)
    if scale is not None:  # the factor does not depend on the scale of the gradient, but will be divided by it
        Q = Q * scale.to(Q.device, Q.dtype, non_blocking=True)
    Q = Q.reshape(grad.shape)
    return Q if skipped is None else torch.where(skip, grad, Q)
