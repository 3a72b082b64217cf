"""A number of a matrix, whose gradient is a function of that matrix: norms and the log-determinant.

t(M) has the gradient f(M), and f has the derivative D1 (calculus.py):

    t(M)       backward: g f(M)                            jvp: <f(M), tM>
    f(M)       backward: D1[G]                             jvp: D1[tM]
    <f(M), E>  backward: g f(M) for E, g D1[E] for M       jvp: <f(M), tE> + <D1[E], tM>

A derivative of D1 by M would be a third one: it is refused.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spectralgrad.context import is_constant

from .calculus import AnyScale, Factors, carried, derivative, without_third
from .node import Some, Step, run, run_again
from .scaling import bounded, exponent, shifted


@dataclass(frozen=True, kw_only=True)
class NumberOfMatrix(AnyScale):
    """t(M) with its gradient f(M) and the derivative of that, through one factorisation."""

    handle = 1

    @abstractmethod
    def factor(self, M: Tensor) -> Factors:
        """Two or three factors of M."""

    @abstractmethod
    def number(self, factors: Factors) -> Tensor:
        """t(M), real (*B,)."""

    def constant(self, M: Tensor) -> Tensor:
        """t(M) where no derivative is asked for, which may take less."""
        return self.number(self.factor(M))

    @abstractmethod
    def gradient(self, factors: Factors) -> Tensor:
        """f(M), the shape of M."""

    @abstractmethod
    def first(self, factors: Factors, E: Tensor) -> Tensor:
        """D1(M)[E], its own adjoint."""

    def value(self, M: Tensor) -> Factors:
        factors = self.factor(M)
        return self.number(factors), *factors

    def pull(self, kept: Factors, grads: Some, needed: Sequence[bool]) -> Some:
        grad, total = grads[0], grads[1 + self.handle]
        if grad is not None:
            through_value = _times(grad, run_again(_Gradient(self), *kept))
            total = through_value if total is None else bounded(total + through_value)
        return (total,)

    def push(self, kept: Factors, tangents: Sequence[Tensor]) -> Some:
        return run(_Inner(self), tangents[0], *kept), *carried(self, tangents[0])

    def second(self, factors: Factors, E1: Tensor, E2: Tensor) -> Tensor:
        """Nobody gets it: `_derivative` ends in an error on its way to M."""
        return torch.zeros_like(E1)


def evaluate_number(of: NumberOfMatrix, M: Tensor) -> Tensor:
    """t(M) (*B,), differentiable twice, in both modes."""
    return of.constant(M) if is_constant(M) else run(of, M)[0]


def _derivative(of: NumberOfMatrix, E: Tensor, factors: Factors) -> Tensor:
    """D1(M)[E], differentiable by E."""
    return derivative(of, E, *without_third(of, factors))


def _times(g: Tensor, T: Tensor) -> Tensor:
    """g (*B,) times T, cut to the largest number; NaN where g is NaN or Inf."""
    g = g[..., None, None]
    return bounded(g * T) + (g - g)


def _inner(T: Tensor, E: Tensor) -> Tensor:
    """Re <T, E> (*B,). At scale 1: sums of numbers near the largest one may be infinity less infinity."""
    t, e = exponent(T), exponent(E)
    return shifted((shifted(T, -t).conj() * shifted(E, -e)).real.sum((-2, -1)), t + e)


def _only(handle: int, x: Tensor | None, count: int) -> list[Tensor | None]:
    return [x if i == handle else None for i in range(count)]


@dataclass(frozen=True)
class _Gradient(Step):
    """The factors of M -> f(M)."""

    of: NumberOfMatrix

    def value(self, *factors: Tensor) -> Tensor:
        return self.of.gradient(factors)

    def pull(self, kept: Factors, grads: Sequence[Tensor], needed: Sequence[bool]) -> Some:
        return _only(self.of.handle, _derivative(self.of, grads[0], kept), len(kept))

    def push(self, kept: Factors, tangents: Any) -> Tensor:
        return _derivative(self.of, tangents[self.of.handle], kept)


@dataclass(frozen=True)
class _Inner(Step):
    """E and the factors of M -> Re <f(M), E>: a step, since inside jvp torch propagates no tangents through operations."""

    of: NumberOfMatrix

    def value(self, E: Tensor, *factors: Tensor) -> Tensor:
        return _inner(self.of.gradient(factors), E)

    def pull(self, kept: Any, grads: Sequence[Tensor], needed: Sequence[bool]) -> Some:
        (E, *factors), (grad,) = kept, grads
        by_E = _times(grad, run_again(_Gradient(self.of), *factors)) if needed[0] else None
        by_M = _times(grad, _derivative(self.of, E, factors)) if needed[1 + self.of.handle] else None
        return by_E, *_only(self.of.handle, by_M, len(factors))

    def push(self, kept: Any, tangents: Any) -> Tensor:
        (E, *factors), (tE, *along) = kept, tangents
        tM = along[self.of.handle]
        terms = [] if tE is None else [_inner(run_again(_Gradient(self.of), *factors), tE)]
        if tM is not None:
            terms.append(_inner(_derivative(self.of, E, factors), tM))
        return sum(terms[1:], terms[0])
