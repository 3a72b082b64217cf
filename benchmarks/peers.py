"""The methods that are compared: ours by rule and solver, and the peers of spectralgrad_lab.bench."""

from typing import Any

import torch
from torch import Tensor

import spectralgrad as sg
from spectralgrad_lab.bench.peers import (
    KORNIA,
    Method,
    Root,
    from_eigenpairs,
    kornia_zca_of_samples,
    torchspd,
    xitorch,
)

__all__ = ["EXACT", "KORNIA", "METHODS", "TORCH", "Method", "kornia_zca_of_samples", "label", "zca_of_samples"]

EXACT = "spectralgrad Exact"
TORCH = "torch.linalg.eigh + autograd"


def label(name: str) -> str:
    """A short column head: ours without the package's name, torch's without «+ autograd»."""
    return name.removeprefix("spectralgrad ").removesuffix(" + autograd")


def _ours(name: str, **options: Any) -> Method:
    return Method(f"spectralgrad {name}", lambda M: sg.sqrtm(M, **options), lambda M: sg.inv_sqrtm(M, **options))


METHODS = [
    _ours("Exact", gradient=sg.Exact()),
    _ours("NewtonSchulz()", solver=sg.NewtonSchulz()),
    from_eigenpairs(TORCH, torch.linalg.eigh),
    _ours("Taylor(9)", gradient=sg.Taylor(9)),
    _ours("Lorentzian", gradient=sg.Lorentzian()),
    _ours("NewtonSchulz(steps=5)", solver=sg.NewtonSchulz(steps=5)),
    torchspd(),
    xitorch(),
]


def zca_of_samples(method: Method, eps: float) -> Root | None:
    """X (d, n) of mean zero -> (X X^T / n + eps I)^(-1/2) with this method's root."""
    if method.inv_sqrtm is None:
        return None
    root = method.inv_sqrtm

    def zca(X: Tensor) -> Tensor:
        return root(X @ X.mT / X.shape[-1] + eps * torch.eye(X.shape[0], dtype=X.dtype))

    return zca
