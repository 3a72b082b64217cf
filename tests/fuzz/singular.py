"""Functions of singular values, norms, the determinant and the generalized problem."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import references as ref
from .differences import Log, Sine
from .examine import MAY_RAISE, WORKS, Check, Outcome
from .functions import SINE, Function, size_of
from .numbers import LEVEL, LIMIT, cotangent, eps, largest, norm, ratio, shifted, spacing, unit, wide
from .targets import Eigh, Target, comparable, gradient_check, real, representable, separated, triplets

_ORDERS = (1.0, 1.5, 2.0, 3.0, 4.0)  # of Schatten norms


def _level(X: Tensor) -> float:
    return (LEVEL + LIMIT * max(X.shape[-2:])) * eps(X.dtype)


def _steepest(*coefficients: Tensor) -> Tensor:
    return torch.stack([c.abs().flatten(1).amax(1) for c in coefficients]).amax(0)


@dataclass(frozen=True)
class Svdvals(Target):
    """Singular values alone: dA = U diag(g) V^H, compared where no tie leaves the choice of U and V open."""

    kinds: tuple[str, ...] = ("general",)

    def code(self, options: dict[str, Any]) -> str:
        return "Y = sg.svdvals(X)"

    def judge(self, options: dict[str, Any], X: Tensor, outcome: Outcome, library: Any) -> Iterator[Check]:
        A, exponent = unit(X)
        (S,) = outcome.outputs
        fits, expected = representable(A, exponent, X.dtype), torch.linalg.svdvals(A)
        bound = LIMIT * max(X.shape[-2:]) * (eps(X.dtype) * expected[:, 0] + spacing(X.dtype, exponent))
        error = (shifted(wide(S), -exponent) - expected).abs().amax(-1)
        yield Check("value", torch.where(fits, ratio(error, bound), 0.0), S, expected)
        U, s, V = triplets(X, library, straight=True)
        g = wide(cotangent(S, 0))
        sure = fits & separated(s) & (s[:, -1] > 1e-3 * s[:, 0]) & comparable(X, s[:, 0])
        gradient = (U * g.unsqueeze(-2)) @ V.mH
        yield gradient_check("gradient", X, outcome.gradient, gradient, 1e3 * _level(X) * norm(g), sure)


@dataclass(frozen=True)
class SingularMap(Target):
    """U f(S) V^H (for `pinv` its adjoint), with f odd: f[s_i, s_j] for the Hermitian part, f[s_i, -s_j] for the skew one."""

    kinds: tuple[str, ...] = ("general",)
    inverse: bool = False

    def options(self, X: Tensor, scale: float, r: random.Random) -> dict[str, Any]:
        return {} if self.inverse else size_of(scale, r, 0.0)

    def code(self, options: dict[str, Any]) -> str:
        return "Y = sg.pinv(X)" if self.inverse else f"Y = sg.singular_map(X, {SINE.format(**options)})"

    def status(self, options: dict[str, Any], X: Tensor) -> Tensor:
        """An inverse that overflows may be refused."""
        A, exponent = unit(X)
        lowest = torch.linalg.svdvals(A)[:, -1]
        lowest = torch.where(lowest > eps(X.dtype) / 4, lowest, eps(X.dtype) / 4).log2() + exponent
        over = -lowest > torch.tensor(largest(X.dtype) / 4, dtype=torch.float64).log2()
        return torch.where(over & self.inverse, MAY_RAISE, WORKS)

    def judge(self, options: dict[str, Any], X: Tensor, outcome: Outcome, library: Any) -> Iterator[Check]:
        (Y,) = outcome.outputs
        U, S, V = triplets(X, library, straight=X.shape[-2] >= X.shape[-1])
        row, column = S.unsqueeze(-1), S.unsqueeze(-2)
        fits = representable(*unit(X), X.dtype)
        if self.inverse:  # of full rank for certain, and of a condition that float32 can bear
            H, W, y = -1 / (row * column), 1 / (row * column), 1 / S
            fits &= S[:, -1] > 8 * max(X.shape[-2:]) * eps(X.dtype) * S[:, 0]
            outside = 1 / S.square()
        else:
            f = Sine(size=options["size"])
            H, W, y = f.difference(row, column), f.difference(row, -column), f.f(S)
            outside = f.difference(S, -S)
        G = wide(cotangent(Y, 0))
        value = (U * y.unsqueeze(-2)) @ V.mH
        gradient = ref.map_pullback(U, V, H, W, outside, G.mH if self.inverse else G)
        fits &= comparable(X, S[:, 0], H, W, outside, y)
        bound = _level(X) * y.abs().amax(1) * S.shape[-1] ** 0.5
        yield gradient_check("value", X, Y, value.mH if self.inverse else value, bound, fits)
        bound = _level(X) * _steepest(H, W, outside) * norm(G)
        yield gradient_check("gradient", X, outcome.gradient, gradient, bound, fits)


@dataclass(frozen=True)
class Norm(Target):
    """(sum s^p)^(1/p), p = 1 for the nuclear one; dA = U diag((s / norm)^(p - 1)) V^H."""

    kinds: tuple[str, ...] = ("general",)
    nuclear: bool = False

    def options(self, X: Tensor, scale: float, r: random.Random) -> dict[str, Any]:
        return {"p": 1.0 if self.nuclear else r.choice(_ORDERS)}

    def code(self, options: dict[str, Any]) -> str:
        return "Y = sg.nuclear_norm(X)" if self.nuclear else f"Y = sg.schatten_norm(X, {options['p']!r})"

    def judge(self, options: dict[str, Any], X: Tensor, outcome: Outcome, library: Any) -> Iterator[Check]:
        A, exponent = unit(X)
        (Y,), p = outcome.outputs, options["p"]
        s = torch.linalg.svdvals(A)
        size = torch.where(s[:, :1] > 0, s[:, :1], 1)
        expected = size[:, 0] * (s / size).pow(p).sum(-1).pow(1 / p)
        fits = representable(A, exponent, X.dtype)
        fits &= expected.log2() + exponent < torch.tensor(largest(X.dtype), dtype=torch.float64).log2() - 0.01
        bound = _level(X) * s.sum(-1) + LIMIT * spacing(X.dtype, exponent) * len(s[0])
        error = (shifted(wide(Y), -exponent) - expected).abs()
        yield Check("value", torch.where(fits, ratio(error, bound), 0.0), Y, shifted(expected, exponent))
        U, S, V = triplets(X, library, straight=X.shape[-2] >= X.shape[-1])
        _, _, doubt = ref.inverse_sums(S, real(X.dtype), max(X.shape[-2:]))
        regular = S[:, -1] > 8 * max(X.shape[-2:]) * eps(X.dtype) * S[:, 0]
        slopes = (S / (S[:, :1] * (S / S[:, :1]).pow(p).sum(-1, keepdim=True).pow(1 / p))).pow(p - 1)
        g = wide(cotangent(Y, 0)).reshape(-1, 1)
        gradient = (U * (slopes * g).unsqueeze(-2)) @ V.mH
        sure = fits & ~doubt & regular & comparable(X, S[:, 0])
        yield gradient_check("gradient", X, outcome.gradient, gradient, _level(X) * norm(slopes * g), sure)


@dataclass(frozen=True)
class Logdet(Function):
    """log det M = sum log w, with gradient M^-1."""

    def judge(self, options: dict[str, Any], X: Tensor, outcome: Outcome, library: Any) -> Iterator[Check]:
        with torch.no_grad():
            w, V = (wide(x) for x in library.eigh(X))
        (Y,) = outcome.outputs
        fits = representable(*unit(X), X.dtype) & (w > 0).all(-1) & comparable(X, w[:, -1], 1 / w)
        logs = w.log()
        bound = _level(X) * logs.abs().sum(-1)
        error = torch.where(fits, (wide(Y).real - logs.sum(-1)).abs(), 0)
        yield Check("value", ratio(error, bound), Y, logs.sum(-1))
        g = wide(cotangent(Y, 0)).reshape(-1, 1)
        gradient = (V * (g.real / w).unsqueeze(-2)) @ V.mH
        yield gradient_check("gradient", X, outcome.gradient, gradient, _level(X) * (g.abs() / w).amax(-1), fits)


@dataclass(frozen=True)
class Generalized(Target):
    """A V = B V diag(w), V^H B V = I, with A hostile and B = I + t 11^T."""

    def options(self, X: Tensor, scale: float, r: random.Random) -> dict[str, Any]:
        return {"t": r.choice((0.0, 0.25, 4.0))}

    def code(self, options: dict[str, Any]) -> str:
        lines = f"B = torch.eye(X.shape[-1], dtype=X.dtype, device=X.device) + {options['t']!r}\n"
        return lines + "Y = tuple(sg.generalized_eigh(X, B.expand_as(X)))"

    def judge(self, options: dict[str, Any], X: Tensor, outcome: Outcome, library: Any) -> Iterator[Check]:
        A, exponent = unit(X)
        n, (w, V) = X.shape[-1], outcome.outputs
        B = torch.eye(n, dtype=A.dtype) + options["t"]
        x, U = shifted(wide(w), -exponent), wide(V)
        fits = representable(A * (1 + n * options["t"]), exponent, X.dtype)
        condition = 1 + n * options["t"]
        bound = LIMIT * n * condition * (eps(X.dtype) * torch.linalg.matrix_norm(A, 1) + spacing(X.dtype, exponent))
        residual = torch.linalg.matrix_norm(A @ U - B @ U * x.unsqueeze(-2), 1)
        yield Check("residual", torch.where(fits, ratio(residual, bound), 0.0), w)
        off = torch.linalg.matrix_norm(U.mH @ B @ U - torch.eye(n, dtype=A.dtype), 1)
        yield Check("orthogonality", ratio(off, torch.full_like(off, LIMIT * n * condition * eps(X.dtype))), V)
        K, doubt = ref.inverse_gaps("Lorentzian", wide(w), real(X.dtype))
        gw, gV = wide(cotangent(w, 0)), wide(cotangent(V, 1))
        expected = ref.eigh_pullback(U, K, gw, gV)
        sure = fits & ~doubt & comparable(X, wide(w).abs().amax(-1), K)
        bound = _level(X) * condition * (_steepest(K) * norm(gV) + norm(gw))
        yield gradient_check("gradient", X, outcome.gradient, expected, bound, sure)


SINGULAR: list[Target] = [
    Eigh("eigvalsh", vectors=False),
    Svdvals("svdvals"),
    SingularMap("singular_map"),
    SingularMap("pinv", inverse=True),
    Norm("nuclear_norm", nuclear=True),
    Norm("schatten_norm"),
    Logdet("logdet", template="sg.logdet(X)", scalar=Log("positive")),
    Generalized("generalized_eigh"),
]
