"""Spectral functions: V f(L) V^H and its gradient, given the eigenpairs found."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .differences import Exp, Log, Power, Scalar, Sine, loewner
from .examine import MAY_RAISE, MUST_RAISE, WORKS, Check, Outcome
from .numbers import LEVEL, LIMIT, cotangent, eps, hermitian, largest, norm, shifted, smallest_normal, spacing, unit, wide
from .targets import Target, comparable, gradient_check, representable

_DOUBT = 4  # times n eps l_max: an eigenvalue may be off by this, so that on which side of a border it lies is not sure
_SINGULAR = 0.25  # times eps l_max: an eigenvalue below this is zero to anyone
_NEGATIVE = 400.0  # times n eps l_max: an eigenvalue below minus this is negative to anyone
_ALPHAS = (-3.0, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0)
_FLOORS = (1e-3, 1e-5, 1e-10)


def is_diagonal(X: Tensor) -> Tensor:
    """Which matrices (B,) are diagonal: their eigenvalues are exact, and their gradient shows each difference alone."""
    off = X - torch.diag_embed(X.diagonal(dim1=-2, dim2=-1))
    return (off == 0).flatten(1).all(1).cpu()


def doubt(X: Tensor, w: Tensor) -> Tensor:
    """How far off (B, 1) an eigenvalue may be."""
    size = _DOUBT * X.shape[-1] * eps(X.dtype) * w.abs().amax(-1, keepdim=True)
    return torch.where(is_diagonal(X).unsqueeze(-1), 0.0, size)


@dataclass(frozen=True)
class Function(Target):
    """f by name, with its scalar; options may hold alpha, p, floor and size."""

    kinds: tuple[str, ...] = ("psd",)
    template: str = ""
    scalar: Scalar | Callable[[dict[str, Any]], Scalar] = field(default_factory=Scalar)  # or what makes it from the options
    draw: Callable[[float, random.Random, float], dict[str, Any]] | None = None

    def options(self, X: Tensor, scale: float, r: random.Random) -> dict[str, Any]:
        return {} if self.draw is None else self.draw(scale, r, smallest_normal(X.dtype))

    def function(self, options: dict[str, Any]) -> Scalar:
        return self.scalar if isinstance(self.scalar, Scalar) else self.scalar(options)

    def code(self, options: dict[str, Any]) -> str:
        return f"Y = {self.template.format(**options)}"

    def status(self, options: dict[str, Any], X: Tensor) -> Tensor:
        A, exponent = unit(X)
        scalar, floor = self.function(options), options.get("floor")
        x = torch.linalg.eigvalsh(A)
        w, off = shifted(x, exponent), doubt(X, x)
        top = x.abs().amax(-1)
        status = torch.full((len(X),), WORKS)
        if floor is None and scalar.domain == "positive":
            status[x[:, 0] <= _DOUBT * X.shape[-1] * eps(X.dtype) * top] = MAY_RAISE
            status[top * eps(X.dtype) * 2.0**exponent < smallest_normal(X.dtype)] = MAY_RAISE  # rounding to denormals
            status[x[:, 0] <= _SINGULAR * eps(X.dtype) * top - off[:, 0]] = MUST_RAISE
        if floor is None and scalar.domain == "not negative":
            status[x[:, 0] < -3 * X.shape[-1] * eps(X.dtype) * top] = MAY_RAISE
            clear = _NEGATIVE * X.shape[-1] * eps(X.dtype) * top + spacing(X.dtype, exponent)  # denormal: less is zero
            status[x[:, 0] < -clear] = MUST_RAISE
        low, high = (self._size(scalar, floor, w + sign * shifted(off, exponent)) for sign in (-1, 1))
        limit = largest(X.dtype)
        status[torch.maximum(low, high) > limit / 4] = MAY_RAISE
        status[torch.minimum(low, high) > limit * 4] = MUST_RAISE
        return status

    @staticmethod
    def _size(scalar: Scalar, floor: float | None, w: Tensor) -> Tensor:
        """max |f| (B,)."""
        c = w.clamp(min=floor) if floor is not None else w if scalar.domain == "all" else w.clamp(min=0)
        y = scalar.f(c).abs().nan_to_num(nan=torch.inf)
        return torch.where(c > 0, y, 0).amax(-1) if scalar.domain == "positive" else y.amax(-1)

    def judge(self, options: dict[str, Any], X: Tensor, outcome: Outcome, library: Any) -> Iterator[Check]:
        with torch.no_grad():
            w, V = (wide(x) for x in library.eigh(X))
        scalar, floor = self.function(options), options.get("floor")
        floor = None if floor is None else float(torch.tensor(floor, dtype=X.real.dtype))  # as the library rounds it
        top, off = w.abs().amax(-1, keepdim=True), doubt(X, w)
        fits = representable(*unit(X), X.dtype)
        null, unsure = None, torch.zeros(len(X), dtype=torch.bool)
        if floor is not None:
            unsure = ((w - floor).abs() <= off + eps(X.dtype) * abs(floor)).any(-1)
        elif scalar.domain == "not negative":
            steep = isinstance(scalar, Power) and 0 < scalar.alpha < 1
            null = w <= (_SINGULAR * eps(X.dtype) * top if steep else 0)
            if steep:
                unsure = (~null & (w < _DOUBT * X.shape[-1] * eps(X.dtype) * top)).any(-1)
            elif scalar.f(torch.zeros(())) == 0:  # finite slope at 0: nothing is left out of the gradient
                w, null = w.clamp(min=0), None
        F = loewner(scalar, w, floor, null)
        y = scalar.f(w if floor is None else w.clamp(min=floor))
        y = y if null is None else torch.where(null, scalar.f(torch.zeros_like(w)), y)
        sure = fits & ~unsure & torch.isfinite(y).all(-1) & comparable(X, top[..., 0], F)
        rounded = (F.diagonal(dim1=-2, dim2=-1) * w).abs().amax(-1)  # what rounding an eigenvalue changes f by, over eps
        yield from self._compare(
            X, outcome, V, y, F, sure, rounded, scalar.attainable(F, w), self._underflow(scalar, floor, w)
        )

    @staticmethod
    def _underflow(scalar: Scalar, floor: float | None, w: Tensor) -> Tensor:
        """In smallest normal numbers (B,): differences are taken where the steepest slope is 1, even if clamped away."""
        if floor is None:
            return torch.ones(len(w), dtype=w.dtype)
        c = w.clamp(min=floor)
        return scalar.difference(c, c).abs().amax(-1).clamp(min=1)

    def _compare(
        self,
        X: Tensor,
        outcome: Outcome,
        V: Tensor,
        y: Tensor,
        F: Tensor,
        sure: Tensor,
        rounded: Tensor,
        sizes: Tensor,
        tiny: Tensor,
    ) -> Iterator[Check]:
        """``sizes``: of each entry of F, to which its rounding is relative. ``tiny`` (B,): what may become 0 of F."""
        n, ulp = X.shape[-1], eps(X.dtype)
        (Y,) = outcome.outputs
        value = (V * y.unsqueeze(-2)) @ V.mH
        bound = (LEVEL + LIMIT * n) * ulp * (y.abs().amax(-1) + rounded.nan_to_num()) * n**0.5
        sized = sure & (y.abs().amax(-1) < largest(X.dtype) / 4)
        yield gradient_check("value", X, Y, value, bound, sized)
        G = hermitian(wide(cotangent(Y, 0)))
        expected = V @ (F * (V.mH @ G @ V)) @ V.mH
        bound = (LEVEL + LIMIT * n) * ulp * F.abs().flatten(1).amax(1) * norm(G)
        yield gradient_check("gradient", X, outcome.gradient, expected, bound, sure)
        alone = sure & is_diagonal(X) & ((V == 0) | (V.abs() == 1)).flatten(1).all(1)
        P, weights = V.abs(), wide(cotangent(Y, 0)).abs()  # their sizes, since G_ij + G_ji may cancel
        scale = P @ (sizes * (P.mT @ hermitian(weights) @ P)) @ P.mT
        apart = (wide(outcome.gradient) - expected).abs() / (
            LEVEL * ulp * scale + smallest_normal(X.dtype) * tiny.reshape(-1, 1, 1)
        )
        worst = torch.where(alone, apart.flatten(1).amax(1), 0.0)
        yield Check("gradient of a diagonal matrix", worst.nan_to_num(nan=torch.inf), outcome.gradient, expected)


# Options by the scale of the matrices and the smallest normal number.


def _alpha(scale: float, r: random.Random, tiny: float) -> dict[str, Any]:
    return {"alpha": r.choice(_ALPHAS) if r.random() < 0.5 else round(r.uniform(-3, 3), 2)}


def _power(options: dict[str, Any]) -> Scalar:
    alpha = options["alpha"]
    return Power("positive" if alpha < 0 else "not negative", alpha)


def size_of(scale: float, r: random.Random, tiny: float) -> dict[str, Any]:
    """Not so small that 1/size^2, a derivative of the user's own function, overflows float64, or 1/size its dtype."""
    return {"size": max(scale, 1e-150, 1e8 * tiny)}


def _order(scale: float, r: random.Random, tiny: float) -> dict[str, Any]:
    return {"p": r.randint(1, 8)}


def _with_floor(scale: float, r: random.Random, tiny: float) -> dict[str, Any]:
    relative = r.random() < 0.5
    return {"floor": float(f"{max(r.choice(_FLOORS) * (scale if relative else 1), 2 * tiny):.3g}")}


def _alpha_with_floor(scale: float, r: random.Random, tiny: float) -> dict[str, Any]:
    return _alpha(scale, r, tiny) | _with_floor(scale, r, tiny)


_INVERSE_ROOT = Power("positive", -0.5)
SINE = "lambda x: torch.sin(x / {size!r})"
FUNCTIONS = [
    Function("sqrtm", ("psd", "hermitian"), "sg.sqrtm(X)", Power("not negative", 0.5)),
    Function("sqrtm(floor)", ("psd",), "sg.sqrtm(X, floor={floor!r})", Power("positive", 0.5), _with_floor),
    Function("inv_sqrtm", ("psd", "hermitian"), "sg.inv_sqrtm(X)", _INVERSE_ROOT),
    Function("inv_sqrtm(floor)", ("psd",), "sg.inv_sqrtm(X, floor={floor!r})", _INVERSE_ROOT, _with_floor),
    Function("powm", ("psd",), "sg.powm(X, {alpha!r})", _power, _alpha),
    Function(
        "powm(floor)",
        ("psd",),
        "sg.powm(X, {alpha!r}, floor={floor!r})",
        _power,
        _alpha_with_floor,
    ),
    Function("logm", ("psd",), "sg.logm(X)", Log("positive")),
    Function("logm(floor)", ("psd", "hermitian"), "sg.logm(X, floor={floor!r})", Log("positive"), _with_floor),
    Function("expm", ("psd", "hermitian"), "sg.expm(X)", Exp()),
    Function(
        "spectral_map",
        ("psd", "hermitian"),
        f"sg.spectral_map(X, {SINE})",
        lambda o: Sine(size=o["size"]),
        size_of,
    ),
    Function(
        "inv_root",
        ("psd",),
        "sg.inv_root(X, {p})",
        lambda o: Power("positive", -1 / o["p"]),
        _order,
    ),
]
