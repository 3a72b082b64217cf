"""A user's function f of a spectrum, as autograd Functions: what `spectral_map` and `singular_map` share.

Unlike the fixed functions of calculus.py, f may depend on tensors of its own. So y = f(spectrum), and where those tensors
need gradients the first divided differences L too, are computed outside the Functions below by ordinary operations,
through which autograd finds the way to them. A `Frame` says how y and L make a matrix:

    f(M)      = matrix(y)              diagonal: its adjoint, the cotangent of y
    D1(M)[E]  = weigh(L, E)            products: <G, weigh(L, E)> = <L, products(E, G)>
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from spectralgrad.context import compiling, is_constant, is_transformed, readable
from spectralgrad.errors import NonFiniteError, OptionError, ShapeError
from spectralgrad.validation import under_vmap

from .autograd import Copy, Sum, batched, call, last
from .calculus import AnyScale, Factors, first_derivative, second_derivative
from .elementwise import Elementwise, require_elementwise


def _factors(*given: Tensor | None) -> Factors:
    return tuple(x for x in given if x is not None)


@dataclass(frozen=True)
class Frame(AnyScale):
    """A factorisation in which f acts on numbers. Factors: the spectrum (*B, k), the handle (calculus.py), others."""

    who: str
    function: Elementwise

    handle = 1

    @abstractmethod
    def factor(self, M: Tensor, tolerance: float | None) -> Factors:
        """The factors of M; None forbids looking at values."""

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

    def value(self, M: Tensor, tolerance: float | None) -> Factors:
        factors = self.factor(M, tolerance)
        return self.matrix(factors, applied(self.who, self.function, factors[0], tolerance)), *factors


def mapped(frame: Frame, M: Tensor, tolerance: float | None) -> tuple[Tensor, Tensor]:
    """f(M), differentiable twice by M and by what f closes over, and the spectrum."""
    factors = call(_Factors if compiling() else _FactorsFunc, M, frame, tolerance)
    spectrum = factors[0]
    y = applied(frame.who, frame.function, spectrum, tolerance)
    if tolerance is not None and not is_constant(M):
        require_elementwise(frame.who, frame.function, readable(spectrum), readable(y))
    L = frame.differences(spectrum) if spectrum.numel() and _has_tensors_of_its_own(y) else None
    function = _Mapped if compiling() else _MappedFunc
    return call(function, frame, y, L, *factors, *(None,) * (3 - len(factors))), spectrum


def applied(who: str, function: Elementwise, spectrum: Tensor, tolerance: float | None) -> Tensor:
    """f of a spectrum (*B, k), or the error that says what is wrong with f."""
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


class _Factors(Function):
    """M -> its factors, of which the handle carries M's differential (calculus.py)."""

    @staticmethod
    def forward(M: Tensor, frame: Frame, tolerance: float | None) -> Factors:
        return frame.factor(M, None if compiling() else tolerance)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Factors) -> None:
        ctx.handle, ctx.count = inputs[1].handle, len(output)
        ctx.mark_non_differentiable(*(x for i, x in enumerate(output) if i != ctx.handle))
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *carried: Tensor | None) -> tuple[Tensor | None, None, None]:
        return carried[ctx.handle], None, None


class _FactorsFunc(_Factors):
    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> tuple[Tensor | None, ...]:
        return tuple(call(Copy, tangent) if i == ctx.handle else None for i in range(ctx.count))

    @staticmethod
    def vmap(info: Any, dims: Any, M: Tensor, frame: Frame, tolerance: Any) -> tuple[Any, Any]:
        (M,) = batched(info, dims[:1], (M,))
        out = _FactorsFunc.apply(M, frame, under_vmap(tolerance))
        return out, (0,) * len(out)


def _first(frame: Frame, E: Tensor, L: Tensor | None, *factors: Tensor) -> Tensor:
    if compiling():  # this is a backward then, and there is no compiled double backward
        return _first_value(frame, E, L, factors)
    return call(_MappedFirst, frame, E, L, *factors)  # type: ignore[no-any-return]


def _first_value(frame: Frame, E: Tensor, L: Tensor | None, factors: Factors) -> Tensor:
    return first_derivative(frame, factors, E) if L is None else frame.weigh(factors, L, E)


def _batched_some(info: Any, dims: tuple[int | None, ...], tensors: tuple[Tensor | None, ...]) -> list[Tensor | None]:
    """`batched` for tensors of which some are None."""
    return [None if x is None else batched(info, (d,), (x,))[0] for x, d in zip(tensors, dims, strict=True)]


class _Mapped(Function):
    """matrix(y) as a function of the handle, of y and of the differences that belong to y."""

    @staticmethod
    def forward(frame: Frame, y: Tensor, L: Tensor | None, spectrum: Tensor, handle: Tensor, other: Tensor | None) -> Tensor:
        # Each by name: dynamo cannot tell a forward with * from one that takes ctx.
        return frame.matrix(_factors(spectrum, handle, other), y)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.frame, _, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * 6
        L, *saved = ctx.saved_tensors  # once: activation checkpointing hands them out no more often
        factors = _factors(*saved)
        grads: list[Tensor | None] = [None] * 6
        if ctx.needs_input_grad[3 + ctx.frame.handle]:
            grads[3 + ctx.frame.handle] = _first(ctx.frame, grad, L, *factors)
        if L is not None:
            pair = _pair_value if compiling() else _Pair.apply
            grads[1:3] = pair(ctx.frame, grad, L, *factors)
        return tuple(grads)


class _MappedFunc(_Mapped):
    @staticmethod
    def jvp(ctx: Any, _: None, ty: Tensor | None, tL: Tensor | None, *tangents: Tensor | None) -> Tensor | None:
        L, *saved = ctx.saved_tensors
        factors = _factors(*saved)
        through_M = tangents[ctx.frame.handle]
        total = None if through_M is None else _first(ctx.frame, through_M, L, *factors)
        if ty is not None:
            through_y = call(_MappedFunc, ctx.frame, ty, tL, *saved)  # linear in y, and in L with it
            total = through_y if total is None else call(Sum, total, through_y)
        return total

    @staticmethod
    def vmap(info: Any, dims: Any, frame: Frame, *tensors: Tensor | None) -> tuple[Any, int]:
        return _MappedFunc.apply(frame, *_batched_some(info, dims[1:], tensors)), 0


def _pair_value(frame: Frame, G: Tensor, L: Tensor, *factors: Tensor) -> tuple[Tensor, Tensor]:
    return frame.diagonal(factors, G), torch.zeros_like(L)


class _Pair(Function):
    """G -> the cotangents of (y, L): (diagonal(G), 0).

    The zero is there for what comes back. Let a tensor p of f have the cotangent t. The derivative by M of its gradient
    <G, (df/dp)(M)> is weigh(L', G) with L' the differences of t df/dp, and that L' is just what arrives as the cotangent
    of the zero. No eigenvector has to be differentiated.
    """

    @staticmethod
    def forward(frame: Frame, G: Tensor, L: Tensor, *factors: Tensor) -> tuple[Tensor, Tensor]:
        return _pair_value(frame, G, L, *factors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.frame, G, _, *factors = inputs
        ctx.save_for_backward(G, *factors)
        ctx.save_for_forward(G, *factors)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, u: Tensor | None, L: Tensor | None) -> tuple[Tensor | None, ...]:
        G, *factors = ctx.saved_tensors
        grads: list[Tensor | None] = [None] * (3 + len(factors))
        if u is not None:
            grads[1] = last(ctx.frame.matrix(tuple(factors), u))
        if L is not None:
            grads[3 + ctx.frame.handle] = last(ctx.frame.weigh(tuple(factors), L, G))
        return tuple(grads)

    @staticmethod
    def jvp(ctx: Any, _: None, tG: Tensor | None, tL: Any, *tangents: Tensor | None) -> tuple[Tensor, Tensor]:
        G, *factors = ctx.saved_tensors
        frame, tM = ctx.frame, tangents[ctx.frame.handle]
        zero = torch.zeros_like(G)
        t_diagonal = frame.diagonal(tuple(factors), zero if tG is None else tG)
        t_L = frame.products(tuple(factors), G, zero if tM is None else tM)
        return last(t_diagonal), last(t_L)

    @staticmethod
    def vmap(info: Any, dims: Any, frame: Frame, *tensors: Tensor) -> tuple[Any, Any]:
        return _Pair.apply(frame, *batched(info, dims[1:], tensors)), (0, 0)


class _MappedFirst(Function):
    """D1[E] with the differences given, or derived from the spectrum where f has no tensors of its own."""

    @staticmethod
    def forward(frame: Frame, E: Tensor, L: Tensor | None, *factors: Tensor) -> Tensor:
        return _first_value(frame, E, L, factors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.frame, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        E, L, *factors = ctx.saved_tensors
        grads: list[Tensor | None] = [None] * (3 + len(factors))
        if ctx.needs_input_grad[1]:
            grads[1] = _first(ctx.frame, grad, L, *factors)
        if ctx.needs_input_grad[2]:
            grads[2] = last(ctx.frame.products(tuple(factors), E, grad))
        if ctx.needs_input_grad[3 + ctx.frame.handle]:
            grads[3 + ctx.frame.handle] = second_derivative(ctx.frame, E, grad, *factors)
        return tuple(grads)

    @staticmethod
    def jvp(ctx: Any, _: None, tE: Tensor | None, tL: Tensor | None, *tangents: Tensor | None) -> Tensor | None:
        E, L, *factors = ctx.saved_tensors
        tM = tangents[ctx.frame.handle]
        terms = []
        if tE is not None:
            terms.append(_first(ctx.frame, tE, L, *factors))
        if tM is not None:
            terms.append(second_derivative(ctx.frame, E, tM, *factors))
        if tL is not None:
            terms.append(last(ctx.frame.weigh(tuple(factors), tL, E)))
        return sum(terms[1:], terms[0]) if terms else None

    @staticmethod
    def vmap(info: Any, dims: Any, frame: Frame, *tensors: Tensor | None) -> tuple[Any, int]:
        return _MappedFirst.apply(frame, *_batched_some(info, dims[1:], tensors)), 0
