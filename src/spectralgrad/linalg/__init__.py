"""Differentiable linear algebra: solvers, gradient rules, spectral functions."""
