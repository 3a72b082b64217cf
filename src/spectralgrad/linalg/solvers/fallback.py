"""One fallback chain for every solver: as asked -> float64 -> scaled jitter -> a named error.

`decompose` is the only way from a matrix to eigenpairs in this library, `decompose_svd` to singular ones.
"""

import math
from collections.abc import Callable
from dataclasses import astuple
from functools import partial

import torch
from torch import Tensor

from spectralgrad.context import compiling, recording
from spectralgrad.counters import count, count_on_device
from spectralgrad.errors import ConvergenceError, LinAlgError, OptionError
from spectralgrad.kernels.ops import opaque
from spectralgrad.validation import require_finite, require_hermitian

from ..precision import hermitian_part, in_widest
from ..scaling import are_finite, exponent, shifted
from .base import COMPILABLE, Solver
from .cusolver import carefully
from .lapack import Lapack, triplets

_JITTER = 4  # times eps times the largest entry: splits what rounding could not tell apart anyway
Factors = tuple[Tensor, ...]


def decompose(
    who: str, M: Tensor, solver: Solver, tolerance: float | None, start: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Eigenpairs of the Hermitian part of ``M`` (*B, n, n): w (*B, n) ascending, V (*B, n, n).

    Args:
        who: the public function that asks, for its error messages.
        tolerance: largest relative asymmetry; None where values may not be looked at. Then a matrix with NaN or Inf
            gives NaN and is counted.
        start: a guess of the eigenvectors (*B, n, n), for solvers that can use one.
    """
    if tolerance is not None and M.numel():  # then nothing traces
        if start is None and (pairs := solver.solve_if_hermitian(M)) is not None:  # as most are
            return pairs
        chosen = solver.choose(M)
        if torch.equal(M, M.mH):  # NaN is not equal, and `_rescue` finds Inf
            return _solve(who, M, chosen.solve, _first_of(chosen, M, start))  # type: ignore[return-value]
        H = hermitian_part(M)
        require_hermitian(who, M, H, tolerance)
        return _solve(who, H, chosen.solve, _first_of(chosen, M, start))  # type: ignore[return-value]
    if compiling() or recording():
        _require_compilable(who, type(solver).__name__)
        return _decompose_compiled(M, type(solver).__name__, list(astuple(solver)), start)  # type: ignore[call-overload]
    if M.numel() == 0:
        return M.new_empty(M.shape[:-1], dtype=M.real.dtype), torch.empty_like(M)
    chosen = solver.choose(M)
    if (pairs := chosen.solve_anything(M, None if start is None else start.broadcast_to(M.shape))) is not None:
        return pairs
    H = hermitian_part(M)
    broken = _broken(H)
    solve_first, look = _first_of(chosen, M, start), H.device.type == "cpu"
    w, V = _solve(who, H.masked_fill(broken, 0), chosen.solve, solve_first, look=look)
    return w.masked_fill(broken[..., 0], torch.nan), V.masked_fill(broken, torch.nan)


def _first_of(solver: Solver, M: Tensor, start: Tensor | None) -> Callable[[Tensor], Factors]:
    """How ``solver`` decomposes a matrix like ``M`` at first: from a guess, if there is one."""
    return solver.solve if start is None else partial(solver.solve_from, start=start.broadcast_to(M.shape))


def eigenvalues_alone(M: Tensor, solver: Solver, tolerance: float | None) -> Tensor | None:
    """w of `decompose` where it needs no vectors and nothing is wrong with ``M``; None leaves it to `decompose`."""
    return None if tolerance is None or M.numel() == 0 else solver.values_if_hermitian(M)


def _require_compilable(who: str, name: str) -> None:
    """Raise for a solver that is no part of an operator. While Dynamo traces, let it break its graph instead."""
    if not compiling() and name not in COMPILABLE:
        raise OptionError(
            f"`{who}`: where torch traces (torch.compile, make_fx, FakeTensorMode) solver must be one of "
            f"{', '.join(sorted(COMPILABLE))}, got {name}. One of your own runs where nothing traces."
        )


def _made(solver: str, options: list[int] | None) -> Solver:
    """The solver that travelled as its name and options; AOTInductor hands over an empty list as None."""
    return COMPILABLE[solver](*(options or ()))


def _decompose_fake(M: Tensor, solver: str, options: list[int], start: Tensor | None) -> tuple[Tensor, Tensor]:
    return M.new_empty(M.shape[:-1], dtype=M.real.dtype), torch.empty_like(M, memory_format=torch.contiguous_format)


@opaque("decompose(Tensor M, str solver, int[] options, Tensor? start) -> (Tensor, Tensor)", _decompose_fake)
def _decompose_compiled(M: Tensor, solver: str, options: list[int], start: Tensor | None) -> tuple[Tensor, Tensor]:
    _require_compilable("decompose", solver)
    w, V = decompose("decompose", M, _made(solver, options), None, start)
    return w, V.contiguous()


def decompose_svd(who: str, A: Tensor, solver: Solver, check: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Reduced singular value decomposition of ``A`` (*B, m, n): by the solver's kernels, or by torch through the same chain.

    Without ``check`` values are not looked at: a matrix with NaN or Inf gives NaN and is counted.
    """
    if compiling() or recording():
        _require_compilable(who, type(solver).__name__)
        return _decompose_svd_compiled(who, A, type(solver).__name__, list(astuple(solver)), check)  # type: ignore[call-overload]
    return _checked_svd(who, A, solver, check)  # type: ignore[return-value]


def _decompose_svd_fake(who: str, A: Tensor, solver: str, options: list[int], check: bool) -> tuple[Tensor, Tensor, Tensor]:
    *batch, m, n = A.shape
    k = min(m, n)
    return A.new_empty(*batch, m, k), A.new_empty(*batch, k, dtype=A.real.dtype), A.new_empty(*batch, k, n)


@opaque(
    "decompose_svd(str who, Tensor A, str solver, int[] options, bool check) -> (Tensor, Tensor, Tensor)",
    _decompose_svd_fake,
)
def _decompose_svd_compiled(
    who: str, A: Tensor, solver: str, options: list[int], check: bool
) -> tuple[Tensor, Tensor, Tensor]:
    U, S, Vh = _checked_svd(who, A, _made(solver, options), check)
    return U.contiguous(), S, Vh.contiguous()


def _checked_svd(who: str, A: Tensor, solver: Solver, check: bool) -> Factors:
    if A.numel() == 0:
        return _svd(A)
    if check and A.device.type != "cpu":  # there `_solve` does not look, and here LAPACK's failure leads to the same words
        require_finite(who, A, "A")
    if (factors := solver.triplets(A)) is not None:
        return factors
    if check:
        return _solve(who, A, _svd)
    broken = _broken(A)
    U, S, Vh = _solve(who, A.masked_fill(broken, 0), _svd, look=A.device.type == "cpu")
    return (
        U.masked_fill(broken, torch.nan),
        S.masked_fill(broken[..., 0], torch.nan),
        Vh.masked_fill(broken, torch.nan),
    )


def _svd(A: Tensor) -> Factors:
    return carefully(triplets, A) if A.device.type == "cuda" else triplets(A)


def _broken(x: Tensor) -> Tensor:
    """Which matrices (*B, 1, 1) hold NaN or Inf; counted."""
    broken = ~torch.isfinite(x).all(-1, keepdim=True).all(-2, keepdim=True)
    count_on_device("nonfinite_input", broken)
    return broken


def _solve(
    who: str,
    H: Tensor,
    solve: Callable[[Tensor], Factors],
    solve_first: Callable[[Tensor], Factors] | None = None,
    look: bool = True,
) -> Factors:
    """The factors of ``H``, by ``solve_first`` where it is given, and then by ``solve`` if that fails.

    ``look``: whether they may be looked at; on the CPU they always may.
    """
    try:
        first = solve_first or solve
        # Elsewhere a result that is not looked at cannot be tried again at scale 1: go there beforehand.
        factors = first(H) if H.device.type == "cpu" else _at_scale_1(first, H)
        if not look or are_finite(*factors):
            return factors
    except LinAlgError:
        pass
    return _rescue(who, H, solve)


def _at_scale_1(solve: Callable[[Tensor], Factors], H: Tensor) -> Factors:
    """The same, with matrices near the ends of the range brought to scale 1 and their eigenvalues back.

    Those that overflow become the largest number.
    """
    k = exponent(H)
    k = torch.where(k.abs() > math.log2(torch.finfo(H.dtype).max) / 2, k, 0)
    factors = solve(shifted(H, -k))
    return tuple(shifted(x, k) if x.ndim < H.ndim else x for x in factors)


def _in_float64(solve: Callable[[Tensor], Factors], H: Tensor) -> Factors:
    """The same in double precision, where the device has it, rounded back."""
    wide = solve(in_widest(H))
    return tuple(x.to(H.dtype if x.is_complex() else H.real.dtype) for x in wide)


def _with_jitter(solve: Callable[[Tensor], Factors], H: Tensor) -> Factors:
    """The same after a diagonal ramp of rounding size has separated the eigenvalues."""
    m, n = H.shape[-2:]
    size = _JITTER * torch.finfo(H.dtype).eps * H.abs().amax((-2, -1), keepdim=True)
    ramp = torch.eye(m, n, dtype=H.dtype, device=H.device) * torch.linspace(-1, 1, n, dtype=H.dtype, device=H.device)
    return _in_float64(solve, H + size * ramp)


def _rescue(who: str, H: Tensor, solve: Callable[[Tensor], Factors]) -> Factors:
    """Once more at scale 1; then retry the matrices that failed, and only those, square ones by LAPACK."""
    require_finite(who, H, "A" if solve is _svd else "M")
    m, n = H.shape[-2:]
    flat = H.reshape(-1, m, n)
    trusted = solve if solve is _svd else Lapack().solve
    *factors, failed = _attempt(solve, flat, trusted)
    for event, remedy in (("solver_retry_float64", _in_float64), ("solver_retry_jitter", _with_jitter)):
        where = failed.nonzero()[:, 0]
        if len(where) == 0:
            break
        count(event, len(where))
        *retried, failed[where] = _attempt(partial(remedy, trusted), flat[where], trusted)
        for x, y in zip(factors, retried, strict=True):
            x[where] = y
    if bool(failed.any()):
        count("solver_failed", int(failed.sum()))
        raise ConvergenceError(
            f"`{who}`: {int(failed.sum())} of {len(flat)} finite {m} x {n} matrices could not be decomposed, neither as "
            f"asked, nor in float64, nor with a jitter of {_JITTER} eps; the first has index {int(failed.nonzero()[0])}. "
            "Check how it was computed, or add a multiple of the identity."
        )
    return tuple(x.reshape(*H.shape[:-2], *x.shape[1:]) for x in factors)


def _attempt(solve: Callable[[Tensor], Factors], flat: Tensor, trusted: Callable[[Tensor], Factors]) -> Factors:
    """The factors of (B, m, n), at scale 1, and last which failed; where it raises, halve until the culprits stand alone."""
    try:
        factors = _at_scale_1(solve, flat)
        finite = [torch.isfinite(x).flatten(1).all(1) for x in factors]
        return *factors, ~torch.stack(finite).all(0)
    except LinAlgError:
        if len(flat) > 1:
            halves = [_attempt(solve, half, trusted) for half in flat.chunk(2)]
            return tuple(torch.cat(parts) for parts in zip(*halves, strict=True))
        # Any factors of the right shapes will do: they are marked as failed.
        stand_in = trusted(torch.zeros_like(flat))
        return *stand_in, torch.ones(1, dtype=torch.bool, device=flat.device)
