"""Second divided differences of any scalar function, accurate at ties and near them.

    f[a, b, c] = (f[b, c] - f[a, b]) / (c - a),   a <= b <= c,

loses digits as c - a shrinks. There the Hermite-Genocchi formula takes over, the mean of f'' over a triangle,

    f[a, b, c] = int_0^1 u int_0^1 f''(a + u (b - a) + u v (c - b)) dv du,

by a 16-point Gauss rule: at a relative spread of 0.02 both are good to about 1e-14.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from spectralgrad.context import constant_when_compiled

if TYPE_CHECKING:
    from .scalars import Scalar

_ROOTS = ((0.3399810435848563, 0.6521451548625461), (0.8611363115940526, 0.3478548451374538))
_GAUSS = tuple(((1 + sign * x) / 2, weight / 2) for x, weight in _ROOTS for sign in (-1, 1))


@constant_when_compiled
def gauss() -> tuple[tuple[float, float], ...]:
    """Points and weights of Gauss and Legendre, four on [0, 1]: exact for polynomials up to degree 7.

    A function, since torch.compile(dynamic=True) takes numbers of a module for variables, and fails over some.
    """
    return _GAUSS


def ordered(i: Tensor, k: Tensor, j: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The least, the middle and the largest of three indices, which broadcast."""
    low, high = torch.minimum(torch.minimum(i, k), j), torch.maximum(torch.maximum(i, k), j)
    return low, i + k + j - low - high, high


def quotients(F: Tensor, x: Tensor, low: Tensor, middle: Tensor, high: Tensor) -> Tensor:
    """f[x_l, x_m, x_h] (*B, ...) as the quotient of first differences F (*B, n, n); 0 over a spread of 0.

    It is right for clamped eigenvalues too: the first difference of two is 0, and so is that of all three.
    """
    spread = x[..., high] - x[..., low]
    return (F[..., middle, high] - F[..., low, middle]) / torch.where(spread > 0, spread, 1)


def second_differences(function: "Scalar", w: Tensor) -> Tensor:
    """f[l_i, l_k, l_j] (*B, n, n, n) of the clamped function, for ascending eigenvalues w (*B, n)."""
    c, clamped = function.clamp(w)
    x = w if function.floor is not None else c  # clamped to rounding: the difference between w and c is noise
    index = torch.arange(w.shape[-1], device=w.device)
    i, k, j = torch.meshgrid(index, index, index, indexing="ij")
    low, middle, high = ordered(i, k, j)
    far = quotients(function.loewner(w), x, low, middle, high)

    a, b_a, c_b = c[..., low], c[..., middle] - c[..., low], c[..., high] - c[..., middle]
    near = torch.zeros_like(far)
    for u, u_weight in gauss():
        for v, v_weight in gauss():
            near = near + u_weight * v_weight * u * function.curvature(a + u * b_a + u * v * c_b)

    spread = x[..., high] - x[..., low]
    close = spread <= function.near * torch.minimum(function.width(c[..., low]), function.width(c[..., high]))
    if clamped is not None:
        close = close & ~(clamped[..., i] | clamped[..., k] | clamped[..., j])
    result = torch.where(close, near, far)
    return torch.where(torch.isfinite(result), result, 0)  # f'' may be infinite at zero itself
