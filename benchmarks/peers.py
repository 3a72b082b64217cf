"""The methods that are compared. Peers are optional: one that is not installed keeps its column, and the column is empty.

What they have to compare: torchspd has both roots with divided differences. xitorch has an eigendecomposition with a
treatment of ties (`symeig`), from which both roots are made as with torch. kornia has no matrix root; its `zca_mean`
goes from samples to the whitening matrix, so it takes part where the gradient reaches the samples.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

import spectralgrad as sg

Root = Callable[[Tensor], Tensor]
EXACT = "spectralgrad Exact"
TORCH = "torch.linalg.eigh + autograd"
KORNIA = "kornia"


@dataclass(frozen=True)
class Method:
    """M (*B, n, n) -> its roots; None where the package is missing or has no such function."""

    name: str
    sqrtm: Root | None
    inv_sqrtm: Root | None


def label(name: str) -> str:
    """A short column head: ours without the package's name, torch's without «+ autograd»."""
    return name.removeprefix("spectralgrad ").removesuffix(" + autograd")


def _ours(name: str, **options: Any) -> Method:
    return Method(f"spectralgrad {name}", lambda M: sg.sqrtm(M, **options), lambda M: sg.inv_sqrtm(M, **options))


def _from_eigenpairs(name: str, eigh: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Method:
    def sqrtm(M: Tensor) -> Tensor:
        w, V = eigh(M)
        return (V * w.sqrt().unsqueeze(-2)) @ V.mT

    def inv_sqrtm(M: Tensor) -> Tensor:
        w, V = eigh(M)
        return (V * w.rsqrt().unsqueeze(-2)) @ V.mT

    return Method(name, sqrtm, inv_sqrtm)


def _torchspd() -> Method:
    if find_spec("torchspd") is None:
        return Method("torchspd", None, None)
    import torchspd

    return Method("torchspd", torchspd.sqrtm, torchspd.invsqrtm)


def _xitorch() -> Method:
    if find_spec("xitorch") is None:
        return Method("xitorch", None, None)
    import xitorch
    import xitorch.linalg

    return _from_eigenpairs("xitorch", lambda M: xitorch.linalg.symeig(xitorch.LinearOperator.m(M, is_hermitian=True)))


METHODS = [
    _ours("Exact", gradient=sg.Exact()),
    _ours("NewtonSchulz()", solver=sg.NewtonSchulz()),
    _from_eigenpairs(TORCH, torch.linalg.eigh),
    _ours("Taylor(9)", gradient=sg.Taylor(9)),
    _ours("Lorentzian", gradient=sg.Lorentzian()),
    _ours("NewtonSchulz(steps=5)", solver=sg.NewtonSchulz(steps=5)),
    _torchspd(),
    _xitorch(),
]


def zca_of_samples(method: Method, eps: float) -> Root | None:
    """X (d, n) of mean zero -> (X X^T / n + eps I)^(-1/2) with this method's root."""
    if method.inv_sqrtm is None:
        return None
    root = method.inv_sqrtm

    def zca(X: Tensor) -> Tensor:
        return root(X @ X.mT / X.shape[-1] + eps * torch.eye(X.shape[0], dtype=X.dtype))

    return zca


def kornia_zca_of_samples(eps: float) -> Root | None:
    """The same by kornia, which also subtracts the mean; here that is zero."""
    if find_spec("kornia") is None:
        return None
    from kornia.enhance import zca_mean

    return lambda X: zca_mean(X.mT, dim=0, unbiased=False, eps=eps)[0]
