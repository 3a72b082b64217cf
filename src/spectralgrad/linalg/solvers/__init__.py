"""Matrix -> eigenpairs, forward only."""

from .auto import Auto
from .base import Solver
from .fallback import decompose, decompose_svd
from .jacobi import Jacobi
from .lapack import Lapack
from .power import PowerDeflation
from .svd import SVD

__all__ = ["SVD", "Auto", "Jacobi", "Lapack", "PowerDeflation", "Solver", "decompose", "decompose_svd"]
