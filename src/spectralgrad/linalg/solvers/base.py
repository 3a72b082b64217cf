"""What a solver is."""

from abc import ABC, abstractmethod

from torch import Tensor


class Solver(ABC):
    """Hermitian matrices (*B, n, n) -> eigenvalues (*B, n), ascending, and orthonormal eigenvectors (*B, n, n).

    Forward only: the gradient is the rule's business. A solver may raise `torch.linalg.LinAlgError` or return
    non-finite values; the fallback chain deals with both.
    """

    @abstractmethod
    def solve(self, H: Tensor) -> tuple[Tensor, Tensor]:
        """Decompose; ``H`` is finite and Hermitian, with n >= 1 and at least one matrix."""
