"""Matrix -> eigenpairs, forward only. `Auto` picks among them; fallback.py is the way to all of them."""

from .auto import AUTO, Auto
from .base import Solver, compilable
from .fallback import decompose, decompose_svd, eigenvalues_alone
from .jacobi import Jacobi
from .lapack import Lapack, singular_values_alone
from .svd import SVD

__all__ = [
    "AUTO",
    "SVD",
    "Auto",
    "Jacobi",
    "Lapack",
    "Solver",
    "compilable",
    "decompose",
    "decompose_svd",
    "eigenvalues_alone",
    "singular_values_alone",
]
