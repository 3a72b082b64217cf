"""Backpropagation-friendly eigendecomposition (NeurIPS 2019)."""
