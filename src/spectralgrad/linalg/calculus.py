"""A matrix function, its derivative and its second derivative as three steps.

Both families of functions here are gradients of a scalar potential: V f(L) V^H of tr F(M), and the polar factor of the
nuclear norm. So the derivative D1(M)[E] is its own adjoint and the second derivative D2(M)[E1, E2] is symmetric in all
three of E1, E2 and the cotangent. That is all that backward, forward mode and double backward need:

    f(M)          backward: D1[G]                           jvp: D1[tM]
    D1(M)[E]      backward: D1[G] for E, D2[E, G] for M     jvp: D1[tE] + D2[E, tM]
    D2(M)[E1, E2] backward: D2[G, E2] and D2[E1, G] for E1 and E2; for M, a third derivative, it is refused.

What is saved is a factorisation of M, never M: `f` returns it beside its value. One factor, the *handle*, has the shape
of M and carries M's differential: its tangent is M's tangent and its cotangent is added to M's. It is an output of our
own node and goes nowhere but into D1 and D2, which know this, so that double backward finds its way to M although M was
not kept.

Both derivatives are computed at scale 1 where they would overflow or underflow on the way, and scaled back last: a
potential says how it does so, in `at_scale_1`.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from spectralgrad.context import differentiated_again, in_batched_backward, may_read

from .node import Some, Step, added, last, run, run_again
from .precision import widest
from .scaling import are_finite, bounded, exponent, is_ordinary, scaled_back, shifted

# For second derivatives a direction is brought so far below 1 that sums of even the largest numbers do not overflow.
_GUARD = {torch.float32: 32, torch.float64: 64}

Factors = tuple[Tensor, ...]  # of a matrix


class AtScale1(NamedTuple):
    """A potential and factors of a matrix of scale 1, and what its derivatives are multiplied with: 2 to these (*B,)."""

    potential: "Potential"
    factors: Factors
    first: Tensor
    second: Tensor


@dataclass(frozen=True, kw_only=True)
class Potential(Step):
    """A function with its two derivatives, all through one factorisation: the step from M to f(M), then the factors of M.

    Args:
        tolerance: as in `decompose`: None forbids looking at values.
    """

    tolerance: float | None = None

    handle: ClassVar[int]  # which factor carries the differential
    count: ClassVar[int]  # of factors

    kept_inputs, kept_outputs = slice(0), slice(1, None)

    def __init_subclass__(cls) -> None:
        if hasattr(cls, "count"):
            cls.constants = tuple(1 + i for i in range(cls.count) if i != cls.handle)

    @abstractmethod
    def value(self, M: Tensor) -> tuple[Tensor, ...]:
        """f(M) followed by the factors of M."""

    @abstractmethod
    def first(self, factors: Factors, E: Tensor) -> Tensor:
        """D1(M)[E]."""

    @abstractmethod
    def second(self, factors: Factors, E1: Tensor, E2: Tensor) -> Tensor:
        """D2(M)[E1, E2]."""

    @abstractmethod
    def at_scale_1(self, factors: Factors) -> AtScale1:
        """The same for a matrix of scale 1, such that neither derivative overflows in directions of scale 1."""

    @abstractmethod
    def size(self, factors: Factors) -> Tensor:
        """Numbers (*B, m) whose largest is about that of the matrix."""

    takes_any_scale: ClassVar[bool] = False  # whether `first` and `second` need no help with scales

    def first_in_kernel(self, factors: Factors, E: Tensor) -> Tensor | None:
        """`first` at any scale by a kernel; None leaves it to plain torch."""
        return None

    def unchecked(self) -> Step:
        return replace(self, tolerance=None)

    def pull(self, kept: Factors, grads: Some, needed: Sequence[bool]) -> Some:
        grad, total = grads[0], grads[1 + self.handle]
        if grad is not None:
            through_value = derivative(self, grad, *kept)
            total = through_value if total is None else bounded(total + through_value)
        return (total,)

    def push(self, kept: Factors, tangents: Sequence[Tensor]) -> Some:
        return derivative(self, tangents[0], *kept), *carried(self, tangents[0])

    # Where f closes over tensors, the first differences L of f are an input of their own (mapped.py).

    def weigh(self, factors: Factors, L: Tensor, E: Tensor) -> Tensor:
        """D1(M)[E] for these differences."""
        raise NotImplementedError

    def products(self, factors: Factors, E: Tensor, G: Tensor) -> Tensor:
        """The derivative of <G, weigh(L, E)> by L."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class AnyScale(Potential):
    """A potential that takes care of scales in `first` and `second` themselves; the last factor is a matrix."""

    def at_scale_1(self, factors: Factors) -> AtScale1:
        matrix = factors[-1]
        zero = matrix.new_zeros(matrix.shape[:-2], dtype=widest(matrix.real))
        return AtScale1(self, factors, zero, zero)

    def size(self, factors: Factors) -> Tensor:
        return factors[0].flatten()

    takes_any_scale = True


def carried(potential: Potential, tangent: Tensor) -> Some:
    """The tangents of the factors: the handle has that of M."""
    return tuple(added(tangent) if i == potential.handle else None for i in range(potential.count))


def evaluate(potential: Potential, M: Tensor) -> Tensor:
    """f(M), differentiable twice, in both modes."""
    return run(potential, M)[0]  # type: ignore[no-any-return]


def derivative(potential: Potential, E: Tensor, *factors: Tensor, L: Tensor | None = None) -> Tensor:
    """D1(M)[E], differentiable once more, for the factors that `Potential.value` returned. ``L``: see `Potential.weigh`."""
    if differentiated_again():
        return run(_First(potential), E, L, *factors)  # type: ignore[no-any-return]
    return first_derivative(potential, factors, E) if L is None else potential.weigh(factors, L, E)


def directional(potential: Potential, M: Tensor, E: Tensor) -> Tensor:
    """D1(M)[E] as a function of M and E of one shape, differentiable in both; unchecked.

    Second derivatives exist where they need no third derivative of f: not those by M alone.
    """
    return run(_First(potential), E, None, *run(potential, M)[1:])  # type: ignore[no-any-return]


def first_derivative(potential: Potential, factors: Factors, E: Tensor) -> Tensor:
    """D1(M)[E] at any scale, for plain tensors; what overflows becomes the largest number."""
    if (D := potential.first_in_kernel(factors, E)) is not None:
        return D
    if potential.takes_any_scale:
        return potential.first(factors, E)
    if may_read(E):
        if _are_ordinary(potential, factors, E):
            D = potential.first(factors, E)
            if are_finite(D):
                return D
    elif in_batched_backward(E):
        return potential.first(factors, E)
    unit, e = potential.at_scale_1(factors), exponent(E)
    return scaled_back(unit.potential.first(unit.factors, shifted(E, -e)), unit.first + e)


def _are_ordinary(potential: Potential, factors: Factors, *directions: Tensor) -> bool:
    """Whether values at hand need no help with scales."""
    return is_ordinary(potential.size(factors), 1) and all(is_ordinary(E) for E in directions)


def _second_derivative(potential: Potential, factors: Factors, E1: Tensor, E2: Tensor) -> Tensor:
    """D2(M)[E1, E2] at any scale, for plain tensors."""
    if in_batched_backward(E1) or in_batched_backward(E2):  # nothing could be scaled there
        return potential.second(factors, E1, E2)
    if may_read(E1) and may_read(E2) and _are_ordinary(potential, factors, E1, E2):
        D = potential.second(factors, E1, E2)
        if are_finite(D):
            return D
    unit = potential.at_scale_1(factors)
    e1, e2 = exponent(E1) + _GUARD[E1.real.dtype], exponent(E2)
    D = unit.potential.second(unit.factors, shifted(E1, -e1), shifted(E2, -e2))
    return scaled_back(D, unit.second + e1 + e2)


def second_derivative(potential: Potential, E1: Tensor, E2: Tensor, *factors: Tensor) -> Tensor:
    """D2(M)[E1, E2], differentiable by the directions, in which it is linear."""
    return run_again(_Second(potential), E1, E2, *without_third(potential, factors))  # type: ignore[no-any-return]


def without_third(potential: Potential, factors: Factors) -> Factors:
    """The factors of a matrix by which no further derivative is to be asked for."""
    return tuple(last(x) if i == potential.handle else x for i, x in enumerate(factors))


@dataclass(frozen=True)
class _First(Step):
    """E, L and the factors of M -> D1(M)[E], by the differences L where they are given."""

    potential: Potential

    def value(self, E: Tensor, L: Tensor | None, *factors: Tensor) -> Tensor:
        return first_derivative(self.potential, factors, E) if L is None else self.potential.weigh(factors, L, E)

    def pull(self, kept: Any, grads: Sequence[Tensor], needed: Sequence[bool]) -> Some:
        (E, L, *factors), (grad,), f = kept, grads, self.potential
        pulled: list[Tensor | None] = [None] * len(kept)
        if needed[0]:
            pulled[0] = derivative(f, grad, *factors, L=L)
        if needed[1]:
            pulled[1] = last(f.products(tuple(factors), E, grad))
        if needed[2 + f.handle]:
            pulled[2 + f.handle] = second_derivative(f, E, grad, *factors)
        return pulled

    def push(self, kept: Any, tangents: Some) -> Tensor:
        (E, L, *factors), (tE, tL, *along), f = kept, tangents, self.potential
        tM = along[f.handle]
        terms = [] if tE is None else [derivative(f, tE, *factors, L=L)]
        if tM is not None:
            terms.append(second_derivative(f, E, tM, *factors))
        if tL is not None:
            terms.append(last(f.weigh(tuple(factors), tL, E)))
        return _sum(terms)


@dataclass(frozen=True)
class _Second(Step):
    """E1, E2 and the factors of M -> D2(M)[E1, E2]."""

    potential: Potential

    def value(self, E1: Tensor, E2: Tensor, *factors: Tensor) -> Tensor:
        return _second_derivative(self.potential, factors, E1, E2)

    def pull(self, kept: Any, grads: Sequence[Tensor], needed: Sequence[bool]) -> Some:
        (E1, E2, *factors), (grad,) = kept, grads
        pulled: list[Tensor | None] = [None] * len(kept)
        if needed[0]:
            pulled[0] = run(self, grad, E2, *factors)
        if needed[1]:
            pulled[1] = run(self, E1, grad, *factors)
        pulled[2 + self.potential.handle] = torch.zeros_like(grad)  # for `last`, which refuses it
        return pulled

    def push(self, kept: Any, tangents: Some) -> Tensor:
        (E1, E2, *factors), (t1, t2) = kept, tangents[:2]
        terms = [] if t1 is None else [run(self, t1, E2, *factors)]
        if t2 is not None:
            terms.append(run(self, E1, t2, *factors))
        return _sum(terms)


def _sum(terms: list[Tensor]) -> Tensor:
    return bounded(sum(terms[1:], terms[0])) if len(terms) > 1 else terms[0]
