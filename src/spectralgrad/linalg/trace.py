"""A number of a matrix, whose gradient is a function of that matrix: norms and the log-determinant.

The trace t(M) of a potential has the gradient f(M), and f has the derivative D1 (calculus.py):

    t(M)     backward: g f(M)      jvp: Re <f(M), tM>
    f(M)     backward: D1[G]       jvp: D1[tM]
    D1(M)[E] backward: D1[G] for E; for M, a third derivative, it is refused.
"""

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from spectralgrad.context import compiling, is_constant
from spectralgrad.validation import under_vmap

from .autograd import batched, call
from .calculus import AnyScale, Factors, derivative, without_third
from .scaling import bounded, exponent, shifted


class Trace(AnyScale):
    """A number t(M) with its gradient f(M) and the derivative of that, through one factorisation."""

    handle = 1  # which factor carries the differential

    @abstractmethod
    def factor(self, M: Tensor, tolerance: float | None) -> Factors:
        """Two or three factors of M; a tolerance of None forbids looking at values."""

    @abstractmethod
    def trace(self, factors: Factors) -> Tensor:
        """t(M), real (*B,)."""

    def constant(self, M: Tensor, tolerance: float | None) -> Tensor:
        """t(M) where no derivative is asked for, which may take less."""
        return self.trace(self.factor(M, tolerance))

    @abstractmethod
    def gradient(self, factors: Factors) -> Tensor:
        """f(M), the shape of M."""

    @abstractmethod
    def first(self, factors: Factors, E: Tensor) -> Tensor:
        """D1(M)[E], its own adjoint."""

    def value(self, M: Tensor, tolerance: float | None) -> Factors:
        factors = self.factor(M, tolerance)
        return self.gradient(factors), *factors

    def second(self, factors: Factors, E1: Tensor, E2: Tensor) -> Tensor:
        """Nobody gets it: `_derivative` ends in an error on its way to M."""
        return torch.zeros_like(E1)


def evaluate_trace(trace: Trace, M: Tensor, tolerance: float | None) -> Tensor:
    """t(M) (*B,), differentiable twice, in both modes."""
    if is_constant(M):
        return trace.constant(M, tolerance)
    function = _Trace if compiling() else _TraceFunc
    return call(function, M, trace, tolerance)[0]  # type: ignore[no-any-return]


def _gradient(trace: Trace, *factors: Tensor) -> Tensor:
    if compiling():  # there is no compiled double backward
        return trace.gradient(factors)
    return call(_Gradient, trace, *factors)  # type: ignore[no-any-return]


def _derivative(trace: Trace, E: Tensor, *factors: Tensor) -> Tensor:
    """D1(M)[E], differentiable by E."""
    return derivative(trace, E, *without_third(trace, factors))


class _Trace(Function):  # twice, for torch.compile and for the rest: see autograd.py
    @staticmethod
    def forward(M: Tensor, trace: Trace, tolerance: float | None) -> Factors:
        factors = trace.factor(M, None if compiling() else tolerance)
        return trace.trace(factors), *factors

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Factors) -> None:
        _, ctx.trace, _ = inputs
        factors = output[1:]
        ctx.mark_non_differentiable(*(x for i, x in enumerate(factors) if i != ctx.trace.handle))
        ctx.save_for_backward(*factors)
        ctx.save_for_forward(*factors)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *grad_factors: Tensor | None) -> tuple[Tensor | None, None, None]:
        total = grad_factors[ctx.trace.handle]
        if grad is not None:
            through_value = _times(grad, _gradient(ctx.trace, *ctx.saved_tensors))
            total = through_value if total is None else bounded(total + through_value)
        return total, None, None


class _TraceFunc(_Trace):
    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> tuple[Tensor | None, ...]:
        factors = ctx.saved_tensors
        pushed = call(_Pushed, ctx.trace, tangent, *factors)
        return (pushed, *(tangent.clone() if i == ctx.trace.handle else None for i in range(len(factors))))

    @staticmethod
    def vmap(info: Any, dims: Any, M: Tensor, trace: Trace, tolerance: float | None) -> tuple[Any, Any]:
        (M,) = batched(info, dims[:1], (M,))
        out = _TraceFunc.apply(M, trace, under_vmap(tolerance))
        return out, (0,) * len(out)


def _times(g: Tensor, T: Tensor) -> Tensor:
    """g (*B,) times T, cut to the largest number; NaN where g is NaN or Inf."""
    g = g[..., None, None]
    return bounded(g * T) + (g - g)


def _inner(T: Tensor, E: Tensor) -> Tensor:
    """Re <T, E> (*B,). At scale 1: sums of numbers near the largest one may be infinity less infinity."""
    t, e = exponent(T), exponent(E)
    return shifted((shifted(T, -t).conj() * shifted(E, -e)).real.sum((-2, -1)), t + e)


class _Pushed(Function):
    """Re <f(M), E> as a Function: inside jvp torch propagates no tangents through plain operations."""

    @staticmethod
    def forward(trace: Trace, E: Tensor, *factors: Tensor) -> Tensor:
        return _inner(trace.gradient(factors), E)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.trace, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        E, *factors = ctx.saved_tensors
        grads: list[Tensor | None] = [None] * (2 + len(factors))
        if grad is not None and ctx.needs_input_grad[1]:
            grads[1] = _times(grad, _gradient(ctx.trace, *factors))
        if grad is not None and ctx.needs_input_grad[2 + ctx.trace.handle]:
            grads[2 + ctx.trace.handle] = _times(grad, _derivative(ctx.trace, E, *factors))
        return tuple(grads)

    @staticmethod
    def jvp(ctx: Any, _: None, tE: Tensor | None, *tangents: Tensor | None) -> Tensor | None:
        E, *factors = ctx.saved_tensors
        tM = tangents[ctx.trace.handle]
        terms = [] if tE is None else [_inner(_gradient(ctx.trace, *factors), tE)]
        if tM is not None:
            terms.append(_inner(_derivative(ctx.trace, E, *factors), tM))
        return sum(terms[1:], terms[0]) if terms else None

    @staticmethod
    def vmap(info: Any, dims: Any, trace: Trace, *tensors: Tensor) -> tuple[Any, int]:
        return _Pushed.apply(trace, *batched(info, dims[1:], tensors)), 0


class _Gradient(Function):
    """f(M) for the factors of M."""

    @staticmethod
    def forward(trace: Trace, *factors: Tensor) -> Tensor:
        return trace.gradient(factors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.trace, *factors = inputs
        ctx.save_for_backward(*factors)
        ctx.save_for_forward(*factors)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        factors = ctx.saved_tensors
        grads: list[Tensor | None] = [None] * (1 + len(factors))
        if ctx.needs_input_grad[1 + ctx.trace.handle]:
            grads[1 + ctx.trace.handle] = _derivative(ctx.trace, grad, *factors)
        return tuple(grads)

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Tensor | None) -> Tensor | None:
        tangent = tangents[ctx.trace.handle]
        return None if tangent is None else _derivative(ctx.trace, tangent, *ctx.saved_tensors)

    @staticmethod
    def vmap(info: Any, dims: Any, trace: Trace, *factors: Tensor) -> tuple[Any, int]:
        return _Gradient.apply(trace, *batched(info, dims[1:], factors)), 0
