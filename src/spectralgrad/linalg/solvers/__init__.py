"""Matrix -> eigenpairs, forward only. `choices.Auto` picks among them; fallback.py is the way to all of them."""

from .base import Solver, compilable
from .fallback import decompose, decompose_svd, eigenvalues_alone
from .jacobi import Jacobi
from .lapack import Lapack, singular_values_alone
from .svd import SVD

__all__ = [
    "SVD",
    "Jacobi",
    "Lapack",
    "Solver",
    "compilable",
    "decompose",
    "decompose_svd",
    "eigenvalues_alone",
    "singular_values_alone",
]
