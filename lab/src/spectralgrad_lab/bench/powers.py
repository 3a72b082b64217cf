"""Powers and inverse roots of a matrix: gradients given the eigenvalues, gradients and values of rotated matrices.

A diagonal matrix is its own spectrum: its row shows F_ij and nothing else, entry by entry. The requirement is 100 eps.
A rotated one has the eigenvalues that rounding leaves it: the requirement is 20 eps (1 + condition number), with the
condition number of the very quantity that is asked for (multiprecision.py).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mpmath  # type: ignore[import-untyped]
import torch
from torch import Tensor

import spectralgrad as sg

from . import inputs, peers
from . import multiprecision as mp
from .case import Case
from .judge import Question, allowed, by_entry, first, plain
from .peers import Root
from .rows import Row

ENTRY = 100  # eps: of an entry of F, given the eigenvalues
FLOORED = 4.0  # the smallest eigenvalue that a floor leaves alone, over the floor
PRODUCTS = (2, 4)  # inverse roots that NewtonSchulz has


def spectrum(kind: str, kappa: float, d: int) -> Tensor:
    """d numbers from 1/kappa to 1; with «ties» each twice, with «floor» some below 1/kappa: 0, and half of it."""
    if "ties" in kind:
        return spectrum("", kappa, d // 2).repeat_interleave(2)
    w = torch.logspace(-torch.tensor(kappa).log10().item(), 0, d, dtype=torch.float64)
    if "floor" in kind:
        w = torch.cat([torch.tensor([0.0, 0.5 / kappa]).double(), w[2:].clamp(min=FLOORED / kappa)])
    return w


def matrix(case: Case, kappa: float) -> Tensor:
    """(d, d), rounded to the dtype."""
    w = spectrum(case.kind, kappa, case.d)
    if "diagonal" in case.function:
        return torch.diag(w).to(getattr(torch, case.dtype))
    Q = torch.linalg.qr(inputs.normal(case.d, case.d, dtype=torch.float64))[0]
    return inputs.symmetric((Q * w) @ Q.mT).to(getattr(torch, case.dtype))


def _scalar(alpha: Any, floor: float | None) -> mp.Smooth:
    """x^alpha of max(x, floor), in mpmath's numbers."""
    return mp.Smooth(lambda x: mpmath.power(x if floor is None else max(x, mpmath.mpf(floor)), alpha))


def _by_torch(alpha: float, floor: float | None) -> Root:
    return peers.by_eigenpairs(lambda w: (w if floor is None else w.clamp(min=floor)) ** alpha)


def powers(alpha: float, floor: float | None, value: bool) -> dict[str, Root | None]:
    """M^alpha, by us and the others. torchspd has no floor; scipy no gradient."""
    of_torchspd, of_scipy = peers.of_torchspd("powm"), peers.of_scipy("fractional_matrix_power")
    found: dict[str, Root | None] = {
        peers.EXACT: lambda M: sg.powm(M, alpha, floor=floor),
        peers.TORCH: _by_torch(alpha, floor),
        peers.TORCHSPD: None if of_torchspd is None or floor is not None else lambda M: of_torchspd(M, alpha),
    }
    if value:
        found[peers.SCIPY] = None if of_scipy is None else lambda M: torch.from_numpy(of_scipy(M.numpy(), alpha))
    return found


def inverse_roots(p: int, value: bool) -> dict[str, Root | None]:
    """M^(-1/p): the same methods, and products where there are any."""
    found = powers(-1 / p, None, value)
    found[peers.EXACT] = lambda M: sg.inv_root(M, p)
    if p in PRODUCTS:
        found[peers.NEWTON] = lambda M: sg.inv_root(M, p, solver=sg.NewtonSchulz())
    return found


def check_powm(case: Case) -> list[Row]:
    alpha, kappa = case.numbers
    floor = float(torch.tensor(1 / kappa, dtype=getattr(torch, case.dtype))) if "floor" in case.kind else None
    return [_question(case, kappa, _scalar(mpmath.mpf(alpha), floor)).row(case, powers(alpha, floor, _is_value(case)))]


def check_inv_root(case: Case) -> list[Row]:
    p, kappa = int(case.numbers[0]), case.numbers[1]
    question = _question(case, kappa, _scalar(-mpmath.mpf(1) / p, None))
    if p in PRODUCTS and question.limit is not None:  # products are held to the same
        question = replace(question, also={peers.NEWTON: question.limit})
    return [question.row(case, inverse_roots(p, _is_value(case)))]


def _is_value(case: Case) -> bool:
    return case.function.endswith("value")


def _question(case: Case, kappa: float, f: mp.Smooth) -> Question:
    M = matrix(case, kappa)
    G = inputs.cotangents(case.d, 1, M.dtype)[0]
    H = mp.exactly(M.numpy())
    derivative = mp.value(f) if _is_value(case) else mp.gradient(f, mp.exactly(G.numpy()))
    truth = derivative(H)
    if "diagonal" in case.function:
        limit: float | None = ENTRY * float(torch.finfo(M.dtype).eps)
        return Question(first(M, G), mp.rounded(truth), limit, symmetric=True, distance=by_entry)
    limit = allowed(M.dtype, mp.condition(derivative, H, truth, keeps_symmetry=True))
    ask = plain(M) if _is_value(case) else first(M, G)
    return Question(ask, mp.rounded(truth), limit, symmetric=True)


TASKS: dict[str, Callable[[Case], list[Row]]] = {"powm": check_powm, "inv_root": check_inv_root}
