"""Whether the library gives right results on this machine: a few seconds, against what is known in closed form.

For `python -m spectralgrad`. It finds a broken installation, driver or compiler, not a wrong formula; that is for the tests.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

import spectralgrad as sg

TOLERANCE = {torch.float32: 5e-5, torch.float64: 1e-12}  # relative: rounding passes, TF32 and a wrong matrix do not


class Result(NamedTuple):
    """One check on one device in one dtype."""

    device: torch.device
    dtype: torch.dtype
    name: str
    passed: bool
    figure: str  # the errors that were measured, or what was raised


def results(devices: Iterable[torch.device]) -> Iterator[Result]:
    """All checks on all devices in all dtypes, one after the other."""
    for device in devices:
        for dtype in TOLERANCE:
            for name, check in CHECKS.items():
                yield _result(name, check, device, dtype)


def _result(name: str, check: "Check", device: torch.device, dtype: torch.dtype) -> Result:
    try:
        errors = {what: float(error) for what, error in check(device, dtype).items()}
    except Exception as error:  # whatever it is, the other checks go on
        lines = str(error).splitlines() or [""]
        return Result(device, dtype, name, False, f"{type(error).__name__}: {lines[0]}")
    passed = all(error <= TOLERANCE[dtype] for error in errors.values())  # NaN does not
    return Result(device, dtype, name, passed, ", ".join(f"{what} {error:.1e}" for what, error in errors.items()))


def gradient_at_a_tie(device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
    """d<G, M^(-1/2)>/dM for the eigenvalues 4, 4 and 9, where 1/gap is infinite.

    It is V (F * (V^T G V)) V^T for a symmetric G, with F_ij = -1 / (a b (a + b)), a and b the roots 2, 2, 3.
    """
    G, V = _normal(3, 3, seed=0), torch.linalg.qr(_normal(3, 3, seed=1))[0]
    G = G + G.mT
    F = -1 / torch.tensor([[16.0, 16, 30], [16, 16, 30], [30, 30, 54]], dtype=torch.float64)
    expected = V @ (F * (V.mT @ G @ V)) @ V.mT
    M = (V * torch.tensor([4.0, 4, 9], dtype=torch.float64)) @ V.mT
    M = ((M + M.mT) / 2).to(device, dtype).requires_grad_()
    (sg.inv_sqrtm(M) * G.to(device, dtype)).sum().backward()
    assert M.grad is not None
    return {"error": _relative(M.grad, expected)}


def eigenpairs(device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
    """M V = V diag(w) and V^T V = I, for a batch of 8 matrices of 32 rows."""
    M = _normal(8, 32, 32, seed=2)
    M = (M + M.mT) / 2
    w, V = (x.cpu().double() for x in sg.eigh(M.to(device, dtype)))
    identity = torch.eye(32, dtype=torch.float64)
    return {
        "residual": torch.linalg.matrix_norm(M.to(dtype).double() @ V - V * w.unsqueeze(-2)).max() / _norm(M),
        "orthogonality": torch.linalg.matrix_norm(V.mT @ V - identity).max() / _norm(identity),
    }


def whitening(device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
    """A training step of a layer: its output has covariance I, and does not change with a shift or scale of its input."""
    layer = sg.nn.DecorrelatedBatchNorm2d(
        16, group_size=8, eps=torch.finfo(dtype).eps, affine=False, device=device, dtype=dtype
    )
    mixed = torch.einsum("ij,njhw->nihw", _normal(16, 16, seed=3) / 8 + torch.eye(16), _normal(32, 16, 4, 4, seed=4))
    x = (mixed + 1).to(device, dtype).requires_grad_()
    y = layer(x)
    (y * _normal(*y.shape, seed=5).to(device, dtype)).sum().backward()
    assert x.grad is not None
    samples = y.detach().cpu().double().movedim(1, 0).reshape(2, 8, -1)  # (groups, channels, samples)
    samples = samples - samples.mean(-1, keepdim=True)
    covariance = samples @ samples.mT / samples.shape[-1]
    gradient, given = x.grad.cpu().double(), x.detach().cpu().double()
    return {
        "covariance": torch.linalg.matrix_norm(covariance - torch.eye(8)).max() / 8**0.5,
        # Derivatives along both; NaN, not 0, for a gradient that is 0.
        "shift": gradient.sum((0, 2, 3)).norm() / gradient.norm(),
        "scale": (gradient * given).sum().abs() / (gradient.norm() * given.norm()),
    }


Check = Callable[[torch.device, torch.dtype], dict[str, Tensor]]
CHECKS: dict[str, Check] = {
    "gradient of inv_sqrtm at a tie": gradient_at_a_tie,
    "eigh": eigenpairs,
    "whitening layer": whitening,
}


def _normal(*shape: int, seed: int) -> Tensor:
    """The same numbers on every machine with one torch, in float64 on the CPU; the global generator is left alone."""
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _relative(x: Tensor, expected: Tensor) -> Tensor:
    error: Tensor = (x.cpu().double() - expected).norm() / expected.norm()
    return error


def _norm(x: Tensor) -> Tensor:
    """Of the smallest matrix of a batch."""
    smallest: Tensor = torch.linalg.matrix_norm(x).min()
    return smallest
