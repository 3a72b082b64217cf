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

from spectralgrad.kernels import affine, moments

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
    mean, rest, _ = moments.grouped_moments_twin(x, groups)
    sums, combined = (g, x, groups, mean, rest), (g, x, A, S, mean, rest, shift)
    return {
        "moments": (lambda: moments.grouped_moments(x, groups), lambda: moments.grouped_moments_twin(x, groups)),
        "transform": (
            lambda: affine.transform(x, A, mean, rest, bias),
            lambda: affine.transform_twin(x, A, mean, rest, bias),
        ),
        "transposed": (
            lambda: affine.transform(x, A, None, None, None, True),
            lambda: affine.transform_twin(x, A, None, None, None, True),
        ),
        "sums": (lambda: affine.transform_sums(*sums), lambda: affine.transform_sums_twin(*sums)),
        "combine": (lambda: affine.combine(*combined), lambda: affine.combine_twin(*combined)),
    }


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
