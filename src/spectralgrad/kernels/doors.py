"""Which kernel does a piece of work: a GPU's, the CPU's native one, or none; then plain torch does it.

The twins of a piece are modules with the same functions, so that a caller asks once and calls what it gets.
"""

from types import ModuleType

from torch import Tensor

from spectralgrad.context import may_launch

from . import eigenpairs, spectral
from .cpu import functions as native_functions
from .cpu import pullback as native_pullback


def of_eigenpairs(V: Tensor, *others: Tensor | None) -> ModuleType | None:
    """``pullback`` for eigenvectors (*B, n, n) like ``V``, where autograd need not see what it does to these tensors."""
    twin = eigenpairs if V.is_cuda else native_pullback
    return twin if twin.runs_on(V, *others) else None


def of_functions(V: Tensor, *others: Tensor) -> ModuleType | None:
    """``value`` and ``derivative`` of V f(w) V^T for eigenvectors (*B, n, n) like ``V``, and for these."""
    twin = spectral if V.is_cuda else native_functions
    return twin if twin.runs_on(V) and all(may_launch(x) for x in others) else None
