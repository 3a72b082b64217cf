"""One call on a batch of matrices: values, first and second derivatives, and every promise about them."""

import contextlib
import math
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import spectralgrad

from .numbers import cotangent

WORKS, MAY_RAISE, MUST_RAISE = 0, 1, 2  # what may become of a matrix
_SINGLES = 4  # of those that may or must raise, so many are tried, one by one
_PIECES = 40  # into which a batch that raises is cut at most
SECOND = 1000  # the number of the weight of the gradient, for second derivatives


@dataclass
class Check:
    """error / bound of each matrix (B,): up to 1 is right. For a snippet: what came and what was expected."""

    name: str
    ratio: Tensor
    got: Tensor | None = None
    expected: Tensor | None = None


@dataclass
class Outcome:
    """What a call gave: the names that the code bound, Y as a tuple, its gradient and the second derivative."""

    names: dict[str, Any]
    outputs: tuple[Tensor, ...]
    gradient: Tensor
    second: Tensor | None


@dataclass
class Findings:
    """Checks with the indices (in the batch) of the matrices they are about."""

    checks: list[tuple[Tensor, Check]] = field(default_factory=list)
    tried: int = 0

    def failures(self) -> Iterator[tuple[str, int, float, Check, int]]:
        """Name of the check, index in the batch, error / bound, the check, and the place in it."""
        for where, check in self.checks:
            for place in (~(check.ratio <= 1)).nonzero()[:, 0].tolist():
                yield check.name, int(where[place]), float(check.ratio[place]), check, place

    def worst(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for _, check in self.checks:
            if len(check.ratio):
                found[check.name] = max(found.get(check.name, 0.0), float(check.ratio.nan_to_num(nan=math.inf).max()))
        return found


def execute(code: str, X: Tensor, library: Any = spectralgrad) -> dict[str, Any]:
    """Run the lines of a target with X bound, and return the names that they bind."""
    names: dict[str, Any] = {"torch": torch, "sg": library, "X": X}
    exec(compile(code, "<fuzz>", "exec"), names)
    return names


def call(code: str, X: Tensor, library: Any = spectralgrad) -> Outcome:
    """Values, gradient and second derivative with the fixed weights of `cotangent`."""
    leaf = X.detach().clone().requires_grad_()
    names = execute(code, leaf, library)
    Y = names["Y"] if isinstance(names["Y"], tuple) else (names["Y"],)
    used = [(i, y) for i, y in enumerate(Y) if y.requires_grad]
    (g,) = torch.autograd.grad(
        [y for _, y in used], leaf, [cotangent(y, i) for i, y in used], create_graph=True, materialize_grads=True
    )
    second = None
    if g.requires_grad:
        (second,) = torch.autograd.grad(g, leaf, cotangent(g, SECOND), materialize_grads=True)
    return Outcome(names, tuple(y.detach() for y in Y), g.detach(), second)


def _pieces(code: str, X: Tensor, library: Any) -> Iterator[tuple[Tensor, Outcome | Exception]]:
    """The batch as it is, or, if it raises, halved until the culprits stand alone."""
    waiting, runs = [torch.arange(len(X))], 0
    while waiting and runs < _PIECES:
        where, runs = waiting.pop(), runs + 1
        try:
            yield where, call(code, X[where], library)
        except Exception as error:
            if len(where) == 1:
                yield where, error
            else:
                waiting.extend(reversed(where.chunk(2)))


def _finite(name: str, tensors: tuple[Tensor, ...]) -> Check:
    count = len(tensors[0])
    found = torch.stack([~torch.isfinite(x).reshape(count, -1).all(1).cpu() for x in tensors]).any(0)
    return Check(name, torch.where(found, math.inf, 0.0), tensors[0])


def _derivatives_are_finite(target: Any, X: Tensor, outcome: Outcome) -> Iterator[Check]:
    for name, x, promised in (
        ("gradient", outcome.gradient, target.once),
        ("second derivative", outcome.second, target.twice),
    ):
        if x is not None:
            check = _finite(f"{name} is finite", (x,))
            check.ratio = torch.where(promised(X), check.ratio, 0.0)
            yield check


def _raised(error: Exception, where: Tensor) -> tuple[Tensor, Check]:
    name = f"raises {type(error).__name__}"
    check = Check(name, torch.full((1,), math.inf))
    check.message = str(error)  # type: ignore[attr-defined]
    return where, check


def _judged(target: Any, options: dict[str, Any], X: Tensor, outcome: Outcome, library: Any) -> Iterator[Check]:
    yield _finite("value is finite", outcome.outputs)
    yield from _derivatives_are_finite(target, X, outcome)
    yield from target.judge(options, X, outcome, library)


def examine(target: Any, options: dict[str, Any], X: Tensor, library: Any = spectralgrad) -> Findings:
    """Hold ``target`` with these options to its promises on X (B, m, n)."""
    code, findings = target.code(options), Findings()
    status = target.status(options, X)
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.autograd.set_grad_enabled(True))
        works = (status == WORKS).nonzero()[:, 0]
        for where, outcome in _pieces(code, X[works], library) if len(works) else ():
            findings.tried += len(where)
            if isinstance(outcome, Exception):
                findings.checks.append(_raised(outcome, works[where]))
                continue
            for check in _judged(target, options, X[works[where]], outcome, library):
                findings.checks.append((works[where], check))
        if X.device.type == "cpu":  # elsewhere nothing looks at values, so nothing raises
            _singly(target, options, X, status, library, findings)
    return findings


def _singly(target: Any, options: dict[str, Any], X: Tensor, status: Tensor, library: Any, findings: Findings) -> None:
    code = target.code(options)
    for kind in (MAY_RAISE, MUST_RAISE):
        for i in (status == kind).nonzero()[:_SINGLES]:
            findings.tried += 1
            try:
                outcome = call(code, X[i], library)
            except Exception as error:
                if type(error).__name__ in target.refusals:
                    continue
                findings.checks.append(_raised(error, i))
                continue
            if kind == MUST_RAISE:
                findings.checks.append((i, Check("raises nothing", torch.full((1,), math.inf), outcome.outputs[0])))
                continue
            findings.checks.append((i, _finite("value is finite", outcome.outputs)))
            findings.checks += [(i, check) for check in _derivatives_are_finite(target, X[i], outcome)]


def module(**replaced: Any) -> types.SimpleNamespace:
    """The library with some functions replaced: for planted faults."""
    return types.SimpleNamespace(**{**vars(spectralgrad), **replaced})
