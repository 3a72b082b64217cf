"""A few eigenpairs of large Hermitian matrices, with the exact gradient."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from spectralgrad.context import checking, differentiated_again, readable
from spectralgrad.counters import count
from spectralgrad.errors import ConvergenceError, DtypeError, OptionError, ShapeError, SymmetryError
from spectralgrad.validation import as_given, is_whole, require_number, require_one_of

from ..choices import AUTO, Gradient, for_eigenpairs
from ..eigh import Eigenpairs
from ..node import Some, Step, last, run
from ..precision import hermitian_part, matmul, rounding_of
from ..rules import Rule
from ..rules.base import without_rounding
from ..solvers import decompose
from . import adjoint
from .lanczos import Found, Plan, Product, Which, columns, extreme_pairs, ranked, room_for
from .maps import Dense, Implicit, LinearMap, Source, source_of

__all__ = ["eigsh"]

_AIM = 20  # times eps, at most: residuals at which the iteration stops
_TOL = 1000  # times eps, at most: residuals that count as converged by default
_STEPS = 10_000  # products with a block
_WIDEST = 32  # columns of a block


class Limits(NamedTuple):
    """When an iteration stops, and what counts as converged, relative to the norm."""

    aim: float
    tol: float
    steps: int


def eigsh(
    A: Tensor | LinearMap,
    k: int = 6,
    *,
    which: Literal["LA", "SA", "LM"] = "LA",
    gradient: Gradient | None = None,
    start: Tensor | None = None,
    tol: float | None = None,
    steps: int | None = None,
) -> Eigenpairs:
    """A few eigenpairs of large, sparse or implicit Hermitian matrices, with the gradient of the pairs and not of a loop.

    A V = V diag(w). For cotangents gw, gV the cotangent of A V is

        V diag(gw) + V (K * V^H gV) + z,   (w_j - A) z_j = (I - V V^H) gV_j,

    K from the rule; z is solved for to the accuracy of the pairs. A tie across the cut is bounded by the rule, counted as
    ``tie_across_cut``, and warned of. See docs/topk.md.

    Args:
        A: (*B, n, n) dense, or (n, n) sparse in COO or CSR layout, or a `LinearMap`; real symmetric or complex Hermitian.
            The gradient of a sparse A lies on its pattern, that of a `LinearMap` goes to what it closes over. Half precision
            is computed in float32.
        k: how many, 1 to n.
        which: "LA" the largest, "SA" the smallest, "LM" the largest in magnitude.
        gradient: the rule for gaps; None means `Lorentzian()`.
        start: (*B, n, p), a guess of the vectors, such as those of a matrix nearby. A bad one costs time, never accuracy.
            It gets no gradient.
        tol: the largest |A v - w v| relative to |A|; None means 10 n eps, and at most 1000 eps.
        steps: the largest number of products with a block of columns; None means 10,000.

    Returns:
        (w, V): (*B, k) ascending and (*B, n, k).

    Raises:
        ConvergenceError: not all k have converged; it says how many did, with their residuals.
        ShapeError, DtypeError, SymmetryError, NonFiniteError, OptionError.

    >>> import torch, spectralgrad as sg
    >>> A = torch.diag(torch.arange(1.0, 301.0)).requires_grad_()
    >>> w, V = sg.eigsh(A, k=2)
    >>> w.detach().round(decimals=2)
    tensor([299., 300.])
    >>> w.sum().backward()
    >>> A.grad.diagonal()[-3:].round(decimals=3).abs()
    tensor([0., 1., 1.])
    """
    who = "eigsh"
    source = source_of(who, A)
    n = source.shape[-1]
    if source.shape[-2] != n:
        raise ShapeError(
            f"`{who}`: `A` must be square in its last two dimensions, got {tuple(source.shape)}. For a "
            "rectangular one use `svds`."
        )
    require_one_of(who, "which", which, ("LA", "SA", "LM"))
    limits = limits_of(who, source, k, n, tol, steps)
    step = _Eigsh(who, source, k, which, rule_of(who, gradient), limits, start_of(who, start, source, n))
    step.require_hermitian()
    if isinstance(source, Implicit):
        w, V, *extra = _of_product(step)
    else:
        w, V, *extra = run(step, source.leaf)
    tell_ties(who, w, w.gather(-1, ranked(w, which)[..., -1:])[..., 0], extra[0], extra[3], k)
    given = A if isinstance(A, Tensor) else V
    return Eigenpairs(as_given(w, given), as_given(V, given))


def limits_of(who: str, source: Source, k: int, n: int, tol: float | None, steps: int | None) -> Limits:
    if not (is_whole(k) and k <= n):
        raise OptionError(f"`{who}`: k must be a whole number from 1 to {n}, for `A` {tuple(source.shape)}, got {k!r}.")
    if tol is not None:
        require_number(who, "tol", tol, above=0)
    if not (steps is None or is_whole(steps)):
        raise OptionError(f"`{who}`: steps must be a whole number from 1 on or None, got {steps!r}.")
    eps = torch.finfo(source.dtype).eps
    aim = min(10 * n, _AIM) * eps if tol is None else tol / 2
    return Limits(aim, min(10 * n, _TOL) * eps if tol is None else float(tol), steps or _STEPS)


def rule_of(who: str, gradient: Gradient | None) -> Rule:
    choice = for_eigenpairs(who, gradient, AUTO)
    if choice.way != "rule":
        raise OptionError(f"`{who}`: gradient must be a rule, such as sg.Exact(), got {gradient!r}. For others use `eigh`.")
    return choice.rule


def start_of(who: str, start: Tensor | None, source: Source, n: int) -> Tensor | None:
    if start is None:
        return None
    if not isinstance(start, Tensor):
        raise DtypeError(f"`{who}`: start must be a torch.Tensor or None, got {type(start).__name__}.")
    *batch, rows, p = start.shape if start.ndim >= 2 else (0, 0)
    if rows != n or not 1 <= p <= n or torch.broadcast_shapes(torch.Size(batch), source.shape[:-2]) != source.shape[:-2]:
        raise ShapeError(f"`{who}`: start must be (*B, {n}, p), a guess of the vectors, got {tuple(start.shape)}.")
    start = start.detach() if source.dtype.is_complex else start.detach().real
    return start.to(source.device, source.dtype)


@dataclass(frozen=True)
class _Eigsh(Step):
    """The leaf of A -> w, V; then what the derivative needs beside them: values, vectors and residuals of what was found
    beyond the k, and the norm."""

    who: str
    source: Source
    k: int
    which: Which
    rule: Rule
    limits: Limits
    start: Tensor | None

    kept_outputs = slice(None)
    constants = (2, 3, 4, 5)

    def require_hermitian(self) -> None:
        """One random product, where values are looked at."""
        leaf = self.source.leaf
        x = leaf if leaf is None else readable(leaf.detach())
        if (leaf is not None and (x is None or not checking(leaf))) or self.source.shape.numel() == 0:
            return
        at = torch.arange(1, self.source.shape[-1] + 1, device=self.source.device, dtype=self.source.dtype.to_real())
        at = at.unsqueeze(-1) % 1024
        X, Y = torch.sin(at * at), torch.cos(1.7 * at * at)  # as good as random here, and vmap allows it
        if self.source.dtype.is_complex:
            X, Y = X + 1j * X.flip(0), Y - 1j * Y.flip(0)
        with torch.no_grad():
            AX, AY = (self.source.product(x, each) for each in (X, Y))
        one, other = (Y.conj() * AX).sum((-2, -1)), (AY.conj() * X).sum((-2, -1))
        size = torch.linalg.vector_norm(AX, dim=(-2, -1)) * torch.linalg.vector_norm(Y)
        tolerance = torch.finfo(self.source.dtype).eps ** 0.5
        if bool(((one - other).abs() > tolerance * size).any()):
            off = float(((one - other).abs() / size).max())
            raise SymmetryError(
                f"`{self.who}`: `A` must be symmetric (Hermitian), but y^H A x and (A y)^H x differ by {off:.1e} of |A x| "
                "|y| for random x and y. If only the symmetric part is meant, pass (A + A.mH) / 2; for singular values use "
                "`svds`."
            )

    def value(self, x: Tensor | None) -> tuple[Tensor, ...]:
        x = hermitian_part(x) if isinstance(self.source, Dense) and x is not None else x
        found = self._found(lambda X: self.source.product(x, X), x)
        order = found.w[..., : self.k].argsort(-1)
        w, V = found.w[..., : self.k].gather(-1, order), columns(found.V[..., : self.k], order)
        rest = slice(self.k, None)
        return w, V, found.w[..., rest], found.V[..., rest], found.residual[..., rest], found.norm

    def _found(self, product: Product, x: Tensor | None) -> Found:
        batch = x.shape[:-2] if isinstance(self.source, Dense) and x is not None else ()
        n, dtype, device = self.source.shape[-1], self.source.dtype, self.source.device
        dense = isinstance(self.source, Dense)
        block = min(max(4, self.k if dense else -(-self.k // 2)), _WIDEST, n)
        if self.start is not None:
            block = min(max(block, self.start.shape[-1]), n)
        room = room_for(self.k, block)
        if n <= room or 0 in batch:
            eye = torch.eye(n, dtype=dtype, device=device)
            return whole(self.who, hermitian_part(product(eye)) if x is None or not dense else x, self.which)
        generator = torch.Generator(device).manual_seed(0)
        start = first_block(self.start, (*batch, n, block), dtype, generator)
        plan = Plan(self.which, self.k, block, room, *self.limits, not dense and x is not None, block < self.k)
        found = extreme_pairs(product, start, plan, generator)
        require_converged(self.who, found.residual[..., : self.k], found.norm, self.limits, found.products)
        return found

    # The derivative.

    def pull(self, kept: Any, grads: Some, needed: Sequence[bool]) -> Some:
        x, w, V, *others = kept
        if differentiated_again() and not isinstance(self.source, Dense):
            refuse(self.who)
        Y = self.pulled(x, w, V, others, grads[0], grads[1])
        if x is None:
            return (Y,)
        return (hermitian_part(self.source.pulled(Y, V)),) if isinstance(self.source, Dense) else (self._on_pattern(Y, V),)

    def _on_pattern(self, Y: Tensor, V: Tensor) -> Tensor:
        return (self.source.pulled(Y, V) + self.source.pulled(V, Y)) / 2

    def pulled(
        self, x: Tensor | None, w: Tensor, V: Tensor, others: list[Tensor], gw: Tensor | None, gV: Tensor | None
    ) -> Tensor:
        """The cotangent of A V."""
        Y = torch.zeros_like(V) if gw is None else V * gw.unsqueeze(-2)
        if gV is None:
            return Y
        values, _, _, norm = others
        K = self._coefficients(w, values, norm)
        X = without_rounding(K[..., : self.k, :], matmul(V.mH, gV), lambda: rounding_of(gV), w)
        return Y + matmul(V, K[..., : self.k, :] * X) + self._outside(x, gV, w, V, others, K)

    def _outside(self, x: Tensor | None, G: Tensor, w: Tensor, V: Tensor, others: list[Tensor], K: Tensor) -> Tensor:
        values, extra, residual, norm = others
        known, helpers = adjoint.parted(extra, residual, self.limits.tol, norm)
        solve = adjoint.Solve(self.who, self._product, self.limits.aim, self.limits.steps)
        return adjoint.outside(solve, G, x, w, V, known, K[..., self.k :, :].to(V.dtype), helpers, values, norm)

    def _product(self, x: Tensor | None, X: Tensor) -> Tensor:
        return self.source.product(hermitian_part(x) if isinstance(self.source, Dense) and x is not None else x, X)

    def _coefficients(self, w: Tensor, values: Tensor, norm: Tensor) -> Tensor:
        """K (*B, k + h, k); the norm stands among the eigenvalues, since a rule takes its scale from them."""
        K = self.rule.coefficients(torch.cat([w, values, norm], -1))
        return K[..., : w.shape[-1] + values.shape[-1], : self.k]

    def push(self, kept: Any, tangents: Some) -> Any:
        x, w, V, *others = (last(each) for each in kept)
        if not isinstance(self.source, Dense):
            refuse(self.who)
        assert tangents[0] is not None
        dY = self._product(last(tangents[0]), V)
        K, inner = self._coefficients(w, others[0], others[3]), matmul(V.mH, dY)
        dV = matmul(V, K[..., : self.k, :] * inner) + self._outside(x, dY, w, V, others, K)
        return inner.diagonal(dim1=-2, dim2=-1).real, dV, None, None, None, None


def refuse(who: str) -> None:
    raise NotImplementedError(
        f"`{who}`: second derivatives and forward mode exist for a dense `A` alone. Use A.to_dense(), or only backward() "
        "without create_graph=True."
    )


@dataclass(frozen=True)
class _OfProduct(Step):
    """A V, as the user's product gives it for the V that was found -> w, V and what belongs to them."""

    pairs: _Eigsh
    found: tuple[Tensor, ...]

    kept_inputs, kept_outputs = slice(0), slice(None)
    constants = (2, 3, 4, 5)

    def value(self, Y: Tensor) -> tuple[Tensor, ...]:
        return self.found

    def pull(self, kept: Any, grads: Some, needed: Sequence[bool]) -> Some:
        return self.pairs.pull((None, *kept), grads, needed)

    def push(self, kept: Any, tangents: Some) -> Any:
        refuse(self.pairs.who)


def _of_product(pairs: _Eigsh) -> Any:
    with torch.no_grad():
        found = pairs.value(None)
    if not torch.is_grad_enabled():
        return found
    return run(_OfProduct(pairs, found), pairs.source.product(None, found[1]))


def whole(who: str, M: Tensor, which: Which) -> Found:
    """All pairs of a small matrix, the most wanted first."""
    w, V = decompose(who, M, AUTO, None)
    order = ranked(w, which)
    w, V = w.gather(-1, order), columns(V, order)
    return Found(w, V, torch.zeros_like(w), w.abs().amax(-1, keepdim=True) if w.shape[-1] else w, 0)


def first_block(start: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Random columns; with a guess they follow it, and a trace of them is in it, so that nothing is orthogonal to it."""
    noise = torch.randn(shape, dtype=dtype, device=generator.device, generator=generator)
    if start is None:
        return noise
    p = start.shape[-1]
    size = torch.linalg.vector_norm(start, dim=-2, keepdim=True)
    guess = torch.where(size > 0, start / torch.where(size > 0, size, 1), 0).nan_to_num().expand(*shape[:-1], p)
    small = torch.finfo(dtype).eps ** 0.5 / shape[-2] ** 0.5
    return torch.cat([guess + small * noise[..., :p], noise[..., p:]], -1)


def require_converged(who: str, residual: Tensor, norm: Tensor, limits: Limits, products: int) -> None:
    """Raise unless all residuals (*B, k) are small beside the norm (*B, 1)."""
    good = residual <= limits.tol * norm
    residual = residual / torch.where(norm > 0, norm, 1)
    if bool(good.all()):
        return
    worst = ", ".join(
        f"{r:.1e}" for r in residual.reshape(-1, good.shape[-1])[(~good).reshape(-1, good.shape[-1]).any(-1)][0].tolist()
    )
    raise ConvergenceError(
        f"`{who}`: {int(good.sum())} of {good.numel()} have converged to tol={limits.tol:.1e} of the norm in {products} "
        f"products with a block; residuals {worst}. Raise steps= or tol=, pass start=, or take another k: the gap behind "
        "the last one may be narrow."
    )


def tell_ties(who: str, w: Tensor, last: Tensor, beyond: Tensor, norm: Tensor, k: int) -> None:
    """Count and say where the last value (*B,) ties with the first one beyond the cut, if a gradient may be asked for."""
    if not (w.requires_grad and beyond.shape[-1] and readable(w) is w and w.numel()):
        return
    ties = (last - beyond[..., 0]).detach().abs() <= torch.finfo(w.dtype).eps ** 0.5 * norm.detach()[..., 0]
    if count_of := int(ties.sum()):
        count("tie_across_cut", count_of)
        warnings.warn(
            f"`{who}`: value {k} ties with value {k + 1} in {count_of} of {ties.numel()} matrices: which vectors are "
            "inside is not determined, and their gradient across the cut is bounded by the rule. Take another k.",
            stacklevel=3,
        )
