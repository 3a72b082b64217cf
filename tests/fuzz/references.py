"""Gradients in double precision, given the eigenpairs or singular triplets found. Nothing here is the library's."""

import torch
from torch import Tensor

from .numbers import hermitian

RTOL = {torch.float32: 1e-6, torch.float64: 1e-8}  # the documented width of Lorentzian


def inverse_gaps(rule: str, w: Tensor, real: torch.dtype) -> tuple[Tensor, Tensor]:
    """K_ij = 1/(w_j - w_i) by the rule (B, n, n), for w (B, n) at any scale; and whether (B,) the rule could say otherwise.

    `Exact` leaves out gaps of rounding size; whether one near that size is a tie is not for this reference to say.
    """
    n = w.shape[-1]
    size = w.abs().amax(-1)[..., None, None]
    size = torch.where(size > 0, size, 1)
    gap = (w.unsqueeze(-2) - w.unsqueeze(-1)) / size  # subtracted first: that is exact where it matters
    zero = gap == 0
    if rule == "Exact":
        rounding = max(n, 16) * float(torch.finfo(real).eps)
        tied = gap.abs() <= rounding
        near = (gap.abs() > rounding / 4) & (gap.abs() < 4 * rounding)
        return torch.where(tied, 0, 1 / torch.where(zero, 1, gap)) / size, near.flatten(1).any(1)
    K = torch.where(zero, 0, gap / (gap * gap + RTOL[real] ** 2).where(~zero, 1)) / size
    return K, torch.zeros(len(w), dtype=torch.bool)


def eigh_pullback(V: Tensor, K: Tensor, gw: Tensor | None, gV: Tensor | None) -> Tensor:
    inner = torch.zeros_like(V) if gV is None else hermitian(K * (V.mH @ gV))
    if gw is not None:
        inner = inner + torch.diag_embed(gw).to(inner.dtype)
    return V @ inner @ V.mH


def inverse_sums(S: Tensor, real: torch.dtype, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """1/(s_i + s_j) (B, k, k) and 1/s (B, k), 0 where the divisor is zero to rounding; and whether (B,) that is in doubt."""
    k = S.shape[-1]
    rounding = float(torch.finfo(real).eps) * S[..., :1]
    total = S.unsqueeze(-1) + S.unsqueeze(-2)

    def invert(x: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
        null = x <= level
        doubt = (x > rounding.reshape(level.shape) * k / 4) & (x < 8 * size * rounding.reshape(level.shape)) & (x > 0)
        return torch.where(null, 0, 1 / torch.where(null, 1, x)), doubt.flatten(1).any(1)

    F, first = invert(total, (k * rounding).unsqueeze(-1))
    inverse, second = invert(S, k * rounding)
    return F, inverse, first | second


def svd_pullback(U: Tensor, V: Tensor, D: Tensor, F: Tensor, inverse: Tensor, gU: Tensor, gS: Tensor, gV: Tensor) -> Tensor:
    """D ~ 1/(s_j - s_i) takes the Hermitian part of U^H dA V, F = 1/(s_i + s_j) the skew one, 1/s what is outside."""
    X, Y = U.mH @ gU, V.mH @ gV
    inner = torch.diag_embed(gS).to(U.dtype) + hermitian(D * (X + Y))
    skew = F * (X - Y)
    inner = inner + (skew - skew.mH) / 2
    result = U @ inner @ V.mH
    if U.shape[-2] > U.shape[-1]:
        result = result + ((gU - U @ X) * inverse.unsqueeze(-2)) @ V.mH
    if V.shape[-2] > V.shape[-1]:
        result = result + U @ ((gV - V @ Y) * inverse.unsqueeze(-2)).mH
    return result


def map_pullback(U: Tensor, V: Tensor, H: Tensor, W: Tensor, outside: Tensor, G: Tensor) -> Tensor:
    """Of U f(S) V^H: Hermitian part of U^H G V times H = f[s_i, s_j], skew part times W = f[s_i, -s_j]; outside f(s)/s."""
    P = U.mH @ G @ V
    result = U @ (H * (P + P.mH) / 2 + W * (P - P.mH) / 2) @ V.mH
    if U.shape[-2] > U.shape[-1]:
        GV = G @ V
        result = result + ((GV - U @ P) * outside.unsqueeze(-2)) @ V.mH
    if V.shape[-2] > V.shape[-1]:
        GU = G.mH @ U
        result = result + U @ ((GU - V @ P.mH) * outside.unsqueeze(-2)).mH
    return result
