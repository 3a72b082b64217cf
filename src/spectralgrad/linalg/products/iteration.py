"""What the matrix iterations share: the dtype of products, norms, which matrices go on, how long a schedule each needs."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from spectralgrad.context import constant_when_compiled, tracing

from ..precision import WIDE, is_reduced, matmul
from .minimax import Quintic

FAST_FLOAT64 = ((8, 0), (9, 0), (10, 0))  # compute capabilities whose float64 products are as fast as float32's
TAIL = 0.2  # distance from 1 below which residuals shrink from step to step, so that stopping can be judged by them
EXTRA = 6  # plain steps that may follow where the host may look, for what lies below the reach
UNCONVERGED = 0.1  # a residual above this means that a direction was not reached at all
LEVELS = (1e-2, 1e-5, 1e-10)  # smallest eigenvalues that are tried where the host may look, before the reach itself
_FEW = 3  # plain steps that follow a schedule which another can still replace
_SMALL = 256  # up to this n simple norms are near enough to the largest eigenvalue
_GROWTH = 1.1  # a residual that grows so much in a step: a negative eigenvalue has reached a tenth of what will blow up


def product_dtype(x: Tensor) -> torch.dtype:
    """What products with ``x`` are taken in: float64 where it costs no more than float32, for its digits."""
    device = x.device
    wide = device.type == "cpu" or (device.type == "cuda" and _fast_float64(device.index))
    return WIDE.get(x.dtype, x.dtype) if wide else x.dtype


@constant_when_compiled
def _fast_float64(index: int | None) -> bool:
    return torch.cuda.get_device_capability(index) in FAST_FLOAT64


def finest(x: Tensor) -> float:
    """The smallest distance from 1 that products in the dtype of ``x`` can be brought to."""
    return 4 * float(torch.finfo(x.dtype).eps)


def host_may_look(x: Tensor) -> bool:
    """Whether reading a value of ``x`` costs no wait: then matrices are watched, and stop when they are done."""
    return x.device.type == "cpu" and not tracing()


class Convergence:
    """Which matrices of a batch go on, judged by their residuals; never makes a GPU's host wait."""

    def __init__(self, x: Tensor, tolerance: float) -> None:
        self.size = math.sqrt(x.shape[-1])
        self.tolerance = tolerance
        self.previous = torch.full(x.shape[:-2], math.inf, dtype=x.real.dtype, device=x.device)
        self.active = torch.ones(x.shape[:-2], dtype=torch.bool, device=x.device)
        self.watched = host_may_look(x)

    def go_on(self, residual: Tensor) -> Tensor:
        """The mask (*B, 1, 1) of matrices still improving, for residual matrices (*B, n, n)."""
        error = torch.linalg.matrix_norm(residual) / self.size
        # Done; or growing, as only a negative eigenvalue makes it, be it rounding's; or at the limit of rounding.
        # Below 0.5 a residual at least halves in a step, cubic or quintic, so a smaller gain is rounding (docs/newton.md).
        stalled = (self.previous * self.size < 0.5) & (error > self.previous / 2)
        growing = error > _GROWTH * self.previous
        self.active = self.active & (error > self.tolerance) & ~stalled & ~growing
        self.previous = torch.where(self.active, error, torch.minimum(error, self.previous))
        return self.active[..., None, None]

    def converged(self) -> Tensor:
        """Which matrices (*B,) have stopped at a root: done, or so near to it that only rounding can have stopped them."""
        return ~self.active & (self.previous <= max(self.tolerance, UNCONVERGED / self.size))

    def finished(self) -> bool:
        """Whether no matrix goes on; always False where looking would make the host wait."""
        return self.watched and not bool(self.active.any())


def frobenius_norm(x: Tensor) -> Tensor:
    """|x|_F (*B, 1, 1), 1 for a zero matrix; scaled first, so that squares neither overflow nor underflow."""
    largest = _largest(x)
    norm: Tensor = torch.linalg.matrix_norm(x / largest, keepdim=True).clamp(min=0.5)
    return largest * norm


def norm_bound(x: Tensor) -> Tensor:
    """At least the 2-norm (*B, 1, 1), 1 for a zero matrix: the least of |x|_F and (|x|_1 |x|_inf)^(1/2)."""
    largest = _largest(x)
    x = x / largest
    rows, columns = (torch.linalg.vector_norm(x, 1, dim=d).amax(-1)[..., None, None] for d in (-1, -2))
    norm = torch.minimum(torch.linalg.matrix_norm(x, keepdim=True), (rows * columns).sqrt())
    return largest * norm.clamp(min=0.5)


def hermitian_norm_bound(H: Tensor) -> Tensor:
    """At least the 2-norm (*B, 1, 1) of Hermitian matrices of a scale near 1; 1 for a zero matrix.

    It is the least of |H|_inf, |H|_F and for large n |H^2|_F^(1/2), which costs a product. With many eigenvalues of about
    the largest size the others exceed it by up to n^(1/2), this one by n^(1/4): what is far below the norm is not reached
    by a fixed schedule.
    """
    norm = torch.minimum(row_sums(H), torch.linalg.matrix_norm(H, keepdim=True))
    norm = torch.where(norm == 0, 1, norm)  # NaN stays
    if H.shape[-1] <= _SMALL:
        return norm
    A = H / norm
    nearer = torch.linalg.matrix_norm(matmul(A, A), keepdim=True).sqrt()
    return norm * torch.clamp(nearer, min=0.5 / math.sqrt(H.shape[-1]), max=1)  # 0 for a zero matrix alone


def row_sums(x: Tensor) -> Tensor:
    """|x|_inf (*B, 1, 1), which has no squares to overflow; 1 for a zero matrix."""
    norm = torch.linalg.vector_norm(x, 1, dim=-1, keepdim=True).amax(-2, keepdim=True)
    return torch.where(norm > 0, norm, 1)


def _largest(x: Tensor) -> Tensor:
    largest = x.abs().amax((-2, -1), keepdim=True)
    return torch.where(largest > 0, largest, 1)


def identity_like(x: Tensor) -> Tensor:
    return torch.eye(x.shape[-1], dtype=x.dtype, device=x.device).expand(*x.shape[:-2], x.shape[-1], x.shape[-1])


def add_product(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """``x`` becomes x + a b (*B, n, n); neither a nor b may be x."""
    return x.baddbmm_(a, b) if _in_one(x) else x.add_(matmul(a, b))


def _in_one(x: Tensor) -> bool:
    """Whether a product can be scaled and added in one pass: it can where it needs no conversion."""
    return x.ndim == 3 and not (x.dtype in WIDE and is_reduced(x.device.type))


def even_part(R: Tensor, coefficients: Quintic) -> Tensor:
    """T = a I + b R + c R^2 (*B, n, n), as c (R + s I)^2 + d I: no pass over R but the product, which uses ``R`` up."""
    a, b, c = coefficients
    s = b / (2 * c)
    R.diagonal(dim1=-2, dim2=-1).add_(s)
    T = torch.baddbmm(R, R, R, beta=0, alpha=c) if _in_one(R) else c * matmul(R, R)
    T.diagonal(dim1=-2, dim2=-1).add_(a - c * s * s)
    return T


def by_levels(A: Tensor, lower: float, attempt: Callable[[Tensor, float, int], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """Results of ``attempt(A, lower, extra)`` for matrices (*B, m, n), with as long a schedule as each of them needs.

    A schedule made for tiny eigenvalues throws those of size 1 about for many steps, and each doubles their rounding
    errors. So a short one comes first, and matrices that the last result of ``attempt`` does not call converged go on to the
    next. Reads the host.
    """
    flat = A.reshape(-1, *A.shape[-2:])
    left = torch.arange(flat.shape[0], device=A.device)
    results: list[Tensor] = []
    for level in (*(level for level in LEVELS if level > lower), lower):
        found = attempt(flat[left], level, EXTRA if level == lower else _FEW)
        results = results or [x.new_empty(flat.shape[:1] + x.shape[1:]) for x in found]
        for result, x in zip(results, found, strict=True):
            result[left] = x
        left = left[~found[-1]]
        if left.numel() == 0:
            break
    return tuple(x.reshape(A.shape[:-2] + x.shape[1:]) for x in results)
