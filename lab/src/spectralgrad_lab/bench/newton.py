"""Roots by matrix products on the GPU: whether products in float64 cost more than in float32, which `Auto` must know."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

import spectralgrad as sg
from spectralgrad.linalg.products import iteration

from . import peers
from .case import Case
from .inputs import covariances, normal, symmetric
from .layers import time_pooling
from .measure import SETS, Build, Call, Effort, measure, timed_row
from .rows import Kind, Row

IN_FLOAT32 = "products in float32"
TORCH_AT = (256, 16)  # n and batch where torch.linalg.eigh stands beside: it takes one matrix after the other


@contextmanager
def _products_in_float64(wanted: bool) -> Iterator[None]:
    """As if this GPU's float64 products were as fast as its float32 ones, or were not."""
    before = iteration.FAST_FLOAT64
    pretended = (torch.cuda.get_device_capability(),) if wanted else ()
    iteration.FAST_FLOAT64 = pretended  # type: ignore[assignment]  # a shorter table
    try:
        yield
    finally:
        iteration.FAST_FLOAT64 = before


def _by_products(leaves: list[Tensor], G: Tensor, in_float64: bool) -> Call:
    def call(i: int) -> object:
        with _products_in_float64(in_float64):
            return torch.autograd.grad(sg.inv_sqrtm(leaves[i], solver=sg.NewtonSchulz()), leaves[i], G)

    return call


def _time_roots(case: Case, device: torch.device, effort: Effort) -> list[Row]:
    leaves = [covariances(case.d, case.batch, device, seed).requires_grad_() for seed in range(SETS)]
    G = symmetric(normal(case.batch, case.d, case.d, device=device, seed=SETS))

    def by_torch() -> Call:
        return lambda i: torch.autograd.grad(peers.torch_inv_sqrtm(leaves[i]), leaves[i], G)

    others: dict[str, Build] = {peers.TORCH: by_torch} if (case.d, case.batch) == TORCH_AT else {}
    ours, baseline = _by_products(leaves, G, True), (IN_FLOAT32, _by_products(leaves, G, False))
    times = measure(ours, baseline, others, device, effort)
    kind: Kind = "ratio" if case.target is None else "milliseconds"
    return [timed_row(case, times, IN_FLOAT32, at_least=False, kind=kind)]


def _time_product(case: Case, device: torch.device, effort: Effort) -> list[Row]:
    wide = [normal(case.batch, case.d, case.d, device=device, seed=seed, dtype=torch.float64) for seed in range(SETS)]
    narrow = [A.float() for A in wide]
    baseline: tuple[str, Call] = (IN_FLOAT32, lambda i: torch.bmm(narrow[i], narrow[i]))
    return [timed_row(case, measure(lambda i: torch.bmm(wide[i], wide[i]), baseline, {}, device, effort), IN_FLOAT32, False)]


TASKS: dict[str, Callable[[Case, torch.device, Effort], list[Row]]] = {
    "bmm": _time_product,
    "inv_sqrtm": _time_roots,
    "milliseconds of inv_sqrtm": _time_roots,
    "CovariancePool2d": time_pooling,
}


def time_newton(case: Case, device: torch.device, effort: Effort) -> list[Row]:
    """Float64 products over float32 ones in a root, or in one product; milliseconds of a root, and of pooling."""
    return TASKS[case.function](case, device, effort)
