"""SVD-PI (NIPS19 Alg. 1): decomposition forward, power iterations with deflation backward.

From the largest eigenvalue down, with M_1 = M and v_i the solver's eigenvector:

    v_i = PI(M_i, v_i),   w_i = v_i^T M_i v_i,   M_(i+1) = deflate(M_i, v_i).

Forward, PI changes nothing, since v_i is a fixed point. Backward it is the gradient of `steps` iterations
v <- M_i v / |M_i v| started at the constant v_i (NIPS19 eq. 16). With P = I - v v^T and r = |M_i v|,

    gM_i += u v^T,  gv <- M_i u,   u = P gv / r,   repeated `steps` times,

and the gradient flows on through the Rayleigh quotients and the deflation. Loops run over eigenvectors and steps;
every operation is batched over matrices. The deflated matrices are rebuilt from the eigenpairs, so those are all
that is saved. Where kernels/power.py runs, it does the quotients and the gradient; the loops here are its twin, and stay
for complex and large matrices, torch.func, torch.compile and second derivatives.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from spectralgrad.context import compiling, is_plain_backward
from spectralgrad.errors import OptionError
from spectralgrad.kernels import power
from spectralgrad.validation import is_whole

from ..node import Some, Step, jvp_by_vjps, run, vjp
from ..precision import hermitian_part, matmul
from ..scalars import require_not_negative
from ..solvers import Solver, decompose

_ROUNDING = 8  # times eps l_max: how far an eigensolver may put an eigenvalue above its place; 2 were measured


@dataclass(frozen=True)
class PowerIteration:
    """NIPS19's SVD-PI (Alg. 1): decomposition forward, power iterations and deflation backward.

    Not a coefficient matrix but an algorithm. From the largest eigenvalue down: the gradient of ``steps`` power
    iterations started at the eigenvector, the eigenvalue as a differentiable Rayleigh quotient, deflation. The loop
    breaks, and drops this eigenvector and all smaller ones, at three conditions; each is off with None. At least the
    first eigenvector is kept. What is dropped gets no gradient from `eigh` and no part in a spectral function.
    The defaults are ours; `printed` is the paper's algorithm. See docs/rules/power_iteration.md.

    Args:
        steps: power iterations; K + 1 of them equal `Taylor(K)` with two-sided deflation and the breaks off.
        min_eigenvalue: break where an eigenvalue is not above this by more than rounding (8 eps l_max of the dtype): the
            eps that was added to the covariance, whose null space then is dropped and not half of it.
        max_rayleigh_error: break where the Rayleigh quotient of the deflated matrix differs from the solver's
            eigenvalue by this relative amount or more.
        max_energy: break after the eigenvector that brings the sum of eigenvalues to this part of the total.
        deflation: "two-sided", (I - vv^T) M (I - vv^T), or "printed", M - M v v^T, as in the paper.

    Raises:
        OptionError: an option out of its range.

    >>> import torch, spectralgrad as sg
    >>> M = torch.diag(torch.tensor([4.0, 4.0, 1.0])).requires_grad_()
    >>> w, V = sg.eigh(M, gradient=sg.PowerIteration(steps=19))
    >>> V[:, -1].sum().backward()
    >>> M.grad.isfinite().all()
    tensor(True)
    """

    steps: int = 19
    min_eigenvalue: float | None = 0.0
    max_rayleigh_error: float | None = 0.1
    max_energy: float | None = 1 - 1e-4
    deflation: Literal["two-sided", "printed"] = "two-sided"

    @classmethod
    def printed(cls, steps: int = 19, eps: float = 1e-4) -> "PowerIteration":
        """Alg. 1 as NIPS19 prints it: M - M v v^T, and the break at lambda <= eps.

        Args:
            steps: power iterations.
            eps: what was added to the diagonal of the covariance.

        Raises:
            OptionError: an option out of its range.

        >>> import spectralgrad as sg
        >>> sg.PowerIteration.printed(eps=1e-3) == sg.PowerIteration(19, min_eigenvalue=1e-3, deflation="printed")
        True
        """
        return cls(steps, min_eigenvalue=eps, deflation="printed")

    def __post_init__(self) -> None:
        who = "`PowerIteration`"
        for name in ("min_eigenvalue", "max_rayleigh_error", "max_energy"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
                raise OptionError(f"{who}: {name} must be a number or None, got {value!r}.")
        if not is_whole(self.steps):
            raise OptionError(f"{who}: steps must be a whole number >= 1, got {self.steps!r}.")
        if self.min_eigenvalue is not None and not self.min_eigenvalue >= 0:
            raise OptionError(f"{who}: min_eigenvalue must be >= 0 or None, got {self.min_eigenvalue!r}.")
        if self.max_rayleigh_error is not None and not self.max_rayleigh_error > 0:
            raise OptionError(f"{who}: max_rayleigh_error must be > 0 or None, got {self.max_rayleigh_error!r}.")
        if self.max_energy is not None and not 0 < self.max_energy <= 1:
            raise OptionError(f"{who}: max_energy must lie in (0, 1] or be None, got {self.max_energy!r}.")
        if self.deflation not in ("two-sided", "printed"):
            raise OptionError(f'{who}: deflation must be "two-sided" or "printed", got {self.deflation!r}.')


def power_eigh(
    who: str, M: Tensor, rule: PowerIteration, solver: Solver, tolerance: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Eigenvalues (Rayleigh quotients) and eigenvectors, ascending, and which of them Alg. 1 kept (*B, n)."""
    w, V, kept = run(_PowerEigh(rule, solver, who, tolerance), M)
    return w, V, kept


def _deflate(rule: PowerIteration, M: Tensor, v: Tensor) -> Tensor:
    """M with the eigenvector v (*B, n, 1) removed."""
    M = M - matmul(matmul(M, v), v.mH)
    if _is_two_sided(rule):
        M = M - matmul(v, matmul(v.mH, M))
    return M


def quotients(rule: PowerIteration, M: Tensor, w: Tensor, V: Tensor) -> Tensor:
    """Rayleigh quotients (*B, n) of the deflated matrices, in the order of the eigenpairs, which is ascending."""
    rest, found = hermitian_part(M), []
    for i in reversed(range(V.shape[-1])):
        v = V[..., i, None]
        found.append(_rayleigh(rest, v))
        rest = _deflate(rule, rest, v)
    return torch.stack(found[::-1], -1) if found else w


def _is_two_sided(rule: PowerIteration) -> bool:
    return rule.deflation == "two-sided"


def _rayleigh(M: Tensor, v: Tensor) -> Tensor:
    return matmul(v.mH, matmul(M, v))[..., 0, 0].real


def _inverse_norm(M: Tensor, v: Tensor, w: Tensor) -> Tensor:
    """1 / |M v| (*B, 1, 1); 0 where nothing but rounding is left in that direction, which the iterations would blow up."""
    norm = _rayleigh(M, v)[..., None, None]
    info = torch.finfo(w.dtype)
    void = norm <= (w.shape[-1] * info.eps * w[..., -1].detach()).clamp(min=info.tiny)[..., None, None]
    return torch.where(void, 0, 1 / torch.where(void, 1, norm))


def kept_pairs(rule: PowerIteration, w: Tensor, rayleigh: Tensor) -> Tensor:
    """Which pairs survive the breaking conditions; w and rayleigh (*B, n) descending."""
    alive = torch.ones_like(w, dtype=torch.bool)
    if rule.min_eigenvalue is not None:
        alive = alive & (w > rule.min_eigenvalue + _ROUNDING * torch.finfo(w.dtype).eps * w[..., :1].abs())
    if rule.max_rayleigh_error is not None:
        alive = alive & ((rayleigh - w).abs() < rule.max_rayleigh_error * w.abs())
    if rule.max_energy is not None:
        positive = w.clamp(min=0)
        energy = positive.cumsum(-1)
        # As printed the test drops the vector that reaches the energy: test after inclusion.
        alive = alive & (energy - positive < rule.max_energy * energy[..., -1:])
    first = torch.arange(w.shape[-1], device=w.device) == 0
    return alive.long().cumprod(-1).bool() | first


@dataclass(frozen=True)
class _PowerEigh(Step):
    """M -> w, V, kept."""

    rule: PowerIteration
    solver: Solver
    who: str
    tolerance: float | None

    def value(self, M: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rule, who = self.rule, self.who
        w, V = decompose(who, M, self.solver, self.tolerance)
        if self.tolerance is not None:
            require_not_negative(f"{who} with PowerIteration", w, "Alg. 1 is for covariances; take gradient=Lorentzian().")
        in_kernel = not compiling() and power.runs_on(V)
        rayleigh = power.quotients(M, V, _is_two_sided(rule)) if in_kernel else quotients(rule, M, w, V)
        kept = kept_pairs(rule, w.flip(-1), rayleigh.flip(-1)).flip(-1)
        return torch.where(kept, rayleigh, w), V, kept

    kept_inputs, kept_outputs = slice(0), slice(None)
    constants = (2,)

    def pull(self, kept: Sequence[Tensor], grads: Some, needed: Sequence[bool]) -> Some:
        (w, V, alive), (gw, gV, _) = kept, grads
        if is_plain_backward(*(g for g in grads if g is not None)) and power.runs_on(V):
            return (power.pullback(w, V, alive, gw, gV, self.rule.steps, _is_two_sided(self.rule)),)
        return (pullback(self.rule, w, V, alive, gw, gV),)

    def push(self, kept: Sequence[Tensor], tangents: Some) -> Some:
        return *run(_Pushed(self.rule), *kept, *tangents), None

    def unchecked(self) -> Step:
        return replace(self, tolerance=None)


@dataclass(frozen=True)
class _Pushed(Step):
    """`_pushforward`, for use inside jvp: see node.py."""

    rule: PowerIteration

    def value(self, w: Tensor, V: Tensor, kept: Tensor, E: Tensor) -> tuple[Tensor, Tensor]:
        return _pushforward(self.rule, w, V, kept, E)

    def pull(self, kept: Sequence[Tensor], grads: Some, needed: Sequence[bool]) -> Some:
        w, V, alive, E = kept
        cotangents = tuple(torch.zeros_like(x) if g is None else g for g, x in zip(grads, (w, V), strict=True))
        by_w, by_V, by_E = vjp(_with_kept(self.rule, alive), (w, V, E), cotangents)
        return by_w, by_V, None, by_E

    def push(self, kept: Sequence[Tensor], tangents: Some) -> tuple[Tensor, ...]:
        (w, V, alive, E), (tw, tV, _, tE) = kept, tangents
        return jvp_by_vjps(_with_kept(self.rule, alive), (w, V, E), (tw, tV, tE))


def _with_kept(rule: PowerIteration, kept: Tensor) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
    return lambda w, V, E: _pushforward(rule, w, V, kept, E)


def _deflated(rule: PowerIteration, w: Tensor, V: Tensor) -> list[Tensor]:
    """M_1, ..., M_n, rebuilt from the eigenpairs; rounding below zero is cut, or the iterations would grow on it."""
    rest = matmul(V * w.clamp(min=0).unsqueeze(-2), V.mH)
    matrices = []
    for i in reversed(range(V.shape[-1])):
        matrices.append(rest)
        rest = _deflate(rule, rest, V[..., i, None])
    return matrices


def pullback(
    rule: PowerIteration, w: Tensor, V: Tensor, kept: Tensor, gw: Tensor | None, gV: Tensor | None
) -> Tensor | None:
    """The gradient of M (*B, n, n) for those of w and V; None for zero."""
    if gw is None and gV is None:
        return None
    n = V.shape[-1]
    gw = torch.zeros_like(w) if gw is None else torch.where(kept, gw, 0)
    gV = torch.zeros_like(V) if gV is None else torch.where(kept.unsqueeze(-2), gV, 0)
    gM = torch.zeros_like(V)
    for i, M_i in zip(range(n), reversed(_deflated(rule, w, V)), strict=True):  # smallest eigenvalue first
        v, g = V[..., i, None], gV[..., i, None]
        Mv = matmul(M_i, v)
        # Deflation, M' = M - M v v^H, and then the projection from the left where it is two-sided.
        if _is_two_sided(rule):
            right = M_i - matmul(Mv, v.mH)
            g = g - matmul(gM, matmul(right.mH, v)) - matmul(right, matmul(gM.mH, v))
            gM = gM - matmul(v, matmul(v.mH, gM))
        g = g - matmul(M_i.mH, matmul(gM, v)) - matmul(gM.mH, Mv)
        gM = gM - matmul(matmul(gM, v), v.mH)
        # Rayleigh quotient v^H M v / v^H v: its derivative by v vanishes at an eigenvector.
        gM = gM + gw[..., i, None, None] * matmul(v, v.mH)
        # Power iterations.
        inverse_norm = _inverse_norm(M_i, v, w)
        for _ in range(rule.steps):
            u = (g - matmul(v, matmul(v.mH, g))) * inverse_norm
            gM = gM + matmul(u, v.mH)
            g = matmul(M_i.mH, u)
    return hermitian_part(gM)


def _pushforward(rule: PowerIteration, w: Tensor, V: Tensor, kept: Tensor, E: Tensor) -> tuple[Tensor, Tensor]:
    n = V.shape[-1]
    dM = hermitian_part(E)
    dw, dV = [], []
    for i, M_i in zip(reversed(range(n)), _deflated(rule, w, V), strict=True):  # largest eigenvalue first
        v = V[..., i, None]
        inverse_norm = _inverse_norm(M_i, v, w)
        dMv = matmul(dM, v)
        dv = torch.zeros_like(v)
        for _ in range(rule.steps):
            step = dMv + matmul(M_i, dv)
            dv = (step - matmul(v, matmul(v.mH, step))) * inverse_norm
        dw.append(matmul(v.mH, dMv)[..., 0, 0].real)
        dV.append(dv[..., 0])
        Mv = matmul(M_i, v)
        right = M_i - matmul(Mv, v.mH)
        dM = dM - matmul(dMv + matmul(M_i, dv), v.mH) - matmul(Mv, dv.mH)
        if _is_two_sided(rule):
            dM = dM - matmul(dv, matmul(v.mH, right)) - matmul(v, matmul(dv.mH, right) + matmul(v.mH, dM))
    if n == 0:
        return w, V
    return torch.where(kept, torch.stack(dw[::-1], -1), 0), torch.where(kept.unsqueeze(-2), torch.stack(dV[::-1], -1), 0)
