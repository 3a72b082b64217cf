"""Numbers at unit scale: what the checks need so that they neither over- nor underflow themselves."""

import math

import torch
from torch import Tensor

LIMIT = 30.0  # LAPACK's own threshold for its test ratios, in units of n eps
LEVEL = 100.0  # units of eps that a divided difference may be off


def eps(dtype: torch.dtype) -> float:
    return float(torch.finfo(dtype).eps)


def largest(dtype: torch.dtype) -> float:
    return float(torch.finfo(dtype).max)


def smallest_normal(dtype: torch.dtype) -> float:
    return float(torch.finfo(dtype).tiny)


def wide(x: Tensor) -> Tensor:
    """The same in double precision, on the CPU, without a graph."""
    return x.detach().cpu().to(torch.complex128 if x.is_complex() else torch.float64)


def shifted(x: Tensor, exponent: Tensor) -> Tensor:
    """x 2^exponent in two steps, since 2^1074 is not a number. ``exponent`` (B,) stands before the other dimensions."""
    e = exponent.reshape(-1, *([1] * (x.ndim - 1))).to(torch.float64)
    half = (e / 2).floor()
    return x * torch.exp2(half) * torch.exp2(e - half)


def unit(X: Tensor) -> tuple[Tensor, Tensor]:
    """A (B, m, n) in double precision, largest part in [1/2, 1), and exponents (B,): X = A 2^exponent, not rounded."""
    parts = torch.view_as_real(X) if X.is_complex() else X
    size = parts.detach().cpu().to(torch.float64).abs().flatten(1).amax(1)
    exponent = torch.frexp(size).exponent
    return shifted(wide(X), -exponent), exponent


def spacing(dtype: torch.dtype, exponent: Tensor) -> Tensor:
    """The distance (B,) of two denormal numbers, at unit scale: what no result can be rounded finer than."""
    info = torch.finfo(dtype)
    return torch.exp2(math.log2(info.tiny) + math.log2(info.eps) - exponent.to(torch.float64))


def norm(X: Tensor) -> Tensor:
    """Frobenius norm (B,), whose squares do not overflow."""
    size = X.abs().flatten(1).amax(1)
    unit_size = torch.where((size > 0) & torch.isfinite(size), size, 1)
    return (X.abs().flatten(1) / unit_size.unsqueeze(1)).square().sum(1).sqrt() * unit_size


def ratio(error: Tensor, bound: Tensor) -> Tensor:
    """error / bound (B,), with 0/0 = 0 and NaN = inf."""
    quotient = error / bound.clamp(min=1e-300)
    return torch.where(error == 0, 0.0, quotient).nan_to_num(nan=math.inf, posinf=math.inf)


def hermitian(X: Tensor) -> Tensor:
    return (X + X.mH) / 2


def cotangent(y: Tensor, which: int) -> Tensor:
    """The fixed weight of output number ``which``, in its shape: sines, so that a snippet can write it."""
    count = y[0].numel()
    flat = torch.arange(1, count + 1, dtype=torch.float64).add(which).sin()
    if y.is_complex():
        flat = torch.complex(flat, torch.arange(1, count + 1, dtype=torch.float64).add(which).cos())
    return flat.to(y.dtype).to(y.device).reshape(y.shape[1:]).expand_as(y)
