"""What a method answers, and how far it is from the truth: a row of `gradients` for every question."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor

from . import peers
from .case import Case
from .peers import Root
from .rows import Row, raised

Ask = Callable[[Root], Tensor]
ROUNDINGS = 20  # of the input, relative to its norm, that an answer may be worth
NO_DIGIT = 0.1  # a requirement above it would ask for nothing: none is set


def allowed(dtype: torch.dtype, condition: float) -> float | None:
    """20 eps (1 + condition number); None where rounding the input leaves no digit.

    >>> allowed(torch.float64, 1e3), allowed(torch.float32, 1e6)  # doctest: +ELLIPSIS
    (4.44...e-12, None)
    """
    limit = ROUNDINGS * float(torch.finfo(dtype).eps) * (1 + condition)
    return limit if limit <= NO_DIGIT else None


def plain(x: Tensor) -> Ask:
    """The value at x."""
    return lambda function: function(x)


def first(x: Tensor, G: Tensor) -> Ask:
    """The gradient by x of <G, function(x)>."""

    def ask(function: Root) -> Tensor:
        leaf = x.clone().requires_grad_()
        return torch.autograd.grad(function(leaf), leaf, G)[0]

    return ask


def second(x: Tensor, G: Tensor, T: Tensor) -> Ask:
    """The derivative along T of that gradient, by double backward."""

    def ask(function: Root) -> Tensor:
        leaf = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(function(leaf), leaf, G, create_graph=True)
        (found,) = torch.autograd.grad(gradient, leaf, T, allow_unused=True)
        return torch.zeros_like(leaf) if found is None else found

    return ask


def by_norm(found: ndarray, truth: ndarray) -> float:
    """The largest relative Frobenius error over the batch."""
    return float((np.linalg.norm(found - truth, axis=(-2, -1)) / np.linalg.norm(truth, axis=(-2, -1))).max())


def by_entry(found: ndarray, truth: ndarray) -> float:
    """The largest error of an entry relative to itself; what must be 0 counts as it is.

    >>> by_entry(np.array([1.0, 2.2, 0.0]), np.array([1.0, 2.0, 0.0]))  # doctest: +ELLIPSIS
    0.1000...
    """
    return float((np.abs(found - truth) / np.where(truth == 0, 1, np.abs(truth))).max())


@dataclass(frozen=True)
class Question:
    """What is asked of every method, its answer, and how far off ours may be. ``also``: limits of others of ours."""

    ask: Ask
    truth: ndarray
    limit: float | None
    also: Mapping[str, float] = field(default_factory=dict)
    symmetric: bool = False  # only the symmetric part of the answer means something
    distance: Callable[[ndarray, ndarray], float] = by_norm
    batch: int = 1
    held: str = peers.EXACT  # the method of whom ``limit`` is asked
    baseline: str = peers.TORCH

    def error(self, function: Root) -> float | str:
        """The error, NaN for an answer that is not finite, or what was raised."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # peers warn about ties; the table says it in numbers
                found = self.ask(function).detach().double()
        except Exception as error:  # whatever a method raises is its result
            return raised(error)
        if not found.isfinite().all():
            return float("nan")
        return self.distance(((found + found.mT) / 2 if self.symmetric else found).numpy(), self.truth)

    def row(self, case: Case, functions: Mapping[str, Root | None]) -> Row:
        """Every method's error; None stands for a package that is missing."""
        results = {name: self.error(f) for name, f in functions.items() if f is not None}
        errors = {name: error for name, error in results.items() if not isinstance(error, str)}
        return Row(
            case.section,
            case.kind,
            case.d,
            self.batch,
            "error",
            errors.get(self.held),
            target=self.limit,
            at_least=False,
            baseline=self.baseline,
            errors=errors,
            failed={name: error for name, error in results.items() if isinstance(error, str)},
            function=case.function,
            dtype=case.dtype,
            method=self.held,
            also=dict(self.also),
        )
