"""The claim: the gradient of `sqrtm` and `inv_sqrtm` is right to rounding, ties or not. This measures it, for us and others.

Forward and backward through the public API, with a random symmetric cotangent. The error of a row is the largest
relative Frobenius error of the gradient over the batch (of its symmetric part, which is all that means something),
against references that share no code and no formula with ours: see reference.py. The input is the rounded matrix, so
the rounding of the input is nobody's error.
"""

from importlib import import_module

import numpy as np
import torch
from torch import Tensor

import spectralgrad as sg

from . import extended as ex
from . import inputs, peers, reference
from .case import Case
from .judge import Question, first
from .measure import Effort
from .on_request import MATRIX_ROOTS, SINGULAR_SAMPLES, ZCA
from .peers import Root
from .rows import Row

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
        truth, limit = first_truth[None] if batch == 1 else batch_truth, requirement(case.kind, dtype, M[:batch])
        question = Question(first(M[:batch], G[:batch]), truth, limit, symmetric=True, batch=batch, held=HELD)
        rows.append(question.row(case, functions))
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
    return [Question(first(X, G), truth, case.target, held=HELD).row(case, functions)]


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
    return [Question(first(X, G), truth, None, held=HELD).row(case, peers.zca_of_samples(SAMPLES_EPS))]


SUBJECTS = {
    "powm": "powers",
    "inv_root": "powers",
    "svd": "singular",
    "singular_map": "maps",
    "pinv": "maps",
    "nuclear_norm": "maps",
    "schatten_norm": "maps",
    "logdet": "maps",
    "generalized_eigh": "pencils",
    "second derivative": "second",
}  # the first words of a case's function, and the module that knows them: subjects.py has the cases


def check_gradients(case: Case, device: torch.device, effort: Effort) -> list[Row]:
    """A row for each size of batch, with every method's error and the requirement of ours."""
    dtype = getattr(torch, case.dtype)
    if case.function in MATRIX_ROOTS:
        return _by_matrices(case, dtype)
    if case.function == SINGULAR_SAMPLES:
        return _by_singular_samples(case)
    if case.function == ZCA:
        return _by_samples(case, dtype)
    return _in_small(case)


def _in_small(case: Case) -> list[Row]:
    """What mpmath knows the truth of. It is imported here: without it the other rows can still be had."""
    import mpmath  # type: ignore[import-untyped]  # of the extra `bench`

    from .multiprecision import DIGITS

    subject = case.function.partition(",")[0]
    with mpmath.workdps(DIGITS):
        rows: list[Row] = import_module(f"{__package__}.{SUBJECTS[subject]}").TASKS[subject](case)
    return rows
