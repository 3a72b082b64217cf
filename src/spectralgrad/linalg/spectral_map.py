"""V f(L) V^H for any smooth elementwise f, with exact gradients for M and for the tensors that f closes over.

Only f itself is given, so f' comes from automatic differentiation, and divided differences from

    f[a, b] = (f(a) - f(b)) / (a - b)        far apart
    f[a, b] = int_0^1 f'(b + t (a - b)) dt   close, by Gauss quadrature,

both in float64. Unlike the fixed functions, f may depend on tensors of its own. So y = f(l), and where those
tensors need gradients the Loewner matrix too, are computed outside the Functions below by ordinary operations, through
which autograd finds the way to them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from spectralgrad.errors import NonFiniteError, OptionError, ShapeError
from spectralgrad.validation import as_square, is_transformed, under_vmap

from .calculus import batched, call, refuse_third_derivative, second_derivative
from .choices import AUTO, ByEigenpairs, EigenSolver, Gradient, for_function
from .eigh import eigenpairs
from .functions import Spectral, require_floor
from .precision import in_basis, matmul, sandwich
from .quadrature import GAUSS
from .scalars import Scalar
from .solvers import Solver, decompose

__all__ = ["spectral_map"]

_NEAR = 1e-2  # relative to the larger eigenvalue: the quotient keeps 14 digits in float64, the quadrature 16


@dataclass(frozen=True)
class _User(Scalar):
    """A user's function with the differences derived from it."""

    function: Callable[[Tensor], Tensor] = torch.nn.Identity()  # noqa: RUF009  (frozen, never called as a default)

    near = _NEAR

    def f(self, c: Tensor) -> Tensor:
        return self.function(c)

    def slope(self, x: Tensor) -> Tensor:
        """f'(x)."""
        return _elementwise_derivative(self.function, x)

    def curvature(self, x: Tensor) -> Tensor:
        return _elementwise_derivative(self.slope, x)

    def difference(self, a: Tensor, b: Tensor) -> Tensor:
        dtype = a.dtype
        a, b = torch.broadcast_tensors(a.double(), b.double())
        close = (a - b).abs() <= _NEAR * torch.maximum(a.abs(), b.abs())
        far = (self.function(a) - self.function(b)) / torch.where(close, 1, a - b)
        near = sum(weight * self.slope(b + t * (a - b)) for t, weight in GAUSS)
        return torch.where(close, near, far).to(dtype)


def _elementwise_derivative(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """f'(x): in reverse mode, because forward mode cannot be nested and a user may be in it."""
    return torch.func.grad(lambda t: f(t).sum())(x)  # type: ignore[no-any-return]


def spectral_map(
    M: Tensor,
    f: Callable[[Tensor], Tensor],
    *,
    gradient: Gradient | None = None,
    solver: EigenSolver = AUTO,
    floor: float | None = None,
) -> Tensor:
    """V diag(f(w)) V^H for a smooth elementwise function f of torch operations, with its exact gradient.

    f is called with eigenvalues in float32 or float64 and in several shapes, also between the eigenvalues; it must act on
    each number alone. Tensors that it closes over get gradients, second ones included.

    Args:
        M: (*B, n, n), Hermitian; only (M + M^H)/2 counts.
        f: the function.
        Others as in `sqrtm`.

    Returns:
        (*B, n, n), Hermitian.

    Raises:
        NonFiniteError: f gives NaN or Inf for an eigenvalue.
        ShapeError: f changes the shape.
        Others as in `eigh`.

    >>> p = torch.tensor(2.0, requires_grad=True)
    >>> spectral_map(3 * torch.eye(2), lambda x: x**p).trace().backward()
    >>> p.grad  # 2 * 9 * log(3)
    tensor(19.7750)
    """
    if not callable(f):
        raise OptionError(f"`spectral_map`: f must be a function of a tensor, got {f!r}.")
    user = _User(floor, function=f)
    X, tolerance = as_square("spectral_map", M)
    require_floor("spectral_map", user, X.dtype)
    choice = for_function("spectral_map", X, gradient, solver, user.root, floor)
    assert choice.way != "products"  # refused: f is no root
    Y = _exactly(X, user, choice.solver, tolerance) if choice.way == "exact" else _through_pairs(X, user, choice, tolerance)
    return Y if X is M else Y.to(M.dtype)


def _through_pairs(M: Tensor, user: _User, choice: ByEigenpairs, tolerance: float | None) -> Tensor:
    w, V, kept = eigenpairs("spectral_map", M, choice, tolerance)
    y = _call(user, w, tolerance)
    y = y if kept is None else torch.where(kept, y, 0)
    return matmul(V * y.unsqueeze(-2), V.mH)


def _exactly(M: Tensor, user: _User, solver: Solver, tolerance: float | None) -> Tensor:
    function = _Factors if torch.compiler.is_compiling() else _FactorsFunc
    w, V = call(function, M, solver, tolerance)
    y = _call(user, w, tolerance)
    loewner = user.loewner(w) if w.numel() and _has_tensors_of_its_own(y, w) else None
    mapped = _Mapped if torch.compiler.is_compiling() else _MappedFunc
    return call(mapped, Spectral("spectral_map", user, solver), w, V, y, loewner)  # type: ignore[no-any-return]


def _call(user: _User, w: Tensor, tolerance: float | None) -> Tensor:
    y = user.f(user.clamp(w)[0])
    if not isinstance(y, Tensor) or not y.is_floating_point():
        raise OptionError(
            "`spectral_map`: f must return a real floating-point tensor, got "
            f"{y.dtype if isinstance(y, Tensor) else type(y).__name__}. Use torch operations in f."
        )
    if y.shape != w.shape:
        raise ShapeError(
            f"`spectral_map`: f must act on each number alone, but turned shape {tuple(w.shape)} into {tuple(y.shape)}."
        )
    if tolerance is not None and not is_transformed(y) and not bool(torch.isfinite(y).all()):
        bad = w.detach()[~torch.isfinite(y)]
        raise NonFiniteError(
            f"`spectral_map`: f must be finite at every eigenvalue, but is NaN or Inf at {len(bad)} of {w.numel()}, the "
            f"first {float(bad[0]):.6g}. Pass floor= to clamp the eigenvalues, or add a multiple of the identity."
        )
    return y.to(w.dtype)


def _has_tensors_of_its_own(y: Tensor, w: Tensor) -> bool:
    """Whether y = f(w) depends on something differentiable; w, a factor, carries no gradient itself."""
    if torch.compiler.is_compiling():
        return y.requires_grad
    return y.requires_grad or is_transformed(y) or torch.autograd.forward_ad.unpack_dual(y).tangent is not None


class _Factors(Function):
    """M -> w, V as factors: V is the handle that carries M's differential (calculus.py)."""

    @staticmethod
    def forward(M: Tensor, solver: Solver, tolerance: float | None) -> tuple[Tensor, Tensor]:
        return decompose("spectral_map", M, solver, tolerance)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[0])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, _: None, carried: Tensor | None) -> tuple[Tensor | None, None, None]:
        return carried, None, None


class _FactorsFunc(_Factors):
    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> tuple[None, Tensor]:
        return None, tangent.clone()

    @staticmethod
    def vmap(info: Any, dims: Any, M: Tensor, solver: Solver, tolerance: Any) -> tuple[Any, Any]:
        (M,) = batched(info, dims[:1], (M,))
        return _FactorsFunc.apply(M, solver, under_vmap(tolerance)), (0, 0)


def _first(spectral: Spectral, E: Tensor, w: Tensor, V: Tensor, loewner: Tensor | None) -> Tensor:
    if torch.compiler.is_compiling():  # this is a backward then, and there is no compiled double backward
        return _first_value(spectral, E, w, V, loewner)
    return call(_MappedFirst, spectral, E, w, V, loewner)  # type: ignore[no-any-return]


def _first_value(spectral: Spectral, E: Tensor, w: Tensor, V: Tensor, loewner: Tensor | None) -> Tensor:
    if loewner is None:
        return spectral.first((w, V), E)
    return sandwich(V, loewner * in_basis(V, E))


class _Mapped(Function):
    """V diag(y) V^H as a function of the handle V, of y and of the Loewner matrix that belongs to y."""

    @staticmethod
    def forward(spectral: Spectral, w: Tensor, V: Tensor, y: Tensor, loewner: Tensor | None) -> Tensor:
        return matmul(V * y.unsqueeze(-2), V.mH)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.spectral, w, V, _, loewner = inputs
        ctx.save_for_backward(w, V, loewner)
        ctx.save_for_forward(w, V, loewner)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, Tensor | None, Tensor | None, Tensor | None]:
        w, V, loewner = ctx.saved_tensors
        gV = _first(ctx.spectral, grad, w, V, loewner) if ctx.needs_input_grad[2] else None
        if loewner is None:
            return None, None, gV, None, None
        pair = _pair_value(grad, V) if torch.compiler.is_compiling() else _Pair.apply(grad, V)
        return None, None, gV, *pair


class _MappedFunc(_Mapped):
    @staticmethod
    def jvp(ctx: Any, _: None, tw: None, tV: Tensor | None, ty: Tensor | None, tl: Any) -> Tensor | None:
        w, V, loewner = ctx.saved_tensors
        total = None if tV is None else _first(ctx.spectral, tV, w, V, loewner)
        if ty is not None:
            through_y = matmul(V * ty.unsqueeze(-2), V.mH)
            total = through_y if total is None else total + through_y
        return total

    @staticmethod
    def vmap(info: Any, dims: Any, spectral: Spectral, w: Tensor, V: Tensor, y: Tensor, loewner: Any) -> tuple[Any, int]:
        w, V, y = batched(info, dims[1:4], (w, V, y))
        if loewner is not None:
            (loewner,) = batched(info, dims[4:], (loewner,))
        return _MappedFunc.apply(spectral, w, V, y, loewner), 0


def _pair_value(G: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
    diagonal = in_basis(V, G).diagonal(dim1=-2, dim2=-1).real.clone()
    return diagonal, torch.zeros_like(V, dtype=diagonal.dtype)


class _Pair(Function):
    """G -> the cotangents of (y, Loewner matrix): (diag(V^H G V), 0).

    The zero is there for what comes back. Let a tensor p of f have the cotangent t. The derivative by M of its gradient
    <G, (df/dp)(M)> is V (L * (V^H G V)) V^H with L the Loewner matrix of t df/dp, and that L is just what arrives as the
    cotangent of the zero. No eigenvector has to be differentiated.
    """

    @staticmethod
    def forward(G: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
        return _pair_value(G, V)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, u: Tensor | None, loewner: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        G, V = ctx.saved_tensors
        gG = None if u is None else _last(matmul(V * u.unsqueeze(-2), V.mH))
        gV = None if loewner is None else _last(sandwich(V, loewner * in_basis(V, G)))
        return gG, gV

    @staticmethod
    def jvp(ctx: Any, tG: Tensor | None, tV: Tensor | None) -> tuple[Tensor, Tensor]:
        G, V = ctx.saved_tensors
        inner = in_basis(V, G)
        t_diagonal = torch.zeros_like(inner[..., 0].real) if tG is None else in_basis(V, tG).diagonal(dim1=-2, dim2=-1).real
        t_loewner = torch.zeros_like(inner.real) if tV is None else (inner.conj() * in_basis(V, tV)).real
        return _last(t_diagonal.clone()), _last(t_loewner.clone())

    @staticmethod
    def vmap(info: Any, dims: Any, G: Tensor, V: Tensor) -> tuple[Any, Any]:
        return _Pair.apply(*batched(info, dims, (G, V))), (0, 0)


class _Last(Function):
    """The identity, for a second derivative that cannot be differentiated again."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return refuse_third_derivative()


def _last(x: Tensor) -> Tensor:
    return _Last.apply(x)  # type: ignore[no-any-return]


class _MappedFirst(Function):
    """D1[E] with the Loewner matrix given, or derived from w where f has no tensors of its own."""

    @staticmethod
    def forward(spectral: Spectral, E: Tensor, w: Tensor, V: Tensor, loewner: Tensor | None) -> Tensor:
        return _first_value(spectral, E, w, V, loewner)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.spectral, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        E, w, V, loewner = ctx.saved_tensors
        gE = _first(ctx.spectral, grad, w, V, loewner) if ctx.needs_input_grad[1] else None
        gV = second_derivative(ctx.spectral, E, grad, w, V) if ctx.needs_input_grad[3] else None
        g_loewner = _last((in_basis(V, E).conj() * in_basis(V, grad)).real) if ctx.needs_input_grad[4] else None
        return None, gE, None, gV, g_loewner

    @staticmethod
    def jvp(ctx: Any, _: None, tE: Tensor | None, tw: None, tV: Tensor | None, tl: Tensor | None) -> Tensor | None:
        E, w, V, loewner = ctx.saved_tensors
        terms = []
        if tE is not None:
            terms.append(_first(ctx.spectral, tE, w, V, loewner))
        if tV is not None:
            terms.append(second_derivative(ctx.spectral, E, tV, w, V))
        if tl is not None:
            terms.append(_last(sandwich(V, tl * in_basis(V, E))))
        return sum(terms[1:], terms[0]) if terms else None

    @staticmethod
    def vmap(info: Any, dims: Any, spectral: Spectral, E: Tensor, w: Tensor, V: Tensor, loewner: Any) -> tuple[Any, int]:
        E, w, V = batched(info, dims[1:4], (E, w, V))
        if loewner is not None:
            (loewner,) = batched(info, dims[4:], (loewner,))
        return _MappedFirst.apply(spectral, E, w, V, loewner), 0
