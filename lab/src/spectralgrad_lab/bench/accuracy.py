"""The accuracy of what is timed: LAPACK's ratios, and the error of every eigenvalue relative to itself.

With |.| the 1-norm, eps that of float32, and everything after the decomposition in float64:

    residual       |M V - V L| / (n eps |M|)
    orthogonality  |V^T V - I| / (n eps)
    eigenvalues    max_i |l_i - l_i*| / l_i*,   l* by float64 LAPACK on the CPU, of the matrix as rounded to float32

The small eigenvalues of a badly scaled matrix D C D are determined to high relative accuracy by its entries; those of a
rotated one only to about eps times the condition number, which is what its wider limit says.
"""

from collections.abc import Callable

import torch
from torch import Tensor

import spectralgrad as sg

from .case import Case
from .cases import ACCURACY
from .inputs import badly_scaled, covariances, rotated
from .measure import Effort
from .peers import OURS, TORCH_EIGH, Eigh
from .rows import Row, raised

TORCH_UP_TO = 256  # matrices: torch's own figures come from so many at most, to spare minutes
REFERENCES = 64  # matrices of a batch whose eigenvalues are compared, evenly spread over it


def lapack_ratios(M: Tensor, w: Tensor, V: Tensor) -> tuple[float, float]:
    """The worst residual and the worst loss of orthogonality of a batch (B, n, n).

    >>> w, V = torch.linalg.eigh(2 * torch.eye(3).expand(2, 3, 3))
    >>> lapack_ratios(2 * torch.eye(3).expand(2, 3, 3), w, V)
    (0.0, 0.0)
    """
    unit = M.shape[-1] * torch.finfo(M.dtype).eps
    M, w, V = M.double(), w.double(), V.double()
    one_norm = torch.linalg.matrix_norm
    residual = one_norm(M @ V - V * w.unsqueeze(-2), ord=1) / (unit * one_norm(M, ord=1))
    gram = V.mT @ V - torch.eye(V.shape[-1], dtype=V.dtype, device=V.device)
    return float(residual.max()), float(one_norm(gram, ord=1).max() / unit)


def relative_error(M: Tensor, w: Tensor) -> float:
    """The worst relative error of eigenvalues w (B, n) of positive definite M (B, n, n).

    >>> M = torch.diag(torch.tensor([1.0, 4.0]))[None]
    >>> relative_error(M, torch.tensor([[1.1, 4.0]]))  # doctest: +ELLIPSIS
    0.10000...
    """
    some = torch.linspace(0, len(M) - 1, min(len(M), REFERENCES)).round().long()
    exact = torch.linalg.eigvalsh(M[some.to(M.device)].cpu().double())
    return float(((w[some.to(w.device)].cpu().double() - exact) / exact).abs().max())


def errors(eigh: Eigh, d: int, batches: tuple[int, ...], device: torch.device) -> dict[str, float]:
    """The worst of each figure over the batches, each of them solved by itself: the size decides how."""
    worst = dict.fromkeys(ACCURACY, 0.0)

    def keep(name: str, value: float) -> None:
        if worst[name] == worst[name] and not value <= worst[name]:  # NaN enters, and stays
            worst[name] = value

    for make in (covariances, badly_scaled, rotated):
        M = make(d, max(batches), device)
        for batch in batches:
            w, V = eigh(M[:batch])
            if make is covariances:
                residual, orthogonality = lapack_ratios(M[:batch], w, V)
                keep("residual", residual)
                keep("orthogonality", orthogonality)
            else:
                keep("eigenvalues, scaled" if make is badly_scaled else "eigenvalues, rotated", relative_error(M[:batch], w))
    return worst


def check_eigh(case: Case, device: torch.device, effort: Effort) -> list[Row]:
    """A row for each figure, with torch's beside ours."""
    solvers: dict[str, tuple[Callable[[Tensor], tuple[Tensor, Tensor]], tuple[int, ...]]] = {
        OURS: (sg.eigh, case.batches),
        TORCH_EIGH: (torch.linalg.eigh, tuple(dict.fromkeys(min(batch, TORCH_UP_TO) for batch in case.batches))),
    }
    found, failed = {}, {}
    for name, (solve, batches) in solvers.items():
        try:
            found[name] = errors(solve, case.d, batches, device)
        except sg.errors.LinAlgError as error:  # cuSOLVER gives up on some; that is torch's result, and never ours
            if name == OURS:
                raise
            failed[name] = raised(error)
    return [
        Row(
            case.section,
            name,
            case.d,
            case.batch,
            "error",
            found[OURS][name],
            target=limit,
            at_least=False,
            baseline=TORCH_EIGH,
            errors={method: by_name[name] for method, by_name in found.items()},
            failed=failed,
        )
        for name, limit in ACCURACY.items()
    ]
