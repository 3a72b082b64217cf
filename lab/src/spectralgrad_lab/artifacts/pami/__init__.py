"""Robust differentiable SVD (PAMI)."""
