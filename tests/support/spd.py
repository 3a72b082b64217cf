"""Positive definite matrices and the functions of `spd` as tests take them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import spectralgrad as sg
from support import cases

METRICS = ("affine", "logeuclid", "bures")
MEASURES = ("distance", "squared", "geodesic", "mean", "transport")


def definite(*batch: int, n: int = 3, condition: float = 30.0, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    """Random matrices (*batch, n, n) with eigenvalues from 1 to ``condition``."""
    V = cases.rotation(n, *batch, dtype=dtype, seed=seed)
    w = (
        torch.rand(*batch, n, dtype=torch.float64, generator=cases.generator(seed + 100))
        .mul(torch.tensor(condition).log())
        .exp()
    )
    M = (V * w.unsqueeze(-2)) @ V.mH
    return ((M + M.mH) / 2).to(dtype)


def hermitian(X: Tensor) -> Tensor:
    return (X + X.mH) / 2


def function(measure: str, metric: str) -> Callable[..., Any]:
    """One of the functions, of Hermitian parts: finite differences may move any entry."""
    h, spd = hermitian, sg.spd
    return {
        "distance": lambda A, B: spd.distance(h(A), h(B), metric),
        "squared": lambda A, B: spd.distance(h(A), h(B), metric, squared=True),
        "geodesic": lambda A, B, t: spd.geodesic(h(A), h(B), t, metric),
        "mean": lambda X, w: spd.mean(h(X), w, metric),
        "transport": lambda T, A, B: spd.transport(h(T), h(A), h(B), metric),
    }[measure]


def arguments(measure: str, n: int = 3, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    A, B = definite(n=n, dtype=dtype, seed=1), definite(n=n, dtype=dtype, seed=2)
    real = A.real.dtype
    if measure == "geodesic":
        return A, B, torch.tensor(0.3, dtype=real)
    if measure == "mean":
        return definite(3, n=n, dtype=dtype, seed=3), torch.tensor([0.5, 1.0, 2.0], dtype=real)
    if measure == "transport":
        return hermitian(cases.random(n, n, dtype=dtype, seed=4)), A, B
    return A, B


EVERY = [(measure, metric) for measure in MEASURES for metric in METRICS if (measure, metric) != ("transport", "bures")]
