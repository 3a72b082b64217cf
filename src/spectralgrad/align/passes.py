"""One pass over the points of two clouds for their moments, and one back, on the CPU.

With shares p_i, a_i = x_i - mx and b_i = y_i - my, the sums of p_i a_i and p_i b_i are zero: A = sum p_i b_i a_i^T and
v = sum p_i |a_i|^2 do not change with the means to first order. Let gx, gy, G and g be the gradients of mx, my, A and v.

    dx_i = p_i (u_i + 2 g a_i),     u_i = gx + G^T b_i,     dy_i = p_i (gy + G a_i),
    dw_i = (e_i - sum_j p_j e_j) / sum w,     e_i = (u_i + g a_i).a_i + gy.b_i .

Points come as rows of d numbers, too few for one instruction to work on. So each coordinate of a chunk of clouds becomes a
plane (b, N), in float64: operations run along N, and a chunk stays in the cache from its one read to its one write.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from spectralgrad.linalg.solvers.threads import in_chunks

_CHUNK = 32768  # points
# log2 of sizes of points and sums of weights whose squared inverse, over the square of 16 eps, is no overflow.
_RANGE = {torch.float64: 150, torch.float32: 40, torch.bfloat16: 40, torch.float16: 40}
COINCIDE = 4  # times eps times the distance of their mean from 0: points no further from it are one point
COMPUTED = float(torch.finfo(torch.float64).eps)  # what the variance is rounded to
_ONE_BY_ONE = 400  # torch.bmm takes products of fewer multiplications number by number


class Moments(NamedTuple):
    """Of two clouds, in float64."""

    mean_x: Tensor  # (*B, d)
    mean_y: Tensor
    A: Tensor  # (*B, d, d)
    variance: Tensor  # (*B,), of x
    single_x: Tensor  # (*B,): whether all points coincide
    single_y: Tensor


def coincide(mean: Tensor, furthest: Tensor, variance: Tensor, eps: float) -> Tensor:
    """Whether clouds (*B,) are one point each to the rounding ``eps`` of their coordinates, or to that of their variance.

    Args:
        mean: (*B, d).
        furthest: (*B,), the square of the largest distance of a point from it, whatever its weight.
        variance: (*B,).
    """
    size = mean.square().sum(-1)
    return (furthest <= (COINCIDE * eps) ** 2 * size) | (variance <= (COINCIDE * COMPUTED) ** 2 * size)  # not for NaN


def forward(x: Tensor, y: Tensor, w: Tensor | None, eps: float) -> Moments | None:
    """The moments of points (*B, N, d), rounded to ``eps``, with weights (*B, N), without a graph. None for points that are
    not finite, for weights that cannot be used, and for sizes near the ends of the range.
    """
    batch, (N, d) = x.shape[:-2], x.shape[-2:]
    X, Y, W = _flat(x, 2), _flat(y, 2), None if w is None else _flat(w, 1)
    shapes = ((d,), (d,), (d, d), ())
    out = Moments(
        *(X.new_empty(len(X), *shape, dtype=torch.float64) for shape in shapes),
        *(X.new_empty(len(X), dtype=torch.bool) for _ in range(2)),
    )
    usable: list[bool] = []

    def work(part: slice) -> None:
        weights = _Weights.of(W, part)
        a, b = (_planes(points[part], weights) for points in (X, Y))
        for z, mean, single in ((a, out.mean_x, out.single_x), (b, out.mean_y, out.single_y)):
            centre = z.sum(-1).div_(N) if weights is None else (z * weights.p).sum(-1)  # (d, b)
            z -= centre.unsqueeze(-1)
            squares = z.square().sum(0)  # (b, N)
            variance = squares.mean(-1) if weights is None else (squares * weights.p).sum(-1)
            if weights is not None and weights.hide:
                squares.masked_fill_(weights.hidden, 0)
            furthest = squares.amax(-1)
            usable.append(_is_ordinary(centre.square().sum(0) + furthest, x.dtype))
            mean[part], single[part] = centre.mT, coincide(centre.mT, furthest, variance, eps)
            if z is a:
                out.variance[part] = variance
        if weights is not None:
            usable.append(weights.usable)
            b *= weights.p
        torch.bmm(b.transpose(0, 1), a.permute(1, 2, 0), out=out.A[part])

    _each(work, len(X), N)
    if not all(usable):
        return None
    if w is None:
        out.A.div_(N)
    return Moments(*(z.reshape((*batch, *z.shape[1:])) for z in out))


def backward(
    x: Tensor, y: Tensor, w: Tensor | None, means: list[Tensor], grads: tuple[Tensor | None, ...], needs: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """Gradients of x, y and w, where they are needed, for those of mean_x, mean_y, A and variance; None is zero."""
    X, Y, W = _flat(x, 2), _flat(y, 2), None if w is None else _flat(w, 1)
    clouds, N, d = X.shape
    shapes, share = ((clouds, d), (clouds, d), (clouds, d, d), (clouds, 1)), 1 / N if w is None else 1.0
    gx, gy, G, g = (
        X.new_zeros(shape, dtype=torch.float64) if grad is None else share * grad.reshape(shape)
        for grad, shape in zip(grads, shapes, strict=True)
    )
    stretches = grads[3] is not None
    mean_x, mean_y = (mean.reshape(clouds, d) for mean in means)
    dx, dy = (torch.empty_like(points) if need else None for points, need in zip((X, Y), needs, strict=False))
    dw = torch.empty_like(W) if W is not None and needs[2] else None

    def work(part: slice) -> None:
        weights = _Weights.of(W, part)
        a = _planes(X[part], weights, mean_x[part])
        if dy is not None:
            _put(dy[part], _affine(G[part], a, gy[part]), weights)
        if dx is None and dw is None:
            return
        b = _planes(Y[part], weights, mean_y[part])
        u = _affine(G[part].mT, b, gx[part])
        if stretches:
            a_g = a * g[part]
            u += a_g
        if dw is not None:
            assert weights is not None
            e = (u * a).add_(b.mul_(_plane(gy[part]))).sum(0)
            dw[part] = weights.pulled_back(e)
        if dx is not None:
            _put(dx[part], u.add_(a_g) if stretches else u, weights)

    _each(work, clouds, N)
    return tuple(z if z is None else z.reshape(like) for z, like in ((dx, x.shape), (dy, y.shape), (dw, x.shape[:-1])))


class _Weights(NamedTuple):
    """Of some clouds."""

    total: Tensor  # (b, 1)
    p: Tensor  # (b, N), the shares
    hidden: Tensor  # (b, N): whether a share is 0
    hide: bool  # whether one is
    usable: bool  # none is negative, and their sums are ordinary

    @classmethod
    def of(cls, W: Tensor | None, part: slice) -> "_Weights | None":
        if W is None:
            return None
        w = W[part].to(torch.float64)
        total = w.sum(-1, keepdim=True)
        p = w / total
        hidden = p == 0
        return cls(total, p, hidden, bool(hidden.any()), float(w.min()) >= 0 and _is_ordinary(total.square(), W.dtype))

    def pulled_back(self, e: Tensor) -> Tensor:
        """The gradient of the weights for that of the shares (b, N)."""
        return (e - (e * self.p).sum(-1, keepdim=True)).div_(self.total).masked_fill_(self.hidden, 0)


def _each(work: Callable[[slice], None], clouds: int, N: int) -> None:
    """Call ``work`` for parts of the clouds, in all threads; for all at once where they are few."""
    if clouds * N <= _CHUNK or clouds < torch.get_num_threads():
        work(slice(clouds))
        return

    def chunk(rows: Tensor) -> None:
        if len(rows):
            work(slice(int(rows[0]), int(rows[-1]) + 1))

    in_chunks(chunk, max(1, _CHUNK // N), torch.arange(clouds, device="cpu"))


def _flat(x: Tensor, dims: int) -> Tensor:
    """x (*B, ...) with one batch dimension."""
    return x.detach().reshape(-1, *x.shape[x.ndim - dims :])


def _planes(x: Tensor, weights: _Weights | None, mean: Tensor | None = None) -> Tensor:
    """x (b, N, d), less its mean, as (d, b, N); points that are not looked at are 0 before."""
    planes = x.new_empty(x.shape[2], x.shape[0], x.shape[1], dtype=torch.float64).copy_(x.permute(2, 0, 1))
    if weights is not None and weights.hide:
        planes.masked_fill_(weights.hidden, 0)
    return planes if mean is None else planes.sub_(_plane(mean))


def _plane(x: Tensor) -> Tensor:
    """x (b, d), one for each cloud, as (d, b, 1)."""
    return x.mT.unsqueeze(-1)


def _put(out: Tensor, planes: Tensor, weights: _Weights | None) -> None:
    """Planes (d, b, N), times the shares, into points (b, N, d); what overflows becomes the largest number."""
    if weights is not None:
        planes *= weights.p
    if out.dtype != torch.float64:
        largest = torch.finfo(out.dtype).max
        planes.clamp_(-largest, largest)
    out.copy_(planes.permute(1, 2, 0))


def _affine(M: Tensor, z: Tensor, c: Tensor) -> Tensor:
    """M z + c for matrices (b, d, d), planes (d, b, N) and vectors (b, d)."""
    d, _, N = z.shape
    if d * d * N >= _ONE_BY_ONE:
        return torch.baddbmm(c.unsqueeze(-1), M, z.transpose(0, 1)).transpose(0, 1)
    out, columns = _plane(c), M.permute(2, 1, 0).contiguous().unsqueeze(-1)  # (d, b, 1), (d, d, b, 1)
    for column, coordinate in zip(columns, z, strict=True):
        out = torch.addcmul(out, column, coordinate)
    return out


def _is_ordinary(squares: Tensor, given: torch.dtype) -> bool:
    """Whether all sizes, of which these are the squares, are finite and far from the ends of the range of a dtype."""
    limit = 4.0 ** _RANGE.get(given, 150)
    least, most = (float(z) for z in squares.aminmax())
    return least > 1 / limit and most < limit  # NaN is not
