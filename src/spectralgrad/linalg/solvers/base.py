"""What a solver is."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor


class Solver(ABC):
    """Hermitian matrices (*B, n, n) -> eigenvalues (*B, n), ascending, and orthonormal eigenvectors (*B, n, n).

    Forward only: the gradient is the rule's business. A solver may raise `torch.linalg.LinAlgError` or return
    non-finite values; the fallback chain deals with both.
    """

    @abstractmethod
    def solve(self, H: Tensor) -> tuple[Tensor, Tensor]:
        """Decompose; ``H`` is finite and Hermitian, with n >= 1 and at least one matrix."""

    def choose(self, H: Tensor) -> "Solver":
        """The solver that `solve` will use for this matrix."""
        return self

    def solve_if_hermitian(self, M: Tensor) -> tuple[Tensor, Tensor] | None:
        """Eigenpairs, if ``M`` is Hermitian to the last bit and they are finite; None leaves the checks to the caller.

        For solvers that can look at a share of a batch while it is in the cache, in the thread that solves it.
        """
        return None

    def solve_anything(self, M: Tensor, start: Tensor | None = None) -> tuple[Tensor, Tensor] | None:
        """Eigenpairs of the Hermitian part of any ``M``, NaN and counted where it is not finite; None if it cannot do that.

        ``start`` is a guess of the eigenvectors (*B, n, n).
        """
        return None


def binary_scale(H: Tensor) -> Tensor:
    """A power of two (*B, 1, 1) near the largest entry: dividing by it is exact, and squares are safe after it."""
    largest = H.abs().amax((-2, -1), keepdim=True)
    return torch.exp2(torch.frexp(largest).exponent.to(largest.dtype) - 1)
