"""Cyclic Jacobi: a kernel on CUDA (kernels/jacobi.cu), two-sided and batched in plain torch elsewhere."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from spectralgrad.counters import device_counter
from spectralgrad.errors import LinAlgError, OptionError
from spectralgrad.kernels import jacobi
from spectralgrad.validation import is_whole

from ..precision import hermitian_part, matmul
from ..scaling import exponent, shifted
from .base import Solver, compilable

# Fixed where watching would make the host wait. Measured: 10 do for every LAPACK family in float32; in float64 graded
# spectra converge by a factor of about 4 a sweep only, from 1 to eps.
_DEVICE_SWEEPS = {torch.float32: 10, torch.complex64: 10, torch.float64: 32, torch.complex128: 32}

_USABLE = 0.1  # times eps: how large the square of a starting basis's distance from orthonormal may be, as in jacobi.cu


@compilable
@dataclass(frozen=True)
class Jacobi(Solver):
    """Cyclic Jacobi rotations on n/2 disjoint pairs at a time, for all matrices of the batch at once.

    A sweep meets every pair once, in n - 1 rounds of a round-robin tournament. Each round annihilates the entries
    (p, q) of its pairs by plane rotations; convergence is quadratic in the end, 6 to 9 sweeps for most spectra and up to 30
    for graded ones. On the CPU it stops when every off-diagonal part is below rounding; elsewhere it runs a fixed number.

    Real matrices on CUDA, up to n = 512, take one kernel instead: one-sided Jacobi on a Cholesky factor, a matrix to a
    block of threads, with its own end. It is as accurate as LAPACK, and small eigenvalues of badly scaled matrices are
    accurate relative to themselves. It never makes the host wait and can be captured in a CUDA graph.

    Args:
        max_sweeps: sweeps after which the plain solver gives up and the fallback chain takes over.

    Raises:
        OptionError: max_sweeps is not a whole number >= 1.

    >>> import torch, spectralgrad as sg
    >>> w, V = sg.eigh(torch.tensor([[2.0, 1.0], [1.0, 2.0]]), solver=sg.Jacobi())
    >>> w
    tensor([1.0000, 3.0000])
    """

    max_sweeps: int = 40

    def __post_init__(self) -> None:
        if not is_whole(self.max_sweeps):
            raise OptionError(f"`Jacobi`: max_sweeps must be a whole number >= 1, got {self.max_sweeps!r}.")

    def solve_anything(self, M: Tensor, start: Tensor | None = None) -> tuple[Tensor, Tensor] | None:
        if not jacobi.runs_on(M):
            return None
        return jacobi.eigh(M, device_counter("nonfinite_input", M.device), start)

    def solve(self, H: Tensor) -> tuple[Tensor, Tensor]:
        if (pairs := self.solve_anything(H)) is not None:
            return pairs
        scale = exponent(H)
        w, V = self._plain(shifted(H, -scale), torch.eye(H.shape[-1], dtype=H.dtype, device=H.device).expand_as(H))
        return shifted(w, scale), V

    def solve_from(self, H: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        if (pairs := self.solve_anything(H, start)) is not None:
            return pairs
        scale, U = exponent(H), _orthonormal(start)
        w, V = self._plain(hermitian_part(matmul(U.mH, matmul(shifted(H, -scale), U))), U)
        return shifted(w, scale), V

    def _plain(self, A: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
        """Eigenvalues of ``A`` (*B, n, n), of scale 1, and ``V`` times its eigenvectors."""
        n, shape = A.shape[-1], A.shape
        if n % 2:  # a bye: an empty row and column that no rotation touches
            A = torch.nn.functional.pad(A, (0, 1, 0, 1))
            V = torch.nn.functional.pad(V, (0, 1))
        A, V = self._sweeps(A, V, n)
        w, order = A.diagonal(dim1=-2, dim2=-1).real[..., :n].sort(-1)
        return w, V[..., :n].gather(-1, order.unsqueeze(-2).expand(shape))

    def _sweeps(self, A: Tensor, V: Tensor, n: int) -> tuple[Tensor, Tensor]:
        watched = A.device.type == "cpu"
        seats = _next_round(A.shape[-1], A.device)
        tolerance = math.sqrt(n) * torch.finfo(A.dtype).eps * torch.linalg.matrix_norm(A)
        # Entries below this are rounding. Turning them costs orthogonality and gains nothing, above all for a matrix that
        # is done and waits for its batch mates; all of them together stay below the tolerance.
        negligible = (tolerance / n)[..., None] / math.sqrt(n)
        for _ in range(self.max_sweeps if watched else min(self.max_sweeps, _DEVICE_SWEEPS[A.dtype])):
            if watched and bool((_off_diagonal(A) <= tolerance).all()):
                return A, V
            for _ in range(max(A.shape[-1] - 1, 1)):
                A, V = _round(A, V, negligible)
                A, V = A[..., seats, :][..., seats], V[..., seats]
        if watched and bool((_off_diagonal(A) > tolerance).any()):
            raise LinAlgError(f"Jacobi did not converge in {self.max_sweeps} sweeps")
        return A, V


def _orthonormal(start: Tensor) -> Tensor:
    """The orthonormal basis (*B, n, n) next to ``start``, by one step of Newton-Schulz; I where that is too far."""
    identity = torch.eye(start.shape[-1], dtype=start.dtype, device=start.device)
    gram = matmul(start.mH, start)
    far = (gram - identity).abs().amax((-2, -1), keepdim=True)
    usable = far * far <= _USABLE * torch.finfo(start.dtype).eps  # its square is what the step leaves; not so for NaN
    return torch.where(usable, 1.5 * start - 0.5 * matmul(start, gram), identity)


def _next_round(n: int, device: torch.device) -> Tensor:
    """Where each seat's player comes from in the next round; seats i and i + n/2 play; seat 0 stays (Brent-Luk)."""
    half = n // 2
    circle = [*range(half), *range(n - 1, half - 1, -1)]  # clockwise: first half, then second half backwards
    turned = [circle[0], circle[-1], *circle[1:-1]]
    source = [0] * n
    for seat, came_from in zip(circle, turned, strict=True):
        source[seat] = came_from
    return torch.tensor(source, device=device)


def _round(A: Tensor, V: Tensor, negligible: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate the pairs (i, i + n/2) so that their off-diagonal entries vanish, if they exceed ``negligible`` (*B, 1)."""
    half = A.shape[-1] // 2
    diagonal = A.diagonal(dim1=-2, dim2=-1).real
    a_pq = A[..., :half, half:].diagonal(dim1=-2, dim2=-1)  # (*B, n/2)
    size = a_pq.abs()
    coupled = size > negligible
    safe = torch.where(coupled, size, 1)
    theta = (diagonal[..., half:] - diagonal[..., :half]) / (2 * safe)
    t = torch.where(theta >= 0, 1.0, -1.0).to(theta) / (theta.abs() + torch.hypot(theta, torch.ones_like(theta)))
    t = torch.where(coupled, t, 0)
    c = torch.rsqrt(1 + t * t)
    s = torch.where(coupled, a_pq / safe, 0) * (t * c)  # carries the phase of a_pq

    def columns(X: Tensor) -> Tensor:
        p, q = X[..., :half], X[..., half:]
        c_, s_ = c.unsqueeze(-2), s.unsqueeze(-2)
        return torch.cat([c_ * p - s_.conj() * q, s_ * p + c_ * q], -1)

    return columns(columns(A).mH).mH, columns(V)


def _off_diagonal(A: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.matrix_norm(A - torch.diag_embed(A.diagonal(dim1=-2, dim2=-1)))
    return norm
