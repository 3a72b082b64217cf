"""The means as numbers: Newton's method on the equations of means.py, without a graph.

A step S = H^-1[F(0)] leads from R R^H to R exp(S) R^H, which is positive definite whatever S is. Both costs are convex
(along geodesics, and as functions of M), so where a step makes neither the cost nor the residual smaller half of it is
tried. Not so for Bures: a step of the fixed-point iteration takes the place of a half, and goes first far from the mean,
where S is large; halves took a hundred steps at condition 1e8. The iteration stops where the residual, measured as a
relative change of M, is rounding: below 4 n eps; or no longer halved by a step and below eps^(1/2); or not halved by three
steps, and no larger than what rounding explains.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spectralgrad.context import compiling, in_batched_backward, transforming
from spectralgrad.errors import ConvergenceError
from spectralgrad.kernels.ops import opaque
from spectralgrad.linalg.choices import AUTO
from spectralgrad.linalg.node import Some, Step, run, run_again
from spectralgrad.linalg.precision import hermitian_part, matmul
from spectralgrad.linalg.solvers import decompose

from .means import EQUATIONS, Equation, apply_hessian, positive_pairs

_STEPS = 300  # of Newton's method; four to six are usual, halvings count, and Bures at 1e8 takes up to 180
_CONJUGATE_STEPS = 300  # of conjugate gradients: enough for a condition number of 300 in float64
_TARGET = 4  # times n eps: what rounding leaves of a residual
_STALLED = 3  # steps that do not halve the residual, before it counts as rounding where that explains it
_MOST = 0.01  # residuals above this are never explained by rounding
_EXPLAINED = 16  # times eps times what `Equation.noise` says
_FAR = 0.2  # a relative residual above which Newton's step may be wild
_LONGEST = 20.0  # of a step in half of its logarithm: e^40 fits every dtype
_LOOSE = 0.1  # relative accuracy of a step far from the mean; near it the residual itself, which keeps it quadratic


class Solution(NamedTuple):
    """Factors of the mean M = R R^H, W = R^-H; eigenvectors V (*B, K, n, n) of the Y_k, c and the preconditioner of H."""

    R: Tensor
    W: Tensor
    V: Tensor
    c: Tensor
    p: Tensor


class _Point(NamedTuple):
    """A candidate (N, n, n) with all that is known there."""

    R: Tensor
    W: Tensor
    V: Tensor
    spectra: Tensor  # (N, K, n)
    m: Tensor  # (N, n)
    F: Tensor
    cost: Tensor  # (N,)
    residual: Tensor  # (N,)
    explained: Tensor  # (N,): a residual that rounding explains


class Until(NamedTuple):
    """When to stop: at a relative residual of ``tol``, or of rounding if that is larger; with an error after ``steps``."""

    tol: float = 0.0
    steps: int = _STEPS


USUAL = Until()


def solve(given: Tensor, weights: Tensor, metric: str, until: Until, start: Tensor | None) -> Solution:
    """The mean of what is given (*B, K, n, n), at scale 1, with weights (*B, K) that sum to 1. NaN gives NaN.

    ``start`` (*B, n, n) is definite; None: what would be the mean if all commuted."""
    given, weights, start = given.detach(), weights.detach(), None if start is None else start.detach()
    if compiling() or not transforming():
        return Solution(*_solve(given, weights, start, metric, *until))
    return Solution(*run(_Solve(metric, until), given, weights, start))


def solve_hessian(found: Solution, weights: Tensor, F: Tensor) -> Tensor:
    """H^-1[F] (*B, n, n), linear and self-adjoint in F; all else is constant."""
    return run(_Inverse(), F, found.V, found.c, found.p, weights.detach())  # type: ignore[no-any-return]


# The iteration.


Found = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def _solve_fake(given: Tensor, weights: Tensor, start: Tensor | None, metric: str, tol: float, steps: int) -> Found:
    *batch, _, n, _ = given.shape
    M, V = given.new_empty(*batch, n, n), given.new_empty(given.shape)
    real = given.real.dtype
    return M, torch.empty_like(M), V, V.new_empty(V.shape, dtype=real), M.new_empty(M.shape, dtype=real)


@opaque(
    "spd_mean(Tensor given, Tensor weights, Tensor? start, str metric, float tol, int steps) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _solve_fake,
)
def _solve(given: Tensor, weights: Tensor, start: Tensor | None, metric: str, tol: float, steps: int) -> Found:
    if given.numel() == 0 or given.is_meta:  # no values there, and so no end of the iteration
        return _solve_fake(given, weights, start, metric, tol, steps)
    equation, (*batch, K, n, _) = EQUATIONS[metric], given.shape
    flat, w = given.reshape(-1, K, n, n), weights.reshape(-1, K)
    with torch.no_grad():
        first = _start(equation, flat, w) if start is None else start.reshape(-1, n, n)
        point = _iterate(equation, flat, w, first, Until(tol, steps))
        c, p = equation.coefficients(point.spectra), equation.preconditioner(point.m)
    return (
        point.R.reshape(*batch, n, n).contiguous(),
        point.W.reshape(*batch, n, n).contiguous(),
        point.V.reshape(*batch, K, n, n).contiguous(),
        c.reshape(*batch, K, n, n).contiguous(),
        p.reshape(*batch, n, n).contiguous(),
    )


def _start(equation: Equation, given: Tensor, weights: Tensor) -> Tensor:
    """Where to start: g(sum_k w_k f(X_k)) with g the inverse of f, the mean itself if all commute."""
    w, V = positive_pairs(given)
    mean = (matmul(V * equation.f(w).unsqueeze(-2), V.mH) * weights[..., None, None]).sum(-3)
    w, V = decompose("spd.mean", hermitian_part(mean), AUTO, None)
    return hermitian_part(matmul(V * equation.inverse_f(w).unsqueeze(-2), V.mH))


def _look(equation: Equation, given: Tensor, weights: Tensor, M: Tensor) -> _Point:
    m, U = positive_pairs(M)
    root = m.sqrt().unsqueeze(-2)
    R, W = U * root, U / root
    spectra, V = equation.pairs(equation.seen(R, W, given))
    mean = (matmul(V * equation.f(spectra).unsqueeze(-2), V.mH) * weights[..., None, None]).sum(-3)
    F = hermitian_part(mean) - torch.diag_embed(equation.subtracted(m)).to(given.dtype)
    residual = torch.linalg.matrix_norm(equation.preconditioner(m) * F)
    noise = torch.finfo(m.dtype).eps * (weights * equation.noise(m, given, spectra)).sum(-1)
    explained = (_EXPLAINED * noise).clamp(max=_MOST)
    return _Point(R, W, V, spectra, m, F, equation.cost(m, spectra, weights), residual, explained)


def _iterate(equation: Equation, given: Tensor, weights: Tensor, start: Tensor, until: Until) -> _Point:
    """Newton's method on (N, K, n, n) from (N, n, n). Reads the host once a step."""
    n, eps = given.shape[-1], torch.finfo(given.dtype).eps
    enough = max(_TARGET * n * eps, until.tol)
    point = _look(equation, given, weights, start)
    broken = ~torch.isfinite(point.residual)  # NaN came in: NaN goes out
    done = broken | (point.residual <= enough)
    length = torch.ones_like(point.residual)
    S = torch.zeros_like(point.F)
    stalled = torch.zeros_like(done, dtype=torch.long)  # for so many steps
    fresh = ~done  # whose S is to be computed
    for _ in range(until.steps):
        if bool(done.all()):
            return point
        if bool(fresh.any()):
            c, p = equation.coefficients(point.spectra), equation.preconditioner(point.m)
            accuracy = point.residual.clamp(eps, _LOOSE)
            S = torch.where(fresh[:, None, None], _conjugate_gradients(point.F, point.V, c, p, weights, accuracy), S)
        M = _moved_by(point.R, length[:, None, None] * S)
        far = ((point.residual > _FAR) | (length < 1)) & equation.has_safe_step & ~done
        if bool(far.any()):
            M = torch.where(far[:, None, None], equation.safe_step(point.W, point.m, point.F), M)
        tried = _look(equation, given, weights, M)
        cheaper = (tried.cost < point.cost) & (point.residual > eps**0.5)  # nearer the mean the cost is flat, to rounding
        better = (tried.residual < point.residual) | cheaper
        better = (better | far) & ~done
        stalled = torch.where(tried.residual < point.residual / 2, 0, stalled + 1)
        point = _chosen(better, tried, point)
        rounded = (point.residual <= eps**0.5) | ((stalled >= _STALLED) & (point.residual <= point.explained))
        done = done | (rounded & (stalled > 0)) | (point.residual <= enough)
        fresh = better & ~done
        length = torch.where(better, 1, length / 2)
    if bool(done.all()):
        return point
    left = ~done
    raise ConvergenceError(
        f"`spd.mean`: {int(left.sum())} of {left.numel()} means of {given.shape[1]} matrices did not converge in "
        f"{until.steps} steps of Newton's method; a relative residual of {float(point.residual[left].max()):.1e} is left. "
        'Give more steps=, a larger tol=, use float64, or add eps * identity to `X`; metric="logeuclid" needs no iteration.'
    )


def _chosen(which: Tensor, a: _Point, b: _Point) -> _Point:
    """Those of ``a`` where ``which`` (N,), else those of ``b``."""
    return _Point(*(torch.where(which.reshape(-1, *(1,) * (x.ndim - 1)), x, y) for x, y in zip(a, b, strict=True)))


def _moved_by(R: Tensor, S: Tensor) -> Tensor:
    """R exp(S) R^H."""
    w, V = decompose("spd.mean", S, AUTO, None)
    half = matmul(R, V * (w / 2).clamp(-_LONGEST, _LONGEST).exp().unsqueeze(-2))
    return hermitian_part(matmul(half, half.mH))


# H^-1.


def _inner(a: Tensor, b: Tensor) -> Tensor:
    return (a.conj() * b).real.sum((-2, -1), keepdim=True)


def _quotient(a: Tensor, b: Tensor) -> Tensor:
    """a / b, and 0 where b is not positive."""
    return torch.where(b > 0, a / torch.where(b > 0, b, 1), 0)


def _conjugate_gradients(F: Tensor, V: Tensor, c: Tensor, p: Tensor, weights: Tensor, accuracy: Tensor | float) -> Tensor:
    """H^-1[F] for (N, n, n), to a relative accuracy (N,). Reads the host once a step."""
    S, r = torch.zeros_like(F), F
    z = p * r
    d, rz = z, _inner(r, z)
    enough = rz.squeeze(-1).squeeze(-1) * (torch.as_tensor(accuracy, dtype=rz.dtype, device=rz.device) ** 2)
    for _ in range(_CONJUGATE_STEPS):
        Hd = apply_hessian(V, c, weights, d)
        a = _quotient(rz, _inner(d, Hd))
        S, r = S + a * d, r - a * Hd
        z = p * r
        before, rz = rz, _inner(r, z)
        if not bool((rz.squeeze(-1).squeeze(-1) > enough).any()):  # NaN stops too
            break
        d = z + _quotient(rz, before) * d
    return hermitian_part(S)


def _inverse_fake(F: Tensor, V: Tensor, c: Tensor, p: Tensor, weights: Tensor) -> Tensor:
    return torch.empty_like(F, memory_format=torch.contiguous_format)


@opaque("spd_inverse(Tensor F, Tensor V, Tensor c, Tensor p, Tensor weights) -> Tensor", _inverse_fake)
def _inverse(F: Tensor, V: Tensor, c: Tensor, p: Tensor, weights: Tensor) -> Tensor:
    if F.numel() == 0 or F.is_meta:
        return torch.empty_like(F, memory_format=torch.contiguous_format)
    if in_batched_backward(F):
        return _inverse_by_matrix(F, V, c, p, weights)
    K, n = V.shape[-3], V.shape[-1]
    size = F.abs().amax((-2, -1), keepdim=True)  # of any size: squares of it must neither overflow nor vanish
    F_, p_ = (x.reshape(-1, n, n) for x in (hermitian_part(F / torch.where(size > 0, size, 1)), p))
    V_, c_ = (x.reshape(-1, K, n, n) for x in (V, c))
    with torch.no_grad():
        S = _conjugate_gradients(F_, V_, c_, p_, weights.reshape(-1, K), torch.finfo(F.dtype).eps)
    return (S.reshape(F.shape) * size).contiguous()


def _inverse_by_matrix(F: Tensor, V: Tensor, c: Tensor, p: Tensor, weights: Tensor) -> Tensor:
    """H^-1[F] for cotangents of a batched backward pass, which can be multiplied, but not looked at: H^-1 as a matrix.

    Of a complex F it is linear over the real numbers alone, since it takes the Hermitian part: P F + Q conj(F).
    """
    *batch, n = *V.shape[:-3], V.shape[-1]
    basis = torch.eye(n * n, dtype=V.dtype, device=V.device).view(n * n, n, n)

    def columns(unit: complex) -> Tensor:  # (*B, n^2, n^2)
        found = [_inverse((unit * E).expand(*batch, n, n), V, c, p, weights) for E in basis]
        return torch.stack([S.flatten(-2) for S in found], -1)

    f = F.reshape(*batch, n * n, 1)
    if not V.is_complex():
        return matmul(columns(1), f).reshape(*batch, n, n)
    one, i = columns(1), -1j * columns(1j)
    return (matmul((one + i) / 2, f) + matmul((one - i) / 2, torch.conj_physical(f))).reshape(*batch, n, n)


class _Solve(Step):
    """`_solve` inside torch.func: a constant, but for vmap."""

    constants = tuple(range(len(Solution._fields)))

    def __init__(self, metric: str, until: Until) -> None:
        self.metric, self.until = metric, until

    def value(self, given: Tensor, weights: Tensor, start: Tensor | None) -> tuple[Tensor, ...]:
        return _solve(given, weights, start, self.metric, *self.until)

    def pull(self, kept: Any, grads: Any, needed: Sequence[bool]) -> Some:
        return (None,) * len(needed)

    def push(self, kept: Any, tangents: Any) -> Some:
        return (None,) * len(Solution._fields)


class _Inverse(Step):
    """`_inverse`, linear and self-adjoint in F."""

    kept_inputs = slice(1, None)

    def value(self, F: Tensor, *constants: Tensor) -> Tensor:
        return _inverse(F, *constants)

    def pull(self, kept: Any, grads: Any, needed: Sequence[bool]) -> Some:
        return run_again(self, grads[0], *kept), *(None,) * len(kept)

    def push(self, kept: Any, tangents: Any) -> Any:
        return run_again(self, tangents[0], *kept)
