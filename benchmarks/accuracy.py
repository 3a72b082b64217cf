"""The claim: the gradient of `sqrtm` and `inv_sqrtm` is right to rounding, ties or not. This measures it, for us and others.

Forward and backward through the public API, with a random symmetric cotangent. The error of a row is the largest
relative Frobenius error of the gradient over the batch (of its symmetric part, which is all that means something),
against references that share no code and no formula with ours: see reference.py. The input is the rounded matrix, so
the rounding of the input is nobody's error.

Exit code 1 if spectralgrad's Exact misses a requirement, in any row.
"""

import sys
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass

import extended as ex
import inputs
import numpy as np
import peers
import record
import reference
import torch
from torch import Tensor

import spectralgrad as sg

SIZES, BATCHES = (4, 16, 64, 128), (1, 16)
QUICK_SIZES = (4, 16)
MPMATH_UP_TO = 16
AGREEMENT = 1e-15  # between the two references, after rounding to float64
SAMPLES_EPS = 2.0**-17  # 7.6e-6, and the same number in float32 and float64
LIMIT_FROM_SAMPLES = 1e-6  # powm(X X^T / n, 0.5) with n < d and no eps, float64

Error = float | str  # a relative error, NaN included, or what was raised; "-" where there is nothing to compare


@dataclass
class Row:
    """One line: what was asked, what is required of us, and every method's error."""

    function: str
    dtype: str
    case: str
    d: int
    batch: int
    limit: float | None
    errors: dict[str, Error]

    def missed_by(self, method: str) -> bool:
        error = self.errors.get(method, "-")
        if self.limit is None or error == "-":
            return False
        return isinstance(error, str) or not error <= self.limit


def requirement(case: str, dtype: torch.dtype, M: Tensor) -> float:
    """The largest error that is allowed: float64 max(1e-10, 10 n eps kappa); float32 1e-5, and 0.15 near rank deficiency."""
    if dtype == torch.float32:
        return 0.15 if case.startswith("rank-deficient") else 1e-5
    w = torch.linalg.eigvalsh(M)
    kappa = float((w[..., -1] / w[..., 0]).max())
    return max(1e-10, 10 * M.shape[-1] * float(torch.finfo(dtype).eps) * kappa)


def error_of(function: Callable[[Tensor], Tensor] | None, x: Tensor, G: Tensor, truth: np.ndarray, symmetric: bool) -> Error:
    """The largest relative error over the batch of the gradient of <G, function(x)>."""
    if function is None:
        return "-"
    x = x.clone().requires_grad_()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # peers warn about ties; the table says it in numbers
            (gradient,) = torch.autograd.grad(function(x), x, G)
    except Exception as error:  # whatever a method raises is its result
        return f"raises {type(error).__name__}"
    found = gradient.double()
    if not found.isfinite().all():
        return float("nan")
    if symmetric:
        found = (found + found.mT) / 2
    distance = np.linalg.norm(found.numpy() - truth, axis=(-2, -1)) / np.linalg.norm(truth, axis=(-2, -1))
    return float(distance.max())


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


def rows_of_matrices(dtype: torch.dtype, sizes: tuple[int, ...]) -> list[Row]:
    """Gradients by M: both functions, every case, size and batch."""
    rows = []
    for function in ("sqrtm", "inv_sqrtm"):
        for case in inputs.cases(dtype):
            for d in sizes:
                M, G = inputs.matrices(case, d, max(BATCHES), dtype), inputs.cotangents(d, max(BATCHES), dtype)
                batch_truth, first_truth = truth_for(M, G, function == "inv_sqrtm")
                for batch in BATCHES:
                    truth = first_truth[None] if batch == 1 else batch_truth
                    errors = {
                        method.name: error_of(getattr(method, function), M[:batch], G[:batch], truth, symmetric=True)
                        for method in peers.METHODS
                    }
                    limit = requirement(case, dtype, M[:batch])
                    rows.append(Row(function, _name(dtype), case, d, batch, limit, errors))
    return rows


def rows_of_singular_samples(sizes: tuple[int, ...]) -> list[Row]:
    """Gradients by X through (X X^T / n)^(1/2), n = d/2: the covariance is singular and nothing is added to it.

    With K = X^T X, which is regular, X X^T has the square root X K^(-1/2) X^T. So the reference is, by the product rule,
    2/sqrt(n) (G X K^(-1/2) + X H), H the gradient of <X^T G X, K^(-1/2)> by K.
    """
    rows = []
    for d in sizes:
        n = d // 2
        X = torch.randn(d, n, dtype=torch.float64, generator=torch.Generator().manual_seed(inputs.SEED))
        G = inputs.cotangents(d, 1, torch.float64)[0]
        x, g = ex.as_pair(X.numpy()), ex.as_pair(G.numpy())
        K, GX = ex.matmul(ex.transpose(x), x), ex.matmul(g, x)
        H = reference.by_refinement(K, ex.matmul(ex.transpose(x), GX), inverse=True)
        truth = ex.add(ex.matmul(GX, reference.inverse_root(K)), ex.matmul(x, H))[0] * (2 / n**0.5)

        functions = {method.name: method.sqrtm for method in peers.METHODS}
        functions[peers.EXACT] = lambda M: sg.powm(M, 0.5, gradient=sg.Exact())
        errors = {name: error_of(_through_covariance(f), X, G, truth, symmetric=False) for name, f in functions.items()}
        rows.append(Row("powm(X X^T/n, 0.5) by X", "float64", "n = d/2, no eps", d, 1, LIMIT_FROM_SAMPLES, errors))
    return rows


def _through_covariance(root: Callable[[Tensor], Tensor] | None) -> Callable[[Tensor], Tensor] | None:
    return None if root is None else lambda X: root(X @ X.mT / X.shape[-1])


def rows_of_zca(dtype: torch.dtype, sizes: tuple[int, ...]) -> list[Row]:
    """Gradients by X through (X X^T / n + eps I)^(-1/2): where kornia can take part. No requirement is set here.

    The reference is 2/n H X with H the gradient by the covariance, which is formed with 30 digits.
    """
    rows = []
    for case, n_of_d, make in (
        ("covariance", lambda d: 4 * d, inputs.samples),
        ("orthogonal samples", lambda d: 4 * d, inputs.orthogonal_samples),
        ("rank-deficient", lambda d: d // 2, inputs.samples),
    ):
        for d in sizes:
            n = n_of_d(d)
            X, G = make(d, n, dtype), inputs.cotangents(d, 1, dtype)[0]
            x, g = ex.as_pair(X.numpy()), ex.as_pair(G.numpy())
            covariance = ex.scaled(ex.matmul(x, ex.transpose(x)), 1 / n)  # n is a power of two
            shifted = ex.add(covariance, ex.as_pair(SAMPLES_EPS * np.eye(d)))
            truth = ex.matmul(reference.by_refinement(shifted, g, inverse=True), x)[0] * (2 / n)
            functions = {method.name: peers.zca_of_samples(method, SAMPLES_EPS) for method in peers.METHODS}
            functions[peers.KORNIA] = peers.kornia_zca_of_samples(SAMPLES_EPS)
            errors = {name: error_of(f, X, G, truth, symmetric=False) for name, f in functions.items()}
            rows.append(Row("ZCA matrix by X", _name(dtype), f"{case} + 2^-17", d, 1, None, errors))
    return rows


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _cell(row: Row, method: str) -> str:
    error = row.errors.get(method, "-")
    text = error if isinstance(error, str) else "NaN" if error != error else f"{error:.1e}"
    return text + (" !" if row.missed_by(method) else "")


def report(rows: list[Row]) -> str:
    """The rows as Markdown: a summary, then one table for each function and dtype."""
    names = [method.name for method in peers.METHODS] + [peers.KORNIA]
    counted = [row for row in rows if row.limit is not None]
    summary = []
    for name in names:
        errors = [row.errors.get(name, "-") for row in counted]
        tried = [error for error in errors if error != "-"]
        summary.append(
            [
                name,
                str(len(tried)),
                str(len(tried) - sum(row.missed_by(name) for row in counted)),
                str(sum(isinstance(error, float) and not np.isfinite(error) for error in tried)),
                str(sum(isinstance(error, str) for error in tried)),
            ]
        )
    parts = [
        "`!`: misses the requirement. NaN: the gradient holds NaN or Inf. `-`: not installed, or has no such function. "
        "A column without a package's name is spectralgrad's.",
        record.table(["method", "rows", "within the requirement", "NaN", "raises"], summary),
    ]
    for function, dtype in dict.fromkeys((row.function, row.dtype) for row in rows):
        some = [row for row in rows if (row.function, row.dtype) == (function, dtype)]
        shown = [name for name in names if any(name in row.errors for row in some)]
        lines = [
            [row.case, str(row.d), str(row.batch), "-" if row.limit is None else f"{row.limit:.1e}"]
            + [_cell(row, name) for name in shown]
            for row in some
        ]
        parts += [f"## {function}, {dtype}", record.table(["case", "d", "B", "required", *map(peers.label, shown)], lines)]
    return "\n\n".join(parts)


def main() -> int:
    options = record.arguments("Error of gradients against references of higher precision.").parse_args()
    about = record.circumstances()
    sizes = QUICK_SIZES if options.quick else SIZES
    rows = rows_of_singular_samples(sizes)
    for dtype in (torch.float64, torch.float32):
        rows += rows_of_matrices(dtype, sizes)
    for dtype in (torch.float64, torch.float32):
        rows += rows_of_zca(dtype, sizes)
    markdown = f"# Relative error of the gradient\n\n{record.describe(about)}\n\n{report(rows)}"
    print(markdown)
    if options.write:
        print("\nwrote", *record.write(options.write, "accuracy", about, [asdict(row) for row in rows], markdown))
    missed = [row for row in rows if row.missed_by(peers.EXACT)]
    for row in missed:
        print(f"MISSED by {peers.EXACT}: {row.function}, {row.dtype}, {row.case}, d = {row.d}, B = {row.batch}:", end=" ")
        print(f"{_cell(row, peers.EXACT)} > {row.limit:.1e}")
    print(f"\n{peers.EXACT}: {len(missed)} of {sum(row.limit is not None for row in rows)} requirements missed.")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
