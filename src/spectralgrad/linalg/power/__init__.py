"""The papers' power iterations: neither a rule, for they give no K, nor an eigensolver, for they bring their own gradient.

`PowerIteration` (NIPS19's SVD-PI) decomposes with a solver and differentiates by power iterations; a ``gradient=``.
`PowerDeflation` (the papers' «PI») also finds the eigenvectors by them; a ``solver=``.
"""

from .deflation import PowerDeflation
from .iteration import PowerIteration

__all__ = ["PowerDeflation", "PowerIteration"]
