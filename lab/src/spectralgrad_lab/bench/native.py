"""The section `cpu`: native kernels by the public functions, a row for each set of instructions of this processor.

All stand in one measurement, alternating: the other way, ours with the best instructions, and ours with the older ones.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

import spectralgrad as sg
from spectralgrad.kernels.cpu import load

from . import peers
from .case import Case
from .inputs import covariances, normal
from .measure import SETS, Build, Call, Effort, Times, measure, timed_row
from .native_cases import EIGH, EIGVALSH, KABSCH, PAIRS, PROCRUSTES, ROOTS, SPECTRAL_MAP, SVD
from .rows import Row
from .uses import torch_kabsch, torch_rotation

Function = Callable[..., Tensor | tuple[Tensor, ...]]
PLAIN = "plain torch"  # in the place of instructions, where the library of kernels is not there
ROUND = 2.0  # seconds of rounds for a case: there are many
_BACKWARD = ", backward"


def _softplus(w: Tensor) -> Tensor:
    return torch.nn.functional.softplus(w)


def _composed(f: Callable[[Tensor], Tensor]) -> Function:
    return peers.by_eigenpairs(f)


# Ours, and the other way, by what is done.
_WAYS: dict[str, tuple[Function, str, Function]] = {
    EIGH: (sg.eigh, peers.TORCH_EIGH, torch.linalg.eigh),
    EIGVALSH: (sg.eigvalsh, "torch.linalg.eigvalsh", torch.linalg.eigvalsh),
    SVD: (sg.svd, peers.TORCH_SVD, lambda A: torch.linalg.svd(A, full_matrices=False)),
    PAIRS: (sg.eigh, peers.TORCH, torch.linalg.eigh),
    ROOTS[0]: (sg.inv_sqrtm, peers.TORCH, _composed(torch.rsqrt)),
    ROOTS[1]: (sg.sqrtm, peers.TORCH, _composed(torch.sqrt)),
    ROOTS[2]: (sg.logm, peers.TORCH, _composed(torch.log)),
    SPECTRAL_MAP: (lambda M: sg.spectral_map(M, _softplus), peers.TORCH, _composed(_softplus)),
}


def _ways(case: Case) -> tuple[Function, str, Function]:
    """Ours, and the other way with its name: roma for alignment, by hand where it is not installed."""
    if case.function == PROCRUSTES:
        theirs = peers.roma_procrustes()
        return lambda A: sg.procrustes(A, special=True), *(
            (peers.ROMA, theirs) if theirs else (peers.TORCH_SVD, torch_rotation)
        )
    if case.function == KABSCH:
        registration = peers.roma_kabsch()
        return sg.kabsch, *((peers.ROMA, registration) if registration else (peers.TORCH_SVD, torch_kabsch))
    return _WAYS[case.function]


def _inputs(case: Case, seed: int) -> list[Tensor]:
    """The arguments: two sets of points, or a matrix, symmetric where it must be."""
    dtype, shape = getattr(torch, case.dtype), (case.batch, *case.shape)
    if case.function == KABSCH:
        return [normal(*shape, seed=seed, dtype=dtype), normal(*shape, seed=SETS + seed, dtype=dtype)]
    if case.function in (SVD, PROCRUSTES):
        return [normal(*shape, seed=seed, dtype=dtype)]
    return [covariances(case.d, case.batch, seed=seed, dtype=dtype)]


def _call(f: Function, case: Case) -> Call:
    """Forward, or forward + backward of a random loss of all results."""
    sets = [_inputs(case, seed) for seed in range(SETS)]
    if not case.function.endswith(_BACKWARD):
        return lambda i: f(*sets[i])

    def results(inputs: list[Tensor]) -> list[Tensor]:
        out = f(*inputs)
        return [out] if isinstance(out, Tensor) else list(out)

    leaves = [[x.requires_grad_() for x in inputs] for inputs in sets]
    cotangents = [normal(*out.shape, seed=SETS, dtype=out.dtype) for out in results(leaves[0])]
    return lambda i: torch.autograd.grad(results(leaves[i]), leaves[i], cotangents)


def _with(call: Call, level: str) -> Call:
    def at_level(i: int) -> object:
        with load.at_level(level):
            return call(i)

    return at_level


def time_native(case: Case, device: torch.device, effort: Effort) -> list[Row]:
    """How many times faster than the other way, by instructions; the best alone for a single matrix, which is all Python."""
    ours, baseline, theirs = _ways(case)
    call, best = _call(ours, case), load.level() or PLAIN
    older = [] if case.batch == 1 else [level for level in reversed(load.levels()) if level != best]
    others: dict[str, Build] = {level: lambda level=level: _with(call, level) for level in older}  # type: ignore[misc]
    effort = replace(effort, seconds=min(effort.seconds, ROUND), least=3, peers_up_to=float("inf"))
    times = measure(call, (baseline, _call(theirs, case)), others, device, effort)
    comparable = baseline == peers.ROMA or case.function not in (PROCRUSTES, KABSCH)
    targets = dict(zip(("avx512", "avx2"), (case.target, *case.numbers), strict=False)) if comparable else {}
    return [
        _row(case, times, baseline, peers.OURS if level == best else level, level, targets.get(level))
        for level in (best, *older)
    ]


def _row(case: Case, times: Times, baseline: str, method: str, level: str, target: float | None) -> Row:
    """Of these instructions, timed under the name ``method``, beside the other way."""
    only = Times({peers.OURS: times.seconds[method], baseline: times.seconds[baseline]})
    row = timed_row(replace(case, target=target), only, baseline, at_least=True)
    return replace(row, case=f"{case.label}, {case.dtype}, {level}", dtype=case.dtype)
