"""Functions at every scale: matrices of few bits times powers of two, and what homogeneity says of the derivatives there.

For f(c x) = c^p f(x) and c = 2^k the first derivative goes as c^(p - 1) and the second as c^(p - 2). So one reference, from
torch.linalg at scale 1 in float64, serves all scales: nothing has to be computed where numbers end.
"""

import math

import torch
from torch import Tensor

from support import cases
from support.catalogue import SQUARE, Case, several, turned, unsymmetric

SCALES = {  # exponents k from the smallest denormal to where 4 2^k, the largest entry, just fits
    torch.float32: (-149, -140, -126, -100, -64, -20, 0, 20, 64, 100, 125),
    torch.float64: (-1074, -1060, -1022, -700, -300, -30, 0, 300, 700, 1000, 1021),
}
_STEP = 100  # 2 to this fits into every dtype
TOLERANCE = 300  # times eps: of well-conditioned matrices
ONCE_MORE = 3  # times that for a second derivative, which divides once more; its reference rounds as much


def matrix(case: Case, dtype: torch.dtype) -> Tensor:
    """Whole numbers up to 4: three bits, which the smallest denormal can carry; eigenvalues from 1.3 to 4.8."""
    if case.domain in SQUARE:
        M = torch.tensor([[4, 1, 0], [1, 3, 1], [0, 1, 2]], dtype=torch.complex128)
        turn = torch.tensor([[0, 1, 0], [-1, 0, 1], [0, -1, 0]], dtype=torch.complex128)
    else:
        M = torch.tensor([[4, 1, 0], [1, -3, 1], [0, 1, 2], [1, 0, 1]], dtype=torch.complex128)
        turn = torch.tensor([[0, 1, 0], [1, 0, 0], [0, 0, 1], [0, 1, 0]], dtype=torch.complex128)
    M = (M + 1j * turn).to(dtype) if dtype.is_complex else M.real.to(dtype)
    M = M[:3] if case.input is unsymmetric else M
    return torch.stack([M, turned(M), turned(turned(M))]) if case.input is several else M


def times(x: Tensor, k: float) -> Tensor:
    """x 2^k in the dtype of x, in steps: 2^k itself may be out of range."""
    while abs(k) > _STEP:
        step = math.copysign(_STEP, k)
        x, k = x * 2.0**step, k - step
    return x * 2.0**k


def parts(x: Tensor) -> Tensor:
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


def disagreement(
    got: Tensor, unit: Tensor, k: float, resolution: float, finite: bool = False, tolerance: float = TOLERANCE
) -> str | None:
    """How ``got`` differs from unit 2^k, rounded to its dtype and cut to its largest number; None if it does not.

    ``resolution``: of the eigenvalues at this scale, relative; denormal ones have few bits. Below the smallest normal
    number a result may be zero. What is zero at scale 1 but for rounding may be anything where that overflows. With
    ``finite`` that is all that is asked of a result that overflows.
    """
    info = torch.finfo(got.dtype)
    rtol = tolerance * info.eps + resolution + 4 * abs(k) * torch.finfo(torch.float64).eps  # k may be no whole number
    got, unit = parts(got).double(), parts(unit).double()
    if not got.isfinite().all():
        return "not finite"
    want, size = times(unit, k), times(unit.abs().max(), k)
    sure = unit.abs() > rtol * unit.abs().max()
    if finite and size > info.max / 2:
        return None
    cut = sure & (times(unit.abs() * (1 - rtol), k) > info.max)
    if not torch.equal(got[cut], want[cut].sign() * info.max):
        return "not the largest number with its sign"
    error = (got - want.clamp(-info.max, info.max)).abs()[~cut]
    if error.numel() and bool((error > rtol * size + info.smallest_normal).any()):
        return f"off by {float(error.max() / size):.1e}"
    return None


def resolution(dtype: torch.dtype, k: int) -> float:
    """What rounding does to the eigenvalues of a matrix of scale 2^k, relative: much, near the smallest number."""
    info = torch.finfo(dtype)
    return float(4 * 2.0 ** (math.log2(info.smallest_normal) + math.log2(info.eps) - k)) if k < 0 else 0.0


def cotangent_scales(exponent: float, dtype: torch.dtype) -> tuple[int, ...]:
    """0, and what brings a derivative that goes as 2^exponent nearest to scale 1."""
    top = torch.finfo(dtype).max
    limit = int(torch.tensor(top, dtype=torch.float64).log2()) - 2
    return tuple({0, max(-limit, min(limit, round(-exponent)))})


def direction(shape: torch.Size, dtype: torch.dtype, seed: int) -> Tensor:
    x = cases.random(*shape, dtype=torch.complex128 if dtype.is_complex else torch.float64, seed=seed)
    x = x / x.abs().max()
    return ((x + x.mH) / 2 if len(shape) > 1 and shape[-1] == shape[-2] else x).to(dtype)
