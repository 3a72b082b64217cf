"""Geometry of positive definite matrices: values against formulas in float64, gradients by what they must satisfy.

Where a function has a symmetry its gradient obeys an equation that no eigenvalue enters. For W the weight of the output,

    geodesic, mean of A and B:   <gA, A> = (1 - t) <W, G>,  <gB, B> = t <W, G>     (of c A: c^(1 - t) G; Bures: the sum)
    distance^2:                  affine, logeuclid <gA, A> = 2 tr N,  <gB, B> = -2 tr N;   Bures tr A - tr (A B)^(1/2)
    affine, congruent by K:      <gA, K A + A K^H> + <gB, K B + B K^H> = <W, K G + G K^H>  (distances: 0)

Of A = 2^a A' and B = 2^b B' the affine and log-Euclidean functions are 2^((1 - t) a + t b) times those of A' and B'.
"""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .differences import Log, loewner
from .examine import MAY_RAISE, MUST_RAISE, WORKS, Check, Outcome
from .numbers import LIMIT, cotangent, eps, hermitian, norm, ratio, smallest_normal, spacing, unit, wide
from .targets import Target, real

_SINGULAR = 0.25  # times eps l_max: an eigenvalue below this is zero to anyone
_DOUBT = 8  # times n eps l_max: one above this is not
_HARD = {torch.float32: 1e5, torch.float64: 1e8}  # condition numbers beyond which a Bures mean may not converge
_LOST = 0.01  # where rounding, as bounded here, is more than this, nothing is compared
_MODERATE = {torch.float32: 30, torch.float64: 240}  # |log2| of scales at which no result leaves the range
_ROUNDING = 52  # log2 of a condition number beyond which a matrix is singular
_END, _LAST = 1011, 1020  # docs/spd.md: the exponents up to which slopes are exact, and finite
_POSITIONS = (0.0, 0.25, 0.5, 1.0)


@dataclass(frozen=True)
class _Pair:
    """A and B at scale 1 in double precision, their exponents, and their roots, logarithms and condition numbers."""

    A: Tensor
    B: Tensor
    a: Tensor
    b: Tensor

    @classmethod
    def of(cls, X: Tensor) -> "_Pair":
        n = X.shape[-1]
        (A, a), (B, b) = unit(X[:, :n]), unit(X[:, n:])
        return cls(A, B, a.double(), b.double())

    def conditions(self) -> tuple[Tensor, Tensor]:
        spectra = (torch.linalg.eigvalsh(finite_or_identity(M)) for M in (self.A, self.B))
        return tuple(w[:, -1] / w[:, 0].clamp(min=1e-300) for w in spectra)  # type: ignore[return-value]


def finite_or_identity(M: Tensor) -> Tensor:
    """M (B, n, n) with the identity for members of which a scale made Inf."""
    finite = torch.isfinite(M).flatten(1).all(1)
    return torch.where(finite[:, None, None], M, torch.eye(M.shape[-1], dtype=M.dtype))


def function(X: Tensor, f: Any) -> Tensor:
    w, V = torch.linalg.eigh(X)
    return (V * f(w.clamp(min=1e-300)).unsqueeze(-2)) @ V.mH


def _inner(a: Tensor, b: Tensor) -> Tensor:
    return (a.conj() * b).real.flatten(1).sum(1)


def _turned(p: _Pair) -> tuple[Tensor, Tensor, Tensor]:
    """Roots of A' and of B' at one scale (B,), and the root of B' that faces that of A'."""
    k = torch.maximum(p.a, p.b)
    a = function(p.A, torch.sqrt) * torch.exp2((p.a - k) / 2)[:, None, None]
    b = function(p.B, torch.sqrt) * torch.exp2((p.b - k) / 2)[:, None, None]
    U, _, Vh = torch.linalg.svd(b @ a)
    return a, b @ U @ Vh, k


@dataclass(frozen=True)
class Definite(Target):
    """What the functions of two positive definite matrices share."""

    kinds: tuple[str, ...] = ("pairs",)
    metric: str = "affine"
    semi = False  # whether semi-definite matrices are welcome

    refusals = ("DefinitenessError", "NonFiniteError", "ConvergenceError")

    def takes(self, X: Tensor) -> bool:
        n = X.shape[-1]
        return X.shape[-2] == 2 * n and all(torch.equal(part, part.mH) for part in (X[:, :n], X[:, n:]))

    def status(self, options: dict[str, Any], X: Tensor) -> Tensor:
        n, ulp = X.shape[-1], eps(X.dtype)
        status = torch.full((len(X),), WORKS)
        for part in (X[:, :n], X[:, n:]):
            A, exponent = unit(part)
            finite = torch.isfinite(A).flatten(1).all(1)  # a scale may have made Inf of an entry
            w = torch.linalg.eigvalsh(finite_or_identity(A))
            lowest, top = w[:, 0], w.abs().amax(-1)
            status[~finite] = MUST_RAISE
            denormal = spacing(X.dtype, exponent) > ulp * top / 4  # what is left of such a matrix may be indefinite
            if self.semi:
                status[((lowest < -_DOUBT * n * ulp * top) | denormal) & (status == WORKS)] = MAY_RAISE
                continue
            status[((lowest <= _DOUBT * n * ulp * top) | denormal) & (status == WORKS)] = MAY_RAISE
            status[(lowest <= _SINGULAR * ulp * top - 4 * n * ulp * top) & ~denormal] = MUST_RAISE
        return status

    def _reach(self, X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """log2 of the largest and of the smallest eigenvalue of A and B, and of what condition numbers make of slopes."""
        p = _Pair.of(X)
        tops, conditions = torch.stack([p.a, p.b]), torch.stack(p.conditions()).log2().clamp(max=_ROUNDING)
        return tops.amax(0), (tops - conditions).amin(0), 2 * conditions.sum(0)

    def once(self, X: Tensor) -> Tensor:
        highest, _, steeper = self._reach(X)
        return (real(X.dtype) == torch.float32) | (highest.clamp(max=_END) + steeper <= _LAST)

    def twice(self, X: Tensor) -> Tensor:
        """Of "bures" they are of size (l_max / l_min)^(1/2) / l_min, which must be in range."""
        highest, lowest, steeper = self._reach(X)
        size = (highest - 3 * lowest) / 2 if self.metric == "bures" else (-lowest).clamp(max=_END)
        return self.once(X) & ((real(X.dtype) == torch.float32) | (size + steeper <= _LAST))

    def rounding(self, X: Tensor, p: _Pair) -> Tensor:
        """What rounding in double precision may change (B,), relative to the result or in logarithms."""
        kA, kB = p.conditions()
        n = X.shape[-1]
        lost = {"affine": kA * kB, "logeuclid": kA + kB, "bures": (kA + kB).sqrt() if self.semi else kA + kB}[self.metric]
        return LIMIT * n * eps(torch.float64) * lost

    def moderate(self, X: Tensor, p: _Pair) -> Tensor:
        limit = _MODERATE[X.real.dtype]
        return (p.a.abs() <= limit) & (p.b.abs() <= limit)


@dataclass(frozen=True)
class Distance(Definite):
    squared: bool = True

    @property
    def semi(self) -> bool:  # type: ignore[override]
        return self.metric == "bures"

    def code(self, options: dict[str, Any]) -> str:
        return f'n = X.shape[-1]\nY = sg.spd.distance(X[..., :n, :], X[..., n:, :], "{self.metric}", squared={self.squared})'

    def judge(self, options: dict[str, Any], X: Tensor, outcome: Outcome, library: Any) -> Iterator[Check]:
        p, (Y,), n = _Pair.of(X), outcome.outputs, X.shape[-1]
        logs = torch.log(torch.tensor(2.0, dtype=torch.float64)) * (p.b - p.a)
        lost, scale = self.rounding(X, p), torch.ones(len(X), dtype=torch.float64)
        if self.metric == "affine":
            P = function(p.A, torch.rsqrt)
            N = -(torch.linalg.eigvalsh(hermitian(P @ p.B @ P)).clamp(min=1e-300).log() + logs.unsqueeze(-1))
            N, size = torch.diag_embed(N), torch.ones_like(scale)
        elif self.metric == "logeuclid":
            N = function(p.A, torch.log) - function(p.B, torch.log) - logs[:, None, None] * torch.eye(n)
            size = 1 + math.log(2) * (p.a.abs() + p.b.abs())  # of what is subtracted, the logarithms of both
        else:
            root, facing, k = _turned(p)
            N, scale, size = root - facing, torch.exp2(k), norm(root) + norm(facing)
        d = norm(N)
        fits = self.moderate(X, p) & (lost < _LOST)
        off = lost * size + 4 * eps(X.dtype) * (d + LIMIT * n * eps(torch.float64) * size)
        got = wide(Y) / scale if self.squared else wide(Y) / scale.sqrt()
        expected = d.square() if self.squared else d
        bound = off * (2 * d + off) if self.squared else off
        bound = bound + smallest_normal(X.dtype)
        # What does not differ beyond rounding has the distance 0.
        error = torch.minimum((got - expected).abs(), torch.where(d <= off, got.abs(), torch.inf))
        yield Check("value", torch.where(fits, ratio(error, bound), 0.0), Y, expected)
        yield Check("not negative", torch.where(wide(Y) >= 0, 0.0, torch.inf), Y)
        regular = LIMIT * n * eps(torch.float64) * sum(p.conditions()) < _LOST  # else what counts as zero decides
        yield from self._gradients(X, outcome, p, N, d, scale, fits & regular & (d > 8 * off / _LOST))

    def _gradients(
        self, X: Tensor, outcome: Outcome, p: _Pair, N: Tensor, d: Tensor, scale: Tensor, fits: Tensor
    ) -> Iterator[Check]:
        n, g, weight = X.shape[-1], wide(outcome.gradient), wide(cotangent(outcome.outputs[0], 0))
        parts = [(g[:, :n], wide(X)[:, :n], 1.0), (g[:, n:], wide(X)[:, n:], -1.0)]
        inside = torch.ones_like(d) if self.squared else 1 / (2 * torch.where(d > 0, d, 1))
        for (gradient, M, sign), name in zip(parts, ("A", "B"), strict=True):
            if self.metric == "bures":
                root, facing, _ = _turned(p)
                own = root if name == "A" else facing
                expected = (_inner(own, own) - _inner(root, facing)) * inside
                expected = expected * (scale if self.squared else scale.sqrt())
            else:
                expected = 2 * sign * N.diagonal(dim1=-2, dim2=-1).real.sum(-1) * inside
            size = norm(gradient) * norm(M) + expected.abs()
            bound = (4 * LIMIT * n * eps(X.dtype) + 16 * self.rounding(X, p) / torch.where(d > 0, d, 1).clamp(max=1)) * size
            error = (_inner(gradient, M) - weight * expected).abs()
            yield Check(f"gradient for {name}", torch.where(fits, ratio(error, bound), 0.0), outcome.gradient, expected)


@dataclass(frozen=True)
class Between(Definite):
    """`geodesic`, and the mean of A, B and A again, which is a point of it.

    The second A is a constant: torch adds what comes back from two places, and of largest numbers that makes Inf. By
    symmetry its gradient is that of the first.
    """

    of_three: bool = False

    @property
    def semi(self) -> bool:  # type: ignore[override]
        return self.metric == "bures" and not self.of_three

    def options(self, X: Tensor, scale: float, r: random.Random) -> dict[str, Any]:
        return {"t": r.choice(_POSITIONS)}

    def code(self, options: dict[str, Any]) -> str:
        t, lines = options["t"], "n = X.shape[-1]\nA, B = X[..., :n, :], X[..., n:, :]\n"
        if not self.of_three:
            return lines + f'Y = sg.spd.geodesic(A, B, {t}, "{self.metric}")'
        weights = f"torch.tensor([{1 - t}, {2 * t}, {1 - t}], dtype=X.real.dtype, device=X.device)"
        return lines + f'Y = sg.spd.mean(torch.stack([A, B, A.detach()], -3), {weights}, "{self.metric}")'

    def status(self, options: dict[str, Any], X: Tensor) -> Tensor:
        status = super().status(options, X)
        if self.of_three and self.metric == "bures":
            p = _Pair.of(X)
            hard = torch.maximum(*p.conditions()) * torch.exp2((p.a - p.b).abs()) > _HARD[X.real.dtype]
            status[hard & (status == WORKS)] = MAY_RAISE
        if self.of_three and self.metric == "affine":  # B relative to A has the product of both
            lost = math.prod(_Pair.of(X).conditions()) * X.shape[-1] * eps(torch.float64) > 1
            status[lost & (status == WORKS)] = MAY_RAISE
        return status

    def judge(self, options: dict[str, Any], X: Tensor, outcome: Outcome, library: Any) -> Iterator[Check]:
        p, (Y,), n, t = _Pair.of(X), outcome.outputs, X.shape[-1], options["t"]
        k = (1 - t) * p.a + t * p.b
        if self.metric == "affine":
            root, P = function(p.A, torch.sqrt), function(p.A, torch.rsqrt)
            expected = root @ function(hermitian(P @ p.B @ P), lambda w: w.pow(t)) @ root
        elif self.metric == "logeuclid":
            expected = torch.linalg.matrix_exp((1 - t) * function(p.A, torch.log) + t * function(p.B, torch.log))
        else:
            root, facing, k = _turned(p)
            half = (1 - t) * root + t * facing
            expected = half @ half.mH
        lost = self.rounding(X, p)
        fits = self.moderate(X, p) & (lost < _LOST)
        got = wide(Y) * torch.exp2(-torch.where(fits, k, 0))[:, None, None]
        bound = (LIMIT * n * eps(X.dtype) + lost) * norm(expected) + smallest_normal(X.dtype) * torch.exp2(-k).clamp(
            max=1e300
        )
        yield Check("value", torch.where(fits, ratio(norm(got - expected), bound), 0.0), Y, expected)
        yield from self._gradients(X, outcome, p, t, fits, lost)

    def _gradients(self, X: Tensor, outcome: Outcome, p: _Pair, t: float, fits: Tensor, lost: Tensor) -> Iterator[Check]:
        (Y,), n = outcome.outputs, X.shape[-1]
        W, G = hermitian(wide(cotangent(Y, 0))), wide(Y)
        g, M = wide(outcome.gradient), wide(X)
        gA, gB, A, B = g[:, :n] * (2 if self.of_three else 1), g[:, n:], M[:, :n], M[:, n:]
        size = norm(W) * norm(G) + norm(gA) * norm(A) + norm(gB) * norm(B)
        bound = (8 * LIMIT * n * eps(X.dtype) + 8 * lost) * size + 1e3 * smallest_normal(X.dtype)
        fits = fits & torch.isfinite(size)
        along, whole = (_inner(gA, A), _inner(gB, B)), _inner(W, G)
        if self.metric == "bures":
            error = (along[0] + along[1] - whole).abs()
        else:
            error = torch.maximum((along[0] - (1 - t) * whole).abs(), (along[1] - t * whole).abs())
        yield Check("gradient", torch.where(fits, ratio(error, bound), 0.0), outcome.gradient)
        if self.metric == "affine":
            K = wide(cotangent(Y, 7)) / n
            moved = sum(_inner(gradient, K @ Z + Z @ K.mH) for gradient, Z in ((gA, A), (gB, B)))
            error = (moved - _inner(W, K @ G + G @ K.mH)).abs()
            yield Check("gradient, congruent", torch.where(fits, ratio(error, 2 * bound * norm(K)), 0.0), outcome.gradient)


@dataclass(frozen=True)
class Transport(Definite):
    """Of T, A with some entries made smaller, from A to B: by T, or by A and B, so that torch has nothing to add.

    The log-Euclidean one by T alone: A and B would need more.
    """

    def options(self, X: Tensor, scale: float, r: random.Random) -> dict[str, Any]:
        return {"by": r.choice(("T", "ends")) if self.metric == "affine" else "T"}

    def code(self, options: dict[str, Any]) -> str:
        tangent, ends = ("", ".detach()") if options["by"] == "T" else (".detach()", "")
        return (
            "n = X.shape[-1]\ni = torch.arange(n, device=X.device)\n"
            f"T = X[..., :n, :]{tangent} * torch.cos((i[:, None] - i).to(X.real.dtype))\n"
            f'Y = sg.spd.transport(T, X[..., :n, :]{ends}, X[..., n:, :]{ends}, "{self.metric}")'
        )

    def judge(self, options: dict[str, Any], X: Tensor, outcome: Outcome, library: Any) -> Iterator[Check]:
        p, (Y,), n = _Pair.of(X), outcome.outputs, X.shape[-1]
        i = torch.arange(n, dtype=torch.float64)
        T = p.A * torch.cos(i[:, None] - i)
        if self.metric == "affine":
            root, P = function(p.A, torch.sqrt), function(p.A, torch.rsqrt)
            E = root @ function(hermitian(P @ p.B @ P), torch.sqrt) @ P
            expected, size = E @ T @ E.mH, norm(E) ** 2 * norm(T)
        else:
            (w, V), (u, Q) = torch.linalg.eigh(p.A), torch.linalg.eigh(p.B)
            F, H = (loewner(Log(), x.clamp(min=1e-300), None, None) for x in (w, u))
            inner = V @ (F * (V.mH @ T @ V)) @ V.mH
            expected, size = Q @ ((Q.mH @ inner @ Q) / H) @ Q.mH, norm(inner)
        lost = self.rounding(X, p)
        fits = self.moderate(X, p) & (lost < _LOST)
        got = wide(Y) * torch.exp2(-torch.where(fits, p.b, 0))[:, None, None]
        bound = (LIMIT * n * eps(X.dtype) + lost) * size + smallest_normal(X.dtype) * torch.exp2(-p.b).clamp(max=1e300)
        yield Check("value", torch.where(fits, ratio(norm(got - expected), bound), 0.0), Y, expected)
        W, g = hermitian(wide(cotangent(Y, 0))), wide(outcome.gradient)
        along = [_inner(part, M) for part, M in zip((g[:, :n], g[:, n:]), (wide(X)[:, :n], wide(X)[:, n:]), strict=True)]
        whole = _inner(W, wide(Y))  # of c T: c times it; of c A: 1 / c times it; of c B: c times it
        expected_along = (whole, whole * 0) if options["by"] == "T" else (-whole, whole)
        total = (
            norm(W) * size * torch.exp2(p.b) + norm(g[:, :n]) * norm(wide(X)[:, :n]) + norm(g[:, n:]) * norm(wide(X)[:, n:])
        )
        bound = (8 * LIMIT * n * eps(X.dtype) + 8 * lost) * total + 1e3 * smallest_normal(X.dtype)
        error = torch.stack([(x - y).abs() for x, y in zip(along, expected_along, strict=True)]).amax(0)
        yield Check("gradient", torch.where(fits & torch.isfinite(total), ratio(error, bound), 0.0), outcome.gradient)


_METRICS = ("affine", "logeuclid", "bures")
DEFINITE: list[Target] = [
    *(Distance(f"spd.distance({metric})", metric=metric, squared=False) for metric in _METRICS),
    *(Distance(f"spd.distance({metric}, squared)", metric=metric) for metric in _METRICS),
    *(Between(f"spd.geodesic({metric})", metric=metric) for metric in _METRICS),
    *(Between(f"spd.mean({metric})", metric=metric, of_three=True) for metric in _METRICS),
    *(Transport(f"spd.transport({metric})", metric=metric) for metric in _METRICS[:2]),
]
