"""Polar factors by matrix products alone."""

import torch
from torch import Tensor

from spectralgrad.kernels.ops import opaque

from ..precision import matmul
from .iteration import TAIL, Convergence, by_levels, even_part, finest, host_may_look, identity_like
from .minimax import PLAIN, SignStep, sign_schedule


def _newton_polar_fake(A: Tensor, eps: float, tolerance: float) -> tuple[Tensor, Tensor, Tensor]:
    P = A.new_empty(*A.shape[:-2], A.shape[-1], A.shape[-1])
    return A.new_empty(A.shape), P, A.new_empty(A.shape[:-2], dtype=A.real.dtype)


@opaque("newton_polar(Tensor A, float eps, float tolerance) -> (Tensor, Tensor, Tensor)", _newton_polar_fake)
def newton_polar(A: Tensor, eps: float, tolerance: float) -> tuple[Tensor, Tensor, Tensor]:
    """Q <- Q T, P <- P T, T = a I + b Q^H Q + c (Q^H Q)^2, from Q = A of norm at most 1, tall, and P = I.

    Q = A P throughout, so P -> H^-1. Returns Q (*B, m, n), P (*B, n, n) and the last residual (*B,). Singular values from
    ``eps`` on are reached. Four products a step.
    """

    def attempt(A: Tensor, level: float, extra: int) -> tuple[Tensor, ...]:
        return _polar_steps(A, level**0.5, max(2 * eps, finest(A)), tolerance, extra)

    Q, P, residual, _ = by_levels(A, eps**2, attempt) if host_may_look(A) else attempt(A, eps**2, 1)
    return Q.contiguous(), P.contiguous(), residual


def _polar_steps(A: Tensor, lower: float, accuracy: float, tolerance: float, extra: int) -> tuple[Tensor, ...]:
    """Q, P, residuals and whether they have converged: the schedule, then plain steps until each matrix stops."""
    first, *others = sign_schedule(lower, accuracy)
    P = even_part(matmul(A.mH, A), first.coefficients)
    Q = matmul(A, P)
    progress = Convergence(A, tolerance)
    for step in (*others, *[SignStep(PLAIN, 0.0, 0.0)] * extra):
        gram = matmul(Q.mH, Q)
        if step.before >= TAIL:
            T = even_part(gram, step.coefficients)
            Q, P = matmul(Q, T), matmul(P, T)
            continue
        go_on = progress.go_on(identity_like(gram) - gram)
        if progress.finished():
            break
        T = even_part(gram, step.coefficients)
        Q, P = torch.where(go_on, matmul(Q, T), Q), torch.where(go_on, matmul(P, T), P)
    return Q, P, progress.previous * progress.size, progress.converged()
