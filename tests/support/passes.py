"""The passes of a whitening layer on a GPU: cases, kernels and their twins.

Most of the time of their tests would go into compiling some hundred kernels one after the other. So processes do that
first, side by side, into Triton's cache: `python -m support.passes PART PARTS` is one of them.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spectralgrad.kernels import affine, moments, tiles

Pass = tuple[Callable[[], Any], Callable[[], Any]]  # kernel, twin
MOST_PROCESSES = 14
COMPILE_SECONDS = 120


class Case(NamedTuple):
    d: int
    shape: tuple[int, ...]
    mean: float = 1.0
    dtype: torch.dtype = torch.float32
    last: bool = False

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape))
        return f"d={self.d} {shape} mean={self.mean:g} {self.dtype}{' channels_last' if self.last else ''}".replace(
            "torch.", ""
        )


CASES = [
    *(Case(d, (4, max(1, 128 // d) * d, 16, 16)) for d in (1, 2, 3, 4, 8, 16, 24, 32, 64, 100, 128)),
    *(Case(d, (5, 3 * d, 7, 7), last=last) for d in (3, 16, 64) for last in (False, True)),
    *(Case(d, (1, 2 * d, 1, 3)) for d in (4, 32)),  # hardly any samples
    *(Case(d, (16, 64, 32, 32), 1e4, last=last) for d in (4, 32, 64) for last in (False, True)),  # a far mean
    *(Case(d, (4, 64, 16, 16), dtype=torch.bfloat16, last=last) for d in (4, 64) for last in (False, True)),
    *(Case(d, (4, 64, 16, 16), dtype=torch.float16) for d in (4, 64)),
]
NAMES = ("moments", "transform", "transposed", "sums", "combine")


def normal(*shape: int, seed: int, device: str) -> Tensor:
    return torch.randn(*shape, device=device, generator=torch.Generator(device).manual_seed(seed))


def features(case: Case, device: str = "cuda") -> Tensor:
    """Correlated channels around the mean."""
    x = normal(*case.shape, seed=0, device=device)
    x = (x + 0.5 * x.roll(1, 1) + case.mean).to(case.dtype)
    return x.contiguous(memory_format=torch.channels_last) if case.last else x


def passes(case: Case, device: str = "cuda") -> dict[str, Pass]:
    """Every pass over the case's maps and random gradients, as kernel and as twin."""
    x, g = features(case, device), normal(*case.shape, seed=1, device=device).to(case.dtype)
    d, C = case.d, case.shape[1]
    groups = C // d
    A, S = (normal(groups, d, d, seed=seed, device=device) / d**0.5 for seed in (2, 3))
    bias, shift = (normal(C, seed=seed, device=device) for seed in (4, 5))
    mean, rest, _ = grouped_moments_twin(x, groups)
    sums, combined = (g, x, groups, mean, rest), (g, x, A, S, mean, rest, shift)
    return {
        "moments": (lambda: moments.grouped_moments(x, groups), lambda: grouped_moments_twin(x, groups)),
        "transform": (
            lambda: affine.transform(x, A, mean, rest, bias),
            lambda: transform_twin(x, A, mean, rest, bias),
        ),
        "transposed": (
            lambda: affine.transform(x, A, None, None, None, True),
            lambda: transform_twin(x, A, None, None, None, True),
        ),
        "sums": (lambda: affine.transform_sums(*sums), lambda: transform_sums_twin(*sums)),
        "combine": (lambda: affine.combine(*combined), lambda: combine_twin(*combined)),
    }


# The same in plain torch and float64: exact products whatever the precision flags say.


def grouped(x: Tensor, groups: int) -> Tensor:
    """(N, C, *) -> (groups, d, n) in float64."""
    X = x.to(torch.float64).transpose(0, 1).flatten(1)
    return X.reshape(groups, X.shape[0] // groups, X.shape[1])


def ungrouped(Y: Tensor, given: Tensor) -> Tensor:
    """The way back, in the shape, dtype and memory format of ``given``."""
    y = Y.to(given.dtype).reshape(given.shape[1], given.shape[0], *given.shape[2:]).transpose(0, 1)
    return y.contiguous(memory_format=tiles.memory_format(given))


def grouped_moments_twin(x: Tensor, groups: int) -> tuple[Tensor, Tensor, Tensor]:
    dtype = tiles.statistics_dtype(x)
    X = grouped(x, groups)  # (groups, d, n)
    exact = X.mean(-1)
    centred = X - exact.unsqueeze(-1)
    scatter = torch.bmm(centred, centred.mT)
    mean = exact.to(dtype)
    return mean.flatten(), (exact - mean).to(dtype).flatten(), torch.lerp(scatter, scatter.mT, 0.5).to(dtype)


def transform_twin(
    x: Tensor, A: Tensor, mean: Tensor | None, correction: Tensor | None, bias: Tensor | None, transposed: bool = False
) -> Tensor:
    X = _centred(x, A.shape[0], mean, correction)  # (groups, d, n)
    Y = torch.bmm((A.mT if transposed else A).to(X.dtype), X)
    return ungrouped(Y if bias is None else Y + _column(bias, X), x)


def transform_sums_twin(g: Tensor, x: Tensor, groups: int, mean: Tensor, correction: Tensor | None) -> tuple[Tensor, Tensor]:
    dtype = tiles.statistics_dtype(x)
    X, G = _centred(x, groups, mean, correction), grouped(g, groups)
    return torch.bmm(G, X.mT).to(dtype), G.sum(-1).flatten().to(dtype)


def combine_twin(
    g: Tensor, x: Tensor, A: Tensor, S: Tensor, mean: Tensor, correction: Tensor | None, shift: Tensor
) -> Tensor:
    X, G = _centred(x, len(A), mean, correction), _centred(g, len(A), shift, None)
    return ungrouped(torch.bmm(A.mT.to(G.dtype), G) + torch.bmm(S.to(X.dtype), X), x)


def _column(v: Tensor, X: Tensor) -> Tensor:
    """(C,) -> (groups, d, 1)"""
    return v.to(X.dtype).view(*X.shape[:2], 1)


def _centred(x: Tensor, groups: int, mean: Tensor | None, correction: Tensor | None) -> Tensor:
    X = grouped(x, groups)
    for part in (mean, correction):
        X = X if part is None else X - _column(part, X)
    return X


def compile_part(part: int, parts: int) -> None:
    """Call every ``parts``-th case's kernels once: Triton keeps what it compiles on disk."""
    for case in CASES[part::parts]:
        for kernel, _ in passes(case).values():
            kernel()
    torch.cuda.synchronize()


def compile_all() -> None:
    """All kernels, by as many processes as the machine has cores for. One that fails is left to the tests to tell."""
    parts = max(1, min(MOST_PROCESSES, (os.cpu_count() or 2) - 1))
    command, environment = [sys.executable, "-m", __name__], {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    workers = [
        subprocess.Popen([*command, str(part), str(parts)], env=environment, stderr=subprocess.DEVNULL)
        for part in range(parts)
    ]
    for worker in workers:
        worker.wait(timeout=COMPILE_SECONDS)


if __name__ == "__main__":
    compile_part(int(sys.argv[1]), int(sys.argv[2]))
