"""Square roots and polar factors by matrix products alone (Newton-Schulz), with gradients from Lyapunov equations.

Roots: with A = M/|M|_F, the coupled iteration Y_0 = A, Z_0 = I,

    T = (3 I - Z Y)/2,   Y <- Y T,   Z <- T Z,      Y -> A^(1/2),  Z -> A^(-1/2).

Each matrix of a batch is scaled by its own norm and stops on its own. The derivative X of the square root in direction
E solves Y X + X Y = E, again by products alone: the sign iteration applied to [[Y, E], [0, -Y]], whose limit is
[[I, 2X], [0, -I]]. See docs/newton.md.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from spectralgrad.errors import DefinitenessError, OptionError
from spectralgrad.kernels.ops import opaque

from .calculus import evaluate
from .checks import is_number, is_transformed, is_whole, require_hermitian
from .precision import hermitian_part, matmul

__all__ = ["NewtonSchulz"]

_QUADRATIC = 6  # steps from 0.1 to working accuracy once the convergence is quadratic, with one to spare
_GROWTH = 1.1  # a residual that grows so much in a step: a negative eigenvalue has reached a tenth of what will blow up
_SINGULAR = 4  # times the root of eps: lifts what rounding left in the null space of a root above zero
_UNCONVERGED = 0.1  # a residual above this means that a direction was not reached at all


@dataclass(frozen=True)
class NewtonSchulz:
    """Matmul-only square root, inverse square root and polar factor; a ``solver=`` of `sqrtm`, `inv_sqrtm`, `polar`.

    With ``tol`` (the default) it converges to working accuracy and its gradient is solved from a Lyapunov equation.
    With ``steps`` it is the papers' baseline: that many steps after scaling by the trace, differentiated through.

    Args:
        tol: residual |I - Z Y|_F / sqrt(n) at which a matrix is done; None is n eps. It stops earlier where rounding
            lets the residual shrink no further.
        steps: a fixed number of unrolled steps instead.

    >>> import spectralgrad as sg
    >>> M = torch.diag(torch.tensor([4.0, 9.0]))
    >>> sg.sqrtm(M, solver=sg.NewtonSchulz()).diagonal()
    tensor([2.0000, 3.0000])
    """

    tol: float | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        if self.tol is not None and self.steps is not None:
            raise OptionError("`NewtonSchulz`: pass tol= or steps=, not both.")
        if self.tol is not None and not (is_number(self.tol) and 0 < self.tol < 1):
            raise OptionError(f"`NewtonSchulz`: tol must lie in (0, 1), got {self.tol!r}.")
        if self.steps is not None and not is_whole(self.steps):
            raise OptionError(f"`NewtonSchulz`: steps must be a whole number >= 1, got {self.steps!r}.")

    def tolerance(self, x: Tensor) -> float:
        """The residual at which to stop, in the dtype of ``x`` (*B, m, n)."""
        return x.shape[-1] * float(torch.finfo(x.dtype).eps) if self.tol is None else self.tol


def max_steps(x: Tensor, growth: float) -> int:
    """Steps after which a direction of rounding size has reached 1, at ``growth`` a step, and converged."""
    return math.ceil(math.log(1 / float(torch.finfo(x.dtype).eps)) / math.log(growth)) + _QUADRATIC


class Progress:
    """Which matrices of a batch go on, judged by their residuals; never makes a GPU's host wait."""

    def __init__(self, x: Tensor, tolerance: float) -> None:
        self.size = math.sqrt(x.shape[-1])
        self.tolerance = tolerance
        self.previous = torch.full(x.shape[:-2], math.inf, dtype=x.real.dtype, device=x.device)
        self.active = torch.ones(x.shape[:-2], dtype=torch.bool, device=x.device)
        self.watched = x.device.type == "cpu"

    def go_on(self, residual: Tensor) -> Tensor:
        """The mask (*B, 1, 1) of matrices still improving, for residual matrices (*B, n, n)."""
        error = torch.linalg.matrix_norm(residual) / self.size
        # Done; or growing, as only a negative eigenvalue makes it, be it rounding's; or at the limit of rounding.
        # A residual e becomes at most e/2 if e <= 0.56, so below 0.5 in norm a smaller gain is rounding (docs/newton.md).
        stalled = (self.previous * self.size < 0.5) & (error > self.previous / 2)
        growing = error > _GROWTH * self.previous
        self.active = self.active & (error > self.tolerance) & ~stalled & ~growing
        self.previous = torch.where(self.active, error, torch.minimum(error, self.previous))
        return self.active[..., None, None]

    def finished(self) -> bool:
        """Whether no matrix goes on; always False where looking would make the host wait."""
        return self.watched and not bool(self.active.any())


def _norm(x: Tensor) -> Tensor:
    """Frobenius norm (*B, 1, 1), 1 for a zero matrix; scaled first, so that squares neither overflow nor underflow."""
    largest = x.abs().amax((-2, -1), keepdim=True)
    largest = torch.where(largest > 0, largest, 1)
    norm: Tensor = torch.linalg.matrix_norm(x / largest, keepdim=True).clamp(min=0.5)
    return largest * norm


def _identity_like(x: Tensor) -> Tensor:
    return torch.eye(x.shape[-1], dtype=x.dtype, device=x.device).expand(*x.shape[:-2], x.shape[-1], x.shape[-1])


def _step(Y: Tensor, Z: Tensor, ZY: Tensor) -> tuple[Tensor, Tensor]:
    T = 1.5 * _identity_like(ZY) - 0.5 * ZY
    return matmul(Y, T), matmul(T, Z)


def _lyapunov_fake(Y: Tensor, E: Tensor, growth: float = 2.25) -> Tensor:
    return E.new_empty(E.shape)


@opaque("lyapunov(Tensor Y, Tensor E, float growth=2.25) -> Tensor", _lyapunov_fake)
def lyapunov(Y: Tensor, E: Tensor, growth: float = 2.25) -> Tensor:
    """X with Y X + X Y = E for positive definite Y (*B, n, n), by matrix products.

    A step multiplies a small eigenvalue by 1.5. If Y is a square root its smallest ones are roots of rounding, which
    count twice: ``growth`` 2.25.
    """
    norm = _norm(Y)
    B, C = Y / norm, E / norm
    progress = Progress(B, B.shape[-1] * float(torch.finfo(B.dtype).eps))
    for _ in range(max_steps(B, growth)):
        BB = matmul(B, B)
        go_on = progress.go_on(_identity_like(BB) - BB)
        if progress.finished():
            break
        C_next = 1.5 * C - 0.5 * (matmul(BB, C) + matmul(C, BB) - matmul(B, matmul(C, B)))
        B, C = torch.where(go_on, 1.5 * B - 0.5 * matmul(B, BB), B), torch.where(go_on, C_next, C)
    return (C / 2).contiguous()


def _coupled_fake(A: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
    return A.new_empty(A.shape), A.new_empty(A.shape)


@opaque("newton_roots(Tensor A, float tolerance) -> (Tensor, Tensor)", _coupled_fake)
def _coupled(A: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
    """A^(1/2) and A^(-1/2) of matrices (*B, n, n) of norm 1."""
    identity = _identity_like(A)
    Y, Z = A, identity
    progress = Progress(A, tolerance)
    for _ in range(max_steps(A, 2.25)):
        ZY = matmul(Z, Y)
        go_on = progress.go_on(identity - ZY)
        if progress.finished():
            break
        Y_next, Z_next = _step(Y, Z, ZY)
        Y, Z = torch.where(go_on, Y_next, Y), torch.where(go_on, Z_next, Z)
    contiguous = torch.contiguous_format
    return Y.clone(memory_format=contiguous), Z.clone(memory_format=contiguous)


def _root_derivative(Y: Tensor, Z: Tensor, E: Tensor) -> Tensor:
    """X with Y X + X Y = E.

    Where Y is singular, as I - Z Y shows, rounding has left eigenvalues of either sign in its null space. They are lifted
    above zero: the equation has no bounded solution else. The gradient is then good to two or three digits only.
    """
    unreached = torch.linalg.matrix_norm(_identity_like(Y) - matmul(Z, Y), keepdim=True)
    lift = torch.where(unreached > 0.5, _SINGULAR * float(torch.finfo(Y.dtype).eps) ** 0.5 * _norm(Y), 0)
    return lyapunov(Y + lift * _identity_like(Y), E)


@dataclass(frozen=True)
class _Root:
    """M^(1/2) or M^(-1/2); factors: the square root, which is the handle, and the inverse one. See calculus.py."""

    who: str
    inverse: bool
    solver: NewtonSchulz

    handle = 0

    def value(self, M: Tensor, tolerance: float | None) -> tuple[Tensor, Tensor, Tensor]:
        H = hermitian_part(M)
        if M.numel() == 0:
            return H, H.clone(), H.clone()
        if tolerance is not None:
            require_hermitian(self.who, M, H, tolerance)
        norm = _norm(H)
        Y, Z = _coupled(H / norm, self.solver.tolerance(H))
        if tolerance is not None:
            self._require_definite(H / norm, Y, Z)
        root = norm.sqrt()
        Y, Z = hermitian_part(Y) * root, hermitian_part(Z) / root
        return (Z if self.inverse else Y).clone(), Y, Z

    def _require_definite(self, A: Tensor, Y: Tensor, Z: Tensor) -> None:
        """Raise unless the result is a root: negative eigenvalues have none, and singular matrices no inverse one."""
        if self.inverse:
            error = torch.linalg.matrix_norm(matmul(Z, matmul(A, Z)) - _identity_like(A))
            limit = max(_UNCONVERGED, 2 * self.solver.tolerance(A) * A.shape[-1] ** 0.5)
        else:
            error = torch.linalg.matrix_norm(matmul(Y, Y) - A)
            rounding = 0.5 * (A.shape[-1] * float(torch.finfo(A.dtype).eps)) ** 0.5  # what is left of a null space
            limit = max(2 * self.solver.tolerance(A) * A.shape[-1] ** 0.5, rounding)
        failed = ~(error <= limit)
        if bool(failed.any()):
            kind = "positive definite" if self.inverse else "positive semi-definite"
            raise DefinitenessError(
                f"`{self.who}`: Newton-Schulz needs `M` {kind}, but {int(failed.sum())} of {failed.numel()} matrices did "
                f"not converge (residual {float(error.max()):.2g}): they are singular, negative or too ill-conditioned for "
                f"{A.dtype}. Add eps * identity, or use an eigensolver."
            )

    def unchecked(self) -> "_Root":
        return self

    def first(self, factors: tuple[Tensor, ...], E: Tensor) -> Tensor:
        Y, Z = factors
        if Y.numel() == 0:
            return E.clone()
        X = _root_derivative(Y, Z, hermitian_part(E))
        return -matmul(Z, matmul(X, Z)) if self.inverse else X

    def second(self, factors: tuple[Tensor, ...], E1: Tensor, E2: Tensor) -> Tensor:
        Y, Z = factors
        if Y.numel() == 0:
            return E1.clone()
        X1, X2 = (_root_derivative(Y, Z, hermitian_part(E)) for E in (E1, E2))
        P = matmul(X1, X2)
        X12 = _root_derivative(Y, Z, -(P + P.mH))  # the second derivative of Y Y = M
        if not self.inverse:
            return X12
        Q = matmul(matmul(X1, Z), X2)
        return matmul(Z, matmul(Q + Q.mH - X12, Z))


def newton_root(who: str, M: Tensor, inverse: bool, solver: NewtonSchulz, tolerance: float | None) -> Tensor:
    """The root of ``M`` (*B, n, n): converged with a solved gradient, or the unrolled baseline."""
    if solver.steps is None:
        return evaluate(_Root(who, inverse, solver), M, tolerance)
    H = hermitian_part(M)
    if tolerance is not None and M.numel() and not is_transformed(M):
        require_hermitian(who, M.detach(), H.detach(), tolerance)
    trace = H.diagonal(dim1=-2, dim2=-1).real.sum(-1)[..., None, None]
    trace = torch.where(trace > 0, trace, 1)
    Y, Z = H / trace, _identity_like(H)
    for _ in range(solver.steps):
        Y, Z = _step(Y, Z, matmul(Z, Y))
    return Z * trace.rsqrt() if inverse else Y * trace.sqrt()
