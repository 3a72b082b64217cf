"""Square roots by matrix products alone, with gradients from Lyapunov equations.

With A = M/|M|, the coupled iteration Y_0 = A, Z_0 = I,

    R = Z Y,   T = a I + b R + c R^2,   Y <- Y T,   Z <- T Z,      Y -> A^(1/2),  Z -> A^(-1/2).

The eigenvalues of R are squares x^2 with x <- x (a + b x^2 + c x^4) -> 1; the coefficients of each step come from
minimax.py, for the smallest eigenvalue that has to be reached. Each matrix of a batch is scaled by its own norm. The
derivative X of the square root in direction E solves Y X + X Y = E, again by products alone: the sign iteration applied to
[[Y, E], [0, -Y]], whose limit is [[I, 2X], [0, -I]]. See docs/newton.md, which counts the products.

The inverse fourth root is the square root of the inverse square root: the first of the two tells a singular matrix, the
second has the root of the condition number to do with.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from spectralgrad.context import is_transformed, may_read
from spectralgrad.counters import count_on_device
from spectralgrad.errors import DefinitenessError
from spectralgrad.kernels.ops import opaque
from spectralgrad.validation import require_hermitian

from ..calculus import AtScale1, Factors, Potential, evaluate
from ..moves import cast, moved
from ..precision import exactly_hermitian, hermitian_part, matmul
from ..scaling import are_ordinary, exponent, shifted
from .iteration import (
    TAIL,
    UNCONVERGED,
    Convergence,
    by_levels,
    even_part,
    finest,
    hermitian_norm_bound,
    host_may_look,
    identity_like,
    product_dtype,
)
from .lyapunov import lyapunov
from .minimax import PLAIN, Quintic, SignStep, sign_schedule
from .newton_schulz import NewtonSchulz
from .refinement import refined

# Eigenvalues from this many eps |A| on are reached. The root of a singular matrix wants distance from what rounding leaves
# in the null space, more of it where the products round as coarsely as the matrix did.
_REACH_INVERSE, _REACH_WIDE, _REACH = 1.0, 4.0, 16.0
_QUADRATIC = 6  # steps from 0.1 to working accuracy once the convergence is quadratic, with one to spare
_LOST = "root_unconverged"  # the name of its count
_RUNAWAY = 100.0  # |R|_F / sqrt(n) is 4 at most unless a negative eigenvalue has run away


def _coupled_fake(A: Tensor, lower: float, accuracy: float, tolerance: float) -> tuple[Tensor, Tensor]:
    return A.new_empty(A.shape), A.new_empty(A.shape)


@opaque("newton_roots(Tensor A, float lower, float accuracy, float tolerance) -> (Tensor, Tensor)", _coupled_fake)
def _coupled(A: Tensor, lower: float, accuracy: float, tolerance: float) -> tuple[Tensor, Tensor]:
    """A^(1/2) and A^(-1/2) of matrices (*B, n, n) of norm at most 1, whose eigenvalues from ``lower`` on are reached.

    A matrix with a negative eigenvalue runs away. Where the host may look it is done again, slowly; elsewhere it becomes
    the identity, and is counted.
    """
    if host_may_look(A):

        def attempt(A: Tensor, level: float, extra: int) -> tuple[Tensor, ...]:
            return _watched_roots(A, level, accuracy, tolerance, extra)

        Y, Z, length, _ = by_levels(A, lower, attempt)
        lost = ~(length <= _RUNAWAY * math.sqrt(A.shape[-1]))  # NaN too
        if bool(lost.any()):
            slow = _monotone(A, tolerance)
            Y, Z = _select(lost, slow[0], Y), _select(lost, slow[1], Z)
        return Y, Z
    steps = sign_schedule(lower**0.5, accuracy)
    Y, Z = _step(A, None, A.clone(), steps[0].coefficients)
    for step in steps[1:]:
        R = matmul(Z, Y)
        if step is steps[-1]:
            length, trace = torch.linalg.matrix_norm(R), R.diagonal(dim1=-2, dim2=-1).real.sum(-1)
        Y, Z = _step(Y, Z, R, step.coefficients)
    # |I - R|_F from two sums: what is asked for is far above the rounding in their difference.
    residual = (length.square() - 2 * trace + A.shape[-1]).clamp(min=0).sqrt()
    size = math.sqrt(A.shape[-1])
    count_on_device(_LOST, ~(residual <= max(UNCONVERGED, 4 * size * steps[-1].before)))
    lost = ~(length <= _RUNAWAY * size)
    return _select(lost, identity_like(A), Y), _select(lost, identity_like(A), Z)


def _step(Y: Tensor, Z: Tensor | None, R: Tensor, coefficients: Quintic) -> tuple[Tensor, Tensor]:
    """Y T and T Z for R = Z Y, which is used up: three products, or two where Z is I, that is None."""
    T = even_part(R, coefficients)
    return matmul(Y, T), T if Z is None else matmul(T, Z)


def _select(mask: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    return torch.where(mask[..., None, None], yes, no).contiguous()


def _watched_roots(A: Tensor, lower: float, accuracy: float, tolerance: float, extra: int) -> tuple[Tensor, ...]:
    """Y, Z, |Z Y|_F and whether they have converged: the schedule, then plain steps until each matrix stops."""
    first, *others = sign_schedule(lower**0.5, accuracy)
    Y, Z = _step(A, None, A.clone(), first.coefficients)
    progress = Convergence(A, tolerance)
    for step in (*others, *[SignStep(PLAIN, 0.0, 0.0)] * extra):
        R = matmul(Z, Y)
        if step.before >= TAIL:
            Y, Z = _step(Y, Z, R, step.coefficients)
            continue
        length = torch.linalg.matrix_norm(R)
        go_on = progress.go_on(identity_like(R) - R)
        if progress.finished():
            break
        Y_next, Z_next = _step(Y, Z, R, step.coefficients)
        Y, Z = torch.where(go_on, Y_next, Y), torch.where(go_on, Z_next, Z)
    return Y, Z, length, progress.converged()


def _monotone(A: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
    """The cubic iteration of Newton and Schulz, whose residuals never grow unless there is a negative eigenvalue.

    So it can be stopped before that direction has any weight: singular matrices keep their root, whatever their rounding.
    """
    identity = identity_like(A)
    Y, Z = A, identity
    progress = Convergence(A, tolerance)
    for _ in range(math.ceil(math.log(1 / float(torch.finfo(A.dtype).eps)) / math.log(2.25)) + _QUADRATIC):
        R = matmul(Z, Y)
        go_on = progress.go_on(identity - R)
        if progress.finished():
            break
        T = 1.5 * identity - 0.5 * R
        Y, Z = torch.where(go_on, matmul(Y, T), Y), torch.where(go_on, matmul(T, Z), Z)
    return Y, Z


@dataclass(frozen=True)
class _Root(Potential):
    """M^(1/2) or M^(-1/2); factors: the square root, which is the handle, and the inverse one."""

    who: str
    inverse: bool
    solver: NewtonSchulz
    eps: float  # of the dtype that M was given in
    lower: float  # eigenvalues from here on, relative to the norm, are reached
    refine: bool = False  # whether the residual of a square root is brought down to rounding

    handle, count = 0, 2

    def value(self, M: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        H, tolerance = hermitian_part(M), self.tolerance
        if M.numel() == 0:
            return H, H.clone(), H.clone()
        if tolerance is not None:
            require_hermitian(self.who, M, H, tolerance)
        norm = hermitian_norm_bound(H)
        A = H / norm
        Y, Z = _coupled(A, self.lower, self._accuracy(A), self.solver.tolerance(A, self.eps))
        if self.refine:
            Y = refined(A, Y, Z, self.lower**0.5)
        if tolerance is not None:
            self._require_definite(A, Y, Z)
        elif host_may_look(A):  # elsewhere `_coupled` counts
            count_on_device(_LOST, ~self._error(A, Y, Z)[1])
        root = norm.sqrt()
        Y, Z = exactly_hermitian(Y).mul_(root), exactly_hermitian(Z).div_(root)
        return (Z if self.inverse else Y).clone(), Y, Z

    def _accuracy(self, x: Tensor) -> float:
        """How near to 1 the steps are to bring everything: rounding in the given dtype, none in the working one."""
        return max(2 * self.eps, finest(x))

    def _error(self, A: Tensor, Y: Tensor, Z: Tensor) -> tuple[Tensor, Tensor]:
        """The residual (*B,), and whether it is a root's: negative eigenvalues have none, singular matrices no inverse."""
        loose = 2 * self.solver.tolerance(A, self.eps) * A.shape[-1] ** 0.5
        if self.inverse:
            error = torch.linalg.matrix_norm(matmul(Z, matmul(A, Z)) - identity_like(A))
            return error, error <= max(UNCONVERGED, loose)
        error = torch.linalg.matrix_norm(matmul(Y, Y) - A)
        return error, error <= max(0.5 * (A.shape[-1] * self.eps) ** 0.5, loose)  # rounding: what is left of a null space

    def _require_definite(self, A: Tensor, Y: Tensor, Z: Tensor) -> None:
        error, found = self._error(A, Y, Z)
        failed = ~found
        if bool(failed.any()):
            kind = "positive definite" if self.inverse else "positive semi-definite"
            raise DefinitenessError(
                f"`{self.who}`: Newton-Schulz needs `M` {kind}, but {int(failed.sum())} of {failed.numel()} matrices did "
                f"not converge (residual {float(error.max()):.2g}): they are singular, negative or too ill-conditioned for "
                f"an eps of {self.eps:.1e}. Add eps * identity, or use an eigensolver."
            )

    def at_scale_1(self, factors: Factors) -> AtScale1:
        Y, Z = factors
        k = exponent(Y)  # M is 2^(2 k) times a matrix of scale 1
        orders = (-3, -5) if self.inverse else (-1, -3)
        return AtScale1(self, (shifted(Y, -k), shifted(Z, k)), orders[0] * k, orders[1] * k)

    def size(self, factors: Factors) -> Tensor:
        return factors[0].abs().square().flatten(-2)

    def _solve(self, factors: Factors, E: Tensor) -> Tensor:
        """X with Y X + X Y = E, for Hermitian E."""
        Y, Z = factors
        return lyapunov(Y, Z, E, self.lower**0.5, self._accuracy(Y), False)

    def first(self, factors: Factors, E: Tensor) -> Tensor:
        Y, Z = factors
        if Y.numel() == 0:
            return E.clone()
        X = self._solve(factors, hermitian_part(E))
        return -matmul(Z, matmul(X, Z)) if self.inverse else X

    def second(self, factors: Factors, E1: Tensor, E2: Tensor) -> Tensor:
        Y, Z = factors
        if Y.numel() == 0:
            return E1.clone()
        X1, X2 = (self._solve(factors, hermitian_part(E)) for E in (E1, E2))
        P = matmul(X1, X2)
        X12 = self._solve(factors, -(P + P.mH))  # the second derivative of Y Y = M
        if not self.inverse:
            return X12
        Q = matmul(matmul(X1, Z), X2)
        return matmul(Z, matmul(Q + Q.mH - X12, Z))


def _at_scale_1(root: Callable[[Tensor], Tensor], M: Tensor, p: int, sign: int) -> Tensor:
    """M^(sign/p) from a function that computes it, by way of a matrix of scale 1 where the scale of ``M`` is in the way."""
    k = torch.floor(exponent(M) / p)
    return root(M) if may_read(M) and are_ordinary(M, k) else moved(root(moved(M, -p * k)), sign * k)


def newton_root(
    who: str,
    M: Tensor,
    inverse: bool,
    solver: NewtonSchulz,
    tolerance: float | None,
    *,
    lower: float | None = None,
    eps: float | None = None,
) -> Tensor:
    """The root of ``M`` (*B, n, n): converged with a solved gradient, or the unrolled baseline.

    ``lower`` is the smallest eigenvalue to be reached, relative to a norm of M; None is what the dtype can tell from zero.
    ``eps`` is the accuracy asked for; None is that of the dtype.
    """
    if solver.steps is None:
        wide = product_dtype(M)
        eps = float(torch.finfo(M.dtype).eps) if eps is None else eps
        reach = _REACH_INVERSE if inverse else _REACH if wide == M.dtype else _REACH_WIDE
        # Products that are more precise than the matrix have digits to spare; a tolerance asks for fewer.
        refine = not inverse and lower is None and wide == M.dtype and solver.tol is None
        root = _Root(who, inverse, solver, eps, reach * eps if lower is None else lower, refine, tolerance=tolerance)
        return cast(_at_scale_1(lambda X: evaluate(root, X), cast(M, wide), 2, -1 if inverse else 1), M.dtype)
    H = hermitian_part(M)
    if tolerance is not None and M.numel() and not is_transformed(M):
        require_hermitian(who, M.detach(), H.detach(), tolerance)
    trace = H.diagonal(dim1=-2, dim2=-1).real.sum(-1)[..., None, None]
    trace = torch.where(trace > 0, trace, 1)
    Y, Z = H / trace, identity_like(H)
    for _ in range(solver.steps):
        T = 1.5 * identity_like(H) - 0.5 * matmul(Z, Y)
        Y, Z = matmul(Y, T), matmul(T, Z)
    return exactly_hermitian(Z / trace.sqrt() if inverse else Y * trace.sqrt())


def newton_inverse_fourth_root(who: str, M: Tensor, solver: NewtonSchulz, tolerance: float | None) -> Tensor:
    """M^(-1/4) of ``M`` (*B, n, n): the square root of the inverse square root, both in the dtype of the products."""
    eps = float(torch.finfo(M.dtype).eps)
    # The eigenvalues of Z lie in [1, (lower |A|)^(-1/2)], and a norm of them exceeds the largest by n^(1/2) at most.
    lower = (_REACH_INVERSE * eps / max(M.shape[-1], 1)) ** 0.5

    def fourth_root(X: Tensor) -> Tensor:
        Z = newton_root(who, X, True, solver, tolerance, eps=eps)
        return newton_root(who, Z, False, solver, tolerance, lower=lower, eps=eps)

    X = cast(M, product_dtype(M)) if solver.steps is None else M
    return cast(_at_scale_1(fourth_root, X, 4, -1), M.dtype)
