"""The polar factor: the nearest matrix with orthonormal columns (or rows).

For A = Q H, tall, with Q^H Q = I and H = (A^H A)^(1/2), and E a direction,

    dQ = Q W + (I - Q Q^H) E H^-1,     H W + W H = Q^H E - E^H Q,   W skew.

Q is the gradient of the nuclear norm, so this map is its own adjoint (calculus.py). Differentiating A = Q H twice, with
dH_i = Q^H (E_i - dQ_i H), R = -(dQ_1 dH_2 + dQ_2 dH_1) and C = dQ_1^H dQ_2 + dQ_2^H dQ_1:

    d2Q = Q (W2 - C/2) + (I - Q Q^H) R H^-1,     H W2 + W2 H = Q^H R - R^H Q + (C H - H C)/2.

In the eigenbasis of H the equation divides by s_i + s_j: no gap, so no tie matters. Pairs with s_i = s_j = 0, where Q is
not unique, contribute nothing.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spectralgrad.context import (
    checking,
    compiling,
    has_memory,
    is_transformed,
    may_read,
    transforming,
)
from spectralgrad.counters import count_on_device, device_counter
from spectralgrad.errors import DefinitenessError
from spectralgrad.kernels import polar as polar_kernel
from spectralgrad.kernels import small_svd
from spectralgrad.kernels.cpu import polar as native_polar
from spectralgrad.validation import adjoint, as_matrix, require_finite

from .calculus import AtScale1, Factors, Potential, evaluate, first_derivative
from .choices import AUTO, chooses_kernels, for_polar
from .moves import cast, moved
from .node import Shortcut, Some, run
from .precision import hermitian_part, matmul
from .products import NewtonSchulz
from .products.iteration import UNCONVERGED, finest, frobenius_norm, norm_bound, product_dtype
from .products.lyapunov import lyapunov
from .products.polar import newton_polar
from .rules import Rule
from .scaling import are_ordinary, exponent, shifted
from .solvers import Solver, decompose_svd
from .svd import reciprocal_sums, reciprocal_values, rounding, singular_triplets

__all__ = ["BySVD", "polar"]


class _Polar(Potential):
    """The two derivatives, given H and the means to solve with it. Factors: Q, which is the handle, then H's."""

    handle, count = 0, 3

    def size(self, factors: Factors) -> Tensor:
        Q, second = factors[:2]  # S (*B, n), or H (*B, n, n)
        return second if second.ndim < Q.ndim else second.flatten(-2)

    @abstractmethod
    def solve(self, factors: Factors, E: Tensor) -> Tensor:
        """X with H X + X H = E, for skew-Hermitian E."""

    @abstractmethod
    def inverse(self, factors: Factors) -> Tensor:
        """H^-1."""

    @abstractmethod
    def stretch(self, factors: Factors) -> Tensor:
        """H."""

    def _complete(self, factors: Factors, R: Tensor, skew: Tensor) -> Tensor:
        Q = factors[0]
        result = matmul(Q, self.solve(factors, skew))
        if Q.shape[-2] > Q.shape[-1]:
            outside = R - matmul(Q, matmul(Q.mH, R))
            result = result + matmul(outside, self.inverse(factors))
        return result

    def first(self, factors: Factors, E: Tensor) -> Tensor:
        if E.numel() == 0:
            return E.clone()
        P = matmul(factors[0].mH, E)
        return self._complete(factors, E, P - P.mH)

    def second(self, factors: Factors, E1: Tensor, E2: Tensor) -> Tensor:
        if E1.numel() == 0:
            return E1.clone()
        Q, H = factors[0], self.stretch(factors)
        dQ1, dQ2 = self.first(factors, E1), self.first(factors, E2)
        dH1, dH2 = (hermitian_part(matmul(Q.mH, E - matmul(dQ, H))) for E, dQ in ((E1, dQ1), (E2, dQ2)))
        R = -(matmul(dQ1, dH2) + matmul(dQ2, dH1))
        C = matmul(dQ1.mH, dQ2)
        C = C + C.mH
        P = matmul(Q.mH, R)
        CH = matmul(C, H)
        return self._complete(factors, R, P - P.mH + (CH - CH.mH) / 2) - matmul(Q, C) / 2


@dataclass(frozen=True)
class BySVD(_Polar):
    """Factors: Q, singular values (*B, n), right singular vectors (*B, n, n).

    All but `value` holds for every Q H = A with H = V diag(S) V^H Hermitian, of either sign, if no s_i + s_j is negative.
    """

    who: str
    solver: Solver
    eps: float | None = None  # what rounding is relative to; None: that of the dtype

    def value(self, A: Tensor) -> tuple[Tensor, ...]:
        Q, S, V = self.factors(A, self.tolerance is not None)
        return Q, Q.clone(), S, V

    def factors(self, A: Tensor, check: bool) -> small_svd.Polar:
        """Q, S and V; ``check`` allows to look at values."""
        return polar_factors(self.who, A, self.solver, check, self.eps)

    def first_in_kernel(self, factors: Factors, E: Tensor) -> Tensor | None:
        kernel = _derivative_kernel(factors[0])
        if kernel is None or E.shape != factors[0].shape or not has_memory(E):
            return None
        return kernel(small_svd.Polar(*factors), E, rounding_unit(E, self.eps))

    def at_scale_1(self, factors: Factors) -> AtScale1:
        Q, S, V = factors
        k = exponent(S, 1)
        return AtScale1(self, (Q, shifted(S, -k), V), -k, -2 * k)

    def solve(self, factors: Factors, E: Tensor) -> Tensor:
        _, S, V = factors
        X = matmul(V.mH, matmul(E, V))
        X = (X - X.mH) / 2  # as it is but for rounding, which on the diagonal a tiny s_n would blow up
        return matmul(matmul(V, reciprocal_sums(S, self.eps) * X), V.mH)

    def inverse(self, factors: Factors) -> Tensor:
        _, S, V = factors
        return matmul(V * reciprocal_values(S, self.eps).unsqueeze(-2), V.mH)

    def stretch(self, factors: Factors) -> Tensor:
        _, S, V = factors
        return matmul(V * S.unsqueeze(-2), V.mH)


def evaluate_polar(potential: BySVD, A: Tensor) -> Tensor:
    """`evaluate`; where a kernel takes the derivative, a node without what other ways need, if nothing looks into it."""
    if potential.tolerance is not None or transforming() or _derivative_kernel(A) is None:
        return evaluate(potential, A)
    return run(_InKernel(potential), A)  # type: ignore[no-any-return]


class _InKernel(Shortcut):
    def __init__(self, potential: BySVD) -> None:
        self.potential = potential

    def value(self, A: Tensor) -> Tensor:
        self.factors = self.potential.factors(A, False)
        return self.factors.Q

    def composition(self, A: Tensor) -> Tensor:
        return evaluate(self.potential, A)

    def pull_shortly(self, kept: Sequence[Tensor], grads: Sequence[Tensor], needed: Sequence[bool]) -> Some:
        kernel = _derivative_kernel(kept[0])
        assert kernel is not None
        D = kernel(self.factors, grads[0], rounding_unit(grads[0], self.potential.eps))
        return (first_derivative(self.potential, self.factors, grads[0]) if D is None else D,)


def polar_factors(
    who: str, A: Tensor, solver: Solver, check: bool, eps: float | None, *, special: bool = False, event: str | None = None
) -> small_svd.Polar:
    """Q, sigma and V of ``A``, with ``special`` for the nearest rotation; ``check`` allows to look at values.

    ``event``: the count of matrices whose Q is not unique, to ``eps``; None counts none.
    """
    if chooses_kernels(solver) and not compiling() and small_svd.runs_on(A):
        if check:
            require_finite(who, A, "A")
        not_unique = None if event is None else device_counter(event, A.device)
        return small_svd.polar(A, special, rounding_unit(A, eps), device_counter("nonfinite_input", A.device), not_unique)
    found = native_polar.polar(A, special) if chooses_kernels(solver) and native_polar.runs_on(A) else None
    factors = _factors_by_svd(who, A, solver, check, special) if found is None or found[1] else found[0]
    S = factors.sigma
    if event is not None and S.shape[-1] > (1 if special else 0):
        last = S[..., -2:].sum(-1) / 2 if special else S[..., -1]
        count_on_device(event, last <= rounding(S, eps).squeeze(-1))
    return factors


def _factors_by_svd(who: str, A: Tensor, solver: Solver, check: bool, special: bool) -> small_svd.Polar:
    U, S, Vh = decompose_svd(who, A, solver, check)
    if special and polar_kernel.runs_on(U):
        factors = small_svd.Polar(matmul(U, Vh), S, Vh.mH.contiguous())
        polar_kernel.turn(factors)
        return factors
    if special:
        d = torch.linalg.det(matmul(U, Vh)).sign().unsqueeze(-1)  # (*B, 1); NaN stays
        U = torch.cat([U[..., :-1], U[..., -1:] * d.unsqueeze(-1)], -1)
        S = torch.cat([S[..., :-1], S[..., -1:] * d], -1)
    return small_svd.Polar(matmul(U, Vh), S, Vh.mH.contiguous())


def rounding_unit(A: Tensor, eps: float | None) -> float:
    """``eps``, or if it is None that of the dtype."""
    return float(torch.finfo(A.dtype).eps) if eps is None else eps


def _derivative_kernel(Q: Tensor) -> Callable[[small_svd.Polar, Tensor, float], Tensor | None] | None:
    """The kernel for the derivative of polar factors like ``Q`` (*B, m, n); None leaves it to plain torch."""
    if compiling():
        return None
    if native_polar.differentiates(Q):
        return native_polar.derivative
    if small_svd.runs_on(Q):
        return small_svd.derivative
    return polar_kernel.derivative if polar_kernel.runs_on(Q) else None


@dataclass(frozen=True)
class _ByNewton(_Polar):
    """Factors: Q, H and H^-1."""

    solver: NewtonSchulz
    eps: float  # of the dtype that A was given in

    def value(self, A: Tensor) -> tuple[Tensor, ...]:
        if A.numel() == 0:
            gram = matmul(A.mH, A)
            return A.clone(), A.clone(), gram, gram.clone()
        if self.tolerance is not None:
            require_finite("polar", A, "A")
        stop = self.solver.tolerance(A, self.eps)
        norm = norm_bound(A)
        Q, P, residual = newton_polar(A / norm, self.eps, stop)
        failed = ~(residual <= max(UNCONVERGED, 2 * stop * A.shape[-1] ** 0.5))
        if self.tolerance is not None and bool(failed.any()):
            raise DefinitenessError(
                f"`polar`: Newton-Schulz needs `A` of full rank, but {int(failed.sum())} of {residual.numel()} "
                f"matrices did not converge (residual {float(residual.max()):.2g}). Use the default solver."
            )
        # Copies: Q may be a view, which autograd lets nobody edit, and which forward mode refuses as the handle.
        return Q.clone(), Q.clone(), hermitian_part(matmul(Q.mH, A)), hermitian_part(P) / norm

    def at_scale_1(self, factors: Factors) -> AtScale1:
        Q, H, inverse = factors
        k = exponent(H)
        return AtScale1(self, (Q, shifted(H, -k), shifted(inverse, k)), -k, -2 * k)

    def solve(self, factors: Factors, E: Tensor) -> Tensor:
        _, H, inverse = factors
        return lyapunov(H, inverse, E, self.eps, max(2 * self.eps, finest(H)), True)

    def inverse(self, factors: Factors) -> Tensor:
        return factors[2]

    def stretch(self, factors: Factors) -> Tensor:
        return factors[1]


def polar(A: Tensor, *, gradient: Rule | None = None, solver: Solver | NewtonSchulz = AUTO) -> Tensor:
    """The nearest matrix with orthonormal columns (rows, if wide): U V^H of the SVD, with its exact gradient.

    The gradient divides by sums of singular values, never by their differences, so ties do not matter.

    Args:
        A: (*B, m, n), real or complex, any shape. Half precision is computed in float32.
        gradient: None or `Exact()` for the exact gradient; another rule goes through the singular vectors.
        solver: `Auto()`, `Lapack()` or `SVD()` by SVD, as in `svd`; `NewtonSchulz()` by matrix products, for full rank;
            `NewtonSchulz(steps=5)` that many, differentiated through.

    Returns:
        (*B, m, n).

    Raises:
        ShapeError, DtypeError, NonFiniteError, OptionError, ConvergenceError; DefinitenessError from Newton-Schulz alone.

    >>> import torch, spectralgrad as sg
    >>> sg.polar(torch.tensor([[2.0, 0.0], [0.0, 3.0], [0.0, 0.0]]))
    tensor([[1., 0.],
            [0., 1.],
            [0., 0.]])
    """
    X = as_matrix("polar", A, square=False, name="A")
    if X.shape[-2] < X.shape[-1]:
        return polar(adjoint("polar", A), gradient=gradient, solver=solver).mH
    check = checking(A)
    choice = for_polar("polar", gradient, solver)
    if choice.way == "exact":
        Q = evaluate_polar(BySVD("polar", choice.solver, tolerance=0.0 if check else None), X)
    elif choice.way == "products":
        Q = _by_products(X, choice.newton, check)
    else:
        U, _, Vh = singular_triplets("polar", X, choice, check)
        Q = matmul(U, Vh)
    return Q if X is A else Q.to(A.dtype)


def _by_products(A: Tensor, newton: NewtonSchulz, check: bool) -> Tensor:
    if newton.steps is None:
        by_newton = _ByNewton(newton, float(torch.finfo(A.dtype).eps), tolerance=0.0 if check else None)
        X = cast(A, product_dtype(A))
        k = exponent(X)
        X = X if may_read(X) and are_ordinary(X, k) else moved(X, -k)  # the polar factor does not scale
        return cast(evaluate(by_newton, X), A.dtype)
    if check and not is_transformed(A):
        require_finite("polar", A.detach(), "A")
    Q = A / frobenius_norm(A) if A.numel() else A
    for _ in range(newton.steps):
        Q = 1.5 * Q - 0.5 * matmul(Q, matmul(Q.mH, Q))
    return Q
