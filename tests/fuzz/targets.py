"""What is called and what must hold: eigenpairs, singular triplets and what is made of them."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import references as ref
from .examine import WORKS, Check, Outcome
from .numbers import LEVEL, LIMIT, cotangent, eps, largest, norm, ratio, shifted, smallest_normal, spacing, unit, wide

_MARGIN = 1e3  # a result within this of the largest number may have overflowed on its way
_TORCH_GAP = 1e-3  # relative gaps from here on are torch.linalg's
_TORCH_ERROR = {torch.float32: 1e-6, torch.float64: 1e-10}  # what the default rule is off by there, at most


def real(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float32, torch.complex64) else torch.float64


def comparable(X: Tensor, top: Tensor, *coefficients: Tensor) -> Tensor:
    """Which matrices (B,) have a scale at which no eigenvalue and no coefficient of the gradient over- or underflows."""
    high, low = largest(X.dtype) / _MARGIN, smallest_normal(X.dtype)
    fits = (top < high) & (top * eps(X.dtype) > low)
    for c in coefficients:
        size = c.abs().flatten(1).amax(1) * c.shape[-1]
        fits &= torch.isfinite(size) & (size < high)
    return fits


def gradient_check(name: str, X: Tensor, got: Tensor, expected: Tensor, bound: Tensor, fits: Tensor) -> Check:
    """|got - expected| in the Frobenius norm against the bound, where the comparison makes sense."""
    bound = bound + X[0].numel() * smallest_normal(X.dtype)
    error = norm(torch.where(fits[:, None, None], wide(got) - expected, 0))
    return Check(name, torch.where(fits, ratio(error, bound), 0.0), got, expected)


@dataclass(frozen=True)
class Target:
    """A call, as lines of code that bind Y from X, and its promises."""

    name: str
    kinds: tuple[str, ...] = ("psd", "hermitian")
    # Y is what the library returned. Else operations of torch stand between, in which a second derivative may overflow.
    alone = True
    refusals = ("DefinitenessError", "NonFiniteError")  # errors that a matrix which may or must raise may raise

    def options(self, X: Tensor, scale: float, r: random.Random) -> dict[str, Any]:
        return {}

    def code(self, options: dict[str, Any]) -> str:
        raise NotImplementedError

    def takes(self, X: Tensor) -> bool:
        """Whether X (B, m, n) is still an input of this target: one that was made smaller may not be."""
        return True

    def once(self, X: Tensor) -> Tensor:
        """Of which matrices (B,) a finite gradient is promised."""
        return torch.full((len(X),), True)

    def twice(self, X: Tensor) -> Tensor:
        """Of which matrices (B,) a finite second derivative is promised."""
        return torch.full((len(X),), self.alone)

    def status(self, options: dict[str, Any], X: Tensor) -> Tensor:
        """WORKS, MAY_RAISE or MUST_RAISE of each matrix (B,)."""
        return torch.full((len(X),), WORKS)

    def judge(self, options: dict[str, Any], X: Tensor, outcome: Outcome, library: Any) -> Iterator[Check]:
        raise NotImplementedError


def orthogonality(name: str, U: Tensor) -> Check:
    """|U^H U - I| in the 1-norm against 30 n eps."""
    Q = wide(U)
    error = torch.linalg.matrix_norm(Q.mH @ Q - torch.eye(Q.shape[-1], dtype=Q.dtype), 1)
    return Check(name, ratio(error, torch.full_like(error, LIMIT * max(Q.shape[-2:]) * eps(U.dtype))))


def representable(A: Tensor, exponent: Tensor, dtype: torch.dtype) -> Tensor:
    """Whether (B,) the norm of 2^exponent A, and so every eigenvalue, is below the largest number."""
    top = torch.linalg.matrix_norm(A, 2).log2() + exponent
    return top < torch.tensor(largest(dtype), dtype=torch.float64).log2() - 0.01


def ordered(w: Tensor, descending: bool = False) -> Check:
    steps = wide(w).diff(dim=-1)
    bad = ((steps > 0) if descending else (steps < 0)).any(-1) | wide(w).isnan().any(-1)
    return Check("order", torch.where(bad, torch.inf, 0.0), w)


@dataclass(frozen=True)
class Eigh(Target):
    """Eigenpairs with a rule and a solver."""

    arguments: str = ""
    rule: str = "Lorentzian"
    vectors: bool = True

    def code(self, options: dict[str, Any]) -> str:
        if not self.vectors:
            return f"Y = sg.eigvalsh(X{self.arguments})"
        return f"Y = tuple(sg.eigh(X{self.arguments}))"

    def judge(self, options: dict[str, Any], X: Tensor, outcome: Outcome, library: Any) -> Iterator[Check]:
        A, exponent = unit(X)
        if self.vectors:
            w, V = outcome.outputs
        else:
            w, V = outcome.outputs[0], library.eigh(X)[1]
        n, ulp = X.shape[-1], eps(X.dtype)
        x, U = shifted(wide(w), -exponent), wide(V)
        fits = representable(A, exponent, X.dtype)
        bound = LIMIT * n * (ulp * torch.linalg.matrix_norm(A, 1) + spacing(X.dtype, exponent))
        residual = torch.linalg.matrix_norm(A @ U - U * x.unsqueeze(-2), 1)
        yield Check("residual", torch.where(fits, ratio(residual, bound), 0.0), w, torch.linalg.eigvalsh(A))
        yield ordered(w)
        if self.vectors:
            yield orthogonality("orthogonality", V)
        yield from self._gradients(X, outcome, wide(w), U, fits)

    def _gradients(self, X: Tensor, outcome: Outcome, w: Tensor, V: Tensor, fits: Tensor) -> Iterator[Check]:
        gw = wide(cotangent(outcome.outputs[0], 0))
        gV = wide(cotangent(outcome.outputs[1], 1)) if self.vectors else None
        for rule, name in ((self.rule, "gradient"), ("Exact", "gradient as torch's")):
            K, doubt = ref.inverse_gaps(rule, w, real(X.dtype))
            expected = ref.eigh_pullback(V, K, gw, gV)
            level = (LEVEL + LIMIT * X.shape[-1]) * eps(X.dtype)
            size = K.abs().flatten(1).amax(1) * (0 if gV is None else norm(gV))
            sure = fits & ~doubt & comparable(X, w.abs().amax(-1), K)
            if name != "gradient":
                level += _TORCH_ERROR[real(X.dtype)]
            if name != "gradient" or gV is None:  # without eigenvectors a tie leaves their choice open
                sure = sure & separated(w)
            yield gradient_check(name, X, outcome.gradient, expected, level * (size + norm(gw)), sure)


def separated(w: Tensor) -> Tensor:
    """Whether (B,) all relative gaps are ones at which every rule is torch's."""
    x = w.sort(-1).values
    return (x.diff(dim=-1) >= _TORCH_GAP * x.abs().amax(-1, keepdim=True)).all(-1)


@dataclass(frozen=True)
class Svd(Target):
    """Singular triplets: losses that do not depend on phases, of left, right and both vectors."""

    kinds: tuple[str, ...] = ("general",)
    arguments: str = ""
    rule: str = "Lorentzian"
    alone = False

    def code(self, options: dict[str, Any]) -> str:
        return (
            f"U, S, Vh = sg.svd(X{self.arguments})\n"
            "c = torch.arange(1, S.shape[-1] + 1).to(X) / S.shape[-1]\n"
            "Y = (S, (U * c) @ U.mH, (U * c) @ Vh, (Vh.mH * c) @ Vh)"
        )

    def judge(self, options: dict[str, Any], X: Tensor, outcome: Outcome, library: Any) -> Iterator[Check]:
        A, exponent = unit(X)
        U, S, V = outcome.names["U"], outcome.names["S"], outcome.names["Vh"].mH
        k, size = S.shape[-1], max(X.shape[-2:])
        fits = representable(A, exponent, X.dtype)
        s = shifted(wide(S), -exponent)
        bound = LIMIT * size * (eps(X.dtype) * torch.linalg.matrix_norm(A, 1) + k * spacing(X.dtype, exponent))
        residual = torch.linalg.matrix_norm(A - (wide(U) * s.unsqueeze(-2)) @ wide(V).mH, 1)
        yield Check("residual", torch.where(fits, ratio(residual, bound), 0.0), S, torch.linalg.svdvals(A))
        yield ordered(S, descending=True)
        yield orthogonality("orthogonality of U", U)
        yield orthogonality("orthogonality of V", V)
        yield from self._gradients(X, outcome, wide(U), wide(S), wide(V), fits)

    def _gradients(self, X: Tensor, outcome: Outcome, U: Tensor, S: Tensor, V: Tensor, fits: Tensor) -> Iterator[Check]:
        gS, G1, G2, G3 = (wide(cotangent(y, i)) for i, y in enumerate(outcome.outputs))
        k = S.shape[-1]
        c = torch.arange(1, k + 1, dtype=torch.float64) / k
        gU = ((G1 + G1.mH) @ U + G2 @ V) * c
        gV = ((G3 + G3.mH) @ V + G2.mH @ U) * c
        F, inverse, doubt = ref.inverse_sums(S, real(X.dtype), max(X.shape[-2:]))
        for rule, name in ((self.rule, "gradient"), ("Exact", "gradient as torch's")):
            D, near = ref.inverse_gaps(rule, S, real(X.dtype))
            expected = ref.svd_pullback(U, V, D, F, inverse, gU, gS, gV)
            level = (LEVEL + LIMIT * max(X.shape[-2:])) * eps(X.dtype)
            steepest = torch.stack([x.abs().flatten(1).amax(1) for x in (D, F, inverse)]).sum(0)
            sure = fits & ~doubt & ~near & comparable(X, S[..., 0], D, F, inverse)
            if name != "gradient":
                level += _TORCH_ERROR[real(X.dtype)]
                sure = sure & separated(S)
            bound = level * (steepest * (norm(gU) + norm(gV)) + norm(gS))
            yield gradient_check(name, X, outcome.gradient, expected, bound, sure)


@dataclass(frozen=True)
class Factors(Target):
    """U, S and Vh as they are, with weights that depend on phases: they and two derivatives are finite."""

    kinds: tuple[str, ...] = ("general",)
    arguments: str = ""

    def code(self, options: dict[str, Any]) -> str:
        return f"Y = tuple(sg.svd(X{self.arguments}))"

    def judge(self, options: dict[str, Any], X: Tensor, outcome: Outcome, library: Any) -> Iterator[Check]:
        return iter(())


@dataclass(frozen=True)
class Polar(Target):
    """The polar factor, by itself or as U @ Vh of `svd`: no gap counts, only sums of singular values."""

    kinds: tuple[str, ...] = ("general",)
    lines: str = "Y = sg.polar(X)"
    rule: str | None = None  # of the svd it goes through, whose gaps must cancel to rounding

    @property
    def alone(self) -> bool:  # type: ignore[override]
        return self.rule is None

    def code(self, options: dict[str, Any]) -> str:
        return self.lines

    def judge(self, options: dict[str, Any], X: Tensor, outcome: Outcome, library: Any) -> Iterator[Check]:
        A, exponent = unit(X)
        (Q,) = outcome.outputs
        tall = X.shape[-2] >= X.shape[-1]
        yield orthogonality("orthogonality", Q if tall else Q.mH)
        H = wide(Q).mH @ A if tall else A @ wide(Q).mH
        bound = 4 * LIMIT * max(X.shape[-2:]) * eps(X.dtype) * torch.linalg.matrix_norm(A, 1)  # residual, U, V, both sides
        yield Check("Q^H A is Hermitian", ratio(torch.linalg.matrix_norm(H - H.mH, 1), bound), Q)
        U, S, V = triplets(X, library, straight=tall or self.rule is not None)
        F, inverse, doubt = ref.inverse_sums(S, real(X.dtype), max(X.shape[-2:]))
        G = wide(cotangent(Q, 0))
        expected = ref.map_pullback(U, V, torch.zeros_like(F), 2 * F, inverse, G)
        steepest = 2 * F.abs().flatten(1).amax(1) + inverse.abs().amax(1)
        if self.rule is not None:
            steepest = steepest + ref.inverse_gaps(self.rule, S, real(X.dtype))[0].abs().flatten(1).amax(1)
        sure = ~doubt & representable(A, exponent, X.dtype) & comparable(X, S[..., 0], F, inverse)
        level = (LEVEL + LIMIT * max(X.shape[-2:])) * eps(X.dtype)
        yield gradient_check("gradient", X, outcome.gradient, expected, level * steepest * norm(G), sure)


def triplets(X: Tensor, library: Any, straight: bool) -> tuple[Tensor, Tensor, Tensor]:
    """U, S, V as found, of X itself or by way of its adjoint."""
    with torch.no_grad():
        U, S, Vh = library.svd(X if straight else X.mH)
    U, S, V = wide(U), wide(S), wide(Vh).mH
    return (U, S, V) if straight else (V, S, U)


@dataclass(frozen=True)
class Projector(Target):
    """U_k U_k^H: ties on one side of the cut never matter."""

    def options(self, X: Tensor, scale: float, r: random.Random) -> dict[str, Any]:
        return {"rank": r.randint(1, X.shape[-1])}

    def code(self, options: dict[str, Any]) -> str:
        return f"Y = sg.projector(X, rank={options['rank']})"

    def judge(self, options: dict[str, Any], X: Tensor, outcome: Outcome, library: Any) -> Iterator[Check]:
        A, exponent = unit(X)
        (P,) = outcome.outputs
        Q, n = wide(P), X.shape[-1]
        bound = LIMIT * n * eps(X.dtype) * torch.ones(len(X), dtype=torch.float64)
        trace = (Q.diagonal(dim1=-2, dim2=-1).sum(-1) - options["rank"]).abs()
        yield Check("idempotent", ratio(torch.linalg.matrix_norm(Q @ Q - Q, 1) + trace, bound), P)
        commutator = torch.linalg.matrix_norm(A @ Q - Q @ A, 1)
        yield Check("commutes", ratio(commutator, 2 * bound * torch.linalg.matrix_norm(A, 1)), P)
        with torch.no_grad():
            w, V = (wide(x) for x in library.eigh(X))
        K, doubt = ref.inverse_gaps("Lorentzian", w, real(X.dtype))
        kept = torch.arange(n) >= n - options["rank"]
        F = torch.where(kept.unsqueeze(-1) != kept.unsqueeze(-2), K.abs(), 0)
        G = wide(cotangent(P, 0))
        expected = V @ (F * (V.mH @ ((G + G.mH) / 2) @ V)) @ V.mH
        level = (LEVEL + LIMIT * n) * eps(X.dtype)
        sure = ~doubt & representable(A, exponent, X.dtype) & comparable(X, w.abs().amax(-1), F)
        bound = level * F.flatten(1).amax(1) * norm(G)
        yield gradient_check("gradient", X, outcome.gradient, expected, bound, sure)
