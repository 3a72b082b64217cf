"""A few extreme eigenpairs by thick-restart block Lanczos, on the matrix or on a polynomial of it.

The basis Q (*B, n, c) is kept orthonormal in full, and T = Q^H f(A) Q is measured and not assumed to be banded. So blocks
that break down may be filled with random directions: the basis stays safe for zero matrices, multiplicities and low rank.
After A's product with the last block, f(A) Q = Q T + N R E^H with the next block N; |R y| over the last rows of y is the
residual of a Ritz vector Q y. A full basis is restarted from its best Ritz vectors and N, and nothing is lost.

Where products are cheap beside the projections on Q, as those of sparse matrices are, f is a Chebyshev polynomial which is
at most 1 on the unwanted part of the spectrum and grows outside: several products for one projection. Its interval comes
from Ritz values of A itself.

LOBPCG was not tried.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ..precision import in_widest, matmul

Which = Literal["LA", "SA", "LM"]
Product = Callable[[Tensor], Tensor]  # (*B, n, p) -> (*B, n, p)

_LOST = 1e-3  # a block with a column that leaves the basis by less than this part of itself is projected once more
_BLOCKS = 13  # in a full basis, beside the k
_EXTRA = 4  # blocks of Ritz vectors beyond the k that survive a restart
_LOOK = 2  # blocks between two looks at the Ritz values
_CHECKED = 4  # blocks at least before a pair counts as converged, and in a search for what was missed
_GROWTH = 4.0  # the polynomial grows to cosh of this at the last wanted value
_DEGREE = 40
_RANGE = 7.0  # and from there to the first value by e to this at most, or rounding of that would hide the others
_APART = 3.0  # stands in the place of values that are set apart, larger than any other under the polynomial
_REFINED = 3  # how often the interval is estimated anew


class Plan(NamedTuple):
    """What is looked for, and with how much room: k pairs, b columns a block, m columns of basis."""

    which: Which
    k: int
    block: int
    room: int
    aim: float  # residuals that the iteration stops at, relative to the norm
    tol: float  # and those that count as converged
    steps: int
    filtered: bool
    check: bool  # whether to look for what was missed, from a random block

    @property
    def kept(self) -> int:
        return self.k + _EXTRA * self.block


class Found(NamedTuple):
    """Ritz pairs, the k wanted first and then the next ones, best first, with their residuals; and the norm of A."""

    w: Tensor  # (*B, r)
    V: Tensor  # (*B, n, r)
    residual: Tensor  # (*B, r)
    norm: Tensor  # (*B, 1)
    products: int  # blocks


def room_for(k: int, block: int) -> int:
    """How many columns a full basis has."""
    return k + _BLOCKS * block


def ranked(w: Tensor, which: Which) -> Tensor:
    """Indices (*B, r) of eigenvalues, the most wanted first."""
    key = w.abs() if which == "LM" else w if which == "LA" else -w
    return key.argsort(dim=-1, descending=True, stable=True)


def columns(V: Tensor, index: Tensor) -> Tensor:
    """V (*B, n, r) with its columns in the order of index (*B, p)."""
    return V.gather(-1, index.unsqueeze(-2).expand(*V.shape[:-1], index.shape[-1]))


@dataclass
class Basis:
    """Orthonormal columns, and the matrix between them."""

    Q: Tensor  # (*B, n, m), of which `count` are there
    T: Tensor  # (*B, m, m)
    next: Tensor  # (*B, n, b)
    generator: torch.Generator
    R: Tensor  # (*B, b, b): how the last block leaves the basis
    count: int = 0
    norm: float = 0.0
    locked: int = 0  # pairs at the front that have converged: set apart, or their large values would hide the small ones

    @classmethod
    def of(cls, start: Tensor, room: int, generator: torch.Generator) -> "Basis":
        *batch, n, b = start.shape
        Q = start.new_zeros(*batch, room, n).mT  # its columns lie together, as products want them
        T = start.new_zeros(*batch, room, room)
        return cls(Q, T, torch.linalg.qr(start)[0], generator, T[..., :b, :b])

    def expand(self, product: Product) -> None:
        """Take in the next block."""
        low, high = self.count, self.count + self.next.shape[-1]
        self.Q[..., low:high] = self.next
        Q = self.Q[..., :high]
        W = product(self.next)
        H = matmul(Q.mH, W)
        W = W - matmul(Q, H)
        again = matmul(Q.mH, W)  # once more: what one projection leaves would grow from block to block
        W, H = W - matmul(Q, again), H + again
        N, R = torch.linalg.qr(W)
        smallest = float(R.diagonal(dim1=-2, dim2=-1).abs().min())
        size = max(float(torch.linalg.vector_norm(x, dim=-2).max()) for x in (H, R))
        self.norm = max(self.norm, size)
        if not smallest > _LOST * size:
            N, R, more = self._again(Q, W, smallest)
            H = H + more
        H[..., : self.locked, :] = 0
        self.T[..., :high, low:high] = H
        self.T[..., low:high, :high] = H.mH
        self.next, self.R, self.count = N, R, high

    def _again(self, Q: Tensor, W: Tensor, smallest: float) -> tuple[Tensor, Tensor, Tensor]:
        """The next block from W projected twice more, after noise of the size of rounding has made it independent."""
        eps, N = torch.finfo(W.dtype).eps, W
        if smallest <= 100 * eps * self.norm:
            N = W + eps * (self.norm or 1.0) / math.sqrt(W.shape[-2]) * random_like(W, self.generator)
        for _ in range(3):
            N = torch.linalg.qr(N)[0]
            N = N - matmul(Q, matmul(Q.mH, N))
        N = torch.linalg.qr(N)[0]
        return N, matmul(N.mH, W), matmul(Q.mH, W)

    def ritz(self) -> tuple[Tensor, Tensor, Tensor]:
        """Values (*B, c), coefficients (*B, c, c) and residuals (*B, c)."""
        c, b = self.count, self.R.shape[-1]
        w, Y = torch.linalg.eigh(in_widest(self.T[..., :c, :c]))
        Y = Y.to(self.Q.dtype)
        return w.to(self.Q.real.dtype), Y, torch.linalg.vector_norm(matmul(self.R, Y[..., c - b :, :]), dim=-2)

    def restart(self, w: Tensor, Y: Tensor, following: Tensor | None = None, locked: int = 0) -> None:
        """Keep these Ritz pairs alone, and the next block; or another one, for pairs that have converged."""
        V = matmul(self.Q[..., : self.count], Y)
        self.count = c = w.shape[-1]
        self.locked = locked
        if locked:  # any values in their order that are larger than the others
            rising = torch.arange(locked, 0, -1, dtype=w.dtype, device=w.device) / locked
            w = torch.cat([torch.sign(w[..., :locked]) * (1 + rising) * w[..., locked:].abs().amax(), w[..., locked:]], -1)
        self.Q[..., :c] = V
        self.T.zero_()
        self.T[..., :c, :c] = torch.diag_embed(w).to(self.T.dtype)
        if following is not None:
            for _ in range(2):
                following = torch.linalg.qr(following - matmul(V, matmul(V.mH, following)))[0]
            self.next = following


def random_like(x: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(x.shape, dtype=x.dtype, device=x.device, generator=generator)


@dataclass(frozen=True)
class Filter:
    """T_d((x - c) / e) scaled to 1 at `top`: at most that of `low` and `high` between them, and steep outside."""

    low: float
    high: float
    top: float
    degree: int
    held: bool  # whether the degree is low because of a value far outside

    def of(self, product: Product) -> Product:
        """X -> f(A) X for A's product."""
        c, e, scale = self._shape()

        def filtered(X: Tensor) -> Tensor:
            before, now = X, (product(X) - c * X) / e
            for _ in range(self.degree - 1):
                before, now = now, ((product(now) - c * now) * (2 / e)).sub_(before)
            return now / scale

        return filtered

    def _shape(self) -> tuple[float, float, float]:
        c, e = (self.high + self.low) / 2, (self.high - self.low) / 2
        return c, e, math.cosh(self.degree * math.acosh(max((self.top - c) / e, 1.0)))

    def _angle(self, value: Tensor) -> Tensor:
        """a with |f(c + e cosh(a))| = |value|; 0 inside of the interval."""
        return torch.acosh((value.abs() * self._shape()[2]).clamp(min=1)) / self.degree

    def inverse(self, value: Tensor) -> Tensor:
        """The x outside of the interval where f has this value; its edge for values inside."""
        c, e, _ = self._shape()
        return c + e * torch.where(value < 0, -1, 1) * torch.cosh(self._angle(value))

    def slope(self, value: Tensor) -> Tensor:
        """|f'| where f has this value; 0 inside of the interval."""
        _, e, scale = self._shape()
        a = self._angle(value)
        return torch.where(a > 0, self.degree * torch.sinh(self.degree * a) / torch.sinh(a) / (e * scale), 0)


def _filter_for(w: Tensor, plan: Plan, low: float, settled: int) -> Filter | None:
    """A polynomial that parts the k first of these values of A (one matrix), of which some are settled, from those beyond
    the kept. Where a first value lies far outside, the degree stays low until it is settled."""
    kept = w[ranked(w, plan.which)][: plan.kept]
    top, last, cut = (
        float(kept[i].abs() if plan.which == "LM" else kept[i]) for i in (min(settled, plan.k - 1), plan.k - 1, -1)
    )
    low = -cut if plan.which == "LM" else low
    c, e = (cut + low) / 2, (cut - low) / 2
    if not e > 0 or (last - c) / e <= 1:
        return None
    angle = math.acosh((last - c) / e)
    range_of = math.acosh(max((top - c) / e, 1.0)) - angle
    wished = min(math.ceil(_GROWTH / angle), _DEGREE)
    degree = min(wished, max(1, int(_RANGE / max(range_of, 1e-9))))
    if plan.which == "LM":
        degree |= 1  # odd: the sign stays
    return Filter(low, cut, top, degree, degree < wished) if degree > 1 else None


def _is_within(V: Tensor, U: Tensor) -> bool:
    """Whether two sets of orthonormal columns span the same space, to where converged pairs may differ."""
    overlap = torch.linalg.matrix_norm(matmul(U.mH, V)) ** 2
    return bool((overlap >= V.shape[-1] - torch.finfo(overlap.dtype).eps ** 0.5).all())


def extreme_pairs(product: Product, start: Tensor, plan: Plan, generator: torch.Generator) -> Found:
    """The k pairs that are wanted and the next ones, from a block of start vectors, converged or as far as it came."""
    if plan.which == "SA":
        found = extreme_pairs(lambda X: -product(X), start, plan._replace(which="LA"), generator)
        return found._replace(w=-found.w)
    used = 0
    while True:
        search = _Search(product, plan._replace(steps=plan.steps - used), start, generator)
        found = search.run()
        used += found.products
        done = bool((found.residual[..., : plan.k] <= plan.tol * found.norm).all())
        if done or used >= plan.steps:
            return found._replace(products=used)
        start, plan = found.V[..., : plan.k], plan._replace(check=False)


class _Search:
    """One run of the iteration; a new polynomial begins a new basis."""

    def __init__(self, product: Product, plan: Plan, start: Tensor, generator: torch.Generator) -> None:
        self.product, self.plan, self.generator = product, plan, generator
        self.basis = Basis.of(start, plan.room, generator)
        self.filter: Filter | None = None
        self.norm: Tensor | None = None  # of A, once a polynomial hides it
        self.refined = self.used = self.checked_at = self.apart = 0

    def run(self) -> Found:
        best, k = None, self.plan.k
        while True:
            w, Y, converged = self._until_converged()
            V = matmul(self.basis.Q[..., : self.basis.count], Y)
            if best is None or not _is_within(V[..., :k], best[..., :k]):
                best = V
            if not converged or not self.plan.check or self.checked_at:
                return self._found(best)
            self.checked_at = self.used + max(_CHECKED, self.used // 8)
            following = random_like(self.basis.next, self.generator)
            self.basis.restart(w[..., :k], Y[..., :k], following, locked=k - 1 if self.filter else 0)

    def _until_converged(self) -> tuple[Tensor, Tensor, bool]:
        """Expand the basis until the k first Ritz pairs have converged: all that are kept, best first."""
        plan = self.plan
        while True:
            basis = self.basis
            basis.expand(self._deflated if self.filter is None else self.filter.of(self._deflated))
            self.used += 1 if self.filter is None else self.filter.degree
            width = basis.next.shape[-1]
            full, over = basis.count + width > plan.room, self.used >= plan.steps
            looks = (
                basis.count >= max(plan.k, _CHECKED * width)
                and ((basis.count // width) % _LOOK == 0 or self.filter is not None)
                and self.used >= self.checked_at
            )
            if not (full or over or looks):
                continue
            w, Y, residual = basis.ritz()
            order = ranked(w, plan.which)[..., : plan.kept]
            w_kept, Y_kept = w.gather(-1, order), columns(Y, order)
            good = residual.gather(-1, order) <= self._bound(w, w_kept)
            converged = bool((good | ~self._wanted(w, w_kept)).all()) and self.used >= self.checked_at
            if converged or over:
                return w_kept, Y_kept, converged
            if full:
                settled = max(int(good[..., : plan.k].cumprod(-1).sum(-1).min()), basis.locked) if plan.filtered else 0
                basis.restart(w_kept, Y_kept, locked=settled)
                self._refine(w, settled)

    def _deflated(self, X: Tensor) -> Tensor:
        """A X without what rounding has put into the pairs that are set apart, which the polynomial would make large."""
        AX = self.product(X)
        if self.basis.locked == 0:
            return AX
        L = self.basis.Q[..., : self.basis.locked]
        return AX - matmul(L, matmul(L.mH, AX))

    def _wanted(self, w: Tensor, kept: Tensor) -> Tensor:
        """Which of the kept have to converge: the k first, and those that tie with the last one."""
        if self.filter is None:
            values, norm = kept, w.abs().amax(-1, keepdim=True)
        else:
            assert self.norm is not None
            values, norm = self.filter.inverse(kept), self.norm
        last = values[..., self.plan.k - 1, None]
        close: Tensor = (values - last).abs() <= torch.finfo(w.dtype).eps ** 0.5 * norm
        first: Tensor = torch.arange(kept.shape[-1], device=w.device) < self.plan.k
        return close | first

    def _bound(self, w: Tensor, wanted: Tensor) -> Tensor:
        """How large a residual may be, which belongs to the polynomial of A if there is one."""
        if self.filter is None:
            return self.plan.aim * w.abs().amax(-1, keepdim=True)
        assert self.norm is not None
        return self.plan.aim * self.norm * self.filter.slope(wanted)

    def _refine(self, w: Tensor, settled: int) -> None:
        """A polynomial for what is known by now, and a new basis that starts from sums of the kept vectors."""
        freed = self.filter is not None and self.filter.held and settled > self.apart
        if not self.plan.filtered or self.checked_at or (self.refined >= _REFINED and not freed):
            return
        self.apart = settled
        values = w if self.filter is None else self.filter.inverse(w)
        if self.norm is None:
            self.norm = w.abs().amax(-1, keepdim=True)
            self.low = float(w.min()) - 0.01 * float(w.max() - w.min())
        self.refined += 1
        better = _filter_for(values, self.plan, self.low, settled)
        if better is None:
            return
        self.filter = better
        Q, b = self.basis.Q[..., : self.basis.count], self.basis.next.shape[-1]
        start = torch.stack([Q[..., i : i + b] for i in range(settled, Q.shape[-1] - b + 1, b)]).sum(0)
        basis = Basis.of(start, self.plan.room, self.generator)
        basis.Q[..., :settled] = Q[..., :settled]
        basis.T[..., :settled, :settled] = torch.diag_embed(torch.sign(w[ranked(w, self.plan.which)[:settled]]) * _APART)
        basis.count = basis.locked = settled
        self.basis = basis

    def _found(self, V: Tensor) -> Found:
        """Rayleigh and Ritz once more with A itself, whose residuals are those that count."""
        V = torch.linalg.qr(V)[0]
        AV = self.product(V)
        w, Y = torch.linalg.eigh(in_widest(matmul(V.mH, AV)))
        order = ranked(w, self.plan.which)
        w, Y = w.gather(-1, order).to(V.real.dtype), columns(Y, order).to(V.dtype)
        V, AV = matmul(V, Y), matmul(AV, Y)
        residual = torch.linalg.vector_norm(AV - V * w.unsqueeze(-2), dim=-2)
        norm = w.abs().amax(-1, keepdim=True)
        norm = torch.maximum(norm, norm.new_tensor(self.basis.norm) if self.norm is None else self.norm)
        return Found(w, V, residual, norm, self.used + 1)
