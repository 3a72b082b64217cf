"""A few singular triplets of large matrices, with the exact gradient.

The right vectors come from A^H A (of a wide A: from A A^H), by products alone; then U S W^H = A V W, a small decomposition
in which nothing is squared, and, if small singular values are still rough, an iteration on H = [[0, A], [A^H, 0]].

Triplets are eigenpairs of H: H y = s y with y = (u, v) / sqrt 2, and -s belongs to (u, -v) / sqrt 2. So the derivative is
that of `eigsh`: towards the k by the rule for s_j - s_i, towards their mirrors with 1 / (s_j + s_i), without a rule, and
towards the rest by solving with H, in which no singular value is squared either.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spectralgrad.context import differentiated_again
from spectralgrad.errors import OptionError
from spectralgrad.validation import as_given

from ..choices import AUTO, Gradient
from ..node import Some, Step, last, run
from ..precision import matmul, rounding_of
from ..rules import Rule
from ..rules.base import without_rounding
from ..solvers import decompose_svd
from ..svd import SingularTriplets
from . import adjoint
from .eigsh import Limits, first_block, limits_of, refuse, require_converged, rule_of, start_of, tell_ties
from .lanczos import Plan, extreme_pairs, room_for
from .maps import Dense, Implicit, LinearMap, Source, source_of

__all__ = ["svds"]

_WIDEST = 32


def svds(
    A: Tensor | LinearMap,
    k: int = 6,
    *,
    gradient: Gradient | None = None,
    start: Tensor | None = None,
    tol: float | None = None,
    steps: int | None = None,
) -> SingularTriplets:
    """The k largest singular triplets of large, sparse or implicit matrices, with an exact gradient.

    A^H U = V diag(S) and A V = U diag(S). The rule acts on gaps s_j - s_i, as in `svd`; the part of the gradient towards the
    triplets that were not asked for is solved for. A tie across the cut is treated as in `eigsh`. See docs/topk.md.

    Args:
        A: (*B, m, n) dense, or (m, n) sparse in COO or CSR layout, or a `LinearMap` with ``rmatmul=``. Half precision is
            computed in float32.
        k: how many, 1 to min(m, n).
        gradient: the rule for gaps; None means `Lorentzian()`.
        start: (*B, n, p), a guess of the right singular vectors; of a wide A, m < n, (*B, m, p) of the left ones.
        tol: the largest |A^H u - s v| relative to |A|; None means 10 n eps, and at most 1000 eps.
        steps: the largest number of products with a block of columns; None means 10,000.

    Returns:
        (U, S, Vh): (*B, m, k), (*B, k) descending, (*B, k, n).

    Raises:
        ConvergenceError: not all k have converged; it says how many did, with their residuals.
        ShapeError, DtypeError, NonFiniteError, OptionError.

    >>> import torch, spectralgrad as sg
    >>> A = torch.diag(torch.arange(1.0, 301.0)).requires_grad_()
    >>> U, S, Vh = sg.svds(A, k=2)
    >>> S.detach().round(decimals=2)
    tensor([300., 299.])
    >>> S.sum().backward()
    >>> A.grad.diagonal()[-3:].round(decimals=3).abs()
    tensor([0., 1., 1.])
    """
    who = "svds"
    source = source_of(who, A)
    if isinstance(source, Implicit) and source.map.rmatmul is None:
        raise OptionError(
            f"`{who}`: the LinearMap must have rmatmul=, the product with A^H, got None. Pass LinearMap(..., rmatmul=)."
        )
    small = min(source.shape[-2:])
    limits = limits_of(who, source, k, small, tol, steps)
    step = _Svds(who, source, k, rule_of(who, gradient), limits, start_of(who, start, source, small))
    if isinstance(source, Implicit):
        U, S, V, *extra = _of_products(step)
    else:
        U, S, V, *extra = run(step, source.leaf)
    tell_ties(who, S, S[..., -1], extra[0], S[..., :1], k)
    given = A if isinstance(A, Tensor) else V
    return SingularTriplets(as_given(U, given), as_given(S, given), as_given(V.mH, given))


@dataclass(frozen=True)
class _Svds(Step):
    """The leaf of A -> U, S, V; then the singular values and the vectors (u, v) / sqrt 2 of what else was found, their
    residuals, and the norm."""

    who: str
    source: Source
    k: int
    rule: Rule
    limits: Limits
    start: Tensor | None

    kept_outputs = slice(None)
    constants = (3, 4, 5, 6)

    # The triplets.

    def value(self, x: Tensor | None) -> tuple[Tensor, ...]:
        m, n = self.source.shape[-2:]
        if m >= n:
            U, S, V = self._tall(x, self.source.product, self.source.adjoint_product, m, n)
        else:
            V, S, U = self._tall(x, self.source.adjoint_product, self.source.product, n, m)
        return self._with_residuals(x, U, S, V)

    def _tall(self, x: Tensor | None, product: Any, adjoint_product: Any, m: int, n: int) -> tuple[Tensor, Tensor, Tensor]:
        """All triplets that were found, the largest first, for m >= n."""
        batch = x.shape[:-2] if isinstance(self.source, Dense) and x is not None else ()
        dtype, device = self.source.dtype, self.source.device
        block = min(max(4, self.k, 0 if self.start is None else self.start.shape[-1]), _WIDEST, n)
        room = room_for(self.k, block)
        if n <= room or 0 in batch:
            U, S, Vh = decompose_svd(self.who, product(x, torch.eye(n, dtype=dtype, device=device)), AUTO, False)
            return U, S, Vh.mH
        generator = torch.Generator(device).manual_seed(0)
        start = first_block(self.start, (*batch, n, block), dtype, generator)
        plan = Plan("LA", self.k, block, room, *self.limits, False, block < self.k)
        found = extreme_pairs(lambda X: adjoint_product(x, product(x, X)), start, plan, generator)
        U, S, V = self._unsquared(x, product, found.V)
        residual = torch.linalg.vector_norm(adjoint_product(x, U) - V * S.unsqueeze(-2), dim=-2)
        if bool((residual[..., : self.k] > self.limits.tol * S[..., :1]).any()):
            U, S, V = self._polished(x, product, adjoint_product, U, V, generator)
        return U, S, V

    def _unsquared(self, x: Tensor | None, product: Any, V: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        U, S, W = torch.linalg.svd(product(x, V), full_matrices=False)
        return U, S, matmul(V, W.mH)

    def _polished(
        self, x: Tensor | None, product: Any, adjoint_product: Any, U: Tensor, V: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The same from an iteration on H, which starts where that on A^H A had to stop."""
        m = U.shape[-2]

        def doubled(Y: Tensor) -> Tensor:
            return torch.cat([product(x, Y[..., m:, :]), adjoint_product(x, Y[..., :m, :])], -2)

        start = torch.cat([U, V], -2)[..., : self.k]
        plan = Plan("LA", self.k, self.k, room_for(self.k, self.k), *self.limits, False, False)
        found = extreme_pairs(doubled, start, plan, generator)
        require_converged(self.who, found.residual[..., : self.k], found.norm, self.limits, found.products)
        V = torch.linalg.qr(found.V[..., m:, :])[0]
        return self._unsquared(x, product, V)

    def _with_residuals(self, x: Tensor | None, U: Tensor, S: Tensor, V: Tensor) -> tuple[Tensor, ...]:
        left = torch.linalg.vector_norm(self.source.product(x, V) - U * S.unsqueeze(-2), dim=-2)
        right = torch.linalg.vector_norm(self.source.adjoint_product(x, U) - V * S.unsqueeze(-2), dim=-2)
        residual, norm = torch.maximum(left, right), S[..., :1]
        require_converged(self.who, residual[..., : self.k], norm, self.limits, self.limits.steps)
        rest = slice(self.k, None)
        extra = torch.cat([U, V], -2)[..., rest] / 2**0.5
        found = (*(t[..., : self.k] for t in (U, S, V)), S[..., rest], extra, residual[..., rest], norm)
        return tuple(t.clone() for t in found)  # no views: forward mode would refuse them

    # The derivative, on H.

    def doubled(self, x: Tensor | None, Y: Tensor) -> Tensor:
        m = self.source.shape[-2]
        return torch.cat([self.source.product(x, Y[..., m:, :]), self.source.adjoint_product(x, Y[..., :m, :])], -2)

    def mirrored(self, Y: Tensor) -> Tensor:
        """(u, -v) for (u, v)."""
        m = self.source.shape[-2]
        return torch.cat([Y[..., :m, :], -Y[..., m:, :]], -2)

    def _moved(self, x: Tensor | None, U: Tensor, S: Tensor, V: Tensor, others: Sequence[Tensor], G: Tensor) -> Tensor:
        """The derivative of the vectors y, which is its own adjoint: in a direction dH y, or of cotangents."""
        values, extra, residual, norm = others
        k = self.k
        Y = torch.cat([U, V], -2) / 2**0.5
        mirror = self.mirrored(Y)
        known, helpers = adjoint.parted(extra, residual, self.limits.tol, norm)
        K = self.rule.coefficients(torch.cat([S, values], -1))
        X = without_rounding(K[..., :k, :k], matmul(Y.mH, G), lambda: rounding_of(G), S)
        inside = matmul(Y, K[..., :k, :k] * X) + matmul(mirror, _inverse_sums(S, S, norm) * matmul(mirror.mH, G))
        weights = torch.cat([K[..., k:, :k], _inverse_sums(values, S, norm)], -2).to(G.dtype)
        step = adjoint.Solve(self.who, self.doubled, self.limits.aim, self.limits.steps)
        both, known = torch.cat([Y, mirror], -1), torch.cat([known, self.mirrored(known)], -1)
        return inside + adjoint.outside(
            step,
            G,
            x,
            S,
            both,
            known,
            weights,
            torch.cat([helpers, self.mirrored(helpers)], -1),
            torch.cat([values, -values], -1),
            norm,
        )

    def pull(self, kept: Any, grads: Some, needed: Sequence[bool]) -> Some:
        x, U, S, V, *others = kept
        if differentiated_again() and not isinstance(self.source, Dense):
            refuse(self.who)
        up, vp = self.pulled(x, U, S, V, others, grads)
        return (self.source.pulled(up, V) + self.source.pulled(U, vp),)

    def pulled(self, x: Tensor | None, U: Tensor, S: Tensor, V: Tensor, others: Any, grads: Some) -> tuple[Tensor, Tensor]:
        """The cotangents of A V and of A^H U."""
        gU, gS, gV = grads[:3]
        m = self.source.shape[-2]
        total = torch.zeros_like(torch.cat([U, V], -2))
        if gU is not None or gV is not None:
            G = torch.cat([torch.zeros_like(U) if gU is None else gU, torch.zeros_like(V) if gV is None else gV], -2)
            total = self._moved(x, U, S, V, others, 2**0.5 * G) / 2**0.5
        if gS is not None:
            total = total + torch.cat([U, V], -2) * (gS / 2).unsqueeze(-2)
        return total[..., :m, :], total[..., m:, :]

    def push(self, kept: Any, tangents: Some) -> Any:
        x, U, S, V, *others = (last(each) for each in kept)
        if not isinstance(self.source, Dense):
            refuse(self.who)
        assert tangents[0] is not None
        E, m = last(tangents[0]), self.source.shape[-2]
        EV, EU = matmul(E, V), matmul(E.mH, U)
        dS = (U.conj() * EV).real.sum(-2)
        moved = self._moved(x, U, S, V, others, torch.cat([EV, EU], -2) / 2**0.5) * 2**0.5
        return moved[..., :m, :], dS, moved[..., m:, :], None, None, None, None


def _inverse_sums(rows: Tensor, columns: Tensor, norm: Tensor) -> Tensor:
    """1 / (s_i + s_j), and 0 where both are zero to rounding."""
    total = rows.unsqueeze(-1) + columns.unsqueeze(-2)
    zero = total <= 100 * torch.finfo(total.dtype).eps * norm.unsqueeze(-1)
    return torch.where(zero, 0, 1 / torch.where(zero, 1, total))


@dataclass(frozen=True)
class _OfProducts(Step):
    """A V and A^H U, as the user's products give them for the triplets that were found -> these."""

    triplets: _Svds
    found: tuple[Tensor, ...]

    kept_inputs, kept_outputs = slice(0), slice(None)
    constants = (3, 4, 5, 6)

    def value(self, AV: Tensor, AU: Tensor) -> tuple[Tensor, ...]:
        return self.found

    def pull(self, kept: Any, grads: Some, needed: Sequence[bool]) -> Some:
        if differentiated_again():
            refuse(self.triplets.who)
        U, S, V, *others = kept
        return self.triplets.pulled(None, U, S, V, others, grads)

    def push(self, kept: Any, tangents: Some) -> Any:
        refuse(self.triplets.who)


def _of_products(triplets: _Svds) -> Any:
    with torch.no_grad():
        found = triplets.value(None)
    if not torch.is_grad_enabled():
        return found
    U, _, V = found[:3]
    source = triplets.source
    return run(_OfProducts(triplets, found), source.product(None, V), source.adjoint_product(None, U))
