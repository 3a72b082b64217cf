"""Maps and norms of singular values, and the logarithm of a determinant: gradients at ties, near them, at zero.

Requirements: 20 eps (1 + condition number). None of these sees a gap, so no gap is added to it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mpmath  # type: ignore[import-untyped]
import torch
from torch import Tensor

import spectralgrad as sg

from . import inputs, peers
from . import multiprecision as mp
from .case import Case
from .judge import Question, allowed, first
from .peers import Root
from .rows import Row
from .singular import matrix, spectrum


@dataclass(frozen=True)
class Odd:
    """An odd function, of tensors and of mpmath's numbers."""

    f: Root
    exactly: Callable[[Any], Any]


MAPS = {
    "tanh": Odd(torch.tanh, mpmath.tanh),
    "x^3": Odd(lambda x: x**3, lambda x: x**3),
    "x/(1+x^2)": Odd(lambda x: x / (1 + x * x), lambda x: x / (1 + x * x)),
}


def by_triplets(f: Root) -> Root:
    """U f(S) V^H, by autograd through torch.linalg.svd."""

    def function(A: Tensor) -> Tensor:
        U, S, Vh = torch.linalg.svd(A, full_matrices=False)
        Y: Tensor = (U * f(S)) @ Vh
        return Y

    return function


def _question(
    case: Case, x: Tensor, G: Tensor, derivative: mp.Derivative, baseline: str, symmetric: bool = False
) -> Question:
    X = mp.exactly(x.numpy())
    truth = derivative(X)
    limit = allowed(x.dtype, mp.condition(derivative, X, truth, keeps_symmetry=symmetric))
    return Question(first(x, G), mp.rounded(truth), limit, symmetric=symmetric, held=peers.OURS, baseline=baseline)


def check_singular_map(case: Case) -> list[Row]:
    """<G, U f(S) V^H>."""
    given = MAPS[case.function.removeprefix("singular_map, ")]
    A = matrix(case)
    G = inputs.normal(*case.shape, seed=2, dtype=torch.float64).to(A.dtype)
    derivative = mp.of_singular(mp.gradient(mp.Smooth(given.exactly), mp.dilation(mp.exactly(G.numpy())) / 2))
    functions: dict[str, Root | None] = {
        peers.OURS: lambda A: sg.singular_map(A, given.f),
        peers.TORCH_SVD: by_triplets(given.f),
    }
    return [_question(case, A, G, derivative, peers.TORCH_SVD).row(case, functions)]


def check_pinv(case: Case) -> list[Row]:
    """<G^T, A^+> = <G, U S^-1 V^H>."""
    A = matrix(case)
    G = inputs.normal(*case.shape, seed=2, dtype=torch.float64).to(A.dtype)
    derivative = mp.of_singular(mp.gradient(mp.odd(lambda x: 1 / x), mp.dilation(mp.exactly(G.numpy())) / 2))
    functions: dict[str, Root | None] = {peers.OURS: sg.pinv, peers.TORCH_OWN: torch.linalg.pinv}
    return [_question(case, A, G.mT, derivative, peers.TORCH_OWN).row(case, functions)]


def check_norm(case: Case) -> list[Row]:
    """(sum s^p)^(1/p), whose gradient is U (s/norm)^(p-1) V^H; p = 1 is the nuclear norm."""
    A, p = matrix(case), case.numbers[0]
    one = torch.ones((), dtype=A.dtype)

    def derivative(X: mp.Matrix) -> mp.Matrix:
        total = mp.value(mp.odd(lambda x: x ** (mpmath.mpf(p) / 2)))(mp.dilation(X) ** 2)
        size = (sum(total[i, i] for i in range(total.rows)) / 2) ** (mpmath.mpf(1) / p) if p != 1 else mpmath.mpf(1)
        return mp.value_of_singular(mp.odd(lambda x: (x / size) ** (p - 1)))(X)

    functions: dict[str, Root | None] = {
        peers.OURS: sg.nuclear_norm if case.function == "nuclear_norm" else lambda A: sg.schatten_norm(A, p),
        peers.TORCH_OWN: (lambda A: torch.linalg.matrix_norm(A, "nuc"))
        if p == 1
        else lambda A: torch.linalg.vector_norm(torch.linalg.svdvals(A), p),
    }
    return [_question(case, A, one, derivative, peers.TORCH_OWN).row(case, functions)]


def check_logdet(case: Case) -> list[Row]:
    """log det M, whose gradient is M^-1."""
    w = spectrum(case.kind, case.d)
    Q = torch.linalg.qr(inputs.normal(case.d, case.d, dtype=torch.float64))[0]
    M = inputs.symmetric((Q * w) @ Q.mT).to(getattr(torch, case.dtype))
    functions: dict[str, Root | None] = {peers.OURS: sg.logdet, peers.TORCH_OWN: lambda M: torch.linalg.slogdet(M)[1]}
    derivative = mp.value(mp.Smooth(lambda x: 1 / x))
    one = torch.ones((), dtype=M.dtype)
    return [_question(case, M, one, derivative, peers.TORCH_OWN, symmetric=True).row(case, functions)]


TASKS: dict[str, Callable[[Case], list[Row]]] = {
    "singular_map": check_singular_map,
    "pinv": check_pinv,
    "nuclear_norm": check_norm,
    "schatten_norm": check_norm,
    "logdet": check_logdet,
}
