"""Losses on singular vectors and values, and maps of singular values: at every ratio s_min/s_max, gap and shape.

`U V^H` sees no gap: the part over s_i - s_j cancels. `U` and `V` are sum_i c_i u_i u_i^T and its twin; the c_i are the same
inside a tie, where nothing else has a derivative, and with «span» inside a near tie too. Requirements: 20 eps (1 + condition
number). Where a loss reaches vectors beside a near tie that it does not see, the rounding of what it hands to `svd` is
divided by the gap, by whoever computes it: 1/gap is added to the condition number. The default rule is held to the same
plus its own (rtol/gap)^2, at relative gaps of 1e-3 and more: below that it is bounded on purpose.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

import spectralgrad as sg

from . import inputs, peers
from . import multiprecision as mp
from .case import Case
from .judge import Question, allowed, first
from .peers import Root
from .rows import Row

Svd = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]
RTOL = {torch.float32: 1e-6, torch.float64: 1e-8}  # of Lorentzian, the default
DEFAULT_FROM = 1e-3  # relative gaps from which the default rule is to be exact
ROUNDING = 1e-9  # 1 - (1 - 1e-3) is not quite 1e-3
SEEN = (4.0, 2.0, 1.0, 0.5)  # weights of the singular vectors, by falling singular value
SPAN = (3.0, 3.0, 1.0, 1.0)  # those of a loss that sees pairs through the space that they span
ENDS = ("U", "V")


def spectrum(kind: str, k: int) -> Tensor:
    """k <= 4 falling numbers from 1, by the first words of a kind."""
    what, _, number = kind.split(",")[0].rpartition(" ")
    if what in ("s_min/s_max", "graded"):
        return torch.logspace(0, torch.tensor(float(number)).log10().item(), k, dtype=torch.float64)
    if kind.startswith("separated"):
        return torch.linspace(1, 1 / k, k, dtype=torch.float64)
    if kind.startswith("rank-deficient"):
        return torch.tensor([1.0, 0.5, 0.0, 0.0], dtype=torch.float64)[:k]
    gap = gap_of(kind)
    return torch.tensor([1.0, 1.0 - gap, 0.5, 0.5 - gap], dtype=torch.float64)[:k]


def gap_of(kind: str) -> float:
    """The relative gap that a kind names; 0 for a tie and where none is named."""
    name = kind.split(",")[0]
    return float(name.removeprefix("gap ")) if name.startswith("gap ") else 0.0


def matrix(case: Case) -> Tensor:
    """A (m, n), rounded to the dtype."""
    m, n = case.shape
    s = spectrum(case.kind, min(m, n))
    if "diagonal" in case.kind:
        A = torch.zeros(m, n, dtype=torch.float64)
        A.diagonal().copy_(s)
    else:
        U, V = (
            torch.linalg.qr(inputs.normal(size, min(m, n), seed=seed, dtype=torch.float64))[0]
            for seed, size in ((0, m), (1, n))
        )
        A = (U * s) @ V.mT
    return A.to(getattr(torch, case.dtype))


def weights(kind: str, k: int) -> tuple[float, ...]:
    return (SPAN if kind.startswith("tie") or "span" in kind else SEEN)[:k]


def loss_on(what: str, svd: Svd, c: Tensor) -> Root:
    """A -> what the loss sees of the decomposition."""

    def function(A: Tensor) -> Tensor:
        U, S, Vh = svd(A)
        if what == "S":
            return S
        if what == "U V^H":
            return U @ Vh
        return (U * c) @ U.mT if what == "U" else (Vh.mT * c) @ Vh

    return function


def methods(what: str, weight: Tensor) -> dict[str, Root | None]:
    """Our two rules and torch; `polar`, which needs no singular vectors, beside U V^H."""
    found: dict[str, Root | None] = {
        peers.OURS: loss_on(what, sg.svd, weight),
        peers.EXACT: loss_on(what, partial(sg.svd, gradient=sg.Exact()), weight),
        peers.TORCH_SVD: loss_on(what, partial(torch.linalg.svd, full_matrices=False), weight),
    }
    return {**found, peers.POLAR: sg.polar} if what == "U V^H" else found


def truth_of(what: str, c: tuple[float, ...], G: mp.Matrix, m: int, n: int) -> mp.Derivative:
    """A -> the gradient of <G, what the loss sees>."""
    by_place = mp.ByIndex((0.0,) * max(m, n) + c[::-1])  # the dilation has -s, zeros, and s last
    if what == "S":
        return mp.of_singular(mp.value(by_place))
    if what == "U V^H":
        return mp.of_singular(mp.gradient(mp.sign(), mp.dilation(G) / 2))
    C = mp.cotangent(m, n, left=G) if what == "U" else mp.cotangent(m, n, corner=G)
    return mp.of_singular(mp.gradient(by_place, C))


def default_limit(
    dtype: torch.dtype, kind: str, k: int, unseen: bool, limit: float | None, bias: float = 1.0
) -> float | None:
    """Of the default rule: its own bias is added; below 1e-3 none is set, but for a loss that does not see the gap."""
    gaps = -spectrum(kind, k).diff()
    seen = [float(gap) for gap in gaps if gap > 0 and not (unseen and gap < DEFAULT_FROM)]
    if limit is None or (seen and min(seen) < (1 - ROUNDING) * DEFAULT_FROM):
        return None
    return limit + bias * (RTOL[dtype] / min(seen)) ** 2 if seen else limit


def check_svd(case: Case) -> list[Row]:
    what, (m, n) = case.function.removeprefix("svd, "), case.shape
    A, k = matrix(case), min(case.shape)
    c = weights(case.kind, k)
    weight = torch.tensor(c, dtype=A.dtype)
    size = {"U": (m, m), "V": (n, n), "U V^H": (m, n), "S": (1, k)}[what]
    G = inputs.normal(*size, seed=2, dtype=torch.float64).to(A.dtype)
    G = weight if what == "S" else inputs.symmetric(G) if what in ENDS else G
    derivative, X = truth_of(what, c, mp.exactly(torch.atleast_2d(G).numpy()), m, n), mp.exactly(A.numpy())
    truth = derivative(X)
    condition = mp.condition(derivative, X, truth, keeps_symmetry=False)
    gap = gap_of(case.kind)
    unseen = what == "U V^H" or "span" in case.kind
    limit = allowed(A.dtype, condition + (1 / gap if gap and unseen else 0))
    default = limit if what == "S" else default_limit(A.dtype, case.kind, k, unseen, limit)
    question = Question(
        first(A, G),
        mp.rounded(truth),
        limit,
        also={} if default is None else {peers.OURS: default},
        baseline=peers.TORCH_SVD,
    )
    return [question.row(case, methods(what, weight))]


TASKS: dict[str, Callable[[Case], list[Row]]] = {"svd": check_svd}
