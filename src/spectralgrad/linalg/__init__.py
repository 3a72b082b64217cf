"""Differentiable linear algebra: solvers, gradient rules, spectral functions. docs/architecture.md shows all files.

To read it: choices.py says what the options mean; functions.py, scalars.py and elementary.py what a function of eigenvalues
is, and calculus.py how it is differentiated; eigh.py and decomposition.py do the same for eigenpairs, with a rule; solvers
and rules hold one a file. Below all of it lie scaling.py, precision.py and autograd.py.
"""
