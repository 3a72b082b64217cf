"""The four passes over (N, C, *) of a step by batch statistics, in kernels on a GPU, in blocks on a CPU; as autograd nodes.

kernels/moments.py and kernels/affine.py say what each computes. A block is small enough for a core's cache.

A block is some images, or a part of one. It is copied and centred before any product, as a batch of matrices of some
hundred samples: threads take one matrix each, where they share out a single product badly. So a pass reads the map once
from memory, where a composition of torch operations reads and writes it several times. Products keep the accuracy of their
dtype whatever autocast or matmul-precision flags say: where one of those is on, they are taken in float64. Sums over
matrices and blocks are taken in float64, in a fixed order.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from spectralgrad.kernels import affine, moments, whitening
from spectralgrad.kernels.affine import like
from spectralgrad.kernels.tiles import fits, statistics_dtype
from spectralgrad.linalg.node import Shortcut
from spectralgrad.linalg.precision import is_reduced

BLOCK = 2**19  # numbers of a block, about: 2 MiB in float32
LEAST = 2**18  # numbers of a map: for smaller ones a composition of torch operations is as fast
COLUMNS = 1024  # samples of a matrix, about
SAMPLES_OF_D = 2  # times d, samples of a matrix at least: the results of a product, d x d, are small beside it
WIDTH = 32  # neighbouring channels that lie last: products of fewer take as long or longer


def parts(groups: int, *maps: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The blocks of maps (N, C, *) of one shape, each (batch, cuts, groups, d, images, positions): views of the last map.

    A matrix takes several images, or an image is cut into several matrices. Maps of another layout than the last are copied.
    """
    is_last = _channels_are_last(maps[-1])
    views = [_as_images(x, groups, is_last) for x in maps]
    count, _, d, positions = views[-1].shape
    columns = max(COLUMNS, SAMPLES_OF_D * d)
    samples = max(BLOCK // (groups * d), columns)
    images, length = max(1, samples // positions), min(samples, positions)
    for i in range(0, count, images):
        for p in range(0, positions, length):
            shape = _matrices_of(min(images, count - i), min(length, positions - p), columns, is_last)
            yield tuple(_part(view, i, p, *shape) for view in views)


def _channels_are_last(x: Tensor) -> bool:
    """Whether the channels of x (N, C, *) lie last in memory, or will once it is contiguous."""
    return x.shape[2:].numel() == 1 or x.movedim(1, -1).is_contiguous()


def _as_images(x: Tensor, groups: int, is_last: bool) -> Tensor:
    """x (N, C, *) as (N, groups, d, P) or, for channels that lie last, as one image (1, groups, d, N P)."""
    d = x.shape[1] // groups
    if is_last:
        return x.movedim(1, -1).contiguous().view(1, -1, groups, d).permute(0, 2, 3, 1)
    return x.contiguous().view(len(x), groups, d, -1)


def _together(x: Tensor, groups: int) -> int:
    """How many neighbouring groups of ``x`` one product takes, as blocks of a matrix that is zero beside them."""
    most = WIDTH * groups // x.shape[1] if _channels_are_last(x) else 1
    return max((m for m in range(1, most + 1) if groups % m == 0), default=1)


def _as_blocks(A: Tensor, m: int) -> Tensor:
    """Matrices (groups, d, d) as the diagonal blocks of (groups / m, m d, m d)."""
    if m == 1:
        return A
    d = A.shape[-1]
    whole = A.new_zeros(len(A) // m, m, d, m, d)
    whole.diagonal(dim1=1, dim2=3).copy_(A.view(-1, m, d, d).movedim(1, -1))
    return whole.view(-1, m * d, m * d)


def _blocks_of(whole: Tensor, m: int) -> Tensor:
    """The diagonal blocks, back from `_as_blocks`."""
    d = whole.shape[-1] // m
    return whole.view(-1, m, d, m, d).diagonal(dim1=1, dim2=3).movedim(-1, 1).reshape(-1, d, d)


def _matrices_of(images: int, positions: int, columns: int, is_last: bool) -> tuple[int, int, int, int]:
    """How a block is cut into matrices of about so many columns: (batch, cuts), and (images, positions) of each."""
    if positions > columns and positions % columns == 0 and not is_last:
        return images, positions // columns, 1, columns
    together = -(-columns // positions)
    return (images // together, 1, together, positions) if images % together == 0 else (1, 1, images, positions)


def _part(view: Tensor, i: int, p: int, batch: int, cuts: int, images: int, positions: int) -> Tensor:
    """A block of a view (N, groups, d, P), from image i and position p on."""
    _, groups, d, _ = view.shape
    by_image, by_group, by_channel, by_position = view.stride()
    shape = (batch, cuts, groups, d, images, positions)
    stride = (images * by_image, positions * by_position, by_group, by_channel, by_image, by_position)
    return view.as_strided(shape, stride, view.storage_offset() + i * by_image + p * by_position)


def _holds_matrices(part: Tensor) -> bool:
    """Whether the `matrices` of a part are views of it: each within an image, at equal distances."""
    batch, cuts, groups, _, images, _ = part.shape
    return images == 1 and (cuts == 1 or batch * groups == 1)


def matrices(X: Tensor) -> Tensor:
    """The samples of a part that holds them as (batch cuts groups, d, n)."""
    return X.view(-1, X.shape[3], X.shape[4] * X.shape[5])


class Room:
    """Memory for a copy of one block after the other: fresh memory for each would cost as much as the work in it."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.memory = torch.empty(0, dtype=dtype, device="cpu")

    def like(self, part: Tensor) -> Tensor:
        """A part that holds its matrices, of the shape of another and not initialised."""
        if self.memory.numel() < part.numel():
            self.memory = self.memory.new_empty(part.numel())
        memory = self.memory[: part.numel()]
        if part.stride(3) == 1:  # channels lie last
            return memory.view(*part.shape[:2], *part.shape[4:], *part.shape[2:4]).permute(0, 1, 4, 5, 2, 3)
        return memory.view(part.shape)

    def centred(self, part: Tensor, mean: Tensor) -> Tensor:
        """A part minus the mean (C,)."""
        return torch.sub(part, mean.to(self.dtype).view(*part.shape[2:4], 1, 1), out=self.like(part))

    def gathered(self, part: Tensor, mean: Tensor | None = None) -> Tensor:
        """A part, minus the mean if there is one, as one that holds its matrices: the part itself if that will do."""
        if mean is not None:
            return self.centred(part, mean)
        return part if self.takes(part) else self.like(part).copy_(part)

    def takes(self, part: Tensor) -> bool:
        """Whether products can read and write the part itself."""
        return part.dtype == self.dtype and _holds_matrices(part)


def _repeated(A: Tensor, X: Tensor) -> Tensor:
    """A (groups, d, *) for each of the matrices X (* groups, d, n)."""
    return A if len(A) == len(X) else A.repeat(len(X) // len(A), 1, 1)


def _sums(products: Tensor, groups: int) -> Tensor:
    """Of (* groups, ...) over all but the groups, in float64: (groups, ...)."""
    return products.view(-1, groups, *products.shape[1:]).sum(0, dtype=torch.float64)


def _products(G: Tensor, X: Tensor, groups: int) -> Tensor:
    """The sum of G X^T over matrices (* groups, d, n), in float64: (groups, d, d).

    A matrix of channels that lie last may be a whole block. A product of its own dtype would add up all of its samples, and
    round like it: it is cut.
    """
    n = X.shape[-1]
    if n < 2 * COLUMNS or len(X) != groups or X.dtype == torch.float64:
        return _sums(torch.bmm(G, X.mT), groups)
    cut = n - n % COLUMNS
    total = torch.bmm(G[..., cut:], X[..., cut:].mT).to(torch.float64)
    for of_g, of_x, sums in zip(G[..., :cut], X[..., :cut], total, strict=True):
        one, other = (part.unflatten(-1, (-1, COLUMNS)).transpose(0, 1) for part in (of_g, of_x))  # (cuts, d, COLUMNS)
        sums += torch.bmm(one, other.mT).sum(0, dtype=torch.float64)
    return total


def grouped_moments(x: Tensor, groups: int) -> tuple[Tensor, Tensor, Tensor]:
    """Mean (C,), what rounding took from it, and scatter (groups, d, d).

    A block's samples are centred by c, their mean before rounding being c + r. Over blocks of n samples, with m the mean,

        scatter = sum [ sum (x - c)(x - c)^T  -  n r r^T  +  n (c + r - m)(c + r - m)^T ]   (Chan et al.)
    """
    if fits(x, x.shape[1] // groups):
        return moments.grouped_moments(x, groups)
    m = _together(x, groups)
    groups //= m
    d, dtype = x.shape[1] // groups, _dtype_of(x)
    raw, room = Room(dtype), Room(dtype)
    scatter = torch.zeros(groups, d, d, dtype=torch.float64, device=x.device)
    counts, means, rests = [], [], []
    for (part,) in parts(groups, x):
        count = part.numel() // (groups * d)
        X = raw.gathered(part)
        centre = (_sums(matrices(X).sum(-1), groups) / count).to(dtype)  # (groups, d)
        columns = matrices(room.centred(X, centre))
        scatter += _products(columns, columns, groups)
        rests.append(_sums(columns.sum(-1), groups) / count)
        means.append(centre + rests[-1])
        counts.append(count)
    n = torch.tensor(counts, dtype=torch.float64, device=x.device)
    M, R = torch.stack(means, -1), torch.stack(rests, -1)  # (groups, d, blocks)
    exact = (M @ n / n.sum()).unsqueeze(-1)  # (groups, d, 1)
    M -= exact
    scatter += torch.bmm(M * n, M.mT) - torch.bmm(R * n, R.mT)
    own = statistics_dtype(x)
    mean, scatter = exact.to(own), _blocks_of(scatter, m)
    return mean.flatten(), (exact - mean).to(own).flatten(), torch.lerp(scatter, scatter.mT, 0.5).to(own)


def transform(
    x: Tensor, A: Tensor, mean: Tensor | None, correction: Tensor | None, bias: Tensor | None, transposed: bool = False
) -> Tensor:
    """A (x - mean - correction) + bias."""
    if fits(x, A.shape[1]):
        return affine.transform(x, A, mean, correction, bias, transposed)
    dtype = _dtype_of(x)
    A = _as_blocks((A.mT if transposed else A).to(dtype), _together(x, len(A)))
    constant = x.new_zeros(*A.shape[:2], 1, dtype=dtype)  # (groups, d, 1)
    if bias is not None:
        constant += _column(bias, A)
    if correction is not None:
        constant -= torch.bmm(A, _column(correction, A))
    y, of_x, of_y = like(x), Room(dtype), Room(dtype)
    for part, target in parts(len(A), x, y):
        X = matrices(of_x.gathered(part, mean))
        out = target if of_y.takes(target) else of_y.like(target)
        torch.baddbmm(_repeated(constant, X), _repeated(A, X), X, out=matrices(out))
        _put(out, target)
    return y


def transform_sums(g: Tensor, x: Tensor, groups: int, mean: Tensor, correction: Tensor | None) -> tuple[Tensor, Tensor]:
    """sum of g (x - mean - correction)^T, and sum of g."""
    if fits(x, x.shape[1] // groups):
        return affine.transform_sums(g, x, groups, mean, correction)
    m = _together(x, groups)
    groups //= m
    d, dtype = x.shape[1] // groups, _dtype_of(x)
    Q = torch.zeros(groups, d, d, dtype=torch.float64, device=x.device)
    s = torch.zeros(groups, d, dtype=torch.float64, device=x.device)
    of_g, of_x = Room(dtype), Room(dtype)
    for gradient, part in parts(groups, g, x):
        G, X = matrices(of_g.gathered(gradient)), matrices(of_x.gathered(part, mean))
        Q += _products(G, X, groups)
        s += _sums(G.sum(-1), groups)
    if correction is not None:
        Q -= s.unsqueeze(-1) * _column(correction, Q).mT
    own = statistics_dtype(x)
    return _blocks_of(Q, m).to(own), s.flatten().to(own)


def combine(g: Tensor, x: Tensor, A: Tensor, S: Tensor, mean: Tensor, correction: Tensor | None, shift: Tensor) -> Tensor:
    """A^T (g - shift) + S (x - mean - correction)."""
    if fits(x, A.shape[1]):
        return affine.combine(g, x, A, S, mean, correction, shift)
    dtype = _dtype_of(x)
    m = _together(x, len(A))
    A, S = _as_blocks(A.mT.to(dtype), m), _as_blocks(S.to(dtype), m)
    constant = x.new_zeros(*A.shape[:2], 1, dtype=dtype)
    if correction is not None:
        constant -= torch.bmm(S, _column(correction, S))
    dx, of_g, of_x, of_dx = like(x), Room(dtype), Room(dtype), Room(dtype)
    for gradient, part, target in parts(len(A), g, x, dx):
        G, X = matrices(of_g.gathered(gradient, shift)), matrices(of_x.gathered(part, mean))
        out = target if of_dx.takes(target) else of_dx.like(target)
        product = matrices(out)
        torch.baddbmm(_repeated(constant, X), _repeated(S, X), X, out=product)
        product.baddbmm_(_repeated(A, G), G)
        _put(out, target)
    return dx


def _dtype_of(x: Tensor) -> torch.dtype:
    """What a pass over ``x`` computes in."""
    return torch.float64 if is_reduced(x.device.type) else statistics_dtype(x)


def _column(v: Tensor, A: Tensor) -> Tensor:
    """(C,) -> (groups, d, 1) for A (groups, d, d)."""
    return v.to(A.dtype).view(*A.shape[:2], 1)


def _put(out: Tensor, target: Tensor) -> None:
    """A product into a part of a map, unless it was written there."""
    if out is not target:
        target.copy_(out)


# The passes as autograd nodes.
#
# y = B (x - m) + bias with B = weight * A(S), where m and S are the mean and the scatter of x. With Q = sum g (x - m)^T and
# s = sum g over n samples, and dS the gradient of S, which a small graph from S to A gives for weight * Q,
#
#     dweight = diag(Q A^T),   dbias = s,   dx = B^T (g - s/n) + (dS + dS^T)(x - m).
#
# The mean needs no term of its own beyond s/n: S does not change with it to first order. So a training step passes twice
# over x, and twice over g and x; autograd's composition of the same takes a dozen. That composition stays for everything
# that passes and plain nodes cannot do: torch.func, forward mode, torch.compile, a batch of backward passes in one
# (is_grads_batched), and the second derivative.


class Passes(Shortcut):
    """A function of maps by passes over them; ``composed``: the same of the same tensors in plain torch."""

    def __init__(self, composed: Callable[..., Any]) -> None:
        self.composed = composed

    def composition(self, *x: Any) -> Any:
        return self.composed(*x)


class Normalized(Passes):
    """x, weight, bias -> weight * A (x - mean) + bias, with the gradient through the statistics.

    Args:
        A: (groups, d, d), a function of the scatter, as ``pullback`` says: dA -> dS + dS^T.
        mean, correction: (C,), as `grouped_moments` returns them.
    """

    def __init__(
        self, A: Tensor, pullback: Callable[[Tensor], Tensor], mean: Tensor, correction: Tensor, composed: Callable[..., Any]
    ) -> None:
        super().__init__(composed)
        self.A, self.pullback, self.centre = A.detach(), pullback, (mean, correction)

    def value(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        self.B = scaled(weight, self.A).contiguous()
        return transform(x, self.B, *self.centre, bias)

    def pull_shortly(self, kept: Any, grads: Any, needed: Sequence[bool]) -> Sequence[Tensor | None]:
        (x, weight, bias), (g,) = kept, grads
        Q, s = transform_sums(g, x, len(self.B), *self.centre)
        dx = dweight = dbias = None
        if needed[0]:
            dx = combine(g, x, self.B, self.pullback(scaled(weight, Q)), *self.centre, s / (x.numel() // x.shape[1]))
        if needed[1]:
            dweight = (Q * self.A).sum(-1).flatten().to(weight.dtype)
        if needed[2]:
            dbias = s.to(bias.dtype)
        return dx, dweight, dbias


class Whitened(Passes):
    """`Normalized` for ZCA with the exact gradient, in kernels alone (kernels/whitening.py)."""

    kept: whitening.Kept  # what the forward pass left

    def __init__(self, options: whitening.StepOptions, composed: Callable[..., Any]) -> None:
        super().__init__(composed)
        self.options = options

    def value(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        y, self.kept = whitening.forward(x, weight, bias, self.options)
        return y

    def pull_shortly(self, kept: Any, grads: Any, needed: Sequence[bool]) -> Sequence[Tensor | None]:
        (x, weight, _), (g,) = kept, grads
        found = whitening.backward(g, x, weight, self.kept, needed[0])
        return [gradient if need else None for gradient, need in zip(found, needed, strict=True)]


class Transformed(Passes):
    """x, B, mean, bias -> B (x - mean) + bias:   dx = B^T g,   dB = Q,   dmean = -B^T s,   dbias = s"""

    def value(self, x: Tensor, B: Tensor, mean: Tensor, bias: Tensor | None) -> Tensor:
        return transform(x, B, mean, None, bias)

    def pull_shortly(self, kept: Any, grads: Any, needed: Sequence[bool]) -> Sequence[Tensor | None]:
        (x, B, mean, bias), (g,) = kept, grads
        dx = transform(g, B, None, None, None, transposed=True) if needed[0] else None
        if not any(needed[1:]):
            return dx, None, None, None
        Q, s = transform_sums(g, x, len(B), mean, None)
        dmean = -(B * s.view(B.shape[0], B.shape[1], 1)).sum(-2).flatten() if needed[2] else None
        return dx, Q if needed[1] else None, dmean, s.to(bias.dtype) if needed[3] else None


class MeanAndScatter(Passes):
    """x -> mean (C,), scatter (groups, d, d):   dx = (G_S + G_S^T)(x - mean) + G_m / n"""

    def __init__(self, groups: int, composed: Callable[..., Any]) -> None:
        super().__init__(composed)
        self.groups = groups

    def value(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, correction, scatter = grouped_moments(x, self.groups)
        self.centre = mean, correction
        return mean, scatter

    def pull_shortly(self, kept: Any, grads: Any, needed: Sequence[bool]) -> Sequence[Tensor | None]:
        (x,), (g_mean, g_scatter) = kept, grads
        own, d = self.centre[0].dtype, x.shape[1] // self.groups
        S = x.new_zeros(self.groups, d, d, dtype=own) if g_scatter is None else (g_scatter + g_scatter.mT).contiguous()
        shift = None if g_mean is None else g_mean / (x.numel() // x.shape[1])
        return (transform(x, S, *self.centre, shift),)


def scaled(weight: Tensor | None, A: Tensor) -> Tensor:
    """weight (C,) times the rows of A (groups, d, d)."""
    return A if weight is None else weight.to(A.dtype).view(A.shape[0], A.shape[1], 1) * A
