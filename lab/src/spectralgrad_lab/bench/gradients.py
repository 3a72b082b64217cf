"""The claim: the gradient of `sqrtm` and `inv_sqrtm` is right to rounding, ties or not. This measures it, for us and others.

Forward and backward through the public API, with a random symmetric cotangent. The error of a row is the largest
relative Frobenius error of the gradient over the batch (of its symmetric part, which is all that means something),
against references that share no code and no formula with ours: see reference.py. The input is the rounded matrix, so
the rounding of the input is nobody's error.
"""

import warnings
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

import spectralgrad as sg

from . import extended as ex
from . import inputs, peers, reference
from .case import Case
from .measure import Effort
from .on_request import MATRIX_ROOTS, SINGULAR_SAMPLES
from .peers import Root
from .rows import Row, raised

MPMATH_UP_TO = 16
AGREEMENT = 1e-15  # between the two references, after rounding to float64
SAMPLES_EPS = 2.0**-17  # 7.6e-6, and the same number in float32 and float64
HELD = peers.EXACT  # the method of whom the requirement is asked


def requirement(kind: str, dtype: torch.dtype, M: Tensor) -> float:
    """The largest error that is allowed: float64 max(1e-10, 10 n eps kappa); float32 1e-5, and 0.15 near rank deficiency."""
    if dtype == torch.float32:
        return 0.15 if kind.startswith("rank-deficient") else 1e-5
    w = torch.linalg.eigvalsh(M)
    kappa = float((w[..., -1] / w[..., 0]).max())
    return max(1e-10, 10 * M.shape[-1] * float(torch.finfo(dtype).eps) * kappa)


def error_of(function: Root, x: Tensor, G: Tensor, truth: np.ndarray, symmetric: bool) -> float | str:
    """The largest relative error over the batch of the gradient of <G, function(x)>, or what was raised."""
    x = x.clone().requires_grad_()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # peers warn about ties; the table says it in numbers
            (gradient,) = torch.autograd.grad(function(x), x, G)
    except Exception as error:  # whatever a method raises is its result
        return raised(error)
    found = gradient.double()
    if not found.isfinite().all():
        return float("nan")
    if symmetric:
        found = (found + found.mT) / 2
    distance = np.linalg.norm(found.numpy() - truth, axis=(-2, -1)) / np.linalg.norm(truth, axis=(-2, -1))
    return float(distance.max())


def _row(
    case: Case,
    functions: Mapping[str, Root | None],
    given: tuple[Tensor, Tensor, np.ndarray],
    limit: float | None,
    *,
    batch: int = 1,
    symmetric: bool = False,
) -> Row:
    """Every method's error for input, cotangent and truth."""
    results = {name: error_of(f, *given, symmetric) for name, f in functions.items() if f is not None}
    errors = {name: error for name, error in results.items() if not isinstance(error, str)}
    return Row(
        case.section,
        case.kind,
        case.d,
        batch,
        "error",
        errors.get(HELD),
        target=limit,
        at_least=False,
        baseline=peers.TORCH,
        errors=errors,
        failed={name: error for name, error in results.items() if isinstance(error, str)},
        function=case.function,
        dtype=case.dtype,
        method=HELD,
    )


def truth_for(M: Tensor, G: Tensor, inverse: bool) -> tuple[np.ndarray, np.ndarray]:
    """The gradients (B, d, d) for a batch, and (d, d) for its first matrix alone, by mpmath where that is quick."""
    m, g = M.numpy(), G.numpy()
    batch = reference.by_refinement(ex.as_pair(m), ex.as_pair(g), inverse)[0]
    if M.shape[-1] > MPMATH_UP_TO:
        return batch, batch[0]
    first = reference.by_mpmath(m[0], g[0], inverse)
    disagreement = np.linalg.norm(first - batch[0]) / np.linalg.norm(first)
    if not disagreement <= AGREEMENT:
        raise ArithmeticError(f"the two references differ by {disagreement:.1e}; more than {AGREEMENT:.0e} is a bug in one.")
    return batch, first


def _by_matrices(case: Case, dtype: torch.dtype) -> list[Row]:
    """Gradients by M, for every size of batch."""
    M, G = inputs.matrices(case.kind, case.d, case.batch, dtype), inputs.cotangents(case.d, case.batch, dtype)
    batch_truth, first_truth = truth_for(M, G, case.function == "inv_sqrtm")
    functions = {method.name: getattr(method, case.function) for method in peers.methods()}
    rows = []
    for batch in case.batches:
        given = M[:batch], G[:batch], first_truth[None] if batch == 1 else batch_truth
        rows.append(_row(case, functions, given, requirement(case.kind, dtype, M[:batch]), batch=batch, symmetric=True))
    return rows


def _by_singular_samples(case: Case) -> list[Row]:
    """Gradients by X through (X X^T / n)^(1/2), n = d/2: the covariance is singular and nothing is added to it.

    With K = X^T X, which is regular, X X^T has the square root X K^(-1/2) X^T. So the reference is, by the product rule,
    2/sqrt(n) (G X K^(-1/2) + X H), H the gradient of <X^T G X, K^(-1/2)> by K.
    """
    n = case.d // 2
    X, G = inputs.normal(case.d, n, dtype=torch.float64), inputs.cotangents(case.d, 1, torch.float64)[0]
    x, g = ex.as_pair(X.numpy()), ex.as_pair(G.numpy())
    K, GX = ex.matmul(ex.transpose(x), x), ex.matmul(g, x)
    H = reference.by_refinement(K, ex.matmul(ex.transpose(x), GX), inverse=True)
    truth = ex.add(ex.matmul(GX, reference.inverse_root(K)), ex.matmul(x, H))[0] * (2 / n**0.5)

    roots: dict[str, Root | None] = {method.name: method.sqrtm for method in peers.methods()}
    roots[peers.EXACT] = lambda M: sg.powm(M, 0.5, gradient=sg.Exact())
    functions = {name: None if root is None else _through_covariance(root) for name, root in roots.items()}
    return [_row(case, functions, (X, G, truth), case.target)]


def _through_covariance(root: Root) -> Root:
    return lambda X: root(X @ X.mT / X.shape[-1])


def _by_samples(case: Case, dtype: torch.dtype) -> list[Row]:
    """Gradients by X through (X X^T / n + eps I)^(-1/2): where kornia can take part. No requirement is set here.

    The reference is 2/n H X with H the gradient by the covariance, which is formed with 30 digits.
    """
    X, G = inputs.samples_of(case.kind, case.d, dtype), inputs.cotangents(case.d, 1, dtype)[0]
    n = X.shape[-1]
    x, g = ex.as_pair(X.numpy()), ex.as_pair(G.numpy())
    covariance = ex.scaled(ex.matmul(x, ex.transpose(x)), 1 / n)  # n is a power of two
    shifted = ex.add(covariance, ex.as_pair(SAMPLES_EPS * np.eye(case.d)))
    truth = ex.matmul(reference.by_refinement(shifted, g, inverse=True), x)[0] * (2 / n)
    return [_row(case, peers.zca_of_samples(SAMPLES_EPS), (X, G, truth), None)]


def check_gradients(case: Case, device: torch.device, effort: Effort) -> list[Row]:
    """A row for each size of batch, with every method's error and the requirement of ours."""
    dtype = getattr(torch, case.dtype)
    if case.function in MATRIX_ROOTS:
        return _by_matrices(case, dtype)
    return _by_singular_samples(case) if case.function == SINGULAR_SAMPLES else _by_samples(case, dtype)
