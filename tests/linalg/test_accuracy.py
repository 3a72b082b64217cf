"""Gradients of the spectral functions against references that use no eigensolver.

`exact_case` builds matrices whose eigenvectors are a Hadamard matrix and whose eigenvalues are short binary fractions:
M is then a float64 matrix without any rounding, with eigenpairs known exactly. Its Loewner matrix is the plain difference
quotient in 60 digits.
"""

import functools
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
import scipy.linalg
import torch
from torch import Tensor

import spectralgrad as sg
from support.cases import eps, random, random_covariance, relative_error

SIZES = [4, 16, 64, 128]
SCALAR = {
    "sqrtm": (lambda x: mpmath.sqrt(x), lambda x: 1 / (2 * mpmath.sqrt(x))),
    "inv_sqrtm": (lambda x: 1 / mpmath.sqrt(x), lambda x: -1 / (2 * x * mpmath.sqrt(x))),
    "powm(0.3)": (lambda x: x ** mpmath.mpf(0.3), lambda x: mpmath.mpf(0.3) * x ** (mpmath.mpf(0.3) - 1)),
    "powm(-1.7)": (lambda x: x ** mpmath.mpf(-1.7), lambda x: mpmath.mpf(-1.7) * x ** (mpmath.mpf(-1.7) - 1)),
    "logm": (mpmath.log, lambda x: 1 / x),
    "expm": (mpmath.exp, mpmath.exp),
    "spectral_map": (lambda x: mpmath.sin(x) + x**3, lambda x: mpmath.cos(x) + 3 * x**2),
}
LIBRARY: dict[str, Callable[[Tensor], Tensor]] = {
    "sqrtm": sg.sqrtm,
    "inv_sqrtm": sg.inv_sqrtm,
    "powm(0.3)": lambda M: sg.powm(M, 0.3),
    "powm(-1.7)": lambda M: sg.powm(M, -1.7),
    "logm": sg.logm,
    "expm": sg.expm,
    "spectral_map": lambda M: sg.spectral_map(M, lambda x: torch.sin(x) + x**3),
}
ROOTS = ["sqrtm", "inv_sqrtm"]


def binary(w: Tensor, bits: int) -> Tensor:
    """Rounded to multiples of 2^-bits."""
    return (w * 2.0**bits).round() / 2.0**bits


def spectrum(name: str, n: int) -> Tensor:
    if name == "identity":
        return torch.ones(n, dtype=torch.float64)
    if name == "separated":
        return binary(torch.linspace(0.5, 2, n, dtype=torch.float64), 12)
    if name == "repeated":
        return binary(torch.linspace(0.5, 2, n, dtype=torch.float64), 1).clamp(min=0.5)
    if name == "gaps of 1e-12":
        return binary(torch.linspace(0.5, 2, n // 2, dtype=torch.float64), 8).repeat_interleave(2) + 2.0**-40 * (
            torch.arange(n) % 2
        )
    if name == "rank-deficient + 1e-5":
        w = binary(torch.linspace(0, 2, n, dtype=torch.float64), 8)
        w[: n // 2] = 0
        return w + 2.0**-17
    kappa = {"kappa 1e4": 13, "kappa 1e8": 27, "kappa 1e12": 40}[name]
    return 2.0 ** -torch.linspace(kappa, 0, n, dtype=torch.float64).round()


SPECTRA = ["identity", "separated", "repeated", "gaps of 1e-12", "rank-deficient + 1e-5"]
GRADED = ["kappa 1e4", "kappa 1e8", "kappa 1e12"]


@functools.cache
def exact_case(function: str, name: str, n: int, scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """M without rounding, a random symmetric cotangent, and the exact gradient of <G, f(M)>."""
    H = torch.tensor(scipy.linalg.hadamard(n), dtype=torch.float64)
    w = spectrum(name, n) * scale
    M = (H * w) @ H.mT / n
    G = random(n, n, seed=n)
    G = G + G.mT
    f, slope = SCALAR[function]
    values, index = w.unique(return_inverse=True)
    with mpmath.workdps(60):
        x = [mpmath.mpf(float(v)) for v in values]
        y = [f(v) for v in x]
        F = [[float(slope(a) if i == j else (y[i] - y[j]) / (a - b)) for j, b in enumerate(x)] for i, a in enumerate(x)]
    loewner = torch.tensor(F, dtype=torch.float64)[index][:, index]
    inner = loewner.numpy().astype(np.longdouble) * (H.mT @ G @ H / n).numpy()
    reference = H.numpy() @ inner @ H.numpy().T / n
    return M, G, torch.from_numpy(reference.astype(np.float64))


def gradient(f: Callable[[Tensor], Tensor], M: Tensor, G: Tensor) -> Tensor:
    M = M.clone().requires_grad_()
    return torch.autograd.grad((f(M) * G.to(M.dtype)).sum(), M)[0]


def allowed(name: str, n: int) -> float:
    w = spectrum(name, n)
    return max(1e-10, 10 * n * eps(torch.float64) * float(w.max() / w.min()))


@pytest.mark.covering(2)
@pytest.mark.parametrize("scale", [1.0, 2.0**-27, 2.0**27], ids=["1", "1e-8", "1e+8"])
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", SPECTRA + GRADED)
@pytest.mark.parametrize("function", ROOTS)
def test_roots_in_float64(function, name, n, scale):
    M, G, reference = exact_case(function, name, n, scale)
    limit = allowed(name, n)
    assert relative_error(gradient(LIBRARY[function], M, G), reference) <= limit
    batch = gradient(LIBRARY[function], M.expand(16, n, n).contiguous(), G.expand(16, n, n))
    assert max(relative_error(g, reference) for g in batch) <= limit


@pytest.mark.covering(2)
@pytest.mark.parametrize("scale", [1.0, 2.0**-27, 2.0**27], ids=["1", "1e-8", "1e+8"])
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize("function", ROOTS)
def test_roots_in_float32(function, name, n, scale):
    M, G, reference = exact_case(function, name, n, scale)
    limit = 1.5e-1 if "rank" in name else 1e-5
    assert relative_error(gradient(LIBRARY[function], M.float(), G), reference) <= limit
    batch = gradient(LIBRARY[function], M.float().expand(16, n, n).contiguous(), G.expand(16, n, n))
    assert max(relative_error(g, reference) for g in batch) <= limit


@pytest.mark.parametrize("n", [4, 16])
@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize("function", [name for name in LIBRARY if name not in ROOTS])
def test_other_functions(function, name, n):
    M, G, reference = exact_case(function, name, n)
    assert relative_error(gradient(LIBRARY[function], M, G), reference) <= 10 * allowed(name, n)
    if "rank" not in name:
        assert relative_error(gradient(LIBRARY[function], M.float(), G), reference) <= 1e-5


@pytest.mark.covering(2)
@pytest.mark.parametrize("batch", [1, 16])
@pytest.mark.parametrize("d", SIZES)
@pytest.mark.parametrize("function", ROOTS)
def test_random_covariance_against_sylvester(function, d, batch):
    """The gradient of M^(1/2) solves S X + X S = G: scipy's Bartels-Stewart needs no eigenvectors."""
    M = random_covariance(d, batch, seed=d)
    G = random(batch, d, d, seed=d + 1)
    G = G + G.mT
    references = []
    for m, g in zip(M.numpy(), G.numpy(), strict=True):
        S = np.real(scipy.linalg.sqrtm(m))
        if function == "inv_sqrtm":
            inverse = np.linalg.inv(S)
            g = -inverse @ g @ inverse
        references.append(torch.from_numpy(scipy.linalg.solve_sylvester(S, S, g)))
    reference = torch.stack(references)
    assert relative_error(gradient(LIBRARY[function], M, G), reference) <= 1e-10
    assert relative_error(gradient(LIBRARY[function], M.float(), G), reference) <= 1e-5


@pytest.mark.parametrize(("d", "n"), [(8, 5), (32, 9), (64, 48), (128, 20)])
def test_what_reaches_the_features_of_a_singular_covariance_is_exact(d, n):
    """d tr(G (X X^T/n)^(1/2)) / dX from the SVD of X: U (F * U^T G U) U^T 2X/n, finite on the range of X alone."""
    X = random(d, n, seed=d).requires_grad_()
    G = random(d, d, seed=1)
    G = G + G.mT
    (got,) = torch.autograd.grad((sg.powm(X @ X.mT / n, 0.5) * G).sum(), X)
    U, s, Vt = np.linalg.svd(X.detach().numpy(), full_matrices=True)
    root = np.zeros(d)
    root[:n] = s / np.sqrt(n)
    inner = U.T @ G.numpy() @ U[:, :n] / (root[:, None] + root[None, :n])  # the range on the right: never 0 + 0
    reference = torch.from_numpy(2 / n * U @ inner @ np.diag(s) @ Vt[:n])
    assert relative_error(got, reference) <= 1e-6


def test_the_check_can_fail():
    """Negative control: torch's own gradient is not even finite at a tie, and Taylor's is off where gaps are small."""
    M, G, reference = exact_case("inv_sqrtm", "repeated", 16)

    def through_torch(M: Tensor) -> Tensor:
        w, V = torch.linalg.eigh(M)
        return (V * w.rsqrt()) @ V.mT

    assert not relative_error(gradient(through_torch, M, G), reference) <= 1e-3
    assert relative_error(gradient(lambda M: sg.inv_sqrtm(M, gradient=sg.Taylor(9)), M, G), reference) > 1e-3


def test_saved_memory_is_the_eigenpairs_alone():
    n, saved = 16, []
    M = random_covariance(n, 3).requires_grad_()
    functions = [*LIBRARY.values(), sg.eigh, lambda M: sg.projector(M, rank=2)]
    for f in functions:
        saved.clear()
        with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
            out = f(M)
        storages = {x.untyped_storage().data_ptr(): x.numel() for x in saved if x.numel() > 1}
        assert sum(storages.values()) <= 3 * (n * n + n), f
        del out
