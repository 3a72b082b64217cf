"""Distances of statistics and of samples, and canonical correlations, against formulas in double precision.

tr (C1 C2)^(1/2) is the nuclear norm of C1^(1/2) C2^(1/2). Gradients are held to what they must satisfy: for covariances
<g1, C1> = tr C1 - tr (C1 C2)^(1/2), for samples the same times 2 with centred rows, and the sum of the rows is that of the
mean. The gradient of the correlations is compared as it is.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .clouds import moderate
from .differences import Power, loewner
from .examine import MAY_RAISE, WORKS, Check, Outcome
from .numbers import LIMIT, cotangent, eps, hermitian, norm, ratio, smallest_normal, unit, wide
from .targets import Target

_ABOVE = 2  # times the lowest eigenvalue below zero: those up to it count as zero
_UNSURE = 4  # times more or less than a border, both sides are right
_SHIFTS = (1e-4, 1e-1)
_APART = 1e-3  # of the k-th and the next correlation, where the choice of the first k has a derivative
_CONSTANT = 1e-6  # spread over size, below which a view may count as constant


def root(C: Tensor, ulp: float) -> tuple[Tensor, Tensor, Tensor]:
    """C^(1/2), as the library takes eigenvalues near zero; how much (B,) the choice of these may change its square; and how
    much (B,) the root changes with eigenvalues l that are right to rounding of C: eps |C| / l^(1/2), summed."""
    w, V = torch.linalg.eigh(C)
    zero = torch.maximum(-_ABOVE * w[:, :1], C.shape[-1] * eps(torch.float64) * w.abs().amax(-1, keepdim=True))
    border = torch.maximum(zero, C.shape[-1] * eps(torch.float64) * w.abs().amax(-1, keepdim=True))
    kept = torch.where(w > zero, w, 0)
    unsure = torch.where(w < _UNSURE * border, w.abs(), 0).sum(-1)
    rounding = eps(torch.float64) * w.abs().amax(-1) * torch.where(kept > 0, kept.rsqrt(), 0).sum(-1)
    return (V * kept.sqrt().unsqueeze(-2)) @ V.mH, unsure, rounding


def _inner(a: Tensor, b: Tensor) -> Tensor:
    return (a.conj() * b).real.flatten(1).sum(1)


def _trace(C: Tensor) -> Tensor:
    return C.diagonal(dim1=-2, dim2=-1).real.sum(-1)


def _nuclear(A: Tensor) -> Tensor:
    return torch.linalg.svdvals(A).sum(-1)


@dataclass(frozen=True)
class Statistics(Target):
    """`frechet_distance` of two covariances and means."""

    kinds: tuple[str, ...] = ("statistics",)

    def takes(self, X: Tensor) -> bool:
        n = X.shape[-1]
        return X.shape[-2] == 2 * n + 2 and all(torch.equal(C, C.mH) for C in (X[:, :n], X[:, n : 2 * n]))

    def code(self, options: dict[str, Any]) -> str:
        return "n = X.shape[-1]\nY = sg.frechet_distance(X[..., -2, :], X[..., :n, :], X[..., -1, :], X[..., n : 2 * n, :])"

    def judge(self, options: dict[str, Any], X: Tensor, outcome: Outcome, library: Any) -> Iterator[Check]:
        n, ulp, (Y,) = X.shape[-1], eps(X.dtype), outcome.outputs
        parts = (X[:, :n], X[:, n : 2 * n], X[:, -2:-1], X[:, -1:])
        fits = moderate(*parts)
        C1, C2, m1, m2 = (torch.where(fits[:, None, None], wide(part), 0) for part in parts)
        (F1, u1, r1), (F2, u2, r2) = root(C1, ulp), root(C2, ulp)
        overlap, gap = _nuclear(F1 @ F2), m1 - m2
        # An eigenvalue l that counts as zero, or not, changes the nuclear norm by at most (l |C|)^(1/2).
        t1, t2 = (_trace(C).clamp(min=0) for C in (C1, C2))
        unsure = 4 * ((u1 * t2).sqrt() + (u2 * t1).sqrt()) + LIMIT * (r1 * t2.sqrt() + r2 * t1.sqrt())
        size = _trace(C1).abs() + _trace(C2).abs() + _inner(m1, m1) + _inner(m2, m2)
        expected = (_inner(gap, gap) + _trace(C1) + _trace(C2) - 2 * overlap).clamp(min=0)
        bound = LIMIT * n * (ulp * expected + eps(torch.float64) * size) + unsure + smallest_normal(X.dtype)
        yield Check("value", torch.where(fits, ratio((wide(Y) - expected).abs(), bound), 0.0), Y, expected)
        yield Check("not negative", torch.where(wide(Y) >= 0, 0.0, torch.inf), Y)
        g, weight = wide(outcome.gradient), wide(cotangent(Y, 0))
        for part, C, name in ((g[:, :n], C1, "the first"), (g[:, n : 2 * n], C2, "the second")):
            slope = _trace(C) - overlap
            bound = LIMIT * n * (ulp * norm(part) * norm(C) + eps(torch.float64) * size) + unsure + smallest_normal(X.dtype)
            error = (_inner(part, C) - weight * slope).abs()
            sure = fits & torch.isfinite(norm(part) * norm(C))
            yield Check(f"gradient of {name} covariance", torch.where(sure, ratio(error, bound), 0.0), outcome.gradient)
        error = norm(g[:, -2:-1] - 2 * weight[:, None, None] * gap) + norm(g[:, -1:] + 2 * weight[:, None, None] * gap)
        bound = LIMIT * ulp * (norm(m1) + norm(m2)) + smallest_normal(X.dtype)
        yield Check("gradient of the means", torch.where(fits, ratio(error, bound), 0.0), outcome.gradient)


@dataclass(frozen=True)
class Samples(Target):
    """`frechet_distance_of` two sets of rows."""

    kinds: tuple[str, ...] = ("samples",)

    def takes(self, X: Tensor) -> bool:
        return X.shape[-2] >= 2

    def code(self, options: dict[str, Any]) -> str:
        return "m = (X.shape[-2] + 1) // 2\nY = sg.frechet_distance_of(X[..., :m, :], X[..., m:, :])"

    def judge(self, options: dict[str, Any], X: Tensor, outcome: Outcome, library: Any) -> Iterator[Check]:
        rows, (Y,), ulp = (X.shape[-2] + 1) // 2, outcome.outputs, eps(X.dtype)
        fits = moderate(X[:, :rows], X[:, rows:])
        sets = [torch.where(fits[:, None, None], wide(part), 0) for part in (X[:, :rows], X[:, rows:])]
        means = [x.mean(-2, keepdim=True) for x in sets]
        centred = [(x - m) / max(x.shape[-2] - 1, 1) ** 0.5 for x, m in zip(sets, means, strict=True)]
        overlap, gap = _nuclear(centred[0] @ centred[1].mH), means[0] - means[1]
        traces = [_inner(z, z) for z in centred]
        size = torch.stack([_inner(x, x) for x in sets]).sum(0)
        expected = (_inner(gap, gap) + traces[0] + traces[1] - 2 * overlap).clamp(min=0)
        tiny = LIMIT * X.shape[-1] * eps(torch.float64) * size
        # Where roots of covariances are taken, singular values below eps^(1/2) of the samples are lost.
        lost = LIMIT * X.shape[-1] * eps(torch.float64) ** 0.5 * (traces[0] * traces[1]).sqrt()
        bound = LIMIT * ulp * expected + tiny + lost + smallest_normal(X.dtype)
        yield Check("value", torch.where(fits, ratio((wide(Y) - expected).abs(), bound), 0.0), Y, expected)
        yield Check("not negative", torch.where(wide(Y) >= 0, 0.0, torch.inf), Y)
        g, weight = wide(outcome.gradient), wide(cotangent(Y, 0))
        for part, x, m, trace, sign, name in zip(
            (g[:, :rows], g[:, rows:]), sets, means, traces, (1, -1), ("first", "second"), strict=True
        ):
            sure = fits & torch.isfinite(norm(part))
            error = norm(part.sum(-2, keepdim=True) - 2 * sign * weight[:, None, None] * gap)
            bound = LIMIT * len(x[0]) * (ulp * norm(part) + eps(torch.float64) * norm(x)) + smallest_normal(X.dtype)
            yield Check(f"shift of the {name}", torch.where(sure, ratio(error, bound), 0.0), outcome.gradient)
            error = (_inner(part, x - m) - 2 * weight * (trace - overlap)).abs()
            bound = LIMIT * len(x[0]) * ulp * norm(part) * norm(x - m) + tiny + 2 * lost + smallest_normal(X.dtype)
            yield Check(f"gradient of the {name}", torch.where(sure, ratio(error, bound), 0.0), outcome.gradient)


@dataclass(frozen=True)
class Correlations(Target):
    """`cca_loss` of two views."""

    kinds: tuple[str, ...] = ("views",)

    def takes(self, X: Tensor) -> bool:
        return X.shape[-1] >= 2

    def options(self, X: Tensor, scale: float, r: random.Random) -> dict[str, Any]:
        return {"k": r.choice([None, 1]), "eps": r.choice(_SHIFTS)}

    def code(self, options: dict[str, Any]) -> str:
        return f"p = (X.shape[-1] + 1) // 2\nY = sg.cca_loss(X[..., :p], X[..., p:], k={options['k']}, eps={options['eps']})"

    def status(self, options: dict[str, Any], X: Tensor) -> Tensor:
        return torch.full((len(X),), WORKS if options["eps"] else MAY_RAISE)

    def judge(self, options: dict[str, Any], X: Tensor, outcome: Outcome, library: Any) -> Iterator[Check]:
        p, (Y,), shift = (X.shape[-1] + 1) // 2, outcome.outputs, options["eps"]
        views = [_View(part, shift) for part in (X[..., :p], X[..., p:])]
        x, y = views
        U, S, Vh = torch.linalg.svd(x.white.mH @ y.white, full_matrices=False)
        k = S.shape[-1] if options["k"] is None else options["k"]
        sure = x.varies & y.varies
        level = 1e3 * X.shape[-1] * (eps(X.dtype) + eps(torch.float64) / shift * (x.far + y.far))
        bound = level * (k + 1)
        yield Check("value", torch.where(sure, ratio((wide(Y) + S[:, :k].sum(-1)).abs(), bound), 0.0), Y, -S[:, :k].sum(-1))
        yield Check("range", torch.where((wide(Y) <= 0) & (wide(Y) >= -k * (1 + level)), 0.0, torch.inf), Y)
        apart = S[:, k - 1] - S[:, k] > _APART if k < S.shape[-1] else S[:, -1] > _APART  # else the rank may change
        P = -(U[..., :k] @ Vh[..., :k, :]) * wide(cotangent(Y, 0))[:, None, None]
        g = wide(outcome.gradient)
        for part, mine, other, Q, name in ((g[..., :p], x, y, P, "x"), (g[..., p:], y, x, P.mH, "y")):
            expected = mine.pullback(other.white @ Q.mH, shift)
            scale = torch.exp2(mine.exponent.double())
            good = sure & apart & moderate(X[..., :p], X[..., p:])
            bound = level * mine.steepest * norm(P) * (1 + norm(mine.centred)) / shift + smallest_normal(X.dtype) * scale
            error = norm(torch.where(good[:, None, None], part * scale[:, None, None] - expected, 0))
            yield Check(f"gradient of {name}", torch.where(good, ratio(error, bound), 0.0), part, expected)


class _View:
    """A view at scale 1: centred, whitened, and the way back from its whitened samples."""

    def __init__(self, X: Tensor, shift: float) -> None:
        Z, self.exponent = unit(X)
        N, p = Z.shape[-2:]
        self.divisor = max(N - 1, 1) ** 0.5
        self.centred = (Z - Z.mean(-2, keepdim=True)) / self.divisor
        variance = _inner(self.centred, self.centred) / p
        self.varies = variance > _CONSTANT**2
        variance = torch.where(self.varies, variance, 1)
        self.far = 1 / variance.sqrt()  # what centring multiplies rounding with
        C = hermitian(self.centred.mH @ self.centred) + (shift * variance)[:, None, None] * torch.eye(p)
        self.w, self.V = torch.linalg.eigh(C)
        self.root = (self.V * self.w.rsqrt().unsqueeze(-2)) @ self.V.mH
        self.white = self.centred @ self.root
        self.steepest = self.w[:, 0].rsqrt() * (1 + self.w[:, 0].reciprocal())

    def pullback(self, G: Tensor, shift: float) -> Tensor:
        """From the gradient G of the whitened samples (B, N, p) to that of the samples."""
        p = G.shape[-1]
        F = loewner(Power("positive", -0.5), self.w, None, None)
        inner = self.V @ (F * (self.V.mH @ hermitian(self.centred.mH @ G) @ self.V)) @ self.V.mH
        inner = inner + (shift / p * _trace(inner))[:, None, None] * torch.eye(p)
        g = G @ self.root + 2 * self.centred @ inner
        return (g - g.mean(-2, keepdim=True)) / self.divisor


SAMPLES: list[Target] = [Statistics("frechet_distance"), Samples("frechet_distance_of"), Correlations("cca_loss")]
