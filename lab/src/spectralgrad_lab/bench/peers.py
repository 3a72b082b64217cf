"""The methods that are compared: ours by rule and solver, torch's, and the peers'.

Peers are optional: one that is not installed keeps its column, empty.

What they have to compare: torchspd has both roots with divided differences. xitorch has an eigendecomposition with a
treatment of ties (`symeig`), from which both roots are made as with torch. kornia has no matrix root; its `zca_mean`
goes from samples to the whitening matrix, and its `zca_whiten` to whitened samples. CuPy and JAX have
eigendecompositions on CUDA, roma has alignment.
"""

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

import spectralgrad as sg
from spectralgrad.kernels import syev

Root = Callable[[Tensor], Tensor]
Eigh = Callable[[Tensor], tuple[Tensor, Tensor]]
OURS = "spectralgrad"
EXACT = "spectralgrad Exact"  # ours, where other rules of ours stand beside it
TORCH_EIGH = "torch.linalg.eigh"
TORCH = "torch.linalg.eigh + autograd"
TORCH_SVD = "torch.linalg.svd + autograd"
TORCH_OWN = "torch.linalg"  # its own function of that name: pinv, matrix_norm, slogdet
POLAR = "spectralgrad polar"
PROJECTOR = "spectralgrad projector"
NEWTON = "spectralgrad NewtonSchulz()"
SCIPY = "scipy"  # values alone: it has no gradients
TORCHSPD, XITORCH, KORNIA = PEERS = ("torchspd", "xitorch", "kornia")
ROMA = "roma"
XSYEV, CUPY, JAX = "cuSOLVER XsyevBatched", "cupy", "jax"


def _package(name: str) -> Any:
    """The module, or None where it is missing or does not load."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what a peer deprecates is not our user's business
            return import_module(name)
    except ImportError:
        return None


@dataclass(frozen=True)
class Method:
    """M (*B, n, n) -> its roots; None where the package is missing or has no such function."""

    name: str
    sqrtm: Root | None
    inv_sqrtm: Root | None


def from_eigenpairs(name: str, eigh: Eigh) -> Method:
    """Both roots as V f(L) V^T, by autograd through the eigenpairs.

    >>> from_eigenpairs("torch", torch.linalg.eigh).inv_sqrtm(4 * torch.eye(2))
    tensor([[0.5000, 0.0000],
            [0.0000, 0.5000]])
    """

    def sqrtm(M: Tensor) -> Tensor:
        w, V = eigh(M)
        return (V * w.sqrt().unsqueeze(-2)) @ V.mT

    def inv_sqrtm(M: Tensor) -> Tensor:
        w, V = eigh(M)
        return (V * w.rsqrt().unsqueeze(-2)) @ V.mT

    return Method(name, sqrtm, inv_sqrtm)


def of_torchspd(name: str) -> Callable[..., Tensor] | None:
    """torchspd's function of this name: sqrtm, invsqrtm, powm, logm or expm."""
    function: Callable[..., Tensor] | None = getattr(_package("torchspd"), name, None)
    return function


def of_scipy(name: str) -> Callable[..., Any] | None:
    """A function of scipy.linalg, of arrays."""
    function: Callable[..., Any] | None = getattr(_package("scipy.linalg"), name, None)
    return function


def by_eigenpairs(f: Root, eigh: Eigh = torch.linalg.eigh) -> Root:
    """V f(L) V^T, by autograd through the eigenpairs; the general form of `from_eigenpairs`."""

    def function(M: Tensor) -> Tensor:
        w, V = eigh(M)
        return (V * f(w).unsqueeze(-2)) @ V.mT

    return function


def torchspd() -> Method:
    package = _package("torchspd")
    return Method(TORCHSPD, getattr(package, "sqrtm", None), getattr(package, "invsqrtm", None))


def xitorch_eigh() -> Eigh | None:
    package, linalg = _package("xitorch"), _package("xitorch.linalg")
    if package is None or linalg is None:
        return None

    def eigh(M: Tensor) -> tuple[Tensor, Tensor]:
        w, V = linalg.symeig(package.LinearOperator.m(M, is_hermitian=True))
        return w, V

    return eigh


def eigensolvers(device: torch.device, compiled: bool = True) -> dict[str, Eigh]:
    """Those that are here, the baseline first: on CUDA cuSOLVER's batched routine, which torch calls itself since 2.12.

    ``compiled``: also those that compile for each shape.
    """
    found: dict[str, Eigh | None] = {TORCH_EIGH: torch.linalg.eigh}
    if device.type == "cuda":
        found = {XSYEV: xsyev_eigh(device), **found, CUPY: cupy_eigh(), JAX: jax_eigh() if compiled else None}
    found[XITORCH] = xitorch_eigh()
    return {name: eigh for name, eigh in found.items() if eigh is not None}


def xsyev_eigh(device: torch.device) -> Eigh | None:
    """cuSOLVER's routine on a copy of the input, as torch calls it, without torch's check of the outcome, which waits."""

    def eigh(M: Tensor) -> tuple[Tensor, Tensor]:
        w, V, _ = syev.solve(M.clone(memory_format=torch.contiguous_format))
        return w, V

    return eigh if syev.obstacle(device) is None else None


def cupy_eigh() -> Eigh | None:
    package = _package("cupy")
    return None if package is None else lambda M: package.linalg.eigh(package.from_dlpack(M))


def jax_eigh() -> Eigh | None:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # it would take most of the memory from torch
    package, linalg = _package("jax"), _package("jax.numpy.linalg")
    if package is None or linalg is None:
        return None
    package.config.update("jax_enable_x64", True)
    compiled = package.jit(linalg.eigh)
    return lambda M: package.block_until_ready(compiled(package.dlpack.from_dlpack(M)))  # its stream is not torch's


def roma_procrustes() -> Root | None:
    """A -> the nearest rotation, by roma."""
    package = _package("roma")
    return None if package is None else lambda A: package.special_procrustes(A)


def roma_kabsch() -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None:
    """x, y -> R, t, by roma."""
    package = _package("roma")
    return None if package is None else lambda x, y: package.rigid_points_registration(x, y)


def xitorch() -> Method:
    eigh = xitorch_eigh()
    return Method(XITORCH, None, None) if eigh is None else from_eigenpairs(XITORCH, eigh)


def inverse_roots() -> dict[str, Root]:
    """The inverse square roots of the peers that are here."""
    return {method.name: method.inv_sqrtm for method in (torchspd(), xitorch()) if method.inv_sqrtm is not None}


def kornia_zca_of_samples(eps: float) -> Root | None:
    """X (d, n) -> (X X^T / n + eps I)^(-1/2) by kornia, which also subtracts the mean."""
    enhance = _package("kornia.enhance")

    def zca(X: Tensor) -> Tensor:
        matrix: Tensor = enhance.zca_mean(X.mT, dim=0, unbiased=False, eps=eps)[0]
        return matrix

    return None if enhance is None else zca


def kornia_whitening(eps: float) -> Root | None:
    """Maps (N, C, H, W) whitened over all channels by kornia, which takes samples (N H W, C)."""
    enhance = _package("kornia.enhance")

    def whiten(x: Tensor) -> Tensor:
        samples = x.movedim(1, -1)  # (N, H, W, C)
        white: Tensor = enhance.zca_whiten(samples.flatten(0, -2), dim=0, unbiased=False, eps=eps)
        return white.reshape(samples.shape).movedim(-1, 1)

    return None if enhance is None else whiten


def torch_inv_sqrtm(M: Tensor) -> Tensor:
    """M^(-1/2) by torch.linalg.eigh and autograd: the textbook gradient, 1/gap with no guard."""
    root = from_eigenpairs(TORCH, torch.linalg.eigh).inv_sqrtm
    assert root is not None
    return root(M)


def _ours(name: str, **options: Any) -> Method:
    return Method(f"{OURS} {name}", lambda M: sg.sqrtm(M, **options), lambda M: sg.inv_sqrtm(M, **options))


def methods() -> list[Method]:
    """Every method that has roots of matrices, or would have if it were installed. kornia has none: see `zca_of_samples`."""
    return [
        _ours("Exact", gradient=sg.Exact()),
        _ours("NewtonSchulz()", solver=sg.NewtonSchulz()),
        from_eigenpairs(TORCH, torch.linalg.eigh),
        _ours("Taylor(9)", gradient=sg.Taylor(9)),
        _ours("Lorentzian", gradient=sg.Lorentzian()),
        _ours("NewtonSchulz(steps=5)", solver=sg.NewtonSchulz(steps=5)),
        torchspd(),
        xitorch(),
    ]


def zca_of_samples(eps: float) -> dict[str, Root | None]:
    """X (d, n) of mean zero -> (X X^T / n + eps I)^(-1/2), by every method, kornia's too."""

    def through(root: Root) -> Root:
        return lambda X: root(X @ X.mT / X.shape[-1] + eps * torch.eye(X.shape[0], dtype=X.dtype))

    made = {method.name: None if method.inv_sqrtm is None else through(method.inv_sqrtm) for method in methods()}
    return {**made, KORNIA: kornia_zca_of_samples(eps)}


def label(name: str) -> str:
    """A short column head: ours without the package's name, torch's without «+ autograd».

    >>> label("spectralgrad Taylor(9)"), label(TORCH)
    ('Taylor(9)', 'torch.linalg.eigh')
    """
    return name.removeprefix(f"{OURS} ").removesuffix(" + autograd")
