"""A user's function f of a spectrum, as nodes: what `spectral_map` and `singular_map` share.

Unlike the fixed functions of calculus.py, f may depend on tensors of its own. So y = f(spectrum), and where those tensors
need gradients the first divided differences L too, are computed outside the nodes below by ordinary operations,
through which autograd finds the way to them. A `Frame` says how y and L make a matrix:

    f(M)      = matrix(y)              diagonal: its adjoint, the cotangent of y
    D1(M)[E]  = weigh(L, E)            products: <G, weigh(L, E)> = <L, products(E, G)>
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from spectralgrad.context import compiling, is_constant, is_transformed, readable
from spectralgrad.errors import NonFiniteError, OptionError, ShapeError

from .calculus import AnyScale, Factors, carried, derivative
from .elementwise import Elementwise, require_elementwise
from .node import Some, Step, added, last, run, run_again


@dataclass(frozen=True)
class Frame(AnyScale):
    """A factorisation in which f acts on numbers. Factors: the spectrum (*B, k), the handle (calculus.py), others."""

    who: str
    function: Elementwise

    handle = 1

    @abstractmethod
    def factor(self, M: Tensor) -> Factors:
        """The factors of M."""

    @abstractmethod
    def matrix(self, factors: Factors, y: Tensor) -> Tensor:
        """The matrix with y (*B, k) in the place of the spectrum."""

    @abstractmethod
    def diagonal(self, factors: Factors, G: Tensor) -> Tensor:
        """The adjoint of `matrix`: (*B, k)."""

    @abstractmethod
    def differences(self, spectrum: Tensor) -> Tensor:
        """L, the first divided differences that D1 needs; at most one for each pair of numbers."""

    @abstractmethod
    def weigh(self, factors: Factors, L: Tensor, E: Tensor) -> Tensor:
        """D1[E] for these differences."""

    @abstractmethod
    def products(self, factors: Factors, E: Tensor, G: Tensor) -> Tensor:
        """The derivative of <G, weigh(L, E)> by L."""

    @abstractmethod
    def second(self, factors: Factors, E1: Tensor, E2: Tensor) -> Tensor:
        """D2[E1, E2]."""

    def first(self, factors: Factors, E: Tensor) -> Tensor:
        """D1[E]."""
        return self.weigh(factors, self.differences(factors[0]), E)

    def value(self, M: Tensor) -> Factors:
        factors = self.factor(M)
        return self.matrix(factors, applied(self.who, self.function, factors[0], self.tolerance)), *factors


def mapped(frame: Frame, M: Tensor) -> tuple[Tensor, Tensor]:
    """f(M), differentiable twice by M and by what f closes over, and the spectrum."""
    factors, tolerance = run(_Factorise(frame), M), frame.tolerance
    spectrum = factors[0]
    y = applied(frame.who, frame.function, spectrum, tolerance)
    if tolerance is not None and not is_constant(M):
        require_elementwise(frame.who, frame.function, readable(spectrum), readable(y))
    L = frame.differences(spectrum) if spectrum.numel() and _has_tensors_of_its_own(y) else None
    return run(_Combine(frame), y, L, *factors), spectrum


def applied(who: str, function: Elementwise, spectrum: Tensor, tolerance: float | None) -> Tensor:
    """f of a spectrum (*B, k), or the error that says what is wrong with f."""
    found = readable(spectrum)
    if found is not None:
        function.require_or_count(who, found.detach(), tolerance)
    y = function.f(function.clamp(spectrum)[0])
    if not isinstance(y, Tensor) or not y.is_floating_point():
        raise OptionError(
            f"`{who}`: f must return a real floating-point tensor, got "
            f"{y.dtype if isinstance(y, Tensor) else type(y).__name__}. Use torch operations in f."
        )
    if y.shape != spectrum.shape:
        raise ShapeError(
            f"`{who}`: f must act on each number alone, but turned shape {tuple(spectrum.shape)} into {tuple(y.shape)}."
        )
    if tolerance is not None and not is_transformed(y) and not bool(torch.isfinite(y).all()):
        bad = spectrum.detach()[~torch.isfinite(y)]
        kind, remedy = ("eigenvalue", "Pass floor= to clamp the eigenvalues, or add a multiple of the identity.")
        if who == "singular_map":
            kind, remedy = ("singular value", "Scale A down, use float64, or take an f that is finite there.")
        raise NonFiniteError(
            f"`{who}`: f must be finite at every {kind}, but is NaN or Inf at {len(bad)} of {spectrum.numel()}, the "
            f"first {float(bad[0]):.6g}. {remedy}"
        )
    return y.to(spectrum.dtype)


def _has_tensors_of_its_own(y: Tensor) -> bool:
    """Whether y = f(spectrum) depends on something differentiable; the spectrum, a factor, carries no gradient itself."""
    if compiling():
        return y.requires_grad
    return y.requires_grad or is_transformed(y) or torch.autograd.forward_ad.unpack_dual(y).tangent is not None


@dataclass(frozen=True)
class _Factorise(Step):
    """M -> its factors, of which the handle carries M's differential (calculus.py)."""

    frame: Frame

    kept_inputs = slice(0)

    @property
    def constants(self) -> tuple[int, ...]:  # type: ignore[override]
        return tuple(i - 1 for i in self.frame.constants)

    def value(self, M: Tensor) -> Factors:
        return self.frame.factor(M)

    def pull(self, kept: Some, grads: Some, needed: Sequence[bool]) -> Some:
        return (grads[self.frame.handle],)

    def push(self, kept: Some, tangents: Sequence[Tensor]) -> Some:
        return carried(self.frame, tangents[0])

    def unchecked(self) -> Step:
        return replace(self, frame=self.frame.unchecked())  # type: ignore[arg-type]


@dataclass(frozen=True)
class _Combine(Step):
    """matrix(y) as a function of y, of the differences L that belong to it, and of the handle."""

    frame: Frame

    def value(self, y: Tensor, L: Tensor | None, *factors: Tensor) -> Tensor:
        return self.frame.matrix(factors, y)

    kept_inputs = slice(1, None)

    def pull(self, kept: Any, grads: Sequence[Tensor], needed: Sequence[bool]) -> Some:
        (L, *factors), (grad,) = kept, grads
        pulled: list[Tensor | None] = [None] * len(needed)
        if needed[2 + self.frame.handle]:
            pulled[2 + self.frame.handle] = derivative(self.frame, grad, *factors, L=L)
        if L is not None:
            pulled[:2] = run_again(_Pair(self.frame), grad, L, *factors)
        return pulled

    def push(self, kept: Any, tangents: Some) -> Tensor:
        (L, *factors), (ty, tL, *along) = kept, tangents
        through_M = along[self.frame.handle]
        by_M = None if through_M is None else derivative(self.frame, through_M, *factors, L=L)
        by_y = None if ty is None else run(self, ty, tL, *factors)  # linear in y, and in L with it
        return by_M if by_y is None else by_y if by_M is None else added(by_M, by_y)  # type: ignore[return-value]


@dataclass(frozen=True)
class _Pair(Step):
    """G -> the cotangents of (y, L): (diagonal(G), 0).

    The zero is there for what comes back. Let a tensor p of f have the cotangent t. The derivative by M of its gradient
    <G, (df/dp)(M)> is weigh(L', G) with L' the differences of t df/dp, and that L' is just what arrives as the cotangent
    of the zero. No eigenvector has to be differentiated.
    """

    frame: Frame

    def value(self, G: Tensor, L: Tensor, *factors: Tensor) -> tuple[Tensor, Tensor]:
        return self.frame.diagonal(factors, G), torch.zeros_like(L)

    def pull(self, kept: Any, grads: Some, needed: Sequence[bool]) -> Some:
        (G, _, *factors), (u, L) = kept, grads
        pulled: list[Tensor | None] = [None] * len(needed)
        if u is not None:
            pulled[0] = last(self.frame.matrix(tuple(factors), u))
        if L is not None:
            pulled[2 + self.frame.handle] = last(self.frame.weigh(tuple(factors), L, G))
        return pulled

    def push(self, kept: Any, tangents: Some) -> tuple[Tensor, Tensor]:
        (G, _, *factors), (tG, _, *along) = kept, tangents
        tM, zero = along[self.frame.handle], torch.zeros_like(G)
        t_diagonal = self.frame.diagonal(tuple(factors), zero if tG is None else tG)
        t_L = self.frame.products(tuple(factors), G, zero if tM is None else tM)
        return last(t_diagonal), last(t_L)
