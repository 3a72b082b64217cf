"""Polar factors of many 3 x 3 matrices on the CPU: entry (i, j) of all of them is one plane, and operations take planes.

LAPACK takes them one by one, three microseconds each; this is three times faster. It is one-sided Jacobi, as in
kernels/small_svd.cu, in double precision: turn pairs of columns of A until all are orthogonal, A V = (s_1 u_1, s_2 u_2,
s_3 u_3). The third left vector is u_1 x u_2, so that U is a rotation, as V is; what A V holds along it is s_3 with the sign
of the determinant.

In three dimensions a skew matrix W is a vector: W z = w x z. Then H W + W H = K is (tr(H) I - H) w = k, and the derivative
of polar.py is that vector, divided by s_i + s_j in the basis V:

    k = -sum_i r_i x e_i over the rows of R and E,     w = V diag(1/(s_2 + s_3), 1/(s_3 + s_1), 1/(s_1 + s_2)) V^T k,

and row i of dR = R W is r_i x w. Pairs whose sum is zero to rounding give 0.
"""

import math

import torch
from torch import Tensor

from spectralgrad.context import may_read
from spectralgrad.kernels.small_svd import Polar

from .solvers.threads import in_chunks

N = 3
_FROM = 1000  # matrices; fewer are faster one by one
_ROWS = 16384  # matrices whose planes stay in the cache
_RANGE = 300  # |log2| of sizes whose fourth powers are numbers of float64
_MOST_SWEEPS = 30  # five are usual
_BLIND_SWEEPS = 3  # without a look whether they are enough
_NEGLIGIBLE = 0.5 * float(torch.finfo(torch.float64).eps) * N**0.5  # the rounding of a dot product of unit vectors
_NOTHING = 1e-60  # times s_1: a column of this length has no direction
_LEAST = 1e-300  # keeps 0/0 a zero


def takes(A: Tensor) -> bool:
    """Whether ``A`` (*B, m, n) are enough plain real 3 x 3 matrices on the CPU."""
    return A.shape[-2:] == (N, N) and not A.is_complex() and A.numel() >= _FROM * N * N and may_read(A)


def polar(A: Tensor, special: bool) -> tuple[Polar, Tensor] | None:
    """Polar factors of ``A`` (*B, 3, 3), or with ``special`` nearest rotations, and which matrices (*B,) need another way:
    those of rank 1 or 0. None where NaN, Inf or sizes near the ends of the range ask for another way for all.
    """
    flat = A.detach().reshape(-1, N, N)
    if not _is_ordinary(flat):
        return None
    out = Polar(*(flat.new_empty(len(flat), *shape) for shape in ((N, N), (N,), (N, N))))
    poor = flat.new_empty(len(flat), dtype=torch.bool)

    def work(A: Tensor, Q: Tensor, sigma: Tensor, V: Tensor, poor: Tensor) -> None:
        left, values, right = _triplets(A)
        torch.le(values[1], _NOTHING * values[0], out=poor)
        third = values[2]
        if not special:
            turned = torch.where(third < 0, -1.0, 1.0)
            left[2] *= turned
            third *= turned
        Q.copy_(_product(left, right).permute(2, 0, 1))
        sigma.copy_(values.mT)
        V.copy_(right.permute(2, 1, 0))

    in_chunks(work, _ROWS, flat, *out, poor)
    shaped = Polar(*(x.reshape(*A.shape[:-2], *x.shape[1:]) for x in out))
    return shaped, poor.reshape(A.shape[:-2])


def derivative(of: Polar, E: Tensor, eps: float) -> Tensor:
    """That of Q (*B, 3, 3) in the direction ``E``; ``eps`` is what rounding is relative to."""
    flat = E.detach().reshape(-1, N, N)
    out = torch.empty_like(flat, memory_format=torch.contiguous_format)

    def work(Q: Tensor, sigma: Tensor, V: Tensor, E: Tensor, out: Tensor) -> None:
        rows, s, basis = _planes(Q, 1, 2, 0), sigma.mT.to(torch.float64), _planes(V, 2, 1, 0)
        k = _cross(_planes(E, 1, 2, 0), rows).sum(0)  # (3, b)
        sums = s.roll(-1, 0) + s.roll(-2, 0)
        w = (basis * k).sum(1) / sums
        w.masked_fill_(sums <= 2 * N * eps * s[0], 0)
        out.copy_(_cross(rows, (basis * w.unsqueeze(1)).sum(0)).permute(2, 0, 1))

    in_chunks(work, _ROWS, *(x.detach().reshape(len(flat), *x.shape[E.ndim - 2 :]) for x in of), flat, out)
    return out.reshape(E.shape)


def _is_ordinary(A: Tensor) -> bool:
    if A.dtype == torch.float32:
        return math.isfinite(float(A.sum(dtype=torch.float64)))
    size = A.abs().amax((-2, -1))
    largest, least = float(size.max()), float(torch.where(size > 0, size, 1).min())  # NaN is not below any limit
    return largest < 2.0**_RANGE and least > 2.0**-_RANGE


def _planes(A: Tensor, *order: int) -> Tensor:
    """A (b, 3, 3) as (3, 3, b) in float64, its dimensions in this order."""
    return A.permute(order).to(torch.float64, memory_format=torch.contiguous_format)


def _cross(x: Tensor, y: Tensor) -> Tensor:
    """x x y for planes (*, 3, b), (3, b)."""
    return x.roll(-1, -2) * y.roll(-2, -2) - x.roll(-2, -2) * y.roll(-1, -2)


def _product(left: Tensor, right: Tensor) -> Tensor:
    """sum_k u_k v_k^T (3, 3, b), of vectors (k, 3, b)."""
    terms = left.unsqueeze(2) * right.unsqueeze(1)
    return terms.sum(0)


def _triplets(A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Left vectors (3, 3, b) in rows, values (3, b), the last one signed, and right vectors, all of positive determinant."""
    columns = _orthogonal(A)
    for p, q in ((0, 1), (1, 2), (0, 1)):  # longest first; -1 keeps the determinant
        x, y = columns[p], columns[q]
        less = _dot(x, x) < _dot(y, y)
        columns[p], columns[q] = torch.where(less, y, x), torch.where(less, -x, y)
    left, right = (torch.stack([x[rows] for x in columns]) for rows in (slice(N), slice(N, None)))
    values = left.square().sum(1).sqrt_()  # (3, b)
    left[:2] /= values[:2].unsqueeze(1).clamp(min=_LEAST)
    third = _cross(left[0], left[1])
    values[2] = _dot(third, left[2])
    left[2] = third
    return left, values, right


def _dot(x: Tensor, y: Tensor) -> Tensor:
    """Of vectors (3, b), or of what stands in their first three planes: (b,)."""
    return (x[0] * y[0]).addcmul_(x[1], y[1]).addcmul_(x[2], y[2])


def _orthogonal(A: Tensor) -> list[Tensor]:
    """The columns of A V, orthogonal to rounding, each (6, b) with that of V below it."""
    start = A.new_empty(N, 2 * N, len(A), dtype=torch.float64)
    start[:, :N] = A.permute(2, 1, 0)
    start[:, N:] = torch.eye(N, dtype=torch.float64, device=A.device).unsqueeze(-1)
    columns = list(start)
    for sweep in range(_MOST_SWEEPS):
        look = sweep >= _BLIND_SWEEPS
        cosine, sine = 0.0, 0.0  # the largest ones, squared
        for p, q in ((0, 1), (0, 2), (1, 2)):
            x, y = columns[p], columns[q]
            a, b, c = _dot(x, x), _dot(y, y), _dot(x, y)
            gap = b - a
            if look:
                met = float((c.square() / (a * b).clamp_(min=_LEAST)).max())
                cosine = max(cosine, met)
            c *= 2
            half = gap.square().addcmul_(c, c).sqrt_().add_(_LEAST).copysign_(gap).add_(gap)
            t = c.div_(half)  # of the smaller of the two angles that make them orthogonal
            cos = t.square().add_(1).rsqrt_()
            sin = t.mul_(cos)
            if look:
                sine = max(sine, met, float(sin.abs().max()) ** 2)
            columns[p] = (x * cos).addcmul_(y, sin, value=-1)
            columns[q] = y.mul_(cos).addcmul_(x, sin)
        # The next sweep would leave cosines of about cosine times sine.
        if look and not cosine * sine > _NEGLIGIBLE**2:
            break
    return columns
