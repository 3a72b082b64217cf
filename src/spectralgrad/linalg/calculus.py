"""A matrix function, its derivative and its second derivative as three autograd Functions.

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

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from spectralgrad.context import compiling, differentiated_again, in_batched_backward, is_constant, may_read
from spectralgrad.validation import under_vmap

from .autograd import batched, call, last
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


class Potential(ABC):
    """A function with its two derivatives, all through one factorisation."""

    handle: ClassVar[int]  # which factor carries the differential

    @abstractmethod
    def value(self, M: Tensor, tolerance: float | None) -> tuple[Tensor, ...]:
        """f(M) followed by the factors of M. ``tolerance`` as in `decompose`: None forbids looking at values."""

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

    def takes_any_scale(self, factors: Factors) -> bool:
        """Whether `first` needs no help with scales: a kernel does all of it."""
        return False


class AnyScale(Potential):
    """A potential that takes care of scales in `first` and `second` themselves; the last factor is a matrix."""

    def at_scale_1(self, factors: Factors) -> AtScale1:
        matrix = factors[-1]
        zero = matrix.new_zeros(matrix.shape[:-2], dtype=widest(matrix.real))
        return AtScale1(self, factors, zero, zero)

    def size(self, factors: Factors) -> Tensor:
        return factors[0].flatten()

    def takes_any_scale(self, factors: Factors) -> bool:
        return True


def evaluate(potential: Potential, M: Tensor, tolerance: float | None) -> Tensor:
    """f(M), differentiable twice, in both modes."""
    if is_constant(M):
        return potential.value(M, tolerance)[0]
    function = _Value if compiling() else _ValueFunc
    return call(function, M, potential, tolerance)[0]  # type: ignore[no-any-return]


def derivative(potential: Potential, E: Tensor, *factors: Tensor) -> Tensor:
    """D1(M)[E], differentiable once more, for the factors that `Potential.value` returned."""
    if compiling() or not differentiated_again():  # there is no compiled double backward
        return first_derivative(potential, factors, E)
    return call(_First, potential, E, *factors)  # type: ignore[no-any-return]


def directional(potential: Potential, M: Tensor, E: Tensor) -> Tensor:
    """D1(M)[E] as a function of M and E of one shape, differentiable in both; unchecked.

    Second derivatives exist where they need no third derivative of f: not those by M alone.
    """
    if compiling():
        _, *factors = call(_Value, M, potential, None)
        return call(_Directional, potential, E, *factors)  # type: ignore[no-any-return]
    _, *factors = call(_ValueFunc, M, potential, None)
    return derivative(potential, E, *factors)


def first_derivative(potential: Potential, factors: Factors, E: Tensor) -> Tensor:
    """D1(M)[E] at any scale, for plain tensors; what overflows becomes the largest number."""
    if potential.takes_any_scale(factors):
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
    return _Second.apply(potential, E1, E2, *without_third(potential, factors))  # type: ignore[no-any-return]


def without_third(potential: Potential, factors: Factors) -> Factors:
    """The factors of a matrix by which no further derivative is to be asked for."""
    return tuple(last(x) if i == potential.handle else x for i, x in enumerate(factors))


class _Value(Function):  # twice, for torch.compile and for the rest: see autograd.py
    @staticmethod
    def forward(M: Tensor, potential: Potential, tolerance: float | None) -> tuple[Tensor, ...]:
        # After a graph break this frame may be compiled on its own, with a tolerance from outside.
        return potential.value(M, None if compiling() else tolerance)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _, ctx.potential, _ = inputs
        factors = output[1:]
        ctx.mark_non_differentiable(*(f for i, f in enumerate(factors) if i != ctx.potential.handle))
        ctx.save_for_backward(*factors)
        ctx.save_for_forward(*factors)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *grad_factors: Tensor | None) -> tuple[Tensor | None, None, None]:
        total = grad_factors[ctx.potential.handle]
        if grad is not None:
            through_value = derivative(ctx.potential, grad, *ctx.saved_tensors)
            total = through_value if total is None else bounded(total + through_value)
        return total, None, None


class _ValueFunc(_Value):
    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> tuple[Tensor | None, ...]:
        factors = ctx.saved_tensors
        return (
            derivative(ctx.potential, tangent, *factors),
            *(tangent.clone() if i == ctx.potential.handle else None for i in range(len(factors))),
        )

    @staticmethod
    def vmap(info: Any, dims: Any, M: Tensor, potential: Potential, tolerance: float | None) -> tuple[Any, Any]:
        (M,) = batched(info, dims[:1], (M,))
        out = _ValueFunc.apply(M, potential, under_vmap(tolerance))
        return out, (0,) * len(out)


class _First(Function):
    @staticmethod
    def forward(potential: Potential, E: Tensor, *factors: Tensor) -> Tensor:
        return first_derivative(potential, factors, E)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.potential, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        E, *factors = ctx.saved_tensors
        grads: list[Tensor | None] = [None] * (2 + len(factors))
        if ctx.needs_input_grad[1]:
            grads[1] = derivative(ctx.potential, grad, *factors)
        if ctx.needs_input_grad[2 + ctx.potential.handle]:
            grads[2 + ctx.potential.handle] = second_derivative(ctx.potential, E, grad, *factors)
        return tuple(grads)

    @staticmethod
    def jvp(ctx: Any, _: None, tangent_E: Tensor | None, *tangents: Tensor | None) -> Tensor | None:
        E, *factors = ctx.saved_tensors
        total = None if tangent_E is None else derivative(ctx.potential, tangent_E, *factors)
        tangent_M = tangents[ctx.potential.handle]
        if tangent_M is None:
            return total
        through_M = second_derivative(ctx.potential, E, tangent_M, *factors)
        return through_M if total is None else bounded(total + through_M)

    @staticmethod
    def vmap(info: Any, dims: Any, potential: Potential, *tensors: Tensor) -> tuple[Any, int]:
        return _First.apply(potential, *batched(info, dims[1:], tensors)), 0


class _Directional(Function):
    """`_First` for torch.compile: without jvp, and with its arguments by name. For potentials with two factors."""

    @staticmethod
    def forward(potential: Potential, E: Tensor, spectrum: Tensor, basis: Tensor) -> Tensor:
        return first_derivative(potential, (spectrum, basis), E)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.potential, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        E, *factors = ctx.saved_tensors
        grads: list[Tensor | None] = [None, first_derivative(ctx.potential, tuple(factors), grad), None, None]
        grads[2 + ctx.potential.handle] = _second_derivative(ctx.potential, tuple(factors), E, grad)
        return tuple(grads)


class _Second(Function):
    @staticmethod
    def forward(potential: Potential, E1: Tensor, E2: Tensor, *factors: Tensor) -> Tensor:
        return _second_derivative(potential, factors, E1, E2)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.potential, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        E1, E2, *factors = ctx.saved_tensors
        grads: list[Tensor | None] = [None] * (3 + len(factors))
        if ctx.needs_input_grad[1]:
            grads[1] = _Second.apply(ctx.potential, grad, E2, *factors)
        if ctx.needs_input_grad[2]:
            grads[2] = _Second.apply(ctx.potential, E1, grad, *factors)
        grads[3 + ctx.potential.handle] = torch.zeros_like(grad)  # for `last`, which refuses it
        return tuple(grads)

    @staticmethod
    def jvp(ctx: Any, _: None, tangent_1: Tensor | None, tangent_2: Tensor | None, *by_M: None) -> Tensor | None:
        E1, E2, *factors = ctx.saved_tensors
        terms = [] if tangent_1 is None else [_Second.apply(ctx.potential, tangent_1, E2, *factors)]
        if tangent_2 is not None:
            terms.append(_Second.apply(ctx.potential, E1, tangent_2, *factors))
        return bounded(sum(terms[1:], terms[0])) if terms else None

    @staticmethod
    def vmap(info: Any, dims: Any, potential: Potential, *tensors: Tensor) -> tuple[Any, int]:
        return _Second.apply(potential, *batched(info, dims[1:], tensors)), 0
