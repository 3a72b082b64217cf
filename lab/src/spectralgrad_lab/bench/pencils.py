"""A V = B V diag(w): losses on the eigenvalues and on the eigenvectors of a pencil, by A and by B.

The reference goes by S = B^(-1/2): the eigenvalues are those of C = S A S, and sum_i c_i v_i v_i^T = S f(C) S. Its
gradient is the product rule with two functions of one matrix (multiprecision.py); ours knows V alone. Both gradients are
judged as one: the norm of the pair. Requirements as for `svd`: see singular.py.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import mpmath  # type: ignore[import-untyped]
import numpy as np
import torch
from torch import Tensor

import spectralgrad as sg

from . import inputs, peers
from . import multiprecision as mp
from .case import Case
from .judge import Question, allowed, by_norm, first, plain
from .peers import Root
from .rows import Row
from .singular import default_limit, gap_of, spectrum, weights

Pencil = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
INVERSE_ROOT = mp.Smooth(lambda x: 1 / mpmath.sqrt(x))


def matrices(case: Case) -> Tensor:
    """A and B (2, d, d): the pencil has the kind's spectrum, B the condition number that is named last."""
    kappa = case.numbers[0]
    Q, R = (torch.linalg.qr(inputs.normal(case.d, case.d, seed=seed, dtype=torch.float64))[0] for seed in (0, 1))
    b = torch.logspace(-torch.tensor(kappa).log10().item(), 0, case.d, dtype=torch.float64)
    root = (Q * b.sqrt()) @ Q.mT
    C = (R * spectrum(case.kind, case.d)) @ R.mT
    pair = torch.stack([root @ C @ root, (Q * b) @ Q.mT])
    return inputs.symmetric(pair).to(getattr(torch, case.dtype))


def by_torch(A: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
    """What is written without us: Cholesky, torch.linalg.eigh, and back."""
    L = torch.linalg.cholesky(B)
    C = torch.linalg.solve_triangular(L, torch.linalg.solve_triangular(L, A, upper=False).mT, upper=False)
    w, X = torch.linalg.eigh(C)
    return w, torch.linalg.solve_triangular(L.mT, X, upper=True)


def _by_scipy(eigh: Callable[..., Any], A: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
    w, V = eigh(A.numpy(), B.numpy())
    return torch.from_numpy(w), torch.from_numpy(V)


def loss_on(what: str, pencil: Pencil, c: Tensor) -> Root:
    """(A, B) -> w, or sum_i c_i v_i v_i^T."""

    def function(pair: Tensor) -> Tensor:
        w, V = pencil(pair[0], pair[1])
        return w if what == "w" else (V * c) @ V.mT

    return function


def truth_of(what: str, c: tuple[float, ...], G: mp.Matrix) -> mp.Derivative:
    """The pair, one below the other (2d, d) -> its gradients likewise; for «value» sum_i c_i v_i v_i^T itself."""
    f = mp.ByIndex(c)

    def derivative(pair: mp.Matrix) -> mp.Matrix:
        d = pair.cols
        A, B = mp.symmetric(pair[:d, :]), mp.symmetric(pair[d:, :])
        S = mp.value(INVERSE_ROOT)(B)
        C = S * A * S
        Y = mp.value(f)(C)
        if what == "value":
            return S * Y * S
        if what == "w":  # dw_i = v_i^T (dA - w_i dB) v_i
            return _below(S * Y * S, -S * mp.symmetric(C * Y) * S)
        by_C = mp.gradient(f, S * G * S)(C)
        by_S = 2 * mp.symmetric(G * S * Y + by_C * S * A)
        return _below(S * by_C * S, mp.gradient(INVERSE_ROOT, by_S)(B))

    return derivative


def _below(first: mp.Matrix, second: mp.Matrix) -> mp.Matrix:
    d = first.rows
    both = mpmath.matrix(2 * d, d)
    both[:d, :], both[d:, :] = first, second
    return both


def _as_one(found: np.ndarray, truth: np.ndarray) -> float:
    return by_norm(found.reshape(truth.shape), truth)


def check(case: Case) -> list[Row]:
    what = case.function.removeprefix("generalized_eigh, ")
    x, c = matrices(case), weights(case.kind, case.d)[::-1]
    weight = torch.tensor(c, dtype=x.dtype)
    G = weight if what == "w" else inputs.cotangents(case.d, 1, x.dtype)[0]
    X, derivative = mp.exactly(x.flatten(0, 1).numpy()), truth_of(what, c, mp.exactly(torch.atleast_2d(G).numpy()))
    truth = derivative(X)
    condition = mp.condition(derivative, X, truth, keeps_symmetry=False)
    gap, unseen = gap_of(case.kind), "span" in case.kind
    limit = allowed(x.dtype, condition + (1 / gap if gap and unseen else 0))
    rules = what == "V"  # of which the gradient knows
    default = default_limit(x.dtype, case.kind, case.d, unseen, limit) if rules else limit
    question = Question(
        plain(x) if what == "value" else first(x, G),
        mp.rounded(truth),
        limit,
        also={} if default is None else {peers.OURS: default},
        symmetric=True,
        distance=_as_one,
    )
    functions: dict[str, Root | None] = {
        peers.OURS: loss_on(what, sg.generalized_eigh, weight),
        peers.EXACT: loss_on(what, partial(sg.generalized_eigh, gradient=sg.Exact()), weight),
        peers.TORCH: loss_on(what, by_torch, weight),
    }
    if what == "value" and (eigh := peers.of_scipy("eigh")) is not None:
        functions[peers.SCIPY] = loss_on(what, partial(_by_scipy, eigh), weight)
    return [question.row(case, functions)]


TASKS: dict[str, Callable[[Case], list[Row]]] = {"generalized_eigh": check}
