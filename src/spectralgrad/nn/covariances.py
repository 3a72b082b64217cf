"""Functions of covariances that a layer has made, without a second look at what they are: the inner door to linalg."""

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from spectralgrad.context import checking, tracing
from spectralgrad.linalg.choices import (
    EigenSolver,
    Gradient,
    RootSolver,
    for_eigenpairs,
    knows_no_eigenvalues,
    solver_of_exact,
)
from spectralgrad.linalg.eigh import eigh
from spectralgrad.linalg.elementary import InverseFourthRoot, InverseSqrt, Power, Sqrt, reciprocal_root
from spectralgrad.linalg.functions import Evaluated, Spectral, apply_scalar, with_pullback
from spectralgrad.linalg.node import run
from spectralgrad.linalg.projector import Cut, Projector, projector
from spectralgrad.linalg.solvers import Solver

if TYPE_CHECKING:
    from spectralgrad.linalg.scalars import Scalar

_USUAL = 1e-30  # a floor from here to 1e30 is a number of every dtype
_identities: dict[tuple[int, torch.dtype, torch.device], Tensor] = {}


def covariance_of(scatter: Tensor, samples: int | Tensor, correction: float = 0.0) -> Tensor:
    """scatter / (samples - correction), and 0 where there are no samples."""
    if isinstance(samples, Tensor):
        return scatter / (samples - correction).clamp(min=1).to(scatter.dtype)
    return scatter / max(samples - correction, 1)  # one operation where the number is known


def shifted(M: Tensor, eps: float) -> Tensor:
    """M + eps I (*B, d, d). On CUDA, where making I takes three kernels, a kept one serves."""
    d, dtype, device = M.shape[-1], M.dtype, M.device
    if device.type != "cuda" or tracing():  # not with alpha=eps: `torch.func.linearize` crashes on it, in torch 2.9 to 2.15
        return M + eps * torch.eye(d, dtype=dtype, device=device)
    identity = _identities.get((d, dtype, device))
    if identity is None:
        with torch.inference_mode(False):
            identity = torch.eye(d, dtype=dtype, device=device)
        # What is made while a CUDA graph is captured lives in the graph's memory, and a fake tensor in no memory at all.
        if type(identity) is Tensor and not torch.cuda.is_current_stream_capturing():
            _identities[d, dtype, device] = identity
    return torch.add(M, identity, alpha=eps)


def spectral(
    who: str, C: Tensor, scalar: "Scalar", gradient: Gradient | None, solver: RootSolver, looked: bool = False
) -> Tensor:
    """f(C) of covariances (*B, d, d) that a layer has made: symmetric, and of a dtype to compute in.

    ``looked``: it has looked at them too, so that they may be looked at.
    """
    is_choice = scalar.floor is None and isinstance(scalar, InverseSqrt)  # products may be faster
    eigensolver = None if is_choice else solver_of_exact(gradient, solver)
    if eigensolver is None:
        if scalar.floor is not None and knows_no_eigenvalues(solver):
            scalar = replace(scalar, floor=None)  # there is nothing to clamp
        return apply_scalar(who, C, scalar, gradient, solver)
    if scalar.floor is not None and not _USUAL < scalar.floor < 1 / _USUAL:
        scalar.require_floor(who, C.dtype)
    tolerance = _tolerance(C, looked)
    scalar = scalar if tolerance is None else replace(scalar, checked=True)
    return run(Spectral(who, scalar, eigensolver, tolerance=tolerance), C)[0]  # type: ignore[no-any-return]


def _tolerance(C: Tensor, looked: bool) -> float | None:
    """`asymmetry_tolerance`; inside vmap a node forgets it."""
    return float(torch.finfo(C.dtype).eps) ** 0.5 if looked or checking(C) else None


def leading_projector(
    C: Tensor,
    rank: int | None,
    energy: float | None,
    through: Literal["projector", "vectors"],
    gradient: Gradient | None,
    solver: EigenSolver,
    looked: bool = False,
) -> Tensor:
    """`linalg.projector` of covariances (*B, d, d) as `spectral` takes them, with options that the layer has checked."""
    choice = for_eigenpairs("projector", gradient, solver)
    if through == "vectors" or choice.way != "rule":
        return projector(C, rank=rank, energy=energy, through=through, gradient=gradient, solver=solver)
    step = Projector(Cut(rank, energy), choice.rule, choice.solver, tolerance=_tolerance(C, looked))
    return run(step, C)[0]  # type: ignore[no-any-return]


def power_by_pairs(
    C: Tensor, power: float, floor: float | None, gradient: Gradient | None, solver: RootSolver, looked: bool = False
) -> Tensor:
    """C^power of covariances (*B, d, d); eigenvalues below the floor count as it."""
    known: dict[float, Scalar] = {0.5: Sqrt(floor), -0.5: InverseSqrt(floor), -0.25: InverseFourthRoot(floor)}
    return spectral("powm", C, known.get(power) or Power(floor, alpha=power), gradient, solver, looked)


def inverse_root(who: str, M: Tensor, eps: float, gradient: Gradient | None, solver: RootSolver, name: str) -> Tensor:
    """M^(-1/2) of covariances (*B, C, C) that were shifted by eps; eigenvalues below it count as it. ``name``: of M."""
    return spectral(who, M, InverseSqrt(eps or None, name=name, advice="Raise eps."), gradient, solver)


def inverse_root_with_pullback(who: str, C: Tensor, eps: float, solver: Solver, start: Tensor | None) -> Evaluated:
    """`inverse_root` for use inside a node; ``start``: a guess of the eigenvectors."""
    return with_pullback(who, C, InverseSqrt(eps), solver, _tolerance(C, False), start)


def whitening(
    who: str,
    C: Tensor,
    kind: Literal["zca", "pca"],
    eps: float,
    gradient: Gradient | None,
    solver: RootSolver,
    looked: bool = False,
) -> Tensor:
    """W with W (C + eps I) W^T = I: (C + eps I)^(-1/2), or L^(-1/2) V^T, largest eigenvalue first, each eigenvector with its
    largest entry positive. Eigenvalues that rounding left below eps count as eps."""
    C = shifted(C, eps)
    if kind == "zca":
        return spectral(who, C, InverseSqrt(eps), gradient, solver, looked)
    w, V = eigh(C, gradient=gradient, solver=solver)  # type: ignore[arg-type]
    sign = V.detach().gather(-2, V.detach().abs().argmax(-2, keepdim=True)).sign()
    w = torch.where(w < eps, eps, w)
    return (V * sign * reciprocal_root(w).unsqueeze(-2)).mT.flip(-2)
