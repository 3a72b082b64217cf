"""The exact derivative of a few eigenpairs: towards the pairs that are known by a rule, towards all others by solving.

For a perturbation dA, w_j moves by v_j^H dA v_j, and v_j by

    sum over known i of v_i K_ij (v_i^H dA v_j)  +  (w_j - A)^+ P dA v_j,        P = I - V V^H,

the second part on the complement of the known. Both maps are their own adjoints, so the cotangent of A V is

    V diag(gw) + V (K * V^H gV) + z,        (w_j - A) z_j = P g_j.

All eigenvalues of the complement lie on one side of each w_j: conjugate gradients, all columns at once. What the iteration
has found beyond the k makes them fast: Ritz pairs that have converged are taken out as known ones, with coefficients by the
rule, so that a tie across the cut is bounded; the others precondition.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spectralgrad.context import differentiated_again
from spectralgrad.errors import ConvergenceError

from ..node import Some, Step, run
from ..precision import matmul
from .lanczos import Product

_CLOSEST = 1e-6  # times the norm: gaps of helpers are taken for no smaller
_FLAT = 10  # times eps times the norm: a curvature that rounding may have made


@dataclass(frozen=True)
class Known:
    """Orthonormal eigenvectors with nothing to solve for (*B, n, p), and what helps with the others."""

    V: Tensor
    helpers: Tensor  # (*B, n, h): Ritz vectors, orthogonal to V; columns may be 0
    values: Tensor  # (*B, h)
    norm: Tensor  # (*B, 1): of A
    tol: float
    steps: int


def complement(known: Known, X: Tensor) -> Tensor:
    """X without its part in the known space."""
    return X - matmul(known.V, matmul(known.V.mH, X))


def solve(who: str, product: Product, w: Tensor, G: Tensor, known: Known) -> Tensor:
    """z (*B, n, k) in the complement with (w_j - A) z_j = P g_j, for w (*B, k) outside of the spectrum there."""
    residual = complement(known, complement(known, G))
    z = torch.zeros_like(residual)
    size = torch.linalg.vector_norm(residual, dim=-2, keepdim=True)
    if not bool((size > 0).any()):
        return z
    shift, norm = w.unsqueeze(-2).to(G.dtype), known.norm.unsqueeze(-1)
    sign = _side(product, known, w)
    eps = torch.finfo(size.dtype).eps
    precondition = _preconditioner(known, w)
    y = precondition(residual)
    p, rho = y, _dots(residual, y)
    flat = torch.zeros_like(size, dtype=torch.bool)
    for _ in range(known.steps):
        scale = norm * torch.linalg.vector_norm(z, dim=-2, keepdim=True)
        small = torch.linalg.vector_norm(residual, dim=-2, keepdim=True) <= known.tol * (scale + size)
        active = ~(small | flat)
        if not bool(active.any()):
            return z
        Ap = complement(known, sign * (shift * p - product(p)))
        curvature = _dots(p, Ap)
        bent = curvature <= _FLAT * eps * norm * _dots(p, p)
        flat |= active & bent  # a tie with what is not known: nothing bounded can be said in its direction
        active &= ~bent
        step = torch.where(active, rho / torch.where(active, curvature, 1), 0)
        z = z + step * (sign * p)
        residual = residual - step * Ap
        y = precondition(residual)
        following = _dots(residual, y)
        p = y + torch.where(active, following / torch.where(active, rho, 1), 0) * p
        rho = following
    left = int(active.sum())
    relative = (torch.linalg.vector_norm(residual, dim=-2, keepdim=True) / torch.where(size > 0, size, 1)).amax()
    raise ConvergenceError(
        f"`{who}`: the gradient of {left} vectors has not converged in {known.steps} products; the largest residual is "
        f"{float(relative):.1e} of its right side. Raise steps= or tol=, or take one pair more: the gap "
        "behind the last one is narrow."
    )


def _dots(x: Tensor, y: Tensor) -> Tensor:
    """Of columns (*B, 1, k), real."""
    return (x.conj() * y).real.sum(-2, keepdim=True)


def _side(product: Product, known: Known, w: Tensor) -> Tensor:
    """+1 where the complement lies below w_j, -1 where above (*B, 1, k)."""
    X = torch.ones_like(known.V[..., :1])
    X = complement(known, X / X.shape[-2] ** 0.5)
    mean = _dots(X, product(X)) / _dots(X, X).clamp(min=torch.finfo(w.dtype).tiny)
    return torch.where(w.unsqueeze(-2) >= mean, 1.0, -1.0).to(w.dtype)


def _preconditioner(known: Known, w: Tensor) -> Product:
    """r + X (t / |w_j - x| - 1) X^H r: as if the helpers were eigenvectors, and all others had the gap t."""
    if known.values.shape[-1] == 0:
        return lambda r: r
    gap = (w.unsqueeze(-2) - known.values.unsqueeze(-1)).abs()  # (*B, h, k)
    gap = torch.maximum(gap, _CLOSEST * known.norm.unsqueeze(-1)).clamp(min=torch.finfo(gap.dtype).tiny)
    weight = (gap.amax(-2, keepdim=True) / gap - 1).to(known.helpers.dtype)
    return lambda r: r + matmul(known.helpers, weight * matmul(known.helpers.mH, r))


def parted(V: Tensor, residual: Tensor, tol: float, norm: Tensor) -> tuple[Tensor, Tensor]:
    """Ritz vectors beyond the wanted: those that count as known, and those that help. Columns of the others are 0."""
    converged = (residual <= tol * norm).unsqueeze(-2)
    return torch.where(converged, V, 0), torch.where(converged, 0, V)


@dataclass(frozen=True)
class Solve(Step):
    """The part of the derivative outside of the k, G -> S G: by coefficients (*B, q, k) towards known vectors (*B, n, q), by
    solving elsewhere. Linear and its own adjoint; other inputs count as constants.

    Inputs: G, the leaf of A, w, V, the known (*B, n, q) with their coefficients, the helpers with their values, the norm.
    """

    who: str
    product: Callable[[Tensor | None, Tensor], Tensor]
    tol: float
    steps: int

    def value(self, G: Tensor, x: Tensor | None, *others: Tensor) -> Tensor:
        w, V, X, K, helpers, values, norm = others
        explicit = matmul(X, K * matmul(X.mH, G))
        known = Known(torch.cat([V, X], -1), helpers, values, norm, self.tol, self.steps)
        return explicit + solve(self.who, lambda Y: self.product(x, Y), w, G, known)

    def pull(self, kept: Any, grads: Some, needed: Sequence[bool]) -> Some:
        return run(self, grads[0], *kept[1:]), *(None,) * (len(kept) - 1)

    def push(self, kept: Any, tangents: Some) -> Tensor:
        return run(self, torch.zeros_like(kept[0]) if tangents[0] is None else tangents[0], *kept[1:])  # type: ignore[no-any-return]


def outside(step: Solve, G: Tensor, x: Tensor | None, w: Tensor, V: Tensor, *others: Tensor) -> Tensor:
    """S G, differentiable by G, x, w and V once more where something looks: (w_j - A) z_j = P g_j is differentiated."""
    constant = [None if x is None else x.detach(), w.detach(), V.detach(), *(each.detach() for each in others)]
    z = run(step, G.detach(), *constant)
    if not differentiated_again():
        return z  # type: ignore[no-any-return]
    left = G - matmul(V, matmul(V.mH, G)) - (z * w.unsqueeze(-2) - step.product(x, z))
    moved: Tensor = z + run(step, left - left.detach(), *constant)
    return moved - matmul(V, matmul(V.mH, moved))
