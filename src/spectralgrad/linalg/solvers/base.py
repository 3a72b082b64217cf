"""What a solver is."""

from abc import ABC, abstractmethod
from typing import TypeVar

from torch import Tensor


class Solver(ABC):
    """Hermitian matrices (*B, n, n) -> eigenvalues (*B, n), ascending, and orthonormal eigenvectors (*B, n, n).

    Forward only: the gradient is the rule's business. A solver may raise `torch.linalg.LinAlgError` or return
    non-finite values; the fallback chain deals with both.

    >>> import torch, spectralgrad as sg
    >>> class Plain(sg.Solver):
    ...     def solve(self, H):
    ...         return torch.linalg.eigh(H)
    >>> sg.sqrtm(torch.diag(torch.tensor([4.0, 9.0])), solver=Plain()).diagonal()
    tensor([2., 3.])
    """

    @abstractmethod
    def solve(self, H: Tensor) -> tuple[Tensor, Tensor]:
        """Decompose; ``H`` is finite and Hermitian, with n >= 1 and at least one matrix."""

    def solve_from(self, H: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        """`solve` with a guess of the eigenvectors (*B, n, n), which may be bad; those that cannot use it ignore it."""
        return self.solve(H)

    def choose(self, H: Tensor) -> "Solver":
        """The solver that `solve` will use for this matrix."""
        return self

    def solve_if_hermitian(self, M: Tensor) -> tuple[Tensor, Tensor] | None:
        """Eigenpairs, if ``M`` is Hermitian to the last bit and they are finite; None leaves solving to the caller."""
        return None

    def values_if_hermitian(self, M: Tensor) -> Tensor | None:
        """Eigenvalues alone, if `solve_if_hermitian` would solve it and they take less time; None leaves them to that."""
        return None

    def solve_anything(self, M: Tensor, start: Tensor | None = None) -> tuple[Tensor, Tensor] | None:
        """Eigenpairs of the Hermitian part of any ``M``, NaN and counted where it is not finite; None if it cannot do that.

        ``start`` is a guess of the eigenvectors (*B, n, n).
        """
        return None

    def triplets(self, A: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        """U, S, Vh of any real ``A`` (*B, m, n), NaN and counted where it is not finite; None leaves them to torch."""
        return None


COMPILABLE: dict[str, type[Solver]] = {}  # by name: under torch.compile a solver travels as its name and its options
_Kind = TypeVar("_Kind", bound=type[Solver])


def compilable(kind: _Kind) -> _Kind:
    """Let a solver, a dataclass of whole numbers, be used under torch.compile."""
    COMPILABLE[kind.__name__] = kind
    return kind
