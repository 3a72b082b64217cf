"""Roots and polar factors by matrix products alone: no eigenvalues, so neither a rule nor an eigensolver.

`NewtonSchulz` is the ``solver=`` that chooses them. minimax.py finds the steps, iteration.py says which matrices go on,
roots.py and polar.py take them; lyapunov.py solves for their gradients, by way of inverse.py.
"""

from .newton_schulz import NewtonSchulz

__all__ = ["NewtonSchulz"]
