"""Second derivatives at ties and near them: the gradient of <G, f(x)>, once more, along a random direction.

Functions of a matrix and of singular values are smooth at a tie, and so is what a loss on eigenvectors or singular vectors
sees through the spaces that they span; autograd through 1/gap is not. Requirements: 20 eps (1 + condition number of the
second derivative). A loss on vectors hands rounded numbers back, which near a tie are divided by the gap, here twice:
1/gap^2 is added to the condition number. At a tie itself `projector` and `polar` are held, not the vectors.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import mpmath  # type: ignore[import-untyped]
import torch
from torch import Tensor

import spectralgrad as sg

from . import inputs, peers, singular
from . import multiprecision as mp
from .case import Case
from .judge import Question, allowed, second
from .maps import by_triplets
from .peers import Root
from .rows import Row

_TIE = 16  # times eps: as far as rounding splits equal eigenvalues


@dataclass(frozen=True)
class Subject:
    """A function of a symmetric matrix: ours, in mpmath's numbers, of tensors, and torchspd's name with its arguments."""

    ours: Root
    exactly: Callable[[Any], Any]
    f: Root
    torchspd: str = ""
    arguments: tuple[float, ...] = ()


FUNCTIONS: Mapping[str, Subject] = {
    "sqrtm": Subject(sg.sqrtm, mpmath.sqrt, torch.sqrt, "sqrtm"),
    "inv_sqrtm": Subject(sg.inv_sqrtm, lambda x: 1 / mpmath.sqrt(x), torch.rsqrt, "invsqrtm"),
    "powm 1.7": Subject(lambda M: sg.powm(M, 1.7), lambda x: x ** mpmath.mpf(1.7), lambda w: w**1.7, "powm", (1.7,)),
    "powm -1": Subject(lambda M: sg.powm(M, -1), lambda x: 1 / x, lambda w: 1 / w, "powm", (-1.0,)),
    "logm": Subject(sg.logm, mpmath.log, torch.log, "logm"),
    "expm": Subject(sg.expm, mpmath.exp, torch.exp, "expm"),
    "spectral_map tanh": Subject(lambda M: sg.spectral_map(M, torch.tanh), mpmath.tanh, torch.tanh),
}


def check(case: Case) -> list[Row]:
    name = case.function.removeprefix("second derivative, ")
    if name in FUNCTIONS:
        return _of_function(case, FUNCTIONS[name])
    return {"eigh, spans": _of_eigh, "polar": _of_polar, "singular_map tanh": _of_map}.get(name, _of_svd)(case)


def matrix(case: Case) -> Tensor:
    """Symmetric (d, d) with the spectrum of singular.py, rounded to the dtype."""
    w = singular.spectrum(case.kind, case.d)
    Q = torch.linalg.qr(inputs.normal(case.d, case.d, dtype=torch.float64))[0]
    M = torch.diag(w) if "diagonal" in case.kind else inputs.symmetric((Q * w) @ Q.mT)
    return M.to(getattr(torch, case.dtype))


def _question(x: Tensor, G: Tensor, derivative: mp.Derivative, symmetric: bool, more: float = 0.0) -> Question:
    """The derivative of a gradient along a direction; ``more`` is added to its condition number."""
    T = inputs.normal(*x.shape, seed=3, dtype=torch.float64).to(x.dtype)
    T = inputs.symmetric(T) if symmetric else T
    X, twice = mp.exactly(x.numpy()), mp.along(derivative, mp.exactly(T.numpy()))
    truth = twice(X)
    limit = allowed(x.dtype, mp.condition(twice, X, truth, keeps_symmetry=symmetric) + more)
    return Question(second(x, G, T), mp.rounded(truth), limit, symmetric=symmetric)


def _of_function(case: Case, subject: Subject) -> list[Row]:
    M = matrix(case)
    G = inputs.cotangents(case.d, 1, M.dtype)[0]
    of_torchspd = peers.of_torchspd(subject.torchspd) if subject.torchspd else None
    functions: dict[str, Root | None] = {
        peers.EXACT: subject.ours,
        peers.TORCH: peers.by_eigenpairs(subject.f),
        peers.TORCHSPD: None if of_torchspd is None else lambda M: of_torchspd(M, *subject.arguments),
    }
    question = _question(M, G, mp.gradient(mp.Smooth(subject.exactly), mp.exactly(G.numpy())), symmetric=True)
    return [question.row(case, functions)]


def _with_default(question: Question, case: Case, baseline: str) -> Question:
    """The default rule is held too. K' has three times the bias of K, in terms of the size of 1/gap^2 that cancel."""
    dtype = getattr(torch, case.dtype)
    seen = [float(gap) for gap in -singular.spectrum(case.kind, case.d).diff() if gap >= singular.DEFAULT_FROM]
    bias = 3 / min(seen) ** 2 if seen else 0.0
    default = singular.default_limit(dtype, case.kind, case.d, True, question.limit, bias)
    also = {} if default is None else {peers.OURS: default}
    return replace(question, also=also, baseline=baseline)


def _at_tie(question: Question, case: Case, instead: str | None) -> Question:
    """At a tie to rounding no K carries the second derivative of a span (docs/svd.md): what is held is the function that has
    it, or nothing; the errors of the vectors are shown."""
    eps = float(torch.finfo(getattr(torch, case.dtype)).eps)
    if float(singular.spectrum(case.kind, case.d).diff().abs().min()) > _TIE * eps:
        return question
    if instead is None:
        return replace(question, limit=None, also={})
    return replace(question, held=instead, also={})


def _unseen(case: Case) -> float:
    gap = singular.gap_of(case.kind)
    return 1 / gap**2 if gap else 0.0


def _of_eigh(case: Case) -> list[Row]:
    M, c = matrix(case), singular.SPAN[: case.d][::-1]
    weight, G = torch.tensor(c, dtype=M.dtype), inputs.cotangents(case.d, 1, M.dtype)[0]
    question = _question(M, G, mp.gradient(mp.ByIndex(c), mp.exactly(G.numpy())), True, _unseen(case))
    functions: dict[str, Root | None] = {
        peers.OURS: peers.by_eigenpairs(weight.expand_as, sg.eigh),
        peers.EXACT: peers.by_eigenpairs(weight.expand_as, partial(sg.eigh, gradient=sg.Exact())),
        peers.TORCH: peers.by_eigenpairs(weight.expand_as),
        peers.PROJECTOR: _by_projector,
    }
    return [_at_tie(_with_default(question, case, peers.TORCH), case, peers.PROJECTOR).row(case, functions)]


def _by_projector(M: Tensor) -> Tensor:
    """The same matrix, with no eigenvectors: the weights are those of a projector onto the upper half."""
    low, high = singular.SPAN[-1], singular.SPAN[0]
    P = sg.projector(M, rank=M.shape[-1] // 2, gradient=sg.Exact())
    return (high - low) * P + low * torch.eye(M.shape[-1], dtype=M.dtype)


def _of_svd(case: Case) -> list[Row]:
    what, (m, n) = case.function.removeprefix("second derivative, svd "), case.shape
    A, c = singular.matrix(case), singular.SPAN[: case.d]
    weight = torch.tensor(c, dtype=A.dtype)
    G = inputs.normal(*{"U": (m, m), "V": (n, n)}.get(what, (m, n)), seed=2, dtype=torch.float64).to(A.dtype)
    G = inputs.symmetric(G) if what in singular.ENDS else G
    derivative = singular.truth_of(what, c, mp.exactly(G.numpy()), m, n)
    question = _question(A, G, derivative, False, _unseen(case))
    methods = singular.methods(what, weight)
    instead = peers.POLAR if peers.POLAR in methods else None
    return [_at_tie(_with_default(question, case, peers.TORCH_SVD), case, instead).row(case, methods)]


def _of_singular(case: Case, ours: Root, f: Root, exactly: mp.Smooth) -> list[Row]:
    A = singular.matrix(case)
    G = inputs.normal(*case.shape, seed=2, dtype=torch.float64).to(A.dtype)
    derivative = mp.of_singular(mp.gradient(exactly, mp.dilation(mp.exactly(G.numpy())) / 2))
    functions: dict[str, Root | None] = {peers.EXACT: ours, peers.TORCH_SVD: by_triplets(f)}
    return [_question(A, G, derivative, symmetric=False).row(case, functions)]


def _of_polar(case: Case) -> list[Row]:
    return _of_singular(case, sg.polar, torch.ones_like, mp.sign())


def _of_map(case: Case) -> list[Row]:
    return _of_singular(case, lambda A: sg.singular_map(A, torch.tanh), torch.tanh, mp.Smooth(mpmath.tanh))


TASKS: dict[str, Callable[[Case], list[Row]]] = {"second derivative": check}
